"""Gangs: pods that are bound together, at least a minimum of them or none.

Until it is *complete* a gang is queued, sent and returned as a whole. It is complete once its minimum was
bound. From then on its pods are ordinary for good: pods beyond the minimum, and pods lost later with their
node, are placed one by one.

All pods of a submitted gang are admitted together. A gang with a *key* (Kubernetes mode) gets its pods one by
one; the key identifies it, and its pods wait until the minimum is there. Deletions do not shrink it, because
a controller replaces the deleted pods."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import Phase, PodTable, Rows

# As many as one script of the ledger decides at once (resolver.core.values.MAX_BATCH_PODS).
MAX_GANG_PODS = 1000

_GONE = (Phase.DELETED, Phase.FAILED)

# A gang with a pod in one of these phases is not ready.
_TO_COME = (Phase.SCHEDULING, Phase.BACKOFF, Phase.UNSCHEDULABLE)


@dataclass(slots=True, eq=False)
class Gang:
    """`rows` are all pods that ever belonged to it and are not forgotten."""

    number: int
    namespace: str
    name: str
    minimum: int
    rows: Rows
    key: str = ""  # identifies it; "": all its pods were submitted together
    complete: bool = False
    queued: bool = False  # it is in the active queue
    waits: bool = False  # below its minimum: its pods are UNSCHEDULABLE and in no queue, like gated pods


class Gangs:
    """All gangs by number; the pod table's `gang` column holds the number, 0 for none."""

    def __init__(self, pods: PodTable, gated: Callable[[Rows], NDArray[np.bool_]]) -> None:
        """`gated` returns which pods have scheduling gates."""
        self._pods = pods
        self._gated = gated
        self._all: dict[int, Gang] = {}
        self._open: dict[int, Gang] = {}  # not complete
        self._by_key: dict[str, Gang] = {}
        self._newest = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Gang]:
        return iter(self._all.values())

    def add(self, namespace: str, name: str, minimum: int, rows: Rows, key: str = "") -> None:
        """Make these pods a gang, or add them to the gang with this key if it has pods left. The largest
        minimum of its pods counts."""
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
        """Forget these pods, and the gangs without other pods."""
        if not self._all:
            return
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
        """The incomplete gangs among these pods."""
        if not self._open or not len(rows):
            return []
        numbers = np.unique(self._pods.gang[rows]).tolist()
        return [self._open[number] for number in numbers if number in self._open]

    def every_incomplete(self) -> list[Gang]:
        return list(self._open.values())

    def bound(self, gang: Gang) -> int:
        return int((self._pods.phase[gang.rows] == Phase.BOUND).sum())

    def required(self, gang: Gang) -> int:
        """How many must be bound: its minimum, or all that are left if deletions left fewer. An incomplete
        gang with a key always requires its minimum."""
        return gang.minimum if gang.key and not gang.complete else min(gang.minimum, self._left(gang))

    def ready(self, gang: Gang) -> Rows:
        """Its pods that can leave now: none while others are with a worker or wait for something. In a gang
        with a key, gated pods do not count yet."""
        phase = self._pods.phase[gang.rows]
        there, to_come = phase == Phase.QUEUED, np.isin(phase, _TO_COME)
        if gang.key:
            gated = (phase == Phase.UNSCHEDULABLE) & self._gated(gang.rows)
            waiting = (phase == Phase.UNSCHEDULABLE) & ~gated & gang.waits
            there, to_come = there | waiting, to_come & ~gated & ~waiting
        rows: Rows = gang.rows[there & ~to_come.any()]
        return rows

    def below_minimum(self, gang: Gang, rows: Rows) -> bool:
        """Whether a gang with a key would have too few pods with these."""
        return bool(gang.key) and len(rows) < self.required(gang)

    def in_phase(self, gang: Gang, phase: Phase) -> Rows:
        rows: Rows = gang.rows[self._pods.phase[gang.rows] == phase]
        return rows

    def complete(self, gang: Gang) -> None:
        """Its minimum is bound, or (Kubernetes mode) the API server has one of its pods on a node."""
        gang.complete, gang.queued, gang.waits = True, False, False
        self._open.pop(gang.number, None)

    def _left(self, gang: Gang) -> int:
        return len(gang.rows) - int(np.isin(self._pods.phase[gang.rows], _GONE).sum())
