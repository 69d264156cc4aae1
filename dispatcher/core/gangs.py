"""Gangs: pods that are bound together, at least a minimum of them or none.

Until it is *complete* a gang queues, travels and comes back as a whole. It is complete once its minimum was bound; from then
on, and for good, its pods are ordinary: what came beyond the minimum, and what is lost later with its node, is placed pod by pod.

A gang of a submission is all there when it is admitted. One with a *key* (Kubernetes mode) *gathers*: its pods come one by one, find each other
by the key, and wait until its minimum is there; it does not shrink with deletions, for a controller makes others in their place.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Phase, PodTable, Rows

# As many as one script of the ledger decides (resolver.core.values.MAX_BATCH_PODS).
MAX_GANG_PODS = 1000

_GONE = (Phase.DELETED, Phase.FAILED)

# A gang of which a pod is in one of these is not together.
_TO_COME = (Phase.SCHEDULING, Phase.BACKOFF, Phase.UNSCHEDULABLE)


@dataclass(slots=True, eq=False)
class Gang:
    """`rows` are all that ever belonged to it and are not forgotten."""

    number: int
    namespace: str
    name: str
    minimum: int
    rows: Rows
    key: str = ""  # by which its pods find each other; "": they all came at once
    complete: bool = False
    queued: bool = False  # stands in the active queue
    waits: bool = False  # for more pods: those that are there are UNSCHEDULABLE and stand nowhere, as gated ones do


class Gangs:
    """All gangs by number; the pod table's `gang` column says whose a pod is, 0 for nobody's."""

    def __init__(self, pods: PodTable, gated: Callable[[Rows], NDArray[np.bool_]]) -> None:
        """`gated`: which pods have scheduling gates."""
        self._pods = pods
        self._gated = gated
        self._all: dict[int, Gang] = {}
        self._open: dict[int, Gang] = {}  # not complete
        self._by_key: dict[str, Gang] = {}
        self._newest = 0

    def __iter__(self) -> Iterator[Gang]:
        return iter(self._all.values())

    def add(self, namespace: str, name: str, minimum: int, rows: Rows, key: str = "") -> None:
        """These pods are a gang; or, with the key of one of which pods are left, belong to that. Where pods differ in the minimum, the largest
        counts."""
        gang = self._by_key.get(key)
        if gang is not None and self._left(gang):
            gang.rows = np.concatenate([gang.rows, rows])
            gang.minimum = max(gang.minimum, minimum)
            self._pods.gang[rows] = gang.number
            return
        self._newest += 1
        gang = Gang(self._newest, namespace, name, minimum, rows, key)
        self._all[gang.number] = self._open[gang.number] = gang
        if key:
            self._by_key[key] = gang
        self._pods.gang[rows] = gang.number

    def forget(self, rows: Rows) -> None:
        """Forget these pods, and the gangs that have no others."""
        for number in np.unique(self._pods.gang[rows]).tolist():
            gang = self._all.get(number)
            if gang is None:
                continue
            gang.rows = gang.rows[~np.isin(gang.rows, rows)]
            if not len(gang.rows):
                del self._all[number]
                self._open.pop(number, None)
                if self._by_key.get(gang.key) is gang:
                    del self._by_key[gang.key]

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
        """How many must be bound: its minimum, or all that are left if deletions left fewer. One that gathers needs its minimum."""
        return gang.minimum if gang.key and not gang.complete else min(gang.minimum, self._left(gang))

    def there(self, gang: Gang) -> Rows:
        """Its pods that can leave now: none while others are with a worker or wait for something. Pods with gates have not come yet, where
        the gang gathers."""
        phase = self._pods.phase[gang.rows]
        there, to_come = phase == Phase.QUEUED, np.isin(phase, _TO_COME)
        if gang.key:
            gated = (phase == Phase.UNSCHEDULABLE) & self._gated(gang.rows)
            waiting = (phase == Phase.UNSCHEDULABLE) & ~gated & gang.waits
            there, to_come = there | waiting, to_come & ~gated & ~waiting
        rows: Rows = gang.rows[there & ~to_come.any()]
        return rows

    def short(self, gang: Gang, rows: Rows) -> bool:
        """Whether a gang that gathers has too few pods if it has these."""
        return bool(gang.key) and len(rows) < self.needed(gang)

    def in_phase(self, gang: Gang, phase: Phase) -> Rows:
        """Its pods that are in this phase."""
        rows: Rows = gang.rows[self._pods.phase[gang.rows] == phase]
        return rows

    def complete(self, gang: Gang) -> None:
        """Its minimum is bound, or (Kubernetes mode) somebody has put one of its pods on a node."""
        gang.complete, gang.queued, gang.waits = True, False, False
        self._open.pop(gang.number, None)

    def _left(self, gang: Gang) -> int:
        return len(gang.rows) - int(np.isin(self._pods.phase[gang.rows], _GONE).sum())
