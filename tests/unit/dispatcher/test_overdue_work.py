"""The deadline of work: what becomes of the pods of a worker that beats and does not answer."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Settings
from dispatcher.core.overdue_work import FIRST_DISTRUST_SECONDS, LONGEST_DISTRUST_SECONDS
from dispatcher.core.pods.table import Phase
from dispatcher.core.workers.membership import WorkerState
from dispatcher.core.workers.reports import CostReport, Heartbeat

TIMEOUT_SECONDS = 30.0
TICK_SECONDS = 0.25  # a later tick would be taken for a dispatcher that did not run


class Scene:
    """Workers that beat at every tick, and a ledger that answers probes, or does not."""

    def __init__(self, bench) -> None:
        self.bench = bench
        self.ledger_answers = True
        self.heartbeats: dict[int, Heartbeat] = {}  # by link

    def join(self, name: str, **options) -> int:
        link = self.bench.join(name, **options)
        self.heartbeats[link] = Heartbeat(ready=True)
        return link

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            for link, heartbeat in self.heartbeats.items():
                self.bench.handle(m.HeartbeatReceived(link, heartbeat))
            self.bench.pass_time(TICK_SECONDS)
            probes = self.bench.instructions(m.ProbeLedger)
            self.bench.emitted = [i for i in self.bench.emitted if not isinstance(i, m.ProbeLedger)]
            for probe in probes:
                self.bench.handle(m.LedgerProbed(probe.link, answered=self.ledger_answers))

    def fenced(self, name: str) -> np.ndarray:
        """The fence of a worker that was just lost is done: the ledger has none of its pods."""
        fence = [f for f in self.bench.instructions(m.Fence) if f.worker == name][-1]
        self.bench.emitted.clear()
        self.bench.sent.pop(name, None)
        rows = self.bench.machine.members.get(name).unfenced
        self.bench.handle(m.Fenced(name, np.full(len(fence.uids), 0xFFFFFFFF, np.uint32), {}))
        return rows

    def comes_back(self, name: str) -> int:
        self.heartbeats.clear()
        return self.join(name)

    def state(self, name: str) -> WorkerState:
        return self.bench.machine.members.get(name).state


@pytest.fixture
def scene(new_bench) -> Scene:
    settings = Settings(worker_timeout_seconds=1e9, work_timeout_seconds=TIMEOUT_SECONDS)
    return Scene(new_bench(settings=settings))


def test_pods_of_a_worker_that_beats_and_answers_nothing_go_to_another(scene):
    bench = scene.bench
    scene.join("impostor")
    rows = bench.job("j", 300)
    bench.pump()
    scene.pass_time(TIMEOUT_SECONDS - 3)
    assert scene.state("impostor") is WorkerState.READY
    scene.pass_time(6)
    assert scene.state("impostor") is WorkerState.LOST
    assert [close.text for close in bench.instructions(m.CloseLink)]
    assert bench.machine.counters["workers_overdue"] == 1
    assert bench.machine.counters["taken_back"] == 300
    scene.fenced("impostor")
    scene.join("w2")
    scene.pass_time(2)
    while bench.sent.get("w2"):
        bench.answer("w2", m.OutcomeCode.BOUND, node=1)
        scene.pass_time(1)
    assert bench.all_are(rows, Phase.BOUND)


def test_a_worker_that_answers_now_and_then_keeps_its_pods(scene):
    bench = scene.bench
    scene.join("slow")
    bench.job("j", 10)
    bench.pump()
    (work,) = bench.sent["slow"]
    for position in range(10):
        scene.pass_time(TIMEOUT_SECONDS - 3)
        bench.outcomes(work, [position], m.OutcomeCode.BOUND, node=1)
    assert scene.state("slow") is WorkerState.READY


def test_outcomes_of_pods_that_it_does_not_have_are_no_answer(scene):
    bench = scene.bench
    scene.join("babbler")
    bench.job("j", 10)
    bench.pump()
    (work,) = bench.sent["babbler"]
    for _ in range(4):
        scene.pass_time(TIMEOUT_SECONDS / 3)
        bench.outcomes(work, [500], m.OutcomeCode.BOUND, node=1)
    assert scene.state("babbler") is WorkerState.LOST


def test_a_shrinking_backlog_is_progress_and_a_constant_one_is_not(scene):
    bench = scene.bench
    link = scene.join("w1")
    bench.job("j", 300)
    bench.pump()
    for backlog in (300, 200, 100, 50):
        scene.heartbeats[link] = Heartbeat(ready=True, backlog=backlog)
        scene.pass_time(TIMEOUT_SECONDS - 3)
        assert scene.state("w1") is WorkerState.READY
    scene.pass_time(6)
    assert scene.state("w1") is WorkerState.LOST


def test_work_that_is_estimated_to_take_long_has_long(scene):
    bench = scene.bench
    link = scene.join("w1")
    rows = bench.job("j", 1)
    class_id = bench.machine.registry.templates.class_id[bench.machine.registry.pods.template[rows[0]]]
    ten_seconds = CostReport(np.array([class_id], np.uint32), np.array([10e6]))
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True), costs=ten_seconds))
    bench.pump()
    scene.pass_time(TIMEOUT_SECONDS + 90)
    assert scene.state("w1") is WorkerState.READY
    scene.pass_time(20)
    assert scene.state("w1") is WorkerState.LOST


def test_a_busy_worker_has_longer_and_not_for_ever(scene):
    bench = scene.bench
    link = scene.join("w1")
    bench.job("j", 10)
    bench.pump()
    for second in range(1, 200):
        scene.heartbeats[link] = Heartbeat(ready=True, clock_seconds=second, working_seconds=second)
        scene.pass_time(1)
        if scene.state("w1") is not WorkerState.READY:
            break
    assert 3 * TIMEOUT_SECONDS < second < 5 * TIMEOUT_SECONDS


def test_while_the_ledger_does_not_answer_no_worker_is_overdue(scene):
    bench = scene.bench
    scene.join("w1")
    bench.job("j", 10)
    bench.pump()
    scene.ledger_answers = False
    scene.pass_time(10 * TIMEOUT_SECONDS)
    scene.ledger_answers = True
    scene.pass_time(TIMEOUT_SECONDS / 2)
    assert scene.state("w1") is WorkerState.READY


def test_an_idle_worker_is_never_overdue(scene):
    scene.join("w1")
    scene.pass_time(20 * TIMEOUT_SECONDS)
    scene.bench.job("j", 10)
    scene.pass_time(TIMEOUT_SECONDS - 3)
    assert scene.state("w1") is WorkerState.READY


def test_a_dispatcher_that_did_not_run_counts_that_time_for_nobody(scene):
    bench = scene.bench
    scene.join("w1")
    bench.job("j", 10)
    bench.pump()
    scene.pass_time(2)
    bench.pass_time(10 * TIMEOUT_SECONDS)
    scene.pass_time(TIMEOUT_SECONDS - 6)
    assert scene.state("w1") is WorkerState.READY


def test_a_distrusted_worker_gets_no_work_then_one_batch_at_a_time_and_all_once_it_has_answered(scene):
    bench = scene.bench
    scene.join("w1")
    bench.job("j", 200)
    bench.pump()
    scene.pass_time(TIMEOUT_SECONDS + 3)
    scene.fenced("w1")
    bench.handle(m.Deleted(np.arange(200, dtype=np.uint32)))
    bench.job("other", 2000)
    scene.comes_back("w1")
    scene.pass_time(FIRST_DISTRUST_SECONDS - 5)
    assert not bench.in_hand("w1")
    scene.pass_time(8)
    assert len(bench.sent["w1"]) == 1
    bench.answer("w1", m.OutcomeCode.BOUND, node=1)
    assert len(bench.sent["w1"]) > 1


def test_distrust_lasts_longer_each_time_up_to_a_limit(scene):
    bench = scene.bench
    scene.join("w1")
    bench.job("j", 10)
    bench.pump()
    lasts = []
    for _ in range(8):
        scene.pass_time(TIMEOUT_SECONDS + 3)
        trust = bench.machine.members.get("w1").trust
        lasts.append(round(trust.distrusted_until - bench.now, -1))
        scene.fenced("w1")
        bench.machine.registry.faults.forgive(np.arange(10, dtype=np.uint32))
        bench.handle(m.Retried(np.arange(10, dtype=np.uint32)))
        scene.comes_back("w1")
        scene.pass_time(trust.distrusted_until - bench.now + 2)
        assert bench.in_hand("w1")
    assert lasts[:3] == [FIRST_DISTRUST_SECONDS, 2 * FIRST_DISTRUST_SECONDS, 4 * FIRST_DISTRUST_SECONDS]
    assert lasts[-1] == LONGEST_DISTRUST_SECONDS


def test_an_operator_may_end_the_distrust(scene):
    bench = scene.bench
    scene.join("w1")
    bench.job("j", 10)
    bench.pump()
    scene.pass_time(TIMEOUT_SECONDS + 3)
    scene.fenced("w1")
    scene.comes_back("w1")
    assert not bench.in_hand("w1")
    bench.handle(m.WorkerStateRequested("w1", WorkerState.READY))
    scene.pass_time(1)
    assert bench.in_hand("w1")
    told = [step.text for step in bench.machine.members.get("w1").transitions]
    assert any("it answered for no pod in" in text for text in told)


def test_with_a_timeout_of_zero_no_work_is_overdue(new_bench):
    scene = Scene(new_bench(settings=Settings(worker_timeout_seconds=1e9, work_timeout_seconds=0)))
    scene.join("w1")
    scene.bench.job("j", 10)
    scene.bench.pump()
    scene.pass_time(2000)
    assert scene.state("w1") is WorkerState.READY
