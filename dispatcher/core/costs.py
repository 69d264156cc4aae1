"""Measured costs of pods, by class, as columns."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Classes remembered of one worker; those that came first give way.
REMEMBERED_CLASSES = 4096

Micros = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CostReport:
    """What a worker measured anew: `classes` u32 (n,), and `micros` f64 (n,), microseconds per pod of each."""

    classes: NDArray[np.uint32]
    micros: Micros


@dataclass(slots=True, eq=False)
class ClassCosts:
    """Microseconds per pod by class, as two columns in ascending order of class id."""

    classes: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    micros: Micros = field(default_factory=lambda: np.empty(0, np.float64))

    def learn(self, report: CostReport, *, weight: float = 1.0) -> None:
        """Take figures in: `weight` of the new one and the rest of the old one, where there is one."""
        known = self.of(report.classes)
        told = np.where(np.isnan(known), report.micros, known + weight * (report.micros - known))
        classes = np.concatenate([report.classes, self.classes])
        # The first of equals is taken: the new one.
        self.classes, first = np.unique(classes, return_index=True)
        self.micros = np.concatenate([told, self.micros])[first]
        self.classes, self.micros = self.classes[-REMEMBERED_CLASSES:], self.micros[-REMEMBERED_CLASSES:]

    def of(self, classes: NDArray[np.uint32]) -> Micros:
        """What a pod of each of these classes takes, NaN where that is not known."""
        if not len(self.classes):
            return np.full(len(classes), np.nan)
        at = np.minimum(np.searchsorted(self.classes, classes), len(self.classes) - 1)
        found: Micros = np.where(self.classes[at] == classes, self.micros[at], np.nan)
        return found
