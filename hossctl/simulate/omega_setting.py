"""What Omega's experiment is given, and what comes of it. See hossctl.simulate.omega."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hossctl.simulate.ledger import Conflicts, Transactions

GIB = 2**30


class Architecture(str, Enum):
    """Who decides. Single path: one scheduler, as slow with every job as with service jobs. Multi path: one scheduler, slow with
    service jobs only. Shared state: a scheduler for each kind, on one ledger."""

    SINGLE_PATH = "monolithic-single-path"
    MULTI_PATH = "monolithic-multi-path"
    SHARED_STATE = "shared-state"


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs of one kind. Intervals, numbers of tasks and durations are exponentially distributed with these means."""

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


BATCH = Workload("batch", interval_seconds=10, tasks=100, duration_seconds=100, t_job_seconds=0.1)
SERVICE = Workload("service", interval_seconds=20, tasks=10, duration_seconds=500, t_job_seconds=0.1)
KINDS = (BATCH.kind, SERVICE.kind)


@dataclass(frozen=True, slots=True)
class Cell:
    """The nodes; `fill` of the cpu is held by pods that stay."""

    nodes: int = 10_000
    cpu_milli: int = 4000
    memory_bytes: int = 16 * GIB
    fill: float = 0.6


@dataclass(frozen=True, slots=True)
class Setting:
    """One run: `service_t_job` is what is varied."""

    architecture: Architecture
    service_t_job: float
    conflicts: Conflicts = Conflicts.RESOURCE_FIT
    transactions: Transactions = Transactions.INCREMENTAL
    horizon_seconds: float = 86_400.0
    cell: Cell = Cell()
    t_task_seconds: float = 0.005
    seed: int = 1

    def t_job(self, kind: str) -> float:
        """What a decision on a job of this kind takes besides its tasks."""
        slow = kind == SERVICE.kind or self.architecture is Architecture.SINGLE_PATH
        return self.service_t_job if slow else BATCH.t_job_seconds


@dataclass(slots=True)
class Figures:
    """What came of the jobs of one kind. A *transaction* is one try to place what is left of a job."""

    submitted: int = 0
    begun: int = 0  # jobs tried at least once
    wait_seconds: float = 0.0  # of those, from submission to the first try
    thinking_seconds: float = 0.0
    transactions: int = 0
    conflicted: int = 0  # transactions with any conflict
    tasks: int = 0  # claimed, each as often as it was
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
        """Which share of the claims for single tasks was refused."""
        return self.conflicted_tasks / self.tasks if self.tasks else 0.0


@dataclass(slots=True)
class Result:
    """Figures by kind, and how busy who decides on that kind was, as a share of the time."""

    setting: Setting
    figures: dict[str, Figures]
    busyness: dict[str, float]
    utilisation: float  # of cpu, at the end
    overcommitted: int  # nodes, at the end
