"""W3C Trace Context as messages carry it."""

import pytest

from hoss.telemetry.context import calls_belong_to, metadata, new_trace, read_traceparent


@pytest.mark.parametrize("kept", [True, False])
def test_a_context_is_read_as_it_was_written(kept):
    context = new_trace(kept=kept)
    assert read_traceparent(str(context)) == context
    assert str(context).endswith("-01" if kept else "-00")
    assert context.child().trace_id == context.trace_id
    assert context.child().span_id != context.span_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{'1' * 16}-01",  # a trace id of zeros is none
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",  # a version that never will be
        f"00-{'1' * 31}-{'1' * 16}-01",
        f"00-{'g' * 32}-{'1' * 16}-01",
    ],
)
def test_an_unreadable_context_counts_as_absent(text):
    assert read_traceparent(text) is None


def test_a_later_version_with_more_fields_is_read():
    assert read_traceparent(f"01-{'1' * 32}-{'2' * 16}-01-more") is not None


def test_calls_carry_the_context_within_the_block_alone():
    assert metadata() is None
    with calls_belong_to("00-x"):
        assert metadata() == (("traceparent", "00-x"),)
    assert metadata() is None
