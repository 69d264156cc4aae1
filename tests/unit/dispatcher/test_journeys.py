"""What the machine remembers of how pods and workers came where they are."""

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.journeys import Journeys
from dispatcher.core.membership import MOST_STEPS, Vitals, WorkerState
from dispatcher.core.podtable import Phase, PodTable, Reasons

FULL = "0/5 nodes are available: 5 Insufficient cpu."


def told(bench, row):
    """Phase and event of each step of the pod in a row."""
    registry = bench.machine.registry
    steps = registry.journeys.of(int(row), registry.set_of(int(row)).submission.first_step)
    return [(step.phase, step.event) for step in steps]


def steps_of(bench, row):
    return bench.machine.registry.journeys.of(int(row))


def test_a_pod_that_is_bound_at_once_was_given_to_a_worker_bound_and_confirmed(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.pass_time(0.25)
    bench.answer("w1", m.OutcomeCode.BOUND, node=7)
    bench.tell(m.Confirmed(rows, bench.machine.registry.pods.uid[rows]))
    given, bound, confirmed = steps_of(bench, rows[0])
    assert (given.phase, bench.machine.members.numbered(given.worker).name) == (Phase.SCHEDULING, "w1")
    assert (bound.phase, bound.node) == (Phase.BOUND, 7)
    assert bound.at_ms - given.at_ms == 250
    assert (confirmed.phase, confirmed.event) == (Phase.BOUND, "Confirmed")


def test_a_refused_pod_keeps_the_reason_it_was_refused_for_when_it_has_another_by_now(bench):
    bench.join("w1")
    (row,) = bench.pods("p")
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason=FULL)
    bench.tell(m.ClusterChanged())
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
    bench.tell(m.LinkClosed(link))
    none = np.full(1, 0xFFFFFFFF, np.uint32)
    bench.tell(m.Fenced("w1", none, {}))
    bench.join("w2")
    bench.answer("w2", m.OutcomeCode.BOUND, node=3)
    uids = bench.machine.registry.pods.uid[rows]
    bench.tell(m.Evicted(uids, np.array([3], np.uint32), ("preempted by default/urgent",)))
    bench.tell(m.Deleted(rows))
    lost, evicted = (s for s in steps_of(bench, rows[0]) if s.event in ("WorkerLost", "Evicted"))
    assert bench.machine.members.numbered(lost.worker).name == "w1"
    assert evicted.reason == "preempted by default/urgent"
    assert told(bench, rows[0])[-1] == (Phase.DELETED, "")


def test_a_pod_has_nothing_of_another_that_had_its_row_before(bench):
    bench.join("w1")
    (row,) = bench.pods("old")
    bench.answer("w1", m.OutcomeCode.BOUND)
    bench.tell(m.Deleted(np.array([row], np.uint32)))
    bench.tell(m.Released(np.array([row], np.uint32)))
    bench.pass_time(5.0)
    (new,) = bench.pods("new")
    assert new == row
    assert told(bench, new) == [(Phase.SCHEDULING, "")]


def test_a_job_is_told_by_how_many_of_its_pods_took_each_step_and_when(bench):
    bench.join("w1", window=10)
    rows = bench.job("job", 15)
    bench.job("other", 5)
    registry = bench.machine.registry
    while bench.in_hand("w1"):
        bench.pass_time(1.0)
        bench.answer("w1", m.OutcomeCode.BOUND)
    passages = registry.journeys.passages(registry.set_of(int(rows[0])).rows)
    given, bound = passages[Phase.SCHEDULING, ""], passages[Phase.BOUND, ""]
    assert (given.pods, bound.pods) == (15, 15)
    assert given.first_ms < bound.first_ms < bound.last_ms


def test_what_is_forgotten_is_the_oldest_and_it_is_known_until_when():
    pods = PodTable()
    pods.allocate(100)
    journeys = Journeys(pods, Reasons(), limit=200)
    rows = np.arange(50, dtype=np.uint32)
    for second in range(1, 6):
        journeys.note(rows, Phase.QUEUED, 1000 * second, "BackoffComplete")
    assert journeys.noted == 5
    assert [step.at_ms for step in journeys.of(7)] == [4000, 5000]
    assert [step.at_ms for step in journeys.of(7, after=4)] == [5000]
    assert journeys.forgotten_ms == 3000
    assert journeys.of(70) == []


def test_a_worker_is_told_by_its_registrations_its_epochs_and_its_ends(bench):
    first = bench.join("w1")
    bench.job("job", 10)
    bench.pass_time(1.0)
    bench.tell(m.LinkClosed(first))
    bench.tell(m.Fenced("w1", np.full(10, 0xFFFFFFFF, np.uint32), {}))
    second = bench.join("w1")
    bench.tell(m.StateWanted("w1", WorkerState.CORDONED))
    worker = bench.machine.members.get("w1")
    assert [(step.state, step.text) for step in worker.steps] == [
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
    assert {step.epoch for step in worker.steps} == {0, first, second}


def test_of_a_worker_that_comes_and_goes_the_latest_is_remembered(bench):
    for _ in range(MOST_STEPS):
        bench.tell(m.LinkClosed(bench.join("w1")))
        bench.tell(m.Fenced("w1", np.empty(0, np.uint32), {}))
    assert len(bench.machine.members.get("w1").steps) == MOST_STEPS


def test_heartbeats_that_lay_unread_and_come_at_once_do_not_change_what_a_worker_s_busyness_is(bench):
    link = bench.join("w1")
    worker = bench.machine.members.get("w1")
    for half_seconds in range(1, 41):
        bench.tell(m.Heard(link, Vitals(working_seconds=half_seconds / 4, clock_seconds=half_seconds / 2, ready=True)))
        if half_seconds % 8 == 0:
            bench.pass_time(4.0)
    assert 0.45 < worker.busy_share < 0.55


def test_a_worker_that_waits_for_a_core_is_busy(bench):
    link = bench.join("w1")
    for second in range(1, 11):
        bench.pass_time(1.0)
        vitals = Vitals(busy_seconds=0.01 * second, working_seconds=0.98 * second, clock_seconds=second, ready=True)
        bench.tell(m.Heard(link, vitals))
    assert bench.machine.members.get("w1").busy_share > 0.9
