"""The history of pods and workers."""

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.pods.history import PodHistory
from dispatcher.core.pods.table import Phase, PodTable, Reasons
from dispatcher.core.workers.membership import MAX_TRANSITIONS, WorkerState
from dispatcher.core.workers.reports import Heartbeat

FULL = "0/5 nodes are available: 5 Insufficient cpu."


def told(bench, row):
    """Phase and event of each step of the pod in a row."""
    registry = bench.machine.registry
    steps = registry.history.of_pod(int(row), registry.set_of(int(row)).submission.first_transition)
    return [(step.phase, step.event) for step in steps]


def steps_of(bench, row):
    return bench.machine.registry.history.of_pod(int(row))


def test_a_pod_that_is_bound_at_once_was_given_to_a_worker_bound_and_confirmed(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.pass_time(0.25)
    bench.answer("w1", m.OutcomeCode.BOUND, node=7)
    bench.handle(m.Confirmed(rows, bench.machine.registry.pods.uid[rows]))
    given, bound, confirmed = steps_of(bench, rows[0])
    assert (given.phase, given.worker) == (Phase.SCHEDULING, "w1")
    assert (bound.phase, bound.node) == (Phase.BOUND, 7)
    assert bound.at_ms - given.at_ms == 250
    assert (confirmed.phase, confirmed.event) == (Phase.BOUND, "Confirmed")


def test_a_refused_pod_keeps_the_reason_it_was_refused_for_when_it_has_another_by_now(bench):
    bench.join("w1")
    (row,) = bench.pods("p")
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason=FULL)
    bench.handle(m.ClusterChanged())
    bench.pass_time(2.0)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="another reason")
    refusals = [step.reason for step in steps_of(bench, row) if step.phase == Phase.UNSCHEDULABLE]
    assert refusals == [FULL, "another reason"]
    assert told(bench, row)[:4] == [
        (Phase.SCHEDULING, ""),
        (Phase.UNSCHEDULABLE, "ScheduleAttemptFailure"),
        (Phase.BACKOFF, "ClusterChange"),
        (Phase.QUEUED, "BackoffComplete"),
    ]


def test_the_loss_of_a_worker_an_eviction_and_a_deletion_are_steps(bench):
    link = bench.join("w1")
    rows = bench.pods("p")
    bench.handle(m.LinkClosed(link))
    none = np.full(1, 0xFFFFFFFF, np.uint32)
    bench.handle(m.Fenced("w1", none, {}))
    bench.join("w2")
    bench.answer("w2", m.OutcomeCode.BOUND, node=3)
    uids = bench.machine.registry.pods.uid[rows]
    bench.handle(m.Evicted(uids, np.array([3], np.uint32), ("preempted by default/urgent",)))
    bench.handle(m.Deleted(rows))
    lost, evicted = (s for s in steps_of(bench, rows[0]) if s.event in ("WorkerLost", "Evicted"))
    assert lost.worker == "w1"
    assert evicted.reason == "preempted by default/urgent"
    assert told(bench, rows[0])[-1] == (Phase.DELETED, "")


def test_a_pod_has_nothing_of_another_that_had_its_row_before(bench):
    bench.join("w1")
    (row,) = bench.pods("old")
    bench.answer("w1", m.OutcomeCode.BOUND)
    bench.handle(m.Deleted(np.array([row], np.uint32)))
    bench.handle(m.Released(np.array([row], np.uint32)))
    bench.pass_time(5.0)
    (new,) = bench.pods("new")
    assert new == row
    assert told(bench, new) == [(Phase.SCHEDULING, "")]


def test_the_history_of_a_job_counts_its_pods_transitions_with_their_times(bench):
    bench.join("w1", window=10)
    rows = bench.job("job", 15)
    bench.job("other", 5)
    registry = bench.machine.registry
    while bench.in_hand("w1"):
        bench.pass_time(1.0)
        bench.answer("w1", m.OutcomeCode.BOUND)
    transition_counts = registry.history.transition_counts(registry.set_of(int(rows[0])).index)
    given, bound = transition_counts[Phase.SCHEDULING, ""], transition_counts[Phase.BOUND, ""]
    assert (given.pods, bound.pods) == (15, 15)
    assert given.first_ms < bound.first_ms < bound.last_ms


def test_what_is_forgotten_is_the_oldest_and_it_is_known_until_when():
    pods = PodTable()
    pods.allocate(100)
    history = PodHistory(pods, Reasons(), limit=200)
    rows = np.arange(50, dtype=np.uint32)
    for second in range(1, 6):
        history.record(rows, Phase.QUEUED, 1000 * second, "BackoffComplete")
    assert history.recorded == 5
    assert [step.at_ms for step in history.of_pod(7)] == [4000, 5000]
    assert [step.at_ms for step in history.of_pod(7, after=4)] == [5000]
    assert history.dropped_until_ms == 3000
    assert history.of_pod(70) == []


def test_the_history_of_a_worker_has_its_registrations_its_epochs_and_its_ends(bench):
    first = bench.join("w1")
    bench.job("job", 10)
    bench.pass_time(1.0)
    bench.handle(m.LinkClosed(first))
    bench.handle(m.Fenced("w1", np.full(10, 0xFFFFFFFF, np.uint32), {}))
    second = bench.join("w1")
    bench.handle(m.WorkerStateRequested("w1", WorkerState.CORDONED))
    worker = bench.machine.members.get("w1")
    assert [(step.state, step.text) for step in worker.transitions] == [
        (WorkerState.JOINING, ""),
        (WorkerState.READY, ""),
        (WorkerState.READY, "its view of the nodes is filled"),
        (WorkerState.LOST, "its stream ended, with 10 pods in hand"),
        (WorkerState.LOST, "fenced: of the pods it had in hand 0 have a place, 10 have none"),
        (WorkerState.JOINING, ""),
        (WorkerState.READY, ""),
        (WorkerState.READY, "its view of the nodes is filled"),
        (WorkerState.CORDONED, ""),
    ]
    assert {step.epoch for step in worker.transitions} == {0, first, second}


def test_of_a_worker_that_comes_and_goes_the_latest_is_remembered(bench):
    for _ in range(MAX_TRANSITIONS):
        bench.handle(m.LinkClosed(bench.join("w1")))
        bench.handle(m.Fenced("w1", np.empty(0, np.uint32), {}))
    assert len(bench.machine.members.get("w1").transitions) == MAX_TRANSITIONS


def test_heartbeats_that_lay_unread_and_come_at_once_do_not_change_what_a_worker_s_busyness_is(bench):
    link = bench.join("w1")
    worker = bench.machine.members.get("w1")
    for half_seconds in range(1, 41):
        bench.handle(
            m.HeartbeatReceived(
                link, Heartbeat(working_seconds=half_seconds / 4, clock_seconds=half_seconds / 2, ready=True)
            )
        )
        if half_seconds % 8 == 0:
            bench.pass_time(4.0)
    assert 0.45 < worker.busy_share < 0.55


def test_a_worker_that_waits_for_a_core_is_busy(bench):
    link = bench.join("w1")
    for second in range(1, 11):
        bench.pass_time(1.0)
        vitals = Heartbeat(
            busy_seconds=0.01 * second, working_seconds=0.98 * second, clock_seconds=second, ready=True
        )
        bench.handle(m.HeartbeatReceived(link, vitals))
    assert bench.machine.members.get("w1").busy_share > 0.9
