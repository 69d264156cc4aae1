"""Gangs in one worker: proposed whole or not at all, and answered for whole as long as they are not bound."""

from dataclasses import replace

from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.work import GangInHand

BOUND, UNSCHEDULABLE, CONFLICT, INVALID = (
    Outcome.BOUND,
    Outcome.UNSCHEDULABLE,
    Outcome.CONFLICT,
    Outcome.INVALID,
)
REFUSED, COMMITTED, CONFLICT_TOPOLOGY, GANG_ABORTED = 3, 1, 6, 10
ALL_CPU = 4000  # of a node that the ledger adds


def codes(harness):
    return [code for code, _, _ in harness.outcomes()]


def test_a_gang_is_one_proposal_with_its_minimum(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(4))
    harness.submit((make_pod(100), 3), (make_pod(ALL_CPU), 2), gang=GangInHand("g", 5))
    (proposal,) = harness.place()
    assert (len(proposal.uids), proposal.gang_minimum, proposal.parts) == (5, 5, ())
    harness.scheduler.settle(proposal.batch_id, harness.ledger.commit(proposal)[0])
    assert codes(harness) == [BOUND] * 5


def test_a_gang_short_of_its_minimum_is_not_proposed_and_says_how_much_of_it_fits(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(ALL_CPU), 3), (make_pod(0, memory=0), 1), gang=GangInHand("trainer", 4))
    assert harness.place() == []
    outcomes = harness.outcomes()
    assert [code for code, _, _ in outcomes] == [UNSCHEDULABLE] * 4
    assert {reason for _, _, reason in outcomes} == {
        (
            "gang trainer: 3 of the 4 pods it needs fit; "
            "for the others 0/2 nodes are available: 2 Insufficient cpu."
        )
    }
    assert not harness.cache.requested.any()
    assert harness.scheduler.idle


def test_pods_beyond_the_minimum_that_fit_nowhere_are_told_so_when_the_gang_is_bound(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(ALL_CPU), 3), gang=GangInHand("g", 2))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 2
    assert codes(harness) == []
    verdicts, update = harness.ledger.commit(proposal)
    harness.cache.apply_feed(update)
    harness.scheduler.settle(proposal.batch_id, verdicts)
    assert harness.place() == []
    assert codes(harness) == [BOUND, BOUND, UNSCHEDULABLE]


def test_an_aborted_gang_is_tried_again_whole_with_what_was_left_of_it(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(ALL_CPU), 3), gang=GangInHand("g", 2))
    (proposal,) = harness.place()
    harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, [GANG_ABORTED, REFUSED]))
    harness.cache.apply_feed(harness.ledger.add(2).snapshot())
    (again,) = harness.place()
    assert (len(again.uids), again.gang_minimum) == (3, 2)


def test_a_gang_refused_as_often_as_is_tried_is_a_conflict_whole(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2), tries=2)
    harness.submit((make_pod(ALL_CPU), 3), gang=GangInHand("g", 2))
    for _ in range(2):
        (proposal,) = harness.place()
        harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, [GANG_ABORTED, REFUSED]))
    assert harness.place() == []
    assert codes(harness) == [CONFLICT] * 3
    assert harness.scheduler.idle


def test_what_is_refused_of_a_gang_that_is_bound_goes_on_as_ordinary_pods(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(4))
    harness.submit((make_pod(100), 3), gang=GangInHand("g", 2))
    (proposal,) = harness.place()
    seq = harness.ledger.seq + 1
    harness.scheduler.settle(
        proposal.batch_id, harness.ledger.answer(proposal, [COMMITTED, COMMITTED, REFUSED], seq=seq)
    )
    (rest,) = harness.place()
    assert (len(rest.uids), rest.gang_minimum) == (1, 0)


def test_a_gang_on_several_shards_is_one_proposal_with_parts(make_ledger, harness_of, make_pod):
    ledger = make_ledger(2)
    ledger.shards = 2
    harness = harness_of(ledger)
    harness.submit((make_pod(ALL_CPU), 2), gang=GangInHand("g", 2))
    (proposal,) = harness.place()
    (part,) = proposal.parts
    assert {proposal.shard, part.shard} == {0, 1}
    assert (proposal.gang_minimum, part.gang_minimum) == (2, 0)
    for columns, verdict in ((proposal, GANG_ABORTED), (part, REFUSED)):
        harness.scheduler.settle(columns.batch_id, ledger.answer(columns, verdict))
    (again,) = harness.place()
    assert len(again.uids) + sum(len(part.uids) for part in again.parts) == 2
    for columns in (again, *again.parts):
        harness.scheduler.settle(columns.batch_id, ledger.answer(columns, COMMITTED, seq=5))
    assert codes(harness) == [BOUND, BOUND]


def test_ordinary_work_and_gangs_take_turns(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(4))
    harness.submit((make_pod(100), 2))
    harness.submit((make_pod(100), 2), gang=GangInHand("g", 2))
    harness.submit((make_pod(100), 2))
    assert [proposal.gang_minimum for proposal in harness.place()] == [0, 2, 0]


def test_a_gang_the_resolver_calls_malformed_is_invalid_whole(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(ALL_CPU), 3), gang=GangInHand("g", 2))
    (proposal,) = harness.place()
    harness.scheduler.reject(proposal.batch_id, "bad")
    assert codes(harness) == [INVALID] * 3
    assert harness.scheduler.idle


def test_a_gang_refused_for_what_only_the_feed_tells_waits_for_it_whole(make_ledger, harness_of, make_pod):
    ledger = make_ledger(3)
    ledger.shards = 3
    harness = harness_of(ledger)
    harness.submit((make_pod(ALL_CPU), 3), gang=GangInHand("g", 3))
    (proposal,) = harness.place()
    for columns, verdict in zip(
        (proposal, *proposal.parts), (GANG_ABORTED, CONFLICT_TOPOLOGY, CONFLICT_TOPOLOGY), strict=True
    ):
        answer = replace(ledger.answer(columns, verdict), as_of=5)
        harness.scheduler.settle(columns.batch_id, answer)
    assert (harness.scheduler.backlog, harness.scheduler.step(), harness.scheduler.idle) == (3, 0, False)
    assert not harness.scheduler.resume(0, snapshot=True)
    assert not harness.scheduler.resume(1, snapshot=True)
    assert harness.scheduler.step() == 0
    assert harness.scheduler.resume(2, snapshot=True)
    (again,) = harness.place()
    assert (1 + len(again.parts), again.gang_minimum) == (3, 3)


def test_a_gang_that_awaits_nothing_any_more_is_tried_at_once(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(ALL_CPU), 2), gang=GangInHand("g", 2))
    (proposal,) = harness.place()
    answer = harness.ledger.answer(proposal, [GANG_ABORTED, CONFLICT_TOPOLOGY])
    harness.scheduler.settle(proposal.batch_id, replace(answer, as_of=harness.cache.seqs[0]))
    (again,) = harness.place()
    assert (len(again.uids), again.gang_minimum) == (2, 2)
