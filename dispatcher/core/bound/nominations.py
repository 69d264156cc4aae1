"""Bound pods whose victims are still terminating (nominatedNodeName).

In the pod table they are BOUND: they hold a reservation, so their room belongs to nobody else. Only the
announcement to clients waits. Without kubelets, a victim ends with its grace period. With kubelets
(`by_event`), a nomination ends by events: which pods were evicted for whom (`add_victim`), and the end of
each victim (`victims_gone`). Victims of an earlier term are known to the ledger only (`waits_by_ledger`)."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import Phase, PodTable, Rows


class Nominations:
    """A few pods at any time, by row. A nomination also ends when its pod is deleted or evicted."""

    def __init__(self, pods: PodTable, *, by_event: bool = False) -> None:
        self._pods = pods
        self._by_event = by_event
        self._due: dict[int, tuple[float, bytes]] = {}  # row -> (time, UID); rows are reused
        self._victims: dict[bytes, set[bytes]] = {}  # by_event: preemptor -> victims that still run
        self._by_ledger: dict[int, bytes] = {}  # by_event: row -> UID of who waits, as the ledger says

    def add(self, rows: Rows, leaving_ms: NDArray[np.uint32], now: float) -> None:
        """For each pod, how long its victims may still run; 0: it has none."""
        for i in np.flatnonzero(leaving_ms).tolist():
            row = int(rows[i])
            self._due[row] = (now + int(leaving_ms[i]) / 1000, self._pods.uid[row].tobytes())

    def __len__(self) -> int:
        return len(self._due) + len(self._victims) + len(self._by_ledger)

    def recovered(self, rows: Rows, now: float) -> None:
        """Their worker was lost before it reported victims. With `by_event` the victims are looked up."""
        if self._by_event:
            self.add(rows, np.ones(len(rows), np.uint32), now)

    def nominated(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these pods wait for victims: (n,)."""
        if not self._due:
            return np.zeros(len(rows), np.bool_)
        return np.array([self.is_nominated(row) for row in rows.tolist()], np.bool_)

    def is_nominated(self, row: int) -> bool:
        """Whether the pod is bound and waits for victims."""
        found = self._due.get(row)
        return (
            found is not None
            and self._pods.phase[row] == Phase.BOUND
            and found[1] == self._pods.uid[row].tobytes()
        )

    def add_victim(self, preemptor: bytes, victim: bytes) -> None:
        """`by_event`: a pod is evicted for another, by their UIDs."""
        self._victims.setdefault(preemptor, set()).add(victim)

    def has_victims(self, preemptor: bytes) -> bool:
        """`by_event`: whether victims of this pod still run."""
        return bool(self._victims.get(preemptor))

    def victims_unknown(self, row: int) -> bool:
        """`by_event`: whether the pod is nominated and none of its victims was reported."""
        return self.is_nominated(row) and self._due[row][1] not in self._victims

    def no_victims(self, row: int) -> None:
        """`by_event`: the pod has no victims; every event up to its commit has been seen."""
        self._victims.setdefault(self._due[row][1], set())

    def victims_gone(self, uids: Iterable[bytes]) -> None:
        """`by_event`: these pods no longer run."""
        if not self._victims:
            return
        for uid in uids:
            self._victims.pop(uid, None)
            for leaving in self._victims.values():
                leaving.discard(uid)

    def waits_by_ledger(self, rows: Rows) -> None:
        """`by_event`: the ledger says that victims of these bound pods still run."""
        self._by_ledger.update((row, self._pods.uid[row].tobytes()) for row in rows.tolist())

    def to_place_anew(self) -> Rows:
        """`by_event`: the bound pods that wait for victims. Their nominations end: the ledger, which alone
        keeps them through a change of dispatchers, was lost."""
        if not self._by_event:
            return np.empty(0, np.uint32)
        rows = [row for row in self._due if self.is_nominated(row)]
        rows += [row for row in self._by_ledger if row not in self._due and self._waits_in_ledger(row)]
        for row in rows:
            self._end(row)
        self._by_ledger.clear()
        return np.array(rows, np.uint32)

    def _waits_in_ledger(self, row: int) -> bool:
        bound = self._pods.phase[row] == Phase.BOUND and not self._pods.assigned[row]
        return bool(bound and self._pods.uid[row].tobytes() == self._by_ledger[row])

    def take_due(self, now: float) -> Rows:
        """Remove and return the pods whose nomination is over."""
        for row in [row for row in self._by_ledger if not self._waits_in_ledger(row)]:
            del self._by_ledger[row]
        if not self._due:
            return np.empty(0, np.uint32)
        for row in [row for row in self._due if not self.is_nominated(row)]:
            self._end(row)
        due = [row for row, (when, uid) in self._due.items() if self._over(when, uid, now)]
        for row in due:
            self._end(row)
        return np.array(due, np.uint32)

    def _over(self, when: float, uid: bytes, now: float) -> bool:
        return self._victims.get(uid) == set() if self._by_event else when <= now

    def _end(self, row: int) -> None:
        _, uid = self._due.pop(row, (0.0, b""))
        self._victims.pop(uid, None)
