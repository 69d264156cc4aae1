"""Faults, and the isolation of poison pods. When a worker dies, the pods that it had are suspects until they
are bound.

A fault is one loss of a worker, or one verdict of a worker that a pod is invalid, with all pods concerned. A
pod is given up after `limit` faults, or at once if the fault is final. Suspects travel apart from other pods,
and the more faults they have the fewer travel together, so a pod that kills its workers is soon alone. A pod
that merely fits no node has no fault, and waits for ever."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import Phase, PodTable, Rows

MAX_FAULTS = 5

# Suspects in one batch after their first fault, after their second, and from the third on. A pod that only
# shared a batch with a poison pod has three faults at most: the limit must be higher.
ISOLATION_GROUP_PODS = (64, 8, 1)
LEAST_LIMIT = len(ISOLATION_GROUP_PODS) + 1

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
    """All faults of pods that are not settled; the pod table's `faults` column counts them. `changed` are the
    numbers of faults that changed or ended since the journal last took them."""

    def __init__(self, pods: PodTable, limit: int = MAX_FAULTS) -> None:
        self._pods = pods
        self._all: dict[int, Fault] = {}
        self._limit = limit
        self._newest = 0
        self.changed: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def get(self, number: int) -> Fault | None:
        """A fault by number, unless it is over."""
        return self._all.get(number)

    def record(
        self, rows: Rows, worker: str, text: str, now_ms: int, *, final: bool = False
    ) -> NDArray[np.bool_]:
        """Record a fault of these pods. Returns which of them are given up."""
        if not len(rows):
            return np.zeros(0, np.bool_)
        return self.restore(Fault(self._newest + 1, now_ms, worker, text, rows, final), changed=True)

    def restore(self, fault: Fault, *, changed: bool = False) -> NDArray[np.bool_]:
        """Add a fault under its number; without pods it is over. Returns which of its pods are given up."""
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

    def suspect(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these pods travel apart from others."""
        mask: NDArray[np.bool_] = self._pods.faults[rows] > 0
        return mask

    def isolation_groups(self, rows: Rows) -> Iterator[Rows]:
        """Suspects in groups that may travel together."""
        counts = self._pods.faults[rows]
        for count in np.unique(counts).tolist():
            size = ISOLATION_GROUP_PODS[min(count, len(ISOLATION_GROUP_PODS)) - 1]
            mine = rows[counts == count]
            yield from (mine[start : start + size] for start in range(0, len(mine), size))

    def forgive(self, rows: Rows) -> None:
        """These pods have no faults any more."""
        self._pods.faults[rows] = 0
        if not self._all:
            return
        kept = np.ones(len(self._pods.faults), np.bool_)
        kept[rows] = False
        for fault in list(self._all.values()):
            self._replace_rows(fault, fault.rows[kept[fault.rows]])

    def sweep(self) -> None:
        """Forget faults of settled pods: the whole fault if no other pod is left, and the pods if they are at
        least half of it."""
        for fault in list(self._all.values()):
            settled = np.isin(self._pods.phase[fault.rows], _SETTLED)
            self._pods.faults[fault.rows[settled]] = 0
            if 2 * settled.sum() >= len(fault.rows):
                self._replace_rows(fault, fault.rows[~settled])

    def drop_deleted(self) -> None:
        """Drop deleted pods: their rows will be reused."""
        for fault in list(self._all.values()):
            self._replace_rows(fault, fault.rows[self._pods.phase[fault.rows] != Phase.DELETED])

    def _replace_rows(self, fault: Fault, rows: Rows) -> None:
        if len(rows) == len(fault.rows):
            return
        self.changed.add(fault.number)
        if len(rows):
            self._all[fault.number] = replace(fault, rows=rows)
        else:
            del self._all[fault.number]
