"""What a policy says of conflicts, on its way through a worker."""

from dataclasses import replace

from hoss.model.conflicts import ConflictRule, Criteria
from scheduler_worker.core.messages import Outcome
from scheduler_worker.messages import proposal_batch

CONFLICT_RESOURCE, GANG_ABORTED, CONFLICT_VERSION = 3, 10, 11


def test_proposals_say_which_criteria_and_displacement_the_work_batch_came_with(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(4))
    harness.submit((make_pod(100), 2), conflicts=ConflictRule(Criteria.STRICT, displace_gap=50))
    (proposal,) = harness.place()
    message = proposal_batch(proposal, worker="w", epoch=1, unchecked=False)
    assert (message.criteria, message.displace_gap, message.gang_minimum) == (Criteria.STRICT, 50, 0)


def test_all_or_nothing_proposes_each_class_by_itself_with_all_its_pods_as_the_minimum(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(4))
    harness.submit((make_pod(100), 3), (make_pod(200), 2), conflicts=ConflictRule(all_or_nothing=True))
    proposals = harness.place()
    assert [(len(p.uids), p.gang_minimum) for p in proposals] == [(3, 3), (2, 2)]


def test_all_or_nothing_aborted_for_one_refusal_is_tried_again_together(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(4))
    harness.submit((make_pod(100), 3), conflicts=ConflictRule(all_or_nothing=True))
    (proposal,) = harness.place()
    answer = harness.ledger.answer(proposal, [GANG_ABORTED, CONFLICT_RESOURCE, GANG_ABORTED])
    harness.scheduler.settle(proposal.batch_id, answer)
    (again,) = harness.place()
    assert (len(again.uids), again.gang_minimum) == (3, 3)


def test_a_pod_refused_because_its_node_changed_waits_until_the_feed_has_shown_the_change(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(100), 1), conflicts=ConflictRule(Criteria.VERSION))
    (proposal,) = harness.place()
    seen = harness.cache.seqs[0]
    node = int(proposal.candidates[0, 0])
    update = harness.ledger.reserve([node], [proposal.requests[0]])  # by another worker
    answer = replace(harness.ledger.answer(proposal, CONFLICT_VERSION), as_of=harness.ledger.seq)
    harness.scheduler.settle(proposal.batch_id, answer)
    assert harness.scheduler.step() == 0
    harness.cache.apply_feed(update)
    assert harness.scheduler.resume(0)
    (again,) = harness.place()
    assert again.snapshot_seq > seen
    assert harness.outcomes() == []
    harness.scheduler.settle(again.batch_id, harness.ledger.commit(again)[0])
    assert [code for code, _, _ in harness.outcomes()] == [Outcome.BOUND]
