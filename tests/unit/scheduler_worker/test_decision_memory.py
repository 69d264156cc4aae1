"""What a worker remembers of its decisions, for whoever asks soon."""

import numpy as np

from hoss.v1.resolver_pb2 import ProposalBatch, Verdict, VerdictBatch
from hoss.v1.workerlink_pb2 import DecisionQuestion
from hoss.wire.columns import NONE_U32
from scheduler_worker.decision_log import DecisionLog


def uid(number: int) -> bytes:
    return b"prefix-of-12" + number.to_bytes(4, "big")


def decided(first: int, codes: list[int], *, seq: int = 5) -> tuple[ProposalBatch, VerdictBatch]:
    pods = len(codes)
    nodes = np.array([[10 * i, 10 * i + 1, NONE_U32] for i in range(pods)], "<u4")
    proposal = ProposalBatch(
        uids=b"".join(uid(first + i) for i in range(pods)),
        candidates=3,
        nodes=nodes.tobytes(),
        snapshot_seq=4,
        shard=1,
    )
    return proposal, VerdictBatch(verdicts=bytes(codes), nodes=nodes[:, 0].tobytes(), seq=seq)


def test_a_pods_decisions_are_told_in_order_with_alternates_and_verdict():
    book = DecisionLog("w1")
    book.add(*decided(0, [Verdict.COMMITTED, Verdict.CONFLICT_RESOURCE]), 1.5)
    book.add(*decided(1, [Verdict.COMMITTED], seq=9), 2.5)
    answer = book.answer(DecisionQuestion(id=3, uid=uid(1)))
    assert answer.id == 3
    refused, placed = answer.decisions
    assert (refused.worker, refused.at_unix_ms, refused.verdict, refused.seq) == (
        "w1",
        1500,
        "CONFLICT_RESOURCE",
        0,
    )
    assert (list(refused.candidates), refused.snapshot_seq, refused.shard) == ([10, 11], 4, 1)
    assert (placed.at_unix_ms, placed.verdict, placed.node, placed.seq) == (2500, "COMMITTED", 0, 9)


def test_a_pod_that_was_never_proposed_has_none_and_neither_has_one_that_straddles_two():
    book = DecisionLog("w1")
    book.add(*decided(0, [Verdict.COMMITTED] * 3), 1.0)
    straddling = (uid(0) + uid(1))[4:20]
    assert not book.answer(DecisionQuestion(uid=uid(7))).decisions
    assert not book.answer(DecisionQuestion(uid=straddling)).decisions


def test_the_parts_of_a_proposal_and_an_invalid_one_are_remembered_as_far_as_they_were_decided():
    book = DecisionLog("w1")
    proposal, verdict = decided(0, [Verdict.COMMITTED])
    part, of_part = decided(1, [Verdict.GANG_ABORTED])
    proposal.parts.append(part)
    verdict.parts.append(of_part)
    book.add(proposal, verdict, 1.0)
    book.add(decided(2, [Verdict.COMMITTED])[0], VerdictBatch(invalid="malformed"), 1.0)
    verdicts = [[d.verdict for d in book.answer(DecisionQuestion(uid=uid(i))).decisions] for i in range(3)]
    assert verdicts == [["COMMITTED"], ["GANG_ABORTED"], []]


def test_what_is_remembered_is_bounded_by_pods():
    book = DecisionLog("w1", most_pods=4)
    for first in (0, 3, 6):
        book.add(*decided(first, [Verdict.COMMITTED] * 3), 1.0)
    remembered = [i for i in range(9) if book.answer(DecisionQuestion(uid=uid(i))).decisions]
    assert remembered == [6, 7, 8]
