"""One line for each batch that was decided."""

import structlog

from hoss.telemetry import configure
from hoss.v1.resolver_pb2 import ProposalBatch, Verdict, VerdictBatch
from scheduler_worker.decision_log import log_decision

TRACEPARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


def line(codes: list[int], *parts: list[int], traceparent: str = "") -> dict:
    proposal = ProposalBatch(batch_id=3, shard=1, snapshot_seq=7, traceparent=traceparent)
    verdict = VerdictBatch(
        verdicts=bytes(codes), seq=9, parts=[VerdictBatch(verdicts=bytes(part)) for part in parts]
    )
    with structlog.testing.capture_logs() as told:
        log_decision(structlog.get_logger(), "w1", proposal, verdict)
    (entry,) = told
    return entry


def test_a_batch_that_went_well_is_a_line_at_debug():
    entry = line([Verdict.COMMITTED, Verdict.DUPLICATE])
    assert (entry["event"], entry["log_level"], entry["pods"], entry["refused"]) == ("decided", "debug", 2, 0)
    assert (entry["worker"], entry["batch"], entry["snapshot_seq"], entry["seq"]) == ("w1", 3, 7, 9)
    assert "trace_id" not in entry


def test_a_batch_with_refusals_is_a_line_at_info_that_says_which_over_all_parts():
    entry = line([Verdict.COMMITTED, Verdict.CONFLICT_PORT], [Verdict.CONFLICT_RESOURCE] * 2)
    assert (entry["log_level"], entry["pods"], entry["refused"]) == ("info", 4, 3)
    assert entry["refusals"] == {"CONFLICT_RESOURCE": 2, "CONFLICT_PORT": 1}


def test_a_line_names_the_trace_that_its_batch_is_in():
    entry = line([Verdict.COMMITTED], traceparent=TRACEPARENT)
    assert (entry["trace_id"], entry["span_id"]) == ("ab" * 16, "cd" * 8)


def test_a_style_of_logs_that_is_not_known_is_told(monkeypatch, capsys):
    monkeypatch.setenv("HOSS_LOG", "colour")
    try:
        configure("tests")
        assert '"log_style_unknown"' in capsys.readouterr().err
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
