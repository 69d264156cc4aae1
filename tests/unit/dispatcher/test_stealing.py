"""Pods that a slow worker has not started go to an idle one; a pod is with one worker at a time."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.dispatch.batches import BatchRules
from dispatcher.core.dispatch.work_stealing import StealRules
from dispatcher.core.machine import Settings
from dispatcher.core.pods.sets import NewGang, NewJob, Order
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Policy, Rule, Selector
from dispatcher.core.workers.membership import WorkerState
from dispatcher.core.workers.reports import CostReport, Heartbeat
from hoss.model.pod import PodSpec
from hoss.model.selectors import Requirement

ONE_CLASS = np.array([1], np.uint32)


def tells(bench, link, *, micros=None, backlog=0):
    """A heartbeat, with what a pod of class 1 takes."""
    costs = None if micros is None else CostReport(ONE_CLASS, np.array([micros]))
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True, backlog=backlog), costs))


def recalls(bench):
    return bench.instructions(m.SendRecall)


def gives_back(bench, worker, pods):
    """It answers a recall: its last pods are returned."""
    for work in reversed(bench.sent[worker]):
        positions = range(max(0, len(work.uids) - pods), len(work.uids))
        bench.outcomes(work, positions, m.OutcomeCode.RETURNED)
        pods -= len(positions)


@pytest.fixture
def overloaded(bench):
    """A worker with 2,000 pods that take it a millisecond each, and another that has just come."""
    bench.slow = bench.join("slow")
    bench.rows = bench.job("job", 2000)
    tells(bench, bench.slow, micros=1000.0, backlog=2000)
    bench.quick = bench.join("quick")
    return bench


def test_an_idle_worker_gets_half_of_what_an_equal_one_has_not_started(overloaded):
    overloaded.pass_time(0.1)
    (recall,) = recalls(overloaded)
    assert (recall.link, recall.pods) == (overloaded.slow, 1000)
    gives_back(overloaded, "slow", recall.pods)
    # Up to a second of work at once; the rest waits in the queue for whoever is done first.
    assert overloaded.in_hand("quick") == 1000
    assert overloaded.machine.members.get("slow").outstanding == 1000


def test_a_quicker_one_gets_more_than_half(overloaded):
    tells(overloaded, overloaded.quick, micros=100.0)
    overloaded.pass_time(0.1)
    assert recalls(overloaded)[0].pods == pytest.approx(2000 * 10 / 11, abs=1)


def test_a_pod_given_back_counts_no_attempt_and_is_with_nobody_until_it_was(overloaded):
    overloaded.pass_time(0.1)
    assert overloaded.in_hand("quick") == 0
    gives_back(overloaded, "slow", recalls(overloaded)[0].pods)
    assert {int(a) for work in overloaded.sent["quick"] for a in work.run_attempts} == {0}
    overloaded.machine.check()


def test_who_was_asked_is_not_asked_again_before_it_was_heard(overloaded):
    overloaded.pass_time(0.1)
    overloaded.pass_time(0.1)
    assert len(recalls(overloaded)) == 1
    tells(overloaded, overloaded.slow, backlog=2000)  # it gave nothing, and has them all still
    overloaded.pass_time(0.1)
    assert len(recalls(overloaded)) == 2


def test_what_was_given_back_does_not_return_to_who_gave_it(overloaded):
    """Not even where the balance would choose it again, as long as the other may have it."""
    overloaded.pass_time(0.1)
    gives_back(overloaded, "slow", recalls(overloaded)[0].pods)
    assert overloaded.machine.members.get("slow").outstanding == 1000
    overloaded.job("more", 500)
    assert overloaded.machine.members.get("slow").outstanding == 1000


def test_who_gave_pods_back_gets_new_ones_once_it_has_done_most_of_the_rest(overloaded):
    overloaded.pass_time(0.1)
    gives_back(overloaded, "slow", recalls(overloaded)[0].pods)
    assert overloaded.machine.members.get("slow").served_last
    for work in overloaded.sent["slow"]:
        overloaded.outcomes(work, range(len(work.uids)), m.OutcomeCode.BOUND)
    overloaded.pass_time(0.1)
    assert not overloaded.machine.members.get("slow").served_last


def test_a_worker_that_gave_pods_back_gets_more_when_there_is_no_other(overloaded):
    overloaded.pass_time(0.1)
    gives_back(overloaded, "slow", 2000)
    overloaded.handle(m.LinkClosed(overloaded.quick))
    fence = overloaded.instructions(m.Fence)[-1]
    overloaded.handle(m.Fenced("quick", np.full(len(fence.uids), 0xFFFFFFFF, np.uint32), {}))
    assert overloaded.machine.members.get("slow").outstanding > 0


def test_less_than_the_threshold_stays_where_it_is(bench):
    slow = bench.join("slow")
    bench.job("job", 2000)
    tells(bench, slow, micros=200.0, backlog=2000)
    bench.join("quick")
    bench.pass_time(0.1)
    assert not recalls(bench)


def test_pods_under_way_are_not_asked_for(overloaded):
    tells(overloaded, overloaded.slow, backlog=300)
    overloaded.pass_time(0.1)
    assert not recalls(overloaded)


def test_a_threshold_of_zero_takes_nothing_back(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=1e9, stealing=StealRules(after_seconds=0)))
    slow = bench.join("slow")
    bench.job("job", 2000)
    tells(bench, slow, micros=5000.0, backlog=2000)
    bench.join("quick")
    bench.pass_time(0.1)
    assert not recalls(bench)


@pytest.mark.parametrize("state", [WorkerState.CORDONED, WorkerState.DRAINING])
def test_a_worker_out_of_service_gets_nothing_that_was_another_s(overloaded, state):
    overloaded.handle(m.WorkerStateRequested("quick", state))
    overloaded.pass_time(0.1)
    assert not recalls(overloaded)


def test_a_worker_that_the_policy_does_not_allow_gets_nothing(new_bench):
    gpu = Selector((Requirement("tier", "In", ("gpu",)),))
    bench = new_bench(Policy((Rule("gpu", workers=gpu),)))
    slow = bench.join("slow", tier="gpu")
    bench.job("job", 2000)
    tells(bench, slow, micros=1000.0, backlog=2000)
    bench.join("other")
    bench.pass_time(0.1)
    assert not recalls(bench)
    bench.join("quick", tier="gpu")
    bench.pass_time(0.1)
    assert len(recalls(bench)) == 1


def test_a_gang_given_back_moves_whole(bench):
    slow = bench.join("slow", window=1000)
    template = bench._template(PodSpec())
    rows = np.concatenate([_gang(bench, template, f"gang-{i}", 200) for i in range(4)])
    tells(bench, slow, micros=5000.0, backlog=800)
    bench.join("quick")
    bench.pass_time(0.1)
    (recall,) = recalls(bench)
    last = bench.sent["slow"][-1]
    bench.outcomes(last, range(200), m.OutcomeCode.RETURNED)
    assert [(len(work.uids), work.gang_minimum) for work in bench.sent["quick"]] == [(200, 200)]
    assert last.batch in recall.batches
    assert bench.all_are(rows, Phase.SCHEDULING)


def _gang(bench, template, name, pods):
    gang = (NewGang("default", name, pods),)
    submission = bench.accept(Order(name, (template,), (NewJob(name, 0, pods, 0),), None, gang))
    bench.handle(m.Admitted(submission))
    return np.concatenate([np.arange(s.first, s.first + s.count, dtype=np.uint32) for s in submission.sets])


def test_a_worker_gets_no_more_than_its_time_of_work(new_bench):
    bench = new_bench(
        settings=Settings(worker_timeout_seconds=1e9, batches=BatchRules(work_ahead_seconds=1.0))
    )
    first = bench.join("w1")
    tells(bench, first, micros=5000.0)
    rows = bench.job("job", 2000)
    assert bench.in_hand("w1") == 200
    assert bench.phases(rows[200:]) == [Phase.QUEUED] * 1800


def test_a_worker_is_filled_up_when_half_of_its_time_is_done_and_not_pod_by_pod(bench):
    first = bench.join("w1")
    tells(bench, first, micros=5000.0)
    bench.job("job", 2000)
    work = bench.sent["w1"].pop(0)
    bench.outcomes(work, range(90), m.OutcomeCode.BOUND)
    assert not bench.sent["w1"]
    bench.outcomes(work, range(90, 100), m.OutcomeCode.BOUND)
    assert bench.in_hand("w1") == 100
