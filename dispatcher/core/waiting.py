"""Pods that wait for time or for the cluster to change, before they are queued again.

As kube-scheduler's backoffQ and unschedulablePods: a pod that no node fits is looked at again when something changed, but
not before its backoff has passed, and at the latest after five minutes.
"""

import heapq
from dataclasses import dataclass
from itertools import count

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

    def sweep(self, phase: NDArray[np.uint8]) -> None:
        """Drop rows that no longer wait here."""
        kept = [(due, order, rows[phase[rows] == Phase.BACKOFF]) for due, order, rows in self._heap]
        self._heap = [entry for entry in kept if len(entry[2])]
        heapq.heapify(self._heap)


@dataclass(frozen=True, slots=True)
class _Parcel:
    rows: Rows
    not_before: float
    flush_at: float


@dataclass(frozen=True, slots=True)
class Woken:
    """What a change of the cluster sets free: `ready` at once, `later` each at its time."""

    ready: list[Rows]
    later: list[tuple[float, Rows]]


class Unschedulable:
    """Pods that no node fits as the cluster is."""

    def __init__(self) -> None:
        self._parcels: list[_Parcel] = []

    def add(self, rows: Rows, now: float, backoff_seconds: float) -> None:
        """Wait for a change, at least `backoff_seconds` and at most five minutes."""
        self._parcels.append(_Parcel(rows, now + backoff_seconds, now + FLUSH_UNSCHEDULABLE_SECONDS))

    def wake(self, now: float, phase: NDArray[np.uint8]) -> Woken:
        """The cluster changed: all may be tried again, each after its backoff."""
        parcels, self._parcels = self._still_waiting(phase), []
        return Woken(
            ready=[p.rows for p in parcels if p.not_before <= now],
            later=[(p.not_before, p.rows) for p in parcels if p.not_before > now],
        )

    def take_overdue(self, now: float, phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return those that waited five minutes: a change may have been missed."""
        if not self._parcels or self._parcels[0].flush_at > now:
            return []
        parcels = self._still_waiting(phase)
        self._parcels = [p for p in parcels if p.flush_at > now]
        return [p.rows for p in parcels if p.flush_at <= now]

    def sweep(self, phase: NDArray[np.uint8]) -> None:
        """Drop rows that no longer wait here."""
        self._parcels = self._still_waiting(phase)

    def _still_waiting(self, phase: NDArray[np.uint8]) -> list[_Parcel]:
        kept = [_Parcel(p.rows[phase[p.rows] == Phase.UNSCHEDULABLE], p.not_before, p.flush_at) for p in self._parcels]
        return [p for p in kept if len(p.rows)]
