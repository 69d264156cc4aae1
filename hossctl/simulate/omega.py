"""Omega's experiment: what a slow service scheduler costs itself and the batch scheduler beside it. After M.
Schwarzkopf et al., "Omega: flexible, scalable schedulers for large compute clusters", EuroSys 2013, sections
4 and 5. The cell and the two workloads are the defaults of github.com/google/cluster-scheduler-simulator. A
scheduler takes a copy of the cell's state when it begins with a job, thinks for t_job + t_task x tasks, puts
each task on a random node with room in the copy, and claims the nodes in one transaction. Conflicting tasks
go back to the queue."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import OutcomeCode, SendWork
from dispatcher.core.policy.rules import Match, Policy, Rule, Selector
from hoss.model.fit import fits
from hoss.model.pod import PodSpec
from hoss.model.selectors import Requirement
from hoss.wire.columns import Uids
from hossctl.simulate.dispatching import TICK_SECONDS, Dispatching, Part, SimulatedWorker, parts_of
from hossctl.simulate.timeline import Timeline
from resolver.core.account_columns import AccountColumns, NodeIndexes, View, claim

GIB = 2**30


class Architecture(str, Enum):
    """Single path: one scheduler, as slow with every job as with service jobs. Multi path: one scheduler,
    slow with service jobs only. Shared state: a scheduler for each kind of job, on one ledger."""

    SINGLE_PATH = "monolithic-single-path"
    MULTI_PATH = "monolithic-multi-path"
    SHARED_STATE = "shared-state"


class SimulatedConflicts(str, Enum):
    """When a claim conflicts: where there is no room left, as in HOSS, or whenever the node has changed since
    the scheduler's view was taken (Omega's coarse-grained detection)."""

    RESOURCE_FIT = "resource-fit"
    SEQUENCE_NUMBER = "sequence-number"


class Transactions(str, Enum):
    """Whether a job with conflicts commits its other pods, or none."""

    INCREMENTAL = "incremental"
    ALL_OR_NOTHING = "all-or-nothing"


@dataclass(frozen=True, slots=True)
class OmegaWorkload:
    """Jobs of one kind. Intervals, numbers of tasks and durations are exponentially distributed with these
    means."""

    kind: str
    interval_seconds: float
    tasks: float
    duration_seconds: float
    t_job_seconds: float
    cpu_milli: int = 1000
    memory_bytes: int = 2 * GIB

    @property
    def request(self) -> NDArray[np.int64]:
        """(2,): cpu and memory."""
        return np.array([self.cpu_milli, self.memory_bytes], np.int64)


BATCH = OmegaWorkload("batch", interval_seconds=10, tasks=100, duration_seconds=100, t_job_seconds=0.1)
SERVICE = OmegaWorkload("service", interval_seconds=20, tasks=10, duration_seconds=500, t_job_seconds=0.1)
KINDS = (BATCH.kind, SERVICE.kind)


@dataclass(frozen=True, slots=True)
class OmegaCell:
    """The nodes. Pods that never end hold the share `fill` of the cpu."""

    nodes: int = 10_000
    cpu_milli: int = 4000
    memory_bytes: int = 16 * GIB
    fill: float = 0.6


@dataclass(frozen=True, slots=True)
class OmegaSetting:
    """One run. A sweep varies `service_t_job`."""

    architecture: Architecture
    service_t_job: float
    conflicts: SimulatedConflicts = SimulatedConflicts.RESOURCE_FIT
    transactions: Transactions = Transactions.INCREMENTAL
    horizon_seconds: float = 86_400.0
    cell: OmegaCell = OmegaCell()
    t_task_seconds: float = 0.005
    seed: int = 1

    def t_job(self, kind: str) -> float:
        """Decision time for a job of this kind, without its tasks."""
        slow = kind == SERVICE.kind or self.architecture is Architecture.SINGLE_PATH
        return self.service_t_job if slow else BATCH.t_job_seconds


@dataclass(slots=True)
class OmegaFigures:
    """Figures of the jobs of one kind. A *transaction* is one attempt to place the rest of a job."""

    submitted: int = 0
    begun: int = 0  # jobs tried at least once
    wait_seconds: float = 0.0  # of those, from submission to the first try
    transactions: int = 0
    conflicted: int = 0  # transactions with any conflict
    tasks: int = 0  # claimed, counting each time
    conflicted_tasks: int = 0
    scheduled: int = 0  # jobs of which every task is placed

    @property
    def mean_wait(self) -> float:
        """Seconds from submission to the first try, of the jobs that had one."""
        return self.wait_seconds / self.begun if self.begun else 0.0

    @property
    def conflict_fraction(self) -> float:
        """Conflicted transactions per successful one, as in the paper."""
        return self.conflicted / max(1, self.transactions - self.conflicted)

    @property
    def task_conflict_share(self) -> float:
        """The share of claims for single tasks that was refused."""
        return self.conflicted_tasks / self.tasks if self.tasks else 0.0


@dataclass(slots=True)
class Result:
    """Figures by kind, and how busy the scheduler of that kind was, as a share of the time."""

    setting: OmegaSetting
    figures: dict[str, OmegaFigures]
    busyness: dict[str, float]
    utilisation: float  # of cpu, at the end
    overcommitted: int  # nodes, at the end


MAX_TASKS = 1000  # of a job: as many pods as a gang of HOSS may have
_WINDOW = 1000  # pods that a scheduler is given at once


@dataclass(slots=True)
class _Job:
    workload: OmegaWorkload
    duration_seconds: float
    submitted_at: float
    left: int
    begun: bool = False


@dataclass(slots=True)
class _Scheduler:
    """It decides one part of a job after the other."""

    queue: deque[Part] = field(default_factory=deque)
    thinking: bool = False
    busy_seconds: float = 0.0


def simulate(setting: OmegaSetting) -> Result:
    """Run the experiment. Equal settings give equal results."""
    return _Experiment(setting).run()


class _Experiment:
    def __init__(self, setting: OmegaSetting) -> None:
        self._setting = setting
        self._time = Timeline()
        # Loads are drawn apart from placements: all points of a sweep get the same jobs.
        load_seed, self._placing = (
            np.random.SeedSequence(setting.seed),
            np.random.default_rng(setting.seed + 1),
        )
        self._loads = dict(zip(KINDS, map(np.random.default_rng, load_seed.spawn(len(KINDS))), strict=True))
        self._ledger = _filled(setting.cell, self._placing)
        shared = setting.architecture is Architecture.SHARED_STATE
        served = tuple((kind,) for kind in KINDS) if shared else (KINDS,)
        self._schedulers = [_Scheduler() for _ in served]
        self._decider = {kind: number for number, kinds in enumerate(served) for kind in kinds}
        self._dispatching = _dispatching(served, setting.seed)
        self._jobs: dict[bytes, _Job] = {}
        self._figures = {kind: OmegaFigures() for kind in KINDS}

    def run(self) -> Result:
        for workload in (BATCH, SERVICE):
            self._plan_arrival(workload)
        self._time.every(TICK_SECONDS, lambda: self._hand_out(self._dispatching.tick(self._time.now)))
        self._time.run(self._setting.horizon_seconds)
        used = self._ledger.requested[0].sum() / self._ledger.allocatable[0].sum()
        over = (self._ledger.requested > self._ledger.allocatable).any(axis=0)
        horizon = self._setting.horizon_seconds
        busyness = {
            kind: min(1.0, self._schedulers[i].busy_seconds / horizon) for kind, i in self._decider.items()
        }
        return Result(self._setting, self._figures, busyness, float(used), int(over.sum()))

    def _plan_arrival(self, workload: OmegaWorkload) -> None:
        rng = self._loads[workload.kind]
        self._time.after(rng.exponential(workload.interval_seconds), lambda: self._arrive(workload))

    def _arrive(self, workload: OmegaWorkload) -> None:
        rng, now = self._loads[workload.kind], self._time.now
        tasks = int(np.clip(round(rng.exponential(workload.tasks)), 1, MAX_TASKS))
        # A gang is sent and tried as a whole. With a minimum of one, its placed pods stay.
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
        # Time beyond the horizon does not count.
        spent = min(seconds, self._setting.horizon_seconds - now)
        scheduler.thinking, scheduler.busy_seconds = True, scheduler.busy_seconds + spent
        view = self._ledger.view()
        self._time.after(seconds, lambda: self._finish(number, part, view))

    def _finish(self, number: int, part: Part, view: View) -> None:
        job, scheduler = self._jobs[part.job], self._schedulers[number]
        request = job.workload.request
        nodes = choose(view, request, len(part.positions), self._placing)
        found = len(nodes)
        whole = self._setting.transactions is Transactions.ALL_OR_NOTHING
        if whole and found < len(part.positions):
            found = 0  # a gang that does not fit is not claimed
        committed = np.zeros(len(part.positions), np.bool_)
        if found:
            by_seq = self._setting.conflicts is SimulatedConflicts.SEQUENCE_NUMBER
            committed[:found] = self._ledger.commit(
                nodes, request, view=view if by_seq else None, all_or_nothing=whole
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
        """The tasks run for the job's duration."""

        def end() -> None:
            self._ledger.release(nodes, job.workload.request)
            self._hand_out(self._dispatching.end(uids, self._time.now))

        if len(nodes):
            self._time.after(job.duration_seconds, end)


def choose(view: View, request: NDArray[np.int64], pods: int, rng: np.random.Generator) -> NodeIndexes:
    """A random node with room for each of `pods` pods, each decision with the earlier ones counted in the
    view; fewer nodes where no more pods fit."""
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


def _filled(cell: OmegaCell, rng: np.random.Generator) -> AccountColumns:
    """The cell with pods of one CPU and 2 GiB that never end, each on a random node with room."""
    amounts = np.array([[cell.cpu_milli], [cell.memory_bytes]], np.int64)
    ledger = AccountColumns(np.repeat(amounts, cell.nodes, axis=1))
    request = BATCH.request
    pods = int(cell.fill * cell.nodes * cell.cpu_milli / request[0])
    ledger.commit(choose(ledger.view(), request, pods, rng), request)
    return ledger


def _dispatching(served: tuple[tuple[str, ...], ...], seed: int) -> Dispatching:
    """A worker for each entry of `served`, and a rule for each that sends it those kinds by their label."""
    workers = [
        SimulatedWorker(f"w{number}", {"serves": str(number)}, _WINDOW) for number in range(len(served))
    ]
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
