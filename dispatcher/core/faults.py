"""Who is to blame when a worker dies: the pods it had in hand are suspects until they are bound.

A fault is one loss of a worker, or one verdict of a worker that a pod can be scheduled nowhere, with all pods it concerns; a pod
is given up after as many as the limit says, or at once where the fault is final. Suspects travel apart from others, and the
more faults a pod has the fewer go with it, so that a pod that kills its workers is soon alone with what it does. Pods that merely
find no node have no faults, and wait for ever.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Phase, PodTable, Rows

MAX_FAULTS = 5

# Pods that travel together after their first fault, and after their second; alone from the third on. Who travelled with a
# pod that kills workers has three faults at the most: the limit must be higher.
TOGETHER = (64, 8, 1)
LEAST_LIMIT = len(TOGETHER) + 1

_SETTLED = (Phase.BOUND, Phase.DELETED, Phase.ABSENT)


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """What happened, to which pods. `final`: they are given up at once."""

    number: int
    at_ms: int  # Unix
    worker: str
    text: str
    rows: Rows
    final: bool = False


class Faults:
    """All faults of pods that are not settled; the pod table's `faults` column counts them. `changed` are the numbers of those
    that are other than, or gone since, they were last taken."""

    def __init__(self, pods: PodTable, limit: int = MAX_FAULTS) -> None:
        self._pods = pods
        self._all: dict[int, Fault] = {}
        self._limit = limit
        self._newest = 0
        self.changed: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    def get(self, number: int) -> Fault | None:
        """A fault by number, unless it is over."""
        return self._all.get(number)

    def note(self, rows: Rows, worker: str, text: str, now_ms: int, *, final: bool = False) -> NDArray[np.bool_]:
        """These pods have one fault more. Which of them are given up."""
        if not len(rows):
            return np.zeros(0, np.bool_)
        return self.restore(Fault(self._newest + 1, now_ms, worker, text, rows, final), changed=True)

    def restore(self, fault: Fault, *, changed: bool = False) -> NDArray[np.bool_]:
        """Take in a fault with its number; one without pods is over. Which of its pods are given up."""
        self._newest = max(self._newest, fault.number)
        if len(fault.rows):
            self._all[fault.number] = fault
        if changed or not len(fault.rows):
            self.changed.add(fault.number)
        counts = self._pods.faults
        counts[fault.rows] = np.minimum(counts[fault.rows].astype(np.uint16) + 1, 0xFF)
        return (counts[fault.rows] >= self._limit) | fault.final

    def of(self, row: int) -> list[Fault]:
        """A pod's faults, oldest first."""
        return [fault for fault in self._all.values() if row in fault.rows]

    def suspects(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these pods travel apart from others."""
        mask: NDArray[np.bool_] = self._pods.faults[rows] > 0
        return mask

    def companies(self, rows: Rows) -> Iterator[Rows]:
        """Suspects in groups that may travel together."""
        counts = self._pods.faults[rows]
        for count in np.unique(counts).tolist():
            size, mine = TOGETHER[min(count, len(TOGETHER)) - 1], rows[counts == count]
            yield from (mine[start : start + size] for start in range(0, len(mine), size))

    def forgive(self, rows: Rows) -> None:
        """These pods have no faults any more."""
        self._pods.faults[rows] = 0
        for fault in list(self._all.values()):
            self._keep(fault, fault.rows[~np.isin(fault.rows, rows)])

    def sweep(self) -> None:
        """Forget the faults of pods that are settled: all of a fault when none is left, the pods themselves when few are."""
        for fault in list(self._all.values()):
            settled = np.isin(self._pods.phase[fault.rows], _SETTLED)
            self._pods.faults[fault.rows[settled]] = 0
            if 2 * settled.sum() >= len(fault.rows):
                self._keep(fault, fault.rows[~settled])

    def drop_deleted(self) -> None:
        """Let go of pods that are deleted: their rows will be others'."""
        for fault in list(self._all.values()):
            self._keep(fault, fault.rows[self._pods.phase[fault.rows] != Phase.DELETED])

    def _keep(self, fault: Fault, rows: Rows) -> None:
        if len(rows) == len(fault.rows):
            return
        self.changed.add(fault.number)
        if len(rows):
            self._all[fault.number] = replace(fault, rows=rows)
        else:
            del self._all[fault.number]
