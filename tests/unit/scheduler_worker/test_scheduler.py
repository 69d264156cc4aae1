"""The cycle of one worker against a ledger that agrees, refuses, or knows better."""

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import DeviceRequest
from hoss.v1 import resolver_pb2, workerlink_pb2
from scheduler_worker.core.messages import Outcome, VerdictCode

BOUND, UNSCHEDULABLE, CONFLICT = Outcome.BOUND, Outcome.UNSCHEDULABLE, Outcome.CONFLICT
REFUSED, COMMITTED, DUPLICATE, STALE_EPOCH = 3, 1, 2, 9


def test_the_cores_codes_are_numbered_as_on_the_wire():
    for code in Outcome:
        assert workerlink_pb2.OutcomeCode.Value(f"OUTCOME_{code.name}") == code
    for verdict in VerdictCode:
        assert resolver_pb2.Verdict.Value(verdict.name) == verdict


def test_an_agreeing_ledger_binds_every_pod_where_it_was_placed(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(5))
    harness.submit((make_pod(100), 20), (make_pod(200), 10))
    (proposal,) = harness.place()
    verdicts, _ = harness.ledger.commit(proposal)
    assert harness.scheduler.settle(proposal.batch_id, verdicts)
    (columns,) = harness.scheduler.take_outcomes()
    assert (columns.codes == BOUND).all()
    assert columns.nodes.tolist() == proposal.candidates[:, 0].tolist()
    assert columns.commits == ((0, harness.ledger.seq),)
    assert sorted(columns.positions.tolist()) == list(range(30))


def test_a_refused_pod_is_placed_again_with_the_numbers_that_came_with_the_refusal(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(3000), 1))
    (proposal,) = harness.place()
    loser = int(proposal.candidates[0, 0])
    harness.ledger.reserve([loser], [[2000, 0, 0, 1]])  # somebody was quicker; the feed has not said so yet
    harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, REFUSED, fresh=[loser]))
    (again,) = harness.place()
    assert int(again.candidates[0, 0]) != loser
    assert again.uids.tolist() == proposal.uids.tolist()
    assert again.batch_id != proposal.batch_id


def test_a_ledger_that_always_refuses_ends_in_a_conflict_and_leaves_no_trace(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(3), tries=3)
    harness.submit((make_pod(), 4))
    rounds = 0
    while proposals := harness.place():
        rounds += 1
        for proposal in proposals:
            harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, REFUSED))
    assert rounds == 3
    assert [code for code, _, _ in harness.outcomes()] == [CONFLICT] * 4
    assert harness.scheduler.conflicts == 12
    assert not harness.cache.requested.any()
    assert harness.scheduler.idle


def test_a_pod_committed_on_an_alternate_counts_there(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(3))
    harness.submit((make_pod(500), 1))
    (proposal,) = harness.place()
    alternate = int(proposal.candidates[0, 1])
    update = harness.ledger.reserve([alternate], proposal.requests)
    harness.scheduler.settle(
        proposal.batch_id,
        harness.ledger.answer(proposal, COMMITTED, seq=harness.ledger.seq, nodes=[alternate]),
    )
    assert harness.cache.requested[0].nonzero()[0].tolist() == [alternate]
    harness.cache.apply_feed(update)
    assert harness.cache.requested[0, alternate] == 500
    assert harness.outcomes() == [(BOUND, alternate, "")]


def test_a_duplicate_is_bound_where_it_stands_and_its_commit_is_named(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(3))
    harness.submit((make_pod(500), 1))
    (proposal,) = harness.place()
    standing = int(proposal.candidates[0, 2])
    update = harness.ledger.reserve([standing], proposal.requests)
    answer = harness.ledger.answer(proposal, DUPLICATE, nodes=[standing], duplicate_seqs=[harness.ledger.seq])
    harness.scheduler.settle(proposal.batch_id, answer)
    (columns,) = harness.scheduler.take_outcomes()
    assert (columns.codes.tolist(), columns.nodes.tolist()) == ([BOUND], [standing])
    assert columns.commits == ((0, harness.ledger.seq),)
    harness.cache.apply_feed(update)
    assert harness.cache.requested[0].sum() == 500


def test_a_fenced_epoch_is_told_and_its_pods_are_given_up(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(3))
    harness.submit((make_pod(), 2))
    (proposal,) = harness.place()
    assert not harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, STALE_EPOCH))
    assert [code for code, _, _ in harness.outcomes()] == [Outcome.FENCED] * 2
    assert not harness.cache.requested.any()


def test_a_verdict_of_a_former_epoch_changes_nothing(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(3))
    harness.submit((make_pod(), 2))
    (proposal,) = harness.place()
    harness.scheduler.drop_everything()
    assert harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, COMMITTED, seq=2))
    assert harness.outcomes() == []
    assert harness.scheduler.idle


def test_higher_priority_is_placed_first(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1))
    harness.submit((make_pod(3000, priority=1), 1), (make_pod(3000, priority=9), 1))
    harness.settle(harness.place())
    assert harness.outcomes() == [
        (UNSCHEDULABLE, None, "0/1 nodes are available: 1 Insufficient cpu."),
        (Outcome.BOUND, 0, ""),
    ]


def test_drained_work_is_returned_and_what_was_proposed_is_not(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(3))
    harness.submit((make_pod(), 1))
    harness.place()
    harness.submit((make_pod(), 3))
    harness.scheduler.drain()
    assert harness.outcomes() == [(Outcome.RETURNED, None, "")] * 3
    assert not harness.scheduler.idle


def test_a_proposal_holds_no_more_pods_than_the_ledger_takes_at_once(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(30), proposal_pods=100)
    harness.submit((make_pod(10, 2**20), 250))
    assert [len(p.uids) for p in harness.place()] == [100, 100, 50]


def test_a_batch_over_several_shards_becomes_one_proposal_for_each(make_ledger, harness_of, make_pod):
    ledger = make_ledger(10)
    ledger.shards = 2
    harness = harness_of(ledger)
    harness.submit((make_pod(), 50))
    proposals = harness.place()
    assert [p.shard for p in proposals] == [0, 1]
    for proposal in proposals:
        named = proposal.candidates[proposal.candidates != 0xFFFFFFFF]
        assert (named % 2 == proposal.shard).all()


def test_each_slot_carries_what_its_pods_share(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(3, cards=4))
    harness.submit((make_pod(300, priority=5, devices=DeviceRequest(1, 250)), 2), (make_pod(100), 1))
    (proposal,) = harness.place()
    assert proposal.requests[:, 0].tolist() == [300, 100]
    assert proposal.requests[:, 3].tolist() == [1, 1]
    assert proposal.priorities.tolist() == [5, 0]
    assert proposal.devices.tolist() == [[1, 250], [0, 0]]
    assert proposal.slots.tolist() == [0, 0, 1]


def test_a_resource_no_node_offers_is_named(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(more=(("example.com/fpga", 1),)), 1))
    harness.place()
    assert harness.outcomes() == [
        (UNSCHEDULABLE, None, "0/2 nodes are available: 2 Insufficient example.com/fpga.")
    ]


def test_without_nodes_nothing_is_placed(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger())
    harness.submit((make_pod(), 5))
    assert harness.place() == []
    assert harness.outcomes() == [(UNSCHEDULABLE, None, "0/0 nodes are available.")] * 5


def test_work_of_an_unknown_class_is_refused_whole(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1))
    harness.submit((make_pod(), 1))
    harness.scheduler.forget_classes([0])
    with pytest.raises(InvalidInput, match="class 0 was never defined"):
        harness.scheduler.accept(7, *_one_run())


def _one_run():
    return np.zeros((1, 16), np.uint8), np.zeros(1, np.uint32), np.ones(1, np.uint32), np.zeros(1, np.uint16)
