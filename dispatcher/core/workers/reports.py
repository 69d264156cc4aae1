"""What a worker's heartbeat reports: its figures, its conflicts, and the cost of pods by class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AGE_STEPS = 16  # see Heartbeat.refusal_seqs_behind in proto/hoss/v1/workerlink.proto

# Classes remembered per worker; the lowest class ids, which are the oldest, give way.
REMEMBERED_CLASSES = 4096

Micros = NDArray[np.float64]


class Heartbeat(NamedTuple):
    """A worker's figures. Microseconds are of the worker's clock, not of CPU time."""

    busy_seconds: float = 0.0
    micros_per_pod: float = 0.0
    backlog: int = 0
    ready: bool = False
    conflicts: int = 0
    proposed: int = 0
    first_micros: float = 0.0  # extra cost of the first pod of a class
    seen_micros: float = 0.0  # per pod of a class seen before
    synchronisation: str = ""
    # (shard, feed entries not seen yet, for how many seconds)
    lags: tuple[tuple[int, int, float], ...] = ()
    fill_seconds: float = 0.0
    working_seconds: float = 0.0  # wall-clock time spent scheduling, waiting for a core included
    clock_seconds: float = 0.0  # the worker's own clock at this heartbeat
    failing: str = ""  # why its plugins or its algorithm fail at everything


NO_HEARTBEAT = Heartbeat()


@dataclass(frozen=True, slots=True, eq=False)
class ConflictReport:
    """Conflicts since the last heartbeat. Ages are (AGE_STEPS,) or empty."""

    winners: Mapping[tuple[int, int], int]  # (epoch, verdict) -> pods
    nodes: Mapping[int, int]  # index -> pods
    seqs_behind: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    ages_ms: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))


@dataclass(frozen=True, slots=True, eq=False)
class CostReport:
    """New measurements: `classes` u32 (n,), and `micros` f64 (n,), microseconds per pod of each class."""

    classes: NDArray[np.uint32]
    micros: Micros

    def without(self, dropped: Callable[[int], bool]) -> "CostReport":
        """The report without some classes."""
        mask = np.array([not dropped(number) for number in self.classes.tolist()], np.bool_)
        return self if mask.all() else CostReport(self.classes[mask], self.micros[mask])


@dataclass(slots=True, eq=False)
class ClassCosts:
    """Microseconds per pod by class, as two columns in ascending order of class id."""

    classes: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    micros: Micros = field(default_factory=lambda: np.empty(0, np.float64))

    def learn(self, report: CostReport, *, weight: float = 1.0) -> None:
        """Merge a report: `weight` of the new figure and the rest of the old one, where there is one."""
        known = self.of(report.classes)
        merged = np.where(np.isnan(known), report.micros, known + weight * (report.micros - known))
        classes = np.concatenate([report.classes, self.classes])
        # np.unique keeps the first of equals: the new figure.
        self.classes, first = np.unique(classes, return_index=True)
        self.micros = np.concatenate([merged, self.micros])[first]
        self.classes, self.micros = self.classes[-REMEMBERED_CLASSES:], self.micros[-REMEMBERED_CLASSES:]

    def forget(self, classes: list[int]) -> None:
        """Forget these classes."""
        kept = ~np.isin(self.classes, np.array(classes, np.uint32))
        if not kept.all():
            self.classes, self.micros = self.classes[kept], self.micros[kept]

    def of(self, classes: NDArray[np.uint32]) -> Micros:
        """Microseconds per pod of each of these classes, NaN where unknown."""
        if not len(self.classes):
            return np.full(len(classes), np.nan)
        at = np.minimum(np.searchsorted(self.classes, classes), len(self.classes) - 1)
        found: Micros = np.where(self.classes[at] == classes, self.micros[at], np.nan)
        return found
