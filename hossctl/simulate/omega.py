"""Omega's experiment: what a slow service scheduler costs itself and the batch scheduler beside it.

After M. Schwarzkopf et al., "Omega: flexible, scalable schedulers for large compute clusters", EuroSys 2013, sections 4 and 5; the
cell and the two workloads are the defaults of github.com/google/cluster-scheduler-simulator. A scheduler takes a copy of the
cell's state when it begins with a job, thinks for t_job + t_task x tasks, puts each task on a random node that has room
in the copy, and claims them in one transaction. What conflicts goes back to the queue.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import OutcomeCode, SendWork
from dispatcher.core.policy import Match, Policy, Rule, Selector
from hoss.model.fit import fits
from hoss.model.pod import PodSpec
from hoss.model.selectors import Requirement
from hoss.wire.columns import Uids
from hossctl.simulate.dispatching import TICK_SECONDS, Dispatching, Part, Worker, parts_of
from hossctl.simulate.ledger import ColumnLedger, Conflicts, NodeIndexes, Transactions, View, claim
from hossctl.simulate.omega_setting import BATCH, KINDS, SERVICE, Architecture, Cell, Figures, Result, Setting, Workload
from hossctl.simulate.timeline import Timeline

MAX_TASKS = 1000  # of a job: as many pods as a gang of HOSS may have
_WINDOW = 1000  # pods that a scheduler is given at once


@dataclass(slots=True)
class _Job:
    workload: Workload
    duration_seconds: float
    submitted_at: float
    left: int
    begun: bool = False


@dataclass(slots=True)
class _Scheduler:
    """One who decides, one part of a job after the other."""

    queue: deque[Part] = field(default_factory=deque)
    thinking: bool = False
    busy_seconds: float = 0.0


def simulate(setting: Setting) -> Result:
    """Run the experiment. The same setting, the same result."""
    return _Experiment(setting).run()


class _Experiment:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._time = Timeline()
        # Loads are drawn apart from placements: all points of a sweep get the same jobs.
        load_seed, self._placing = np.random.SeedSequence(setting.seed), np.random.default_rng(setting.seed + 1)
        self._loads = dict(zip(KINDS, map(np.random.default_rng, load_seed.spawn(len(KINDS))), strict=True))
        self._ledger = _filled(setting.cell, self._placing)
        shared = setting.architecture is Architecture.SHARED_STATE
        served = tuple((kind,) for kind in KINDS) if shared else (KINDS,)
        self._schedulers = [_Scheduler() for _ in served]
        self._decider = {kind: number for number, kinds in enumerate(served) for kind in kinds}
        self._dispatching = _dispatching(served, setting.seed)
        self._jobs: dict[bytes, _Job] = {}
        self._figures = {kind: Figures() for kind in KINDS}

    def run(self) -> Result:
        for workload in (BATCH, SERVICE):
            self._plan_arrival(workload)
        self._time.every(TICK_SECONDS, lambda: self._hand_out(self._dispatching.tick(self._time.now)))
        self._time.run(self._setting.horizon_seconds)
        used = self._ledger.requested[0].sum() / self._ledger.allocatable[0].sum()
        over = (self._ledger.requested > self._ledger.allocatable).any(axis=0)
        horizon = self._setting.horizon_seconds
        busyness = {kind: min(1.0, self._schedulers[i].busy_seconds / horizon) for kind, i in self._decider.items()}
        return Result(self._setting, self._figures, busyness, float(used), int(over.sum()))

    def _plan_arrival(self, workload: Workload) -> None:
        rng = self._loads[workload.kind]
        self._time.after(rng.exponential(workload.interval_seconds), lambda: self._arrive(workload))

    def _arrive(self, workload: Workload) -> None:
        rng, now = self._loads[workload.kind], self._time.now
        tasks = int(np.clip(round(rng.exponential(workload.tasks)), 1, MAX_TASKS))
        # A gang travels whole and is tried whole. With a minimum of one, what is placed of it stays.
        minimum = tasks if self._setting.transactions is Transactions.ALL_OR_NOTHING else 1
        job = _Job(workload, rng.exponential(workload.duration_seconds), now, tasks)
        name, sent = self._dispatching.submit(workload.kind, tasks, now, minimum=minimum)
        self._jobs[name] = job
        self._figures[workload.kind].submitted += 1
        self._hand_out(sent)
        self._plan_arrival(workload)

    def _hand_out(self, sent: Iterable[SendWork]) -> None:
        for work in sent:
            self._schedulers[work.link].queue.extend(parts_of(work))
            self._begin(work.link)
        due = self._dispatching.wake_at
        if due is not None:
            self._time.after(max(0.0, due - self._time.now), lambda: self._hand_out(self._pump()))

    def _pump(self) -> list[SendWork]:
        return self._dispatching.pump(self._time.now)

    def _begin(self, number: int) -> None:
        scheduler = self._schedulers[number]
        if scheduler.thinking or not scheduler.queue:
            return
        part = scheduler.queue.popleft()
        job = self._jobs[part.job]
        figures, now = self._figures[job.workload.kind], self._time.now
        if not job.begun:
            job.begun = True
            figures.begun += 1
            figures.wait_seconds += now - job.submitted_at
        seconds = self._setting.t_job(job.workload.kind) + self._setting.t_task_seconds * len(part.positions)
        # What lies beyond the horizon is not part of the figures.
        spent = min(seconds, self._setting.horizon_seconds - now)
        scheduler.thinking, scheduler.busy_seconds = True, scheduler.busy_seconds + spent
        figures.thinking_seconds += spent
        view = self._ledger.view()
        self._time.after(seconds, lambda: self._finish(number, part, view))

    def _finish(self, number: int, part: Part, view: View) -> None:
        job, scheduler = self._jobs[part.job], self._schedulers[number]
        request = job.workload.request
        nodes = choose(view, request, len(part.positions), self._placing)
        found = len(nodes)
        whole = self._setting.transactions is Transactions.ALL_OR_NOTHING
        if whole and found < len(part.positions):
            found = 0  # a gang that does not fit is not proposed
        committed = np.zeros(len(part.positions), np.bool_)
        if found:
            by_seq = self._setting.conflicts is Conflicts.SEQUENCE_NUMBER
            committed[:found] = self._ledger.commit(
                nodes, request, view=view if by_seq else None, transactions=self._setting.transactions
            )
            self._count(job, int(committed.sum()), found)
        self._keep(job, nodes[committed[:found]] if found else nodes[:0], part.uids[committed])
        scheduler.thinking = False
        claimed = np.arange(len(part.positions)) < found
        for code, at in (
            (OutcomeCode.BOUND, committed),
            (OutcomeCode.CONFLICT, claimed & ~committed),
            (OutcomeCode.UNSCHEDULABLE, ~claimed),
        ):
            self._hand_out(self._dispatching.answer(part, code, at, self._time.now))
        self._begin(number)

    def _count(self, job: _Job, committed: int, claimed: int) -> None:
        figures = self._figures[job.workload.kind]
        figures.transactions += 1
        figures.conflicted += committed < claimed
        figures.tasks += claimed
        figures.conflicted_tasks += claimed - committed
        job.left -= committed
        figures.scheduled += job.left == 0

    def _keep(self, job: _Job, nodes: NodeIndexes, uids: Uids) -> None:
        """The tasks run, and are over after the job's duration."""

        def end() -> None:
            self._ledger.release(nodes, job.workload.request)
            self._hand_out(self._dispatching.end(uids, self._time.now))

        if len(nodes):
            self._time.after(job.duration_seconds, end)


def choose(view: View, request: NDArray[np.int64], pods: int, rng: np.random.Generator) -> NodeIndexes:
    """A random node with room for each of so many pods, each seeing those before it; fewer where no more fit. Counts them in the
    view."""
    chosen: list[NodeIndexes] = []
    missing = pods
    while missing:
        open_nodes = np.flatnonzero(fits(view.allocatable, view.requested, request))
        if not len(open_nodes):
            break
        drawn = open_nodes[rng.integers(len(open_nodes), size=missing)]
        drawn = drawn[claim(view.allocatable, view.requested, drawn, request)]
        chosen.append(drawn)
        missing -= len(drawn)
    return np.concatenate(chosen) if chosen else np.empty(0, np.intp)


def _filled(cell: Cell, rng: np.random.Generator) -> ColumnLedger:
    """The cell with pods of one CPU and 2 GiB that stay, each on a random node with room."""
    amounts = np.array([[cell.cpu_milli], [cell.memory_bytes]], np.int64)
    ledger = ColumnLedger(np.repeat(amounts, cell.nodes, axis=1))
    request = BATCH.request
    pods = int(cell.fill * cell.nodes * cell.cpu_milli / request[0])
    ledger.commit(choose(ledger.view(), request, pods, rng), request)
    return ledger


def _dispatching(served: tuple[tuple[str, ...], ...], seed: int) -> Dispatching:
    """A worker for each entry of `served`, and a rule for each that sends it those kinds by their label."""
    workers = [Worker(f"w{number}", {"serves": str(number)}, _WINDOW) for number in range(len(served))]
    rules = tuple(
        Rule(
            "-".join(kinds),
            Match(labels=Selector((Requirement("kind", "In", kinds),))),
            Selector((Requirement("serves", "In", (str(number),)),)),
        )
        for number, kinds in enumerate(served)
    )
    specs: Mapping[str, PodSpec] = {kind: PodSpec(labels=(("kind", kind),)) for kind in KINDS}
    return Dispatching(specs, workers, Policy(rules), seed=seed)
