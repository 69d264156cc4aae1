"""When pods leave the queue, in which batches, and to which worker."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.dispatch.batches import CHEAP_MICROS, BatchRules
from dispatcher.core.machine import Settings
from dispatcher.core.pods.table import Phase
from dispatcher.core.workers.membership import WorkerState
from dispatcher.core.workers.reports import CostReport, Heartbeat
from hoss.model.pod import PodSpec


def test_a_lone_pod_goes_to_an_idle_worker_at_once(bench):
    bench.join("w1")
    rows = bench.pods("lone")
    assert bench.in_hand("w1") == 1
    assert bench.phases(rows) == [Phase.SCHEDULING]


def test_a_pod_for_a_busy_worker_waits_for_more_and_leaves_when_the_linger_time_is_over(bench):
    bench.join("w1")
    bench.job("busy", 500)
    bench.pods("late")
    assert bench.in_hand("w1") == 500
    assert bench.machine.dispatch.wake_at == bench.now + 0.002
    bench.now += 0.0021
    bench.pump()
    assert bench.in_hand("w1") == 501


def test_a_full_batch_does_not_wait(bench):
    bench.join("w1")
    bench.job("first", 500)
    bench.job("second", 500)
    assert [len(work.uids) for work in bench.sent["w1"]] == [500, 500]


@pytest.mark.parametrize(("micros", "sizes"), [(CHEAP_MICROS, [1000, 1000]), (CHEAP_MICROS + 1, [500] * 4)])
def test_pods_of_a_class_that_the_worker_measured_as_cheap_travel_in_larger_batches(bench, micros, sizes):
    link = bench.join("w1", window=2000)
    bench.job("first", 500)
    [class_id] = bench.sent["w1"][0].run_classes.tolist()
    bench.answer("w1", m.OutcomeCode.BOUND)
    costs = CostReport(np.array([class_id], np.uint32), np.array([micros]))
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True), costs))
    bench.sent["w1"].clear()
    bench.job("second", 4000)
    assert [len(work.uids) for work in bench.sent["w1"]] == sizes


def test_outstanding_never_exceeds_the_window(bench):
    bench.join("w1", window=1200)
    rows = bench.job("big", 5000)
    assert bench.in_hand("w1") == 1000
    bench.answer("w1", m.OutcomeCode.BOUND)
    assert bench.in_hand("w1") == 1000
    assert bench.phases(rows).count(Phase.SCHEDULING) == 1000


def test_two_batches_fit_even_a_small_window_so_the_worker_never_starves(bench):
    bench.join("w1", window=100)
    bench.job("big", 500)
    assert [len(work.uids) for work in bench.sent["w1"]] == [50, 50]


def test_a_few_pods_of_credit_cause_no_crumb_of_a_batch(bench):
    bench.join("w1", window=1000)
    bench.job("big", 5000)
    bench.outcomes(bench.sent["w1"][0], range(10), m.OutcomeCode.BOUND)
    assert len(bench.sent["w1"]) == 2
    bench.outcomes(bench.sent["w1"][0], range(10, 500), m.OutcomeCode.BOUND)
    assert len(bench.sent["w1"]) == 3


def test_a_small_job_is_spread_over_idle_workers(bench):
    for name in ("w1", "w2", "w3", "w4"):
        bench.join(name)
    bench.job("job", 400)
    assert {name: bench.in_hand(name) for name in bench.sent} == {"w1": 100, "w2": 100, "w3": 100, "w4": 100}


def test_higher_priority_leaves_first_and_equal_priority_in_order_of_arrival(bench):
    low = bench.job("low", 3, spec=PodSpec(priority=0))
    high = bench.job("high", 3, spec=PodSpec(priority=10))
    later = bench.job("later", 3, spec=PodSpec(priority=0, labels=(("a", "b"),)))
    bench.join("w1")
    (work,) = bench.sent["w1"]
    expected = np.concatenate([high, low, later])
    assert work.uids.tobytes() == bench.machine.registry.pods.uid[expected].tobytes()


def test_pods_of_one_class_travel_as_one_run_whatever_order_they_came_in(bench):
    for number in range(6):
        bench.pods(f"p-{number}", spec=PodSpec(priority=1, requests=(("cpu", 1 + number % 2),)))
    bench.join("w1")
    (work,) = bench.sent["w1"]
    assert work.run_counts.tolist() == [3, 3]
    assert len(work.classes) == 2


def test_a_class_is_defined_once_per_link_and_again_after_the_worker_came_back(bench):
    link = bench.join("w1")
    bench.job("first", 500)
    bench.job("second", 500)
    assert [len(work.classes) for work in bench.sent["w1"]] == [1, 0]
    bench.handle(m.LinkClosed(link))
    fence = bench.instructions(m.Fence)[0]
    bench.handle(m.Fenced("w1", np.full(len(fence.uids), 0xFFFFFFFF, np.uint32), {}))
    bench.sent.clear()
    bench.join("w1")
    assert len(bench.sent["w1"][0].classes) == 1


def test_the_classes_a_worker_forgets_are_named_when_there_are_too_many(bench):
    bench.join("w1", window=10_000)
    worker = bench.machine.members.get("w1")
    new, forgotten = worker.classes.introduce(range(1, 4097))
    assert (len(new), forgotten) == (4096, [])
    assert worker.classes.introduce([1, 5000]) == ([5000], [2])


def test_a_worker_whose_cache_is_not_filled_gets_nothing(bench):
    bench.join("w1", ready=False)
    rows = bench.job("job", 10)
    assert bench.in_hand("w1") == 0
    assert bench.all_are(rows, Phase.QUEUED)


def test_cordoned_and_draining_workers_get_nothing_and_a_draining_one_is_asked_for_what_it_has(bench):
    bench.join("w1")
    bench.handle(m.WorkerStateRequested("w1", WorkerState.CORDONED))
    rows = bench.job("job", 10)
    assert bench.in_hand("w1") == 0
    bench.handle(m.WorkerStateRequested("w1", WorkerState.READY))
    assert bench.in_hand("w1") == 10
    bench.handle(m.WorkerStateRequested("w1", WorkerState.DRAINING))
    assert len(bench.instructions(m.SendDrain)) == 1
    bench.join("w2")
    bench.answer("w1", m.OutcomeCode.RETURNED)
    assert bench.in_hand("w2") == 10
    assert bench.machine.registry.pods.attempts[rows].tolist() == [0] * 10


def test_batches_are_as_large_as_configured(new_bench):
    bench = new_bench(settings=Settings(batches=BatchRules(batch_pods=1000)))
    bench.join("w1", window=4000)
    bench.job("big", 3000)
    assert [len(work.uids) for work in bench.sent["w1"]] == [1000, 1000, 1000]


FAILING = Heartbeat(ready=True, failing="algorithm mine failed: KeyError: 'zone'")


def test_a_worker_that_fails_at_everything_gets_no_pods_that_others_may_have(bench):
    failing = bench.join("w1")
    bench.join("w2")
    bench.handle(m.HeartbeatReceived(failing, FAILING, None))
    bench.job("first", 3000)
    assert (bench.in_hand("w1"), bench.in_hand("w2")) == (0, 2000)
    bench.handle(m.HeartbeatReceived(failing, Heartbeat(ready=True), None))
    bench.pump()
    assert bench.in_hand("w1") == 1000
    steps = [transition.text for transition in bench.machine.members.get("w1").transitions]
    assert steps[-2:] == [f"it fails at everything: {FAILING.failing}", "it may have pods again"]


def test_a_worker_that_fails_at_everything_gets_what_no_other_may_have(bench):
    bench.handle(m.HeartbeatReceived(bench.join("w1"), FAILING, None))
    bench.job("first", 300)
    assert bench.in_hand("w1") == 300
