"""Pods whose worker dies: which ones become suspects, how suspects travel, and when they are given up."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Settings
from dispatcher.core.pods.table import Phase

NONE = 0xFFFFFFFF


def lose(bench, name: str) -> None:
    """A worker's stream ends and it is fenced; nothing it had is reserved."""
    bench.handle(m.LinkClosed(bench.machine.members.get(name).link))
    bench.sent[name] = []
    fence = bench.instructions(m.Fence)[-1]
    bench.handle(m.Fenced(name, np.full(len(fence.uids), NONE, np.uint32), {}))


def run_with_poison(bench, poison: int, rounds: int = 200) -> None:
    """One worker, which dies of any batch that has the pod in it, comes back, and binds all others."""
    uid = bench.machine.registry.pods.uid[poison].tobytes()
    bench.join("w1")
    for _ in range(rounds):
        if not bench.sent.get("w1"):
            return
        work = bench.sent["w1"][0]
        if uid in {row.tobytes() for row in work.uids}:
            lose(bench, "w1")
            bench.join("w1")
        else:
            bench.answer("w1", m.OutcomeCode.BOUND)
    raise AssertionError("it goes on for ever")


@pytest.mark.parametrize("poison", [0, 700, 1999])
def test_a_pod_that_kills_its_workers_is_given_up_and_all_that_travelled_with_it_are_bound(bench, poison):
    rows = bench.job("job", 2000)
    run_with_poison(bench, rows[poison])
    phases = bench.phases(rows)
    assert phases.pop(poison) == Phase.FAILED
    assert set(phases) == {Phase.BOUND}
    assert bench.machine.counters["workers_lost"] == 5


def test_the_reason_counts_the_faults_and_each_is_remembered_with_its_worker(bench):
    rows = bench.pods("poison")
    run_with_poison(bench, rows[0])
    registry = bench.machine.registry
    reason = registry.reasons.texts[registry.pods.reason[rows[0]]]
    assert reason == "given up after 5 faults, the last: worker w1 was lost while it had this pod in hand"
    assert [fault.worker for fault in registry.faults.of(rows[0])] == ["w1"] * 5


def test_while_a_worker_has_suspects_it_gets_nothing_else(bench):
    bench.join("w1")
    bench.job("suspects", 10)
    lose(bench, "w1")
    bench.join("w1")
    assert bench.in_hand("w1") == 10
    bench.job("others", 50)
    assert bench.in_hand("w1") == 10
    bench.answer("w1", m.OutcomeCode.BOUND)
    assert bench.in_hand("w1") == 50


def test_suspects_go_to_no_worker_with_outstanding_pods(bench):
    bench.join("w2")
    bench.job("long", 500)
    bench.join("w1")
    bench.job("suspects", 10)
    in_hand = bench.in_hand("w2")
    lose(bench, "w1")
    assert bench.in_hand("w2") == in_hand
    while bench.in_hand("w2") > 10 or not bench.sent["w2"]:
        bench.answer("w2", m.OutcomeCode.BOUND)
    assert bench.in_hand("w2") == 10


def test_pods_that_find_no_node_are_never_given_up(bench):
    bench.join("w1")
    rows = bench.pods("big")
    for _ in range(50):
        bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/5 nodes are available: 5 Insufficient cpu.")
        bench.handle(m.ClusterChanged())
        bench.pass_time(11.0)
        bench.pass_time(0.2)
    assert bench.phases(rows) == [Phase.SCHEDULING]
    assert bench.machine.registry.pods.attempts[rows[0]] == 50


def test_a_worker_that_only_was_fenced_leaves_no_suspects(bench):
    bench.join("w1")
    rows = bench.job("job", 10)
    work = bench.sent["w1"].pop()
    bench.outcomes(work, [0], m.OutcomeCode.FENCED)
    bench.handle(m.Fenced("w1", np.full(9, NONE, np.uint32), {}))
    assert not bench.machine.registry.faults.suspect(rows).any()


def test_an_invalid_pod_is_given_up_at_once_with_the_workers_reason(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.answer("w1", m.OutcomeCode.INVALID, reason="unknown resource")
    (fault,) = bench.machine.registry.faults.of(rows[0])
    assert (fault.final, fault.text) == (True, "unknown resource")
    assert bench.phases(rows) == [Phase.FAILED]


def test_a_retried_pod_is_queued_with_its_faults_forgiven(bench):
    rows = bench.pods("poison", "other")
    run_with_poison(bench, rows[0])
    bench.machine.registry.faults.forgive(rows)
    bench.handle(m.Retried(rows))
    assert bench.phases(rows) == [Phase.SCHEDULING, Phase.BOUND]
    assert not bench.machine.registry.faults
    bench.answer("w1", m.OutcomeCode.BOUND)
    assert bench.all_are(rows, Phase.BOUND)


def test_faults_are_forgotten_with_the_pods_they_concern(bench):
    bench.join("w1")
    rows = bench.job("job", 10)
    lose(bench, "w1")
    faults = bench.machine.registry.faults
    assert faults.changed == {1}
    bench.join("w1")
    bench.outcomes(bench.sent["w1"][0], range(6), m.OutcomeCode.BOUND)
    faults.sweep()
    assert faults.get(1).rows.tolist() == rows[6:].tolist()
    bench.handle(m.Deleted(rows[6:]))
    faults.sweep()
    assert faults.get(1) is None
    assert faults.changed == {1}
    assert not bench.machine.registry.pods.faults[rows].any()


def test_a_gang_is_suspect_as_a_whole_and_travels_alone(bench, new_gang):
    bench.join("w1")
    rows = new_gang(bench, 4)
    lose(bench, "w1")
    bench.join("w1")
    bench.job("others", 50)
    assert len(bench.sent["w1"]) == 1
    assert bench.in_hand("w1") == 4
    for _ in range(4):
        lose(bench, "w1")
        bench.join("w1")
    assert bench.all_are(rows, Phase.FAILED)


@pytest.fixture
def new_gang():
    from dispatcher.core.pods.sets import NewGang, NewJob, Order  # noqa: PLC0415 - only this needs them
    from hoss.model.pod import PodSpec  # noqa: PLC0415

    def make(bench, pods: int) -> np.ndarray:
        template = bench._template(PodSpec())
        order = Order(
            "gang", (template,), (NewJob("gang", 0, pods, 0),), None, (NewGang("default", "g", pods),)
        )
        submission = bench.accept(order)
        bench.handle(m.Admitted(submission))
        first = submission.sets[0].first
        return np.arange(first, first + pods, dtype=np.uint32)

    return make


def test_fewer_faults_can_be_asked_for_but_not_so_few_that_the_innocent_fail(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=1e9, max_faults=4))
    rows = bench.job("job", 300)
    run_with_poison(bench, rows[7])
    phases = bench.phases(rows)
    assert phases.pop(7) == Phase.FAILED
    assert set(phases) == {Phase.BOUND}
