"""Workers register, fall silent, are fenced and come back; a pod is with one worker at a time."""

import random
import time

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Policy
from dispatcher.core.workers.membership import WorkerState
from dispatcher.core.workers.reports import Heartbeat
from dispatcher.runtime import Runtime
from hoss.model.pod import PodSpec

NONE = 0xFFFFFFFF


def fenced(bench, worker, reserved=()):
    """The ledger answers a fence: the pods at these positions hold reservations on node 9."""
    nodes = np.full(len(bench.instructions(m.Fence)[-1].uids), NONE, np.uint32)
    nodes[list(reserved)] = 9
    bench.handle(m.Fenced(worker, nodes, {0: np.array([5], np.uint64)} if len(reserved) else {}))


def test_a_dead_workers_pods_go_to_others_only_after_it_was_fenced(bench):
    first = bench.join("w1")
    rows = bench.job("job", 100)
    bench.join("w2")
    bench.handle(m.LinkClosed(first))
    assert bench.in_hand("w2") == 0
    assert bench.all_are(rows, Phase.SCHEDULING)
    fenced(bench, "w1")
    assert bench.in_hand("w2") == 64  # suspects travel apart from others, and not all at once
    assert bench.sent["w2"][0].run_attempts.tolist() == [1]
    bench.answer("w2", m.OutcomeCode.BOUND)
    assert bench.in_hand("w2") == 36


def test_what_a_dead_worker_reserved_is_bound_and_confirmed_and_the_rest_is_placed_again(bench):
    first = bench.join("w1")
    rows = bench.job("job", 100)
    bench.handle(m.LinkClosed(first))
    fenced(bench, "w1", reserved=range(40))
    assert bench.phases(rows) == [Phase.BOUND] * 40 + [Phase.QUEUED] * 60
    (confirm,) = bench.instructions(m.Confirm)
    assert confirm.rows.tolist() == rows[:40].tolist()
    bench.join("w2")
    assert bench.in_hand("w2") == 60


def test_what_comes_late_over_a_dead_link_changes_nothing(bench):
    first = bench.join("w1")
    rows = bench.job("job", 10)
    work = bench.sent["w1"][0]
    bench.handle(m.LinkClosed(first))
    bench.outcomes(work, range(10), m.OutcomeCode.BOUND)
    fenced(bench, "w1")
    bench.outcomes(work, range(10), m.OutcomeCode.BOUND)
    assert bench.all_are(rows, Phase.QUEUED)


def test_silence_for_the_timeout_is_death_and_its_link_is_closed(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=2.0))
    link = bench.join("w1")
    bench.job("job", 10)
    for _ in range(19):
        bench.pass_time(0.1)
    assert bench.machine.members.get("w1").state is WorkerState.READY
    bench.pass_time(0.2)
    assert bench.machine.members.get("w1").state is WorkerState.LOST
    assert bench.instructions(m.CloseLink)[0].link == link
    assert len(bench.instructions(m.Fence)) == 1


def test_heartbeats_and_outcomes_keep_a_worker_alive(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=2.0))
    link = bench.join("w1")
    for _ in range(100):
        bench.pass_time(0.1)
        bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True)))
    assert bench.machine.members.get("w1").state is WorkerState.READY


def test_a_dispatcher_that_slept_itself_does_not_hold_it_against_its_workers(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=2.0))
    bench.join("w1")
    bench.pass_time(0.1)
    bench.pass_time(30.0)
    assert bench.machine.members.get("w1").state is WorkerState.READY


def test_a_second_worker_of_a_living_name_is_refused_and_the_first_stays(bench):
    first = bench.join("w1")
    second = bench.register("w1")
    (refusal,) = bench.instructions(m.Refuse)
    assert (refusal.link, "w1" in refusal.text) == (second, True)
    bench.handle(m.LinkClosed(second))
    assert bench.machine.members.on_link(first).state is WorkerState.READY


def test_a_worker_that_comes_back_gets_its_epoch_only_after_its_last_life_was_fenced(bench):
    first = bench.join("w1")
    rows = bench.job("job", 10)
    bench.handle(m.LinkClosed(first))
    grants = len(bench.instructions(m.GrantEpoch))
    second = bench.register("w1")
    assert len(bench.instructions(m.GrantEpoch)) == grants
    fenced(bench, "w1")
    assert bench.instructions(m.GrantEpoch)[-1].link == second
    bench.handle(m.EpochGranted(second, 99))
    bench.handle(m.HeartbeatReceived(second, Heartbeat(ready=True)))
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert bench.machine.members.get("w1").epoch == 99


def test_an_epoch_granted_to_a_link_that_is_over_is_not_anothers(bench):
    first = bench.register("w1")
    bench.handle(m.LinkClosed(first))
    second = bench.register("w1")
    bench.handle(m.EpochGranted(first, 1))
    assert bench.machine.members.on_link(second).state is WorkerState.JOINING


def test_a_worker_whose_epoch_the_ledger_does_not_know_must_register_anew(bench):
    link = bench.join("w1")
    rows = bench.job("job", 200)
    work = bench.sent["w1"][0]
    bench.outcomes(work, range(100), m.OutcomeCode.FENCED)
    assert bench.instructions(m.CloseLink)[0].link == link
    fenced(bench, "w1")
    assert bench.all_are(rows, Phase.QUEUED)


def test_a_cordon_outlives_the_workers_link(bench):
    first = bench.join("w1")
    bench.handle(m.WorkerStateRequested("w1", WorkerState.CORDONED))
    bench.handle(m.LinkClosed(first))
    fenced(bench, "w1")
    bench.join("w1")
    assert bench.machine.members.get("w1").state is WorkerState.CORDONED


def test_a_pod_deleted_while_its_worker_is_being_fenced_gives_back_what_it_got(bench):
    first = bench.join("w1")
    rows = bench.job("job", 2)
    bench.handle(m.LinkClosed(first))
    bench.handle(m.Deleted(rows))
    fenced(bench, "w1", reserved=[0])
    assert bench.all_are(rows, Phase.DELETED)
    assert bench.instructions(m.Release)[0].rows.tolist() == [rows[0]]


def test_a_worker_that_says_it_will_stop_gets_nothing_more_and_loses_no_attempt(bench):
    first = bench.join("w1")
    rows = bench.job("job", 100)
    bench.handle(m.Leaving(first))
    bench.answer("w1", m.OutcomeCode.RETURNED)
    assert bench.machine.members.get("w1").state is WorkerState.DRAINING
    assert bench.in_hand("w1") == 0
    assert bench.all_are(rows, Phase.QUEUED)
    bench.join("w2")
    assert bench.sent["w2"][0].run_attempts.tolist() == [0]


def test_why_a_worker_stops_is_kept_and_clipped(bench):
    bench.handle(m.Leaving(bench.join("w1"), "plugin Slow failed"))
    bench.handle(m.Leaving(bench.join("w2"), "x" * 10_000))
    said = [bench.machine.members.get(name).transitions[-1].text for name in ("w1", "w2")]
    assert said[0] == "it is about to stop: plugin Slow failed"
    assert len(said[1]) < 400


def test_a_worker_that_answered_for_everything_before_it_went_has_left_and_is_not_lost(bench):
    first = bench.join("w1")
    bench.handle(m.Leaving(first))
    bench.handle(m.LinkClosed(first))
    assert bench.machine.members.get("w1").state is WorkerState.LEFT
    assert bench.machine.counters["workers_lost"] == 0
    fenced(bench, "w1")
    bench.join("w1")
    assert bench.machine.members.get("w1").state is WorkerState.READY


def test_a_worker_that_goes_with_pods_in_hand_is_lost_and_fenced(bench):
    first = bench.join("w1")
    rows = bench.job("job", 10)
    bench.handle(m.Leaving(first))
    bench.handle(m.LinkClosed(first))
    assert bench.machine.members.get("w1").state is WorkerState.LOST
    fenced(bench, "w1")
    assert bench.all_are(rows, Phase.QUEUED)


def test_an_operator_does_not_reopen_a_worker_that_is_about_to_stop(bench):
    first = bench.join("w1")
    bench.handle(m.Leaving(first))
    bench.handle(m.WorkerStateRequested("w1", WorkerState.READY))
    bench.job("job", 10)
    assert bench.in_hand("w1") == 0


def test_throughput_and_busyness_are_those_of_the_last_seconds(bench):
    link = bench.join("w1")
    worker = bench.machine.members.get("w1")
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True)))
    for second in range(1, 21):
        bench.job(f"job-{second}", 100)
        bench.answer("w1", m.OutcomeCode.BOUND)
        bench.pass_time(1.0)
        bench.handle(
            m.HeartbeatReceived(link, Heartbeat(working_seconds=second / 2, clock_seconds=second, ready=True))
        )
    assert 80 < worker.throughput.per_second(bench.now) < 120
    assert 0.45 < worker.busy_share < 0.55
    assert worker.throughput.per_second(bench.now + 60) < 0.01


def test_the_time_in_a_state_is_counted_from_when_it_began(bench):
    bench.join("w1")
    worker = bench.machine.members.get("w1")
    bench.pass_time(5.0)
    bench.handle(m.WorkerStateRequested("w1", WorkerState.CORDONED))
    bench.pass_time(3.0)
    bench.handle(m.WorkerStateRequested("w1", WorkerState.CORDONED))
    assert worker.since == bench.now - 3.0


@pytest.mark.parametrize("step_seconds", [-86_400.0, 86_400.0])
def test_a_wall_clock_that_is_set_costs_no_worker_its_lease(monkeypatch, step_seconds):
    """The runtime's clock is the monotonic one; the wall clock is stepped while a worker beats, and while one
    is silent."""
    machine = Machine(Settings(worker_timeout_seconds=2.0), Policy(), lambda _: PodSpec(), random.Random(1))
    monotonic = [1000.0]
    runtime = Runtime(machine, ledger=None, journal=None, clock=lambda: monotonic[0])
    for link, name in ((1, "beats"), (2, "silent")):
        machine.handle(m.Registered(link, name, {}, incarnation=link, window=100), runtime.now())
        machine.handle(m.EpochGranted(link, epoch=link), runtime.now())
    wall = time.time()
    for tenth in range(1, 19):
        monotonic[0] += 0.1
        monkeypatch.setattr(time, "time", lambda now=wall + step_seconds + tenth / 10: now)
        runtime.handle(m.HeartbeatReceived(1, Heartbeat(ready=True)))
        runtime.handle(m.Tick())
    assert {worker.name: worker.state.value for worker in machine.members} == {
        "beats": "Ready",
        "silent": "Ready",
    }
