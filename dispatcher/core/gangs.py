"""Gangs: pods that are bound together, at least a minimum of them or none.

Until it is *complete* a gang queues, travels and comes back as a whole. It is complete once its minimum was bound; from then
on, and for good, its pods are ordinary: what came beyond the minimum, and what is lost later with its node, is placed pod by pod.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dispatcher.core.podtable import Phase, PodTable, Rows

# As many as one script of the ledger decides (resolver.core.values.MAX_BATCH_PODS).
MAX_GANG_PODS = 1000

_GONE = (Phase.DELETED, Phase.FAILED)


@dataclass(slots=True, eq=False)
class Gang:
    """`rows` are all that ever belonged to it."""

    number: int
    namespace: str
    name: str
    minimum: int
    rows: Rows
    complete: bool = False
    queued: bool = False  # stands in the active queue


class Gangs:
    """All gangs by number; the pod table's `gang` column says whose a pod is, 0 for nobody's."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self._all: dict[int, Gang] = {}
        self._open: dict[int, Gang] = {}  # not complete
        self._newest = 0

    def __iter__(self) -> Iterator[Gang]:
        return iter(self._all.values())

    def add(self, namespace: str, name: str, minimum: int, rows: Rows) -> None:
        """These pods are a gang."""
        self._newest += 1
        gang = Gang(self._newest, namespace, name, minimum, rows)
        self._all[gang.number] = self._open[gang.number] = gang
        self._pods.gang[rows] = gang.number

    def forget(self, rows: Rows) -> None:
        """Forget the gangs of these pods; all their pods go."""
        for number in np.unique(self._pods.gang[rows]).tolist():
            self._all.pop(number, None)
            self._open.pop(number, None)

    def numbered(self, number: int) -> Gang | None:
        """A gang by number, unless it is forgotten."""
        return self._all.get(number)

    def incomplete(self, rows: Rows) -> list[Gang]:
        """The gangs among these pods that are not complete."""
        if not self._open or not len(rows):
            return []
        numbers = np.unique(self._pods.gang[rows]).tolist()
        return [self._open[number] for number in numbers if number in self._open]

    def every_incomplete(self) -> list[Gang]:
        """All that are not complete."""
        return list(self._open.values())

    def bound(self, gang: Gang) -> int:
        """How many of its pods are bound."""
        return int((self._pods.phase[gang.rows] == Phase.BOUND).sum())

    def needed(self, gang: Gang) -> int:
        """How many must be bound: its minimum, or all that are left if deletions left fewer."""
        left = len(gang.rows) - int(np.isin(self._pods.phase[gang.rows], _GONE).sum())
        return min(gang.minimum, left)

    def in_phase(self, gang: Gang, phase: Phase) -> Rows:
        """Its pods that are in this phase."""
        rows: Rows = gang.rows[self._pods.phase[gang.rows] == phase]
        return rows

    def complete(self, gang: Gang) -> None:
        """Its minimum is bound."""
        gang.complete, gang.queued = True, False
        self._open.pop(gang.number, None)
