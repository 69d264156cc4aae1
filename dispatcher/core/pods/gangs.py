"""Gangs: pods that are bound together, at least a minimum of them or none.

Until it is *complete* a gang is queued, sent and returned as a whole. It is complete once its minimum was
bound. From then on its pods are ordinary for good: pods beyond the minimum, and pods lost later with their
node, are placed one by one.

All pods of a submitted gang are admitted together. A gang with a *key* (Kubernetes mode) gets its pods one by
one; the key identifies it, and its pods wait until the minimum is there. Deletions do not shrink it, because
a controller replaces the deleted pods. Where its pods name a PodGroup, that is the gang's *rule*: it may come
later than the pods, change and go until the gang is complete. Pods that declare a minimum themselves do not
wait for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.sets import NO_RULE, GangRule, NewGang
from dispatcher.core.pods.table import Phase, PodTable, Rows

# As many as one script of the ledger decides at once (resolver.core.values.MAX_BATCH_PODS).
MAX_GANG_PODS = 1000
TOO_MANY_PODS = f"{MAX_GANG_PODS} at most, which is as many as the ledger decides at once"

_GONE = (Phase.DELETED, Phase.FAILED)

# A gang with a pod in one of these phases is not ready.
_TO_COME = (Phase.SCHEDULING, Phase.BACKOFF, Phase.UNSCHEDULABLE)


@dataclass(slots=True, eq=False)
class Gang:
    """`rows` are all pods that ever belonged to it and are not forgotten."""

    number: int
    namespace: str
    name: str
    declared: int  # the largest minimum of its pods; 0: none declares one
    rows: Rows
    key: str = ""  # identifies it; "": all its pods were submitted together
    rule: GangRule = NO_RULE
    complete: bool = False
    queued: bool = False  # it is in the active queue
    changed: bool = False  # it has more pods or another rule than a worker was sent
    waits: bool = False  # it must wait: its pods are UNSCHEDULABLE and in no queue, like gated pods

    @property
    def minimum(self) -> int:
        """0: unknown. Where its pods declare one, a rule that is missing says nothing."""
        return max(self.declared, 0 if self.declared and self.rule.missing else self.rule.minimum)

    @property
    def missing(self) -> str:
        """Why it must wait, however many pods it has; "": it need not."""
        return "" if self.declared else self.rule.missing


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

    def add(self, new: NewGang, rows: Rows) -> None:
        """Make these pods a gang, or add them to the gang with this key if it has pods left. The largest
        minimum of its pods counts."""
        gang = self._by_key.get(new.key)
        if gang is not None and self._left(gang):
            gang.rows = np.concatenate([gang.rows, rows])
            gang.declared = max(gang.declared, new.minimum)
            self._pods.gang[rows] = gang.number
            return
        self._newest += 1
        gang = Gang(self._newest, new.namespace, new.name, new.minimum, rows, new.key, new.rule)
        self._all[gang.number] = gang
        if new.key:
            self._by_key[new.key] = gang
        if new.key and self.needs_nobody(gang):
            gang.complete = True
        else:
            self._open[gang.number] = gang
        self._pods.gang[rows] = gang.number

    def set_rule(self, key: str, rule: GangRule) -> Gang | None:
        """Returns the incomplete gang that has another rule now. A rule that is missing leaves the minimum as
        it was: the gang may be with a worker."""
        gang = self._by_key.get(key)
        if gang is None or gang.complete or gang.rule == rule:
            return None
        gang.rule = replace(rule, minimum=gang.rule.minimum) if rule.missing else rule
        return gang

    def needs_nobody(self, gang: Gang) -> bool:
        """Whether its pods need not wait for each other."""
        return gang.minimum <= 1 and not gang.missing

    def keyed(self, key: str) -> Gang | None:
        """A gang by key, unless it is forgotten."""
        return self._by_key.get(key)

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
        """All gangs that are not complete."""
        return list(self._open.values())

    def bound(self, gang: Gang) -> int:
        """How many of its pods are bound."""
        return int((self._pods.phase[gang.rows] == Phase.BOUND).sum())

    def required(self, gang: Gang) -> int:
        """How many must be bound: its minimum, or all that are left if deletions left fewer. An incomplete
        gang with a key always requires its minimum, and more than it has while that is unknown."""
        if not gang.key or gang.complete:
            return min(gang.minimum, self._left(gang))
        return gang.minimum or len(gang.rows) + 1

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

    def must_wait(self, gang: Gang, rows: Rows) -> bool:
        """Whether a gang with a key would have too few pods with these, or lacks its rule."""
        return bool(gang.key) and (bool(gang.missing) or len(rows) < self.required(gang))

    def in_phase(self, gang: Gang, phase: Phase) -> Rows:
        """Its pods in this phase."""
        rows: Rows = gang.rows[self._pods.phase[gang.rows] == phase]
        return rows

    def complete(self, gang: Gang) -> None:
        """Its minimum is bound, or (Kubernetes mode) the API server has one of its pods on a node."""
        gang.complete, gang.queued, gang.waits = True, False, False
        self._open.pop(gang.number, None)

    def _left(self, gang: Gang) -> int:
        return len(gang.rows) - int(np.isin(self._pods.phase[gang.rows], _GONE).sum())
