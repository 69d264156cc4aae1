"""Outcomes of workers, and what happens to the pods."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.changes import Changes
from dispatcher.core.pods.table import Phase
from dispatcher.core.queue.queues import PATIENT_ATTEMPTS
from hoss.model.pod import PodGroup


def test_bound_pods_are_confirmed_and_reported_with_their_node(bench):
    bench.join("w1")
    rows = bench.job("job", 100)
    before = bench.machine.log.revision
    bench.answer("w1", m.OutcomeCode.BOUND, node=7)
    assert bench.all_are(rows, Phase.BOUND)
    (confirm,) = bench.instructions(m.Confirm)
    assert confirm.rows.tolist() == rows.tolist()
    (events,) = bench.machine.log.since(before)
    assert set(events.nodes.tolist()) == {7}
    assert events.uids.tobytes() == bench.machine.registry.pods.uid[rows].tobytes()


def test_an_unschedulable_pod_waits_with_its_reason_and_without_a_change_it_is_not_tried_again(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/5 nodes are available: 5 Insufficient cpu.")
    assert bench.phases(rows) == [Phase.UNSCHEDULABLE]
    number = bench.machine.registry.pods.reason[rows[0]]
    assert bench.machine.registry.reasons.texts[number] == "0/5 nodes are available: 5 Insufficient cpu."
    for _ in range(2000):
        bench.pass_time(0.1)
    assert bench.in_hand("w1") == 0
    bench.pass_time(101.0)
    assert bench.in_hand("w1") == 1


@pytest.mark.parametrize("failed", [False, True])
def test_whether_a_plugin_failed_is_kept_with_the_reason(bench, failed):
    bench.join("w1")
    rows = bench.pods("p")
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="no", refused_by=("P",), failed=failed)
    assert bench.machine.registry.reasons.failed[bench.machine.registry.pods.reason[rows[0]]] is failed


def test_released_room_wakes_unschedulable_pods_after_their_backoff(bench):
    bench.join("w1")
    bench.pods("p")
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="full")
    bench.handle(m.ClusterChanged())
    bench.pass_time(0.5)
    assert bench.in_hand("w1") == 0
    bench.pass_time(0.6)
    assert bench.in_hand("w1") == 1


def test_each_refusal_doubles_the_backoff_up_to_ten_seconds(bench):
    bench.join("w1")
    bench.pods("p")
    waits = []
    for _ in range(6):
        bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="full")
        bench.handle(m.ClusterChanged())
        begun = bench.now
        while not bench.in_hand("w1"):
            bench.pass_time(0.1)
        waits.append(round(bench.now - begun))
    assert waits == [1, 2, 4, 8, 10, 10]


def test_a_change_while_the_pod_was_with_its_worker_is_not_missed(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.handle(m.ClusterChanged())
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="full")
    assert bench.phases(rows) == [Phase.BACKOFF]
    bench.pass_time(1.1)
    assert bench.in_hand("w1") == 1


def test_a_conflict_goes_to_the_front_at_once_and_counts_an_attempt(bench):
    bench.join("w1", window=2)
    bench.pods("first")
    bench.pods("second")
    rows = bench.pods("third")
    first = bench.answer("w1", m.OutcomeCode.CONFLICT)
    assert first.uids.tobytes() == bench.sent["w1"][-1].uids.tobytes()
    assert bench.sent["w1"][-1].run_attempts.tolist() == [1]
    assert bench.phases(rows) == [Phase.QUEUED]


def test_a_pod_that_is_refused_again_and_again_backs_off(bench):
    bench.join("w1")
    rows = bench.pods("p")
    for _ in range(4):
        bench.answer("w1", m.OutcomeCode.CONFLICT)
    assert bench.phases(rows) == [Phase.BACKOFF]


def test_an_invalid_pod_fails_with_the_reason_and_is_not_tried_again(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.answer("w1", m.OutcomeCode.INVALID, reason="unknown resource")
    bench.handle(m.ClusterChanged())
    bench.pass_time(400.0)
    assert bench.phases(rows) == [Phase.FAILED]
    assert bench.in_hand("w1") == 0


def test_an_outcome_for_a_batch_nobody_sent_is_counted_and_changes_nothing(bench):
    link = bench.join("w1")
    rows = bench.job("job", 10)
    work = bench.sent["w1"][0]
    ghost = m.OutcomesArrived(
        link, 999, np.arange(3, dtype=np.uint32), np.ones(3, np.uint8), np.zeros(3, np.uint32), None, (), {}
    )
    bench.handle(ghost)
    bench.outcomes(work, [10, 5000], m.OutcomeCode.BOUND)
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert bench.machine.counters["ignored_outcomes"] == 5
    assert len(bench.instructions(m.Warn)) == 2
    assert not bench.instructions(m.Confirm)


def test_a_worker_cannot_answer_for_pods_of_another(bench):
    bench.join("w1")
    rows = bench.job("job", 10)
    liar = bench.join("w2")
    bench.outcomes(bench.sent["w1"][0], range(10), m.OutcomeCode.BOUND, link=liar)
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert bench.machine.counters["ignored_outcomes"] == 10


@pytest.mark.parametrize("again", [m.OutcomeCode.BOUND, m.OutcomeCode.CONFLICT])
def test_a_pod_answered_twice_is_answered_once(bench, again):
    bench.join("w1")
    rows = bench.job("job", 10)
    work = bench.sent["w1"][0]
    bench.outcomes(work, [0, 0, 1], m.OutcomeCode.BOUND)
    bench.outcomes(work, [0, 1], again)
    assert bench.phases(rows) == [Phase.BOUND] * 2 + [Phase.SCHEDULING] * 8
    assert bench.machine.members.get("w1").outstanding == 8
    assert bench.machine.counters["ignored_outcomes"] == 3


def test_deleting_a_queued_pod_takes_it_from_the_queue(bench):
    rows = bench.job("job", 10)
    bench.handle(m.Deleted(rows[:4]))
    bench.join("w1")
    assert bench.in_hand("w1") == 6
    assert bench.phases(rows[:4]) == [Phase.DELETED] * 4


def test_deleting_a_bound_pod_gives_its_reservation_back_and_wakes_what_waits(bench):
    bench.join("w1")
    bound = bench.pods("bound")
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    waiting = bench.pods("waiting")
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="full")
    bench.handle(m.Deleted(bound))
    (release,) = bench.instructions(m.Release)
    assert (release.rows.tolist(), release.nodes.tolist()) == (bound.tolist(), [3])
    bench.handle(m.Released(bound))
    bench.pass_time(1.1)
    assert bench.phases(waiting) == [Phase.UNSCHEDULABLE], "the feed has not shown it yet"
    bench.handle(m.ClusterChanged(Changes(deleted_pods=frozenset([PodGroup()])), shard=0, seq=7))
    assert bench.phases(waiting) == [Phase.SCHEDULING]


def test_a_pod_deleted_while_its_worker_binds_it_gives_the_reservation_back(bench):
    bench.join("w1")
    rows = bench.job("job", 10)
    bench.handle(m.Deleted(rows[:1]))
    assert not bench.instructions(m.Release)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    (release,) = bench.instructions(m.Release)
    assert release.rows.tolist() == rows[:1].tolist()
    assert bench.phases(rows) == [Phase.DELETED] + [Phase.BOUND] * 9


def test_a_bound_pod_whose_lease_ran_out_is_queued_again(bench):
    bench.join("w1")
    rows = bench.job("job", 3)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    uids = bench.machine.registry.pods.uid[rows]
    bench.handle(m.Verified(rows, uids, np.array([3, 0xFFFFFFFF, 3], np.uint32)))
    assert bench.phases(rows) == [Phase.BOUND, Phase.SCHEDULING, Phase.BOUND]


def test_pods_of_a_removed_node_are_looked_up(bench):
    bench.join("w1")
    rows = bench.job("job", 3)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    bench.handle(m.NodesGone(np.array([4], np.uint32), seq=10))
    assert not bench.instructions(m.Verify)
    bench.handle(m.NodesGone(np.array([3, 4], np.uint32), seq=10))
    assert bench.instructions(m.Verify)[0].rows.tolist() == rows.tolist()


def test_a_submission_is_forgotten_only_when_nothing_refers_to_its_pods_any_more(bench):
    bench.join("w1")
    rows = bench.job("job", 2)
    bench.handle(m.Deleted(rows))
    bench.pass_time(2.0)
    assert not bench.instructions(m.Forget)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    bench.pass_time(2.0)
    assert not bench.instructions(m.Forget)
    bench.handle(m.Released(rows))
    bench.pass_time(2.0)
    assert len(bench.instructions(m.Forget)) == 1
    assert bench.machine.registry.pods.size == 0
    again = bench.job("job", 2)
    assert bench.all_are(again, Phase.SCHEDULING)


def test_rows_that_lie_deleted_in_a_queue_are_not_given_to_others_before_the_queue_let_go(bench):
    rows = bench.job("job", 10)
    bench.handle(m.Deleted(rows))
    bench.pass_time(2.0)
    again = bench.job("next", 10)
    assert set(again.tolist()) == set(rows.tolist())
    bench.join("w1")
    assert bench.in_hand("w1") == 10


def test_what_comes_to_a_queue_is_counted_by_the_event_that_brought_it(bench):
    bench.join("w1")
    bench.job("job", 10)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="full")
    bench.handle(m.ClusterChanged())
    bench.pass_time(0.1)
    for _ in range(PATIENT_ATTEMPTS):
        bench.pass_time(2.0)
        bench.answer("w1", m.OutcomeCode.CONFLICT)
    assert bench.machine.queues.incoming == {
        ("active", "PodAdd"): 10,
        ("unschedulable", "ScheduleAttemptFailure"): 10,
        ("backoff", "ClusterChange"): 10,
        ("active", "BackoffComplete"): 10,
        ("active", "ScheduleAttemptFailure"): 20,  # refused by the ledger: again at once ...
        ("backoff", "ScheduleAttemptFailure"): 10,  # ... until it was too often
    }
