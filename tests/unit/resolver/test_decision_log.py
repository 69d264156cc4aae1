"""One line for each batch that a resolver decided, and no more than anybody reads."""

import pytest
import structlog

from hoss.v1.resolver_pb2 import ProposalBatch, Verdict, VerdictBatch
from resolver.api.proposing import DecisionLogger

BATCH = ProposalBatch(
    worker="w1", batch_id=3, shard=1, snapshot_seq=7, traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01"
)
WELL = VerdictBatch(verdicts=bytes([Verdict.COMMITTED, Verdict.DUPLICATE]), seq=9)
REFUSED = VerdictBatch(
    verdicts=bytes([Verdict.COMMITTED, Verdict.CONFLICT_PORT]),
    seq=9,
    parts=[VerdictBatch(verdicts=bytes([Verdict.CONFLICT_RESOURCE] * 2))],
)


@pytest.fixture
def told():
    with structlog.testing.capture_logs() as lines:
        yield lines


def test_the_level_is_by_what_came_of_the_batch_and_the_line_names_its_trace(told):
    log = DecisionLogger(structlog.get_logger())
    for answer in (WELL, REFUSED, VerdictBatch(invalid="uids: none"), VerdictBatch(unavailable="no Redis")):
        log.decided(BATCH, answer, 100.0)
    assert [line["log_level"] for line in told] == ["debug", "info", "warning", "debug"]
    assert [line["pods"] for line in told] == [2, 4, 0, 0]
    assert told[1]["refusals"] == {"CONFLICT_RESOURCE": 2, "CONFLICT_PORT": 1}
    assert (told[2]["invalid"], told[3]["unavailable"]) == ("uids: none", "no Redis")
    for line in told:
        assert (line["event"], line["worker"], line["batch"], line["shard"]) == ("decided", "w1", 3, 1)
        assert (line["trace_id"], line["span_id"]) == ("ab" * 16, "cd" * 8)


def test_of_many_refusals_some_are_told_and_then_how_many_were_not(told):
    log = DecisionLogger(structlog.get_logger())
    for _ in range(100):
        log.decided(BATCH, REFUSED, 100.0)
    assert len(told) == 20
    log.decided(BATCH, REFUSED, 101.0)
    assert len(told) == 21
    assert told[-1]["left_out"] == 80
    log.decided(BATCH, REFUSED, 101.0)
    assert "left_out" not in told[-1]
