"""What `hoss plugin check-scheduler` says of the messages of a scheduler: nothing of honest ones, and a
sentence for each kind of lie."""

import numpy as np
import pytest

from hoss.v1 import resolver_pb2 as rpb
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import U8, U32, encode
from hossctl.checking.protocol import ProtocolObserver

EPOCH, BATCH, NODE = 5, 7, 3
UIDS = [bytes([number] * 16) for number in range(1, 4)]


@pytest.fixture
def observer():
    """Of a scheduler that is registered and got three pods."""
    observer = ProtocolObserver("mine")
    observer.sent(pb.WorkerMessage(register=pb.Register(name="mine")))
    observer.received(pb.DispatcherMessage(welcome=pb.Welcome(epoch=EPOCH)))
    observer.received(pb.DispatcherMessage(work=pb.WorkBatch(batch_id=BATCH, uids=b"".join(UIDS))))
    return observer


def propose(observer, *, epoch=EPOCH, worker="mine", verdict=rpb.COMMITTED):
    observer.proposed(rpb.ProposalBatch(worker=worker, epoch=epoch, batch_id=1, uids=b"".join(UIDS)))
    observer.judged(
        rpb.VerdictBatch(batch_id=1, verdicts=encode([verdict] * 3, U8), nodes=encode([NODE] * 3, U32))
    )


def report(observer, positions, *, code=pb.OUTCOME_BOUND, node=NODE, batch=BATCH, texts=()):
    rows = len(positions)
    outcomes = pb.Outcomes(
        batch_id=batch,
        positions=encode(positions, U32),
        codes=encode(np.full(rows, code), U8),
        nodes=encode(np.full(rows, node), U32),
        reason_texts=texts,
    )
    observer.sent(pb.WorkerMessage(outcomes=outcomes))


def test_honest_messages_are_no_problem(observer):
    propose(observer)
    report(observer, [0, 2])
    assert observer.unanswered == 1
    report(observer, [1])
    assert observer.unanswered == 0
    assert observer.problems == []
    assert observer.nodes == dict.fromkeys(UIDS, NODE)


def test_a_pod_that_is_reported_twice_is_told_once(observer):
    propose(observer)
    report(observer, [0, 1])
    report(observer, [1])
    report(observer, [0])
    assert observer.problems == [
        "reported position 1 of batch 7, which has 3 pods, twice: only the first counts"
    ]


def test_a_pod_that_is_sent_again_may_be_reported_again(observer):
    report(observer, [0], code=pb.OUTCOME_CONFLICT)
    observer.received(pb.DispatcherMessage(work=pb.WorkBatch(batch_id=8, uids=UIDS[0])))
    propose(observer)
    report(observer, [0], batch=8)
    assert observer.problems == []
    assert observer.codes[UIDS[0]] == pb.OUTCOME_BOUND


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        (
            lambda o: report(o, [0], batch=70, code=pb.OUTCOME_RETURNED),
            "reported outcomes of batch 70, which it does not have",
        ),
        (
            lambda o: report(o, [3], code=pb.OUTCOME_RETURNED),
            "reported position 3 of batch 7, which has 3 pods",
        ),
        (lambda o: report(o, [0], code=99), "reported code 99, which is no OutcomeCode"),
        (lambda o: report(o, [0], code=0), "reported code 0, which is no OutcomeCode"),
        (
            lambda o: report(o, [0]),
            "reported a pod as bound on node 3, and the ledger has reserved nothing for it",
        ),
        (
            lambda o: (propose(o, verdict=rpb.CONFLICT_RESOURCE), report(o, [0])),
            "reported a pod as bound on node 3, and the ledger has reserved nothing for it",
        ),
        (
            lambda o: (propose(o), report(o, [0], node=4)),
            "reported a pod as bound on node 4, and the ledger has reserved node 3 for it",
        ),
        (
            lambda o: propose(o, epoch=6),
            "proposed as worker 'mine' under epoch 6, and is 'mine' under epoch 5: an epoch",
        ),
        (lambda o: propose(o, worker="yours"), "proposed as worker 'yours' under epoch 5"),
        (
            lambda o: o.judged(rpb.VerdictBatch(invalid="it has no pods")),
            "had a proposal refused as invalid: it has no pods",
        ),
        (
            lambda o: o.sent(pb.WorkerMessage(outcomes=pb.Outcomes(batch_id=BATCH, positions=b"123"))),
            "sent outcomes that cannot be read: positions: 3 bytes",
        ),
        (
            lambda o: o.proposed(rpb.ProposalBatch(worker="mine", epoch=EPOCH, uids=b"123")),
            "sent a proposal that cannot be read: uids: 3 bytes",
        ),
        (
            lambda o: o.stream_ended("Register.labels: is named twice"),
            "was refused by the dispatcher: Register.labels: is named twice",
        ),
        (
            lambda o: o.sent(pb.WorkerMessage(register=pb.Register(name="yours"))),
            "registered as 'yours', and was to register as 'mine'",
        ),
    ],
)
def test_each_lie_is_a_sentence(observer, lie, problem):
    lie(observer)
    assert len(observer.problems) == 1
    assert observer.problems[0].startswith(problem)


def test_outcomes_of_a_stream_that_was_lost_do_not_count(observer):
    observer.received(pb.DispatcherMessage(welcome=pb.Welcome(epoch=EPOCH + 1)))
    assert observer.unanswered == 0
    report(observer, [0], code=pb.OUTCOME_RETURNED)
    assert "after Welcome only batches of that stream count" in observer.problems[0]


def test_the_end_of_a_lost_stream_takes_nothing_from_the_next_though_it_is_seen_later(observer):
    observer.received(pb.DispatcherMessage(welcome=pb.Welcome(epoch=EPOCH + 1)), "second")
    work = pb.WorkBatch(batch_id=BATCH, uids=UIDS[0])
    observer.received(pb.DispatcherMessage(work=work), "second")
    observer.stream_ended("")
    assert observer.unanswered == 1
    outcome = pb.Outcomes(
        batch_id=BATCH,
        positions=encode([0], U32),
        codes=encode([pb.OUTCOME_RETURNED], U8),
        nodes=encode([0], U32),
    )
    observer.sent(pb.WorkerMessage(outcomes=outcome), "second")
    assert (observer.unanswered, observer.problems) == (0, [])


def test_proposals_of_an_earlier_epoch_may_be_under_way_and_reserve_nothing(observer):
    observer.received(pb.DispatcherMessage(welcome=pb.Welcome(epoch=EPOCH + 1)))
    propose(observer, verdict=rpb.STALE_EPOCH)
    assert observer.problems == []


def test_a_reason_is_known_as_long_as_it_is_the_latest(observer):
    report(observer, [0], code=pb.OUTCOME_UNSCHEDULABLE, texts=("0/12 nodes are available",))
    report(observer, [1], code=pb.OUTCOME_UNSCHEDULABLE)
    assert observer.explained == {UIDS[0]}
