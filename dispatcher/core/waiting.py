"""Pods that wait for time or for the cluster to change, before they are queued again.

As kube-scheduler's backoffQ and unschedulablePods: a pod that no node fits is looked at again when something changed that may
help it, but not before its backoff has passed, and at the latest after five minutes.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Phase, Rows

INITIAL_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 10.0
FLUSH_UNSCHEDULABLE_SECONDS = 300.0


def by_backoff(rows: Rows, attempts: NDArray[np.uint16]) -> list[tuple[float, Rows]]:
    """Group pods by how long they must wait: 1 s after the first attempt, doubling, 10 s at most."""
    doublings = np.clip(attempts.astype(np.int64) - 1, 0, 10)
    seconds = np.minimum(INITIAL_BACKOFF_SECONDS * (1 << doublings), MAX_BACKOFF_SECONDS)
    return [(float(s), rows[seconds == s]) for s in np.unique(seconds)]


class Backoff:
    """Pods that are queued again at a set time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Rows]] = []
        self._order = count()

    def add(self, rows: Rows, due: float) -> None:
        """Wait until `due`."""
        heapq.heappush(self._heap, (due, next(self._order), rows))

    def take_due(self, now: float, phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return those whose time has come and that still wait."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            rows = heapq.heappop(self._heap)[2]
            due.append(rows[phase[rows] == Phase.BACKOFF])
        return [rows for rows in due if len(rows)]

    def take(self, wanted: Callable[[Rows], NDArray[np.bool_]], phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return those of the waiting that are wanted, by their due times."""
        entries = [(due, order, rows[phase[rows] == Phase.BACKOFF]) for due, order, rows in sorted(self._heap)]
        taken = [rows[wanted(rows)] for _, _, rows in entries]
        kept = [(due, order, rows[~wanted(rows)]) for due, order, rows in entries]
        self._heap = [entry for entry in kept if len(entry[2])]  # sorted, which is a heap
        return [rows for rows in taken if len(rows)]

    def due(self, row: int) -> float | None:
        """When a row that waits here is queued again."""
        return next((due for due, _, rows in self._heap if row in rows), None)

    def sweep(self, phase: NDArray[np.uint8]) -> int:
        """Drop rows that no longer wait here. Returns how many entries it went through."""
        entries = len(self._heap)
        kept = [(due, order, rows[phase[rows] == Phase.BACKOFF]) for due, order, rows in self._heap]
        self._heap = [entry for entry in kept if len(entry[2])]
        heapq.heapify(self._heap)
        return entries

    def standing(self) -> list[Rows]:
        """All rows that stand here."""
        return [rows for _, _, rows in self._heap]


class Group(NamedTuple):
    """Pods of one class that the same plugins refused: what helps one may help all."""

    class_id: int
    refused_by: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Parcel:
    order: int
    rows: Rows
    not_before: float
    flush_at: float


@dataclass(frozen=True, slots=True)
class Woken:
    """What a change of the cluster sets free: `ready` at once, `later` each at its time."""

    ready: list[Rows]
    later: list[tuple[float, Rows]]


class Unschedulable:
    """Pods that no node fits as the cluster is, by group. Within a group in the order they came."""

    def __init__(self) -> None:
        self._groups: dict[Group, list[_Parcel]] = {}
        self._flushes: deque[tuple[float, Group]] = deque()  # one a parcel, ascending
        self._order = count()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Group, rows: Rows, now: float, backoff_seconds: float) -> None:
        """Wait for a change, at least `backoff_seconds` and at most five minutes."""
        flush_at = now + FLUSH_UNSCHEDULABLE_SECONDS
        parcel = _Parcel(next(self._order), rows, now + backoff_seconds, flush_at)
        self._groups.setdefault(group, []).append(parcel)
        self._flushes.append((flush_at, group))

    def wake(self, helped: Callable[[Group], bool], now: float, phase: NDArray[np.uint8]) -> Woken:
        """The cluster changed: those that it may have helped can be tried again, each after its backoff."""
        parcels = []
        for group in [group for group in self._groups if helped(group)]:
            parcels += _still_waiting(self._groups.pop(group), phase)
        parcels.sort(key=lambda parcel: parcel.order)
        return Woken(
            ready=[p.rows for p in parcels if p.not_before <= now],
            later=[(p.not_before, p.rows) for p in parcels if p.not_before > now],
        )

    def take(self, wanted: Callable[[Rows], NDArray[np.bool_]], phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return those of the waiting that are wanted, in the order they came."""
        taken = []
        for group, parcels in list(self._groups.items()):
            waiting = _still_waiting(parcels, phase)
            taken += [replace(p, rows=p.rows[wanted(p.rows)]) for p in waiting]
            left = [replace(p, rows=p.rows[~wanted(p.rows)]) for p in waiting]
            self._keep(group, [parcel for parcel in left if len(parcel.rows)])
        taken.sort(key=lambda parcel: parcel.order)
        return [parcel.rows for parcel in taken if len(parcel.rows)]

    def wake_pods(self, rows: Rows, now: float, phase: NDArray[np.uint8]) -> Woken:
        """These pods are others now: those that wait here can be tried again, each after its backoff."""
        ready: list[tuple[float, Rows]] = []
        later: list[tuple[float, Rows]] = []
        for group, parcels in list(self._groups.items()):
            if not any(np.isin(parcel.rows, rows).any() for parcel in parcels):
                continue
            left = []
            for parcel in _still_waiting(parcels, phase):
                changed = np.isin(parcel.rows, rows)
                if changed.any():
                    (ready if parcel.not_before <= now else later).append((parcel.not_before, parcel.rows[changed]))
                if not changed.all():
                    left.append(replace(parcel, rows=parcel.rows[~changed]))
            self._keep(group, left)
        return Woken([part for _, part in ready], later)

    def take_overdue(self, now: float, phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return those that waited five minutes: a change may have been missed."""
        overdue = []
        while self._flushes and self._flushes[0][0] <= now:
            group = self._flushes.popleft()[1]
            parcels = self._groups.get(group, [])
            overdue += _still_waiting([p for p in parcels if p.flush_at <= now], phase)
            self._keep(group, [p for p in parcels if p.flush_at > now])
        return [parcel.rows for parcel in overdue]

    def sweep(self, phase: NDArray[np.uint8]) -> int:
        """Drop rows that no longer wait here. Returns how many entries it went through."""
        entries = sum(map(len, self._groups.values()))
        for group, parcels in list(self._groups.items()):
            self._keep(group, _still_waiting(parcels, phase))
        return entries

    def standing(self) -> list[Rows]:
        """All rows that stand here."""
        return [parcel.rows for parcels in self._groups.values() for parcel in parcels]

    def times(self, row: int) -> tuple[float, float] | None:
        """Before when a row that waits here is not tried again whatever happens, and when it is at the latest."""
        for parcels in self._groups.values():
            for parcel in parcels:
                if row in parcel.rows:
                    return parcel.not_before, parcel.flush_at
        return None

    def _keep(self, group: Group, parcels: list[_Parcel]) -> None:
        if parcels:
            self._groups[group] = parcels
        else:
            self._groups.pop(group, None)


def _still_waiting(parcels: list[_Parcel], phase: NDArray[np.uint8]) -> list[_Parcel]:
    kept = [_Parcel(p.order, p.rows[phase[p.rows] == Phase.UNSCHEDULABLE], p.not_before, p.flush_at) for p in parcels]
    return [p for p in kept if len(p.rows)]
