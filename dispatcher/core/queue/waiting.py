"""Pods that wait for time or for a cluster change before they are queued again, as in kube-scheduler's
backoffQ and unschedulablePods. A pod that fits no node is retried after a change that may help it, but not
before its backoff is over, and after five minutes at the latest."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import Phase, Rows

INITIAL_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 10.0
FLUSH_UNSCHEDULABLE_SECONDS = 300.0


def by_backoff(rows: Rows, attempts: NDArray[np.uint16]) -> list[tuple[float, Rows]]:
    """Group pods by backoff: 1 s after the first attempt, doubling, 10 s at most."""
    doublings = np.clip(attempts.astype(np.int64) - 1, 0, 10)
    seconds = np.minimum(INITIAL_BACKOFF_SECONDS * (1 << doublings), MAX_BACKOFF_SECONDS)
    return [(float(s), rows[seconds == s]) for s in np.unique(seconds)]


class BackoffQueue:
    """Pods that are queued again at a set time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Rows]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, rows: Rows, due: float) -> None:
        heapq.heappush(self._heap, (due, next(self._order), rows))

    def take_due(self, now: float, phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return the pods whose time has come and that are still in BACKOFF."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            rows = heapq.heappop(self._heap)[2]
            due.append(rows[phase[rows] == Phase.BACKOFF])
        return [rows for rows in due if len(rows)]

    def take(self, selects: Callable[[Rows], NDArray[np.bool_]], phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return the selected pods, by due time."""
        heap = sorted(self._heap)
        entries = [(due, order, rows[phase[rows] == Phase.BACKOFF]) for due, order, rows in heap]
        taken = [rows[selects(rows)] for _, _, rows in entries]
        kept = [(due, order, rows[~selects(rows)]) for due, order, rows in entries]
        self._heap = [entry for entry in kept if len(entry[2])]  # sorted, which is a heap
        return [rows for rows in taken if len(rows)]

    def due(self, row: int) -> float | None:
        """When a row in this queue is due, None if it is not here."""
        return next((due for due, _, rows in self._heap if row in rows), None)

    def sweep(self, phase: NDArray[np.uint8]) -> int:
        """Drop rows that no longer wait here. Returns how many entries it went through."""
        entries = len(self._heap)
        kept = [(due, order, rows[phase[rows] == Phase.BACKOFF]) for due, order, rows in self._heap]
        self._heap = [entry for entry in kept if len(entry[2])]
        heapq.heapify(self._heap)
        return entries

    def all_rows(self) -> list[Rows]:
        return [rows for _, _, rows in self._heap]


class WaitingGroup(NamedTuple):
    """Pods of one class that the same plugins refused: a change that helps one may help all."""

    class_id: int
    refused_by: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Entry:
    order: int
    rows: Rows
    not_before: float
    flush_at: float


@dataclass(frozen=True, slots=True)
class Woken:
    """Pods that a change wakes: `ready` now, `later` each at its time."""

    ready: list[Rows]
    later: list[tuple[float, Rows]]
    whole: bool = True  # there are no more


class UnschedulablePods:
    """Pods that fit no node, by group; within a group in order of arrival."""

    def __init__(self) -> None:
        self._groups: dict[WaitingGroup, list[_Entry]] = {}
        self._flushes: deque[tuple[float, WaitingGroup]] = deque()  # one per entry, ascending
        self._next_order = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: WaitingGroup, rows: Rows, now: float, backoff_seconds: float) -> None:
        """Wait for a change, for at least `backoff_seconds` and at most five minutes."""
        flush_at = now + FLUSH_UNSCHEDULABLE_SECONDS
        entry = _Entry(self._next_order, rows, now + backoff_seconds, flush_at)
        self._next_order += 1
        self._groups.setdefault(group, []).append(entry)
        self._flushes.append((flush_at, group))

    @property
    def next_order(self) -> int:
        """The place in the order of arrival of whoever comes next."""
        return self._next_order

    def wake(
        self,
        helped: Callable[[WaitingGroup], bool],
        now: float,
        phase: NDArray[np.uint8],
        *,
        before: int,
        most: int,
    ) -> Woken:
        """The cluster changed: remove and return pods of the groups that it may help, each ready after its
        backoff. Only those that came before that place in the order, and about `most`: the rest stays."""
        entries: list[_Entry] = []
        left, whole = most, True
        for group in [group for group in self._groups if helped(group)]:
            waiting = _still_waiting(self._groups[group], phase)
            number = 0
            while number < len(waiting) and waiting[number].order < before and left > 0:
                left -= len(waiting[number].rows)
                number += 1
            entries += waiting[:number]
            self._keep(group, waiting[number:])
            if left <= 0:
                whole = False
                break
        entries.sort(key=lambda entry: entry.order)
        return Woken(
            ready=[p.rows for p in entries if p.not_before <= now],
            later=[(p.not_before, p.rows) for p in entries if p.not_before > now],
            whole=whole,
        )

    def take(self, selects: Callable[[Rows], NDArray[np.bool_]], phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return the selected pods, in order of arrival."""
        taken = []
        for group, entries in list(self._groups.items()):
            waiting = _still_waiting(entries, phase)
            taken += [replace(p, rows=p.rows[selects(p.rows)]) for p in waiting]
            left = [replace(p, rows=p.rows[~selects(p.rows)]) for p in waiting]
            self._keep(group, [entry for entry in left if len(entry.rows)])
        taken.sort(key=lambda entry: entry.order)
        return [entry.rows for entry in taken if len(entry.rows)]

    def wake_pods(self, rows: Rows, now: float, phase: NDArray[np.uint8]) -> Woken:
        """These pods have changed: remove and return those that wait here, each ready after its backoff."""
        ready: list[tuple[float, Rows]] = []
        later: list[tuple[float, Rows]] = []
        for group, entries in list(self._groups.items()):
            if not any(np.isin(entry.rows, rows).any() for entry in entries):
                continue
            left = []
            for entry in _still_waiting(entries, phase):
                changed = np.isin(entry.rows, rows)
                if changed.any():
                    woken = ready if entry.not_before <= now else later
                    woken.append((entry.not_before, entry.rows[changed]))
                if not changed.all():
                    left.append(replace(entry, rows=entry.rows[~changed]))
            self._keep(group, left)
        return Woken([part for _, part in ready], later)

    def take_overdue(self, now: float, phase: NDArray[np.uint8]) -> list[Rows]:
        """Remove and return pods that waited five minutes, in case a change was missed."""
        overdue = []
        while self._flushes and self._flushes[0][0] <= now:
            group = self._flushes.popleft()[1]
            entries = self._groups.get(group, [])
            overdue += _still_waiting([p for p in entries if p.flush_at <= now], phase)
            self._keep(group, [p for p in entries if p.flush_at > now])
        return [entry.rows for entry in overdue]

    def sweep(self, phase: NDArray[np.uint8]) -> int:
        """Drop rows that no longer wait here. Returns how many entries it went through."""
        count = sum(map(len, self._groups.values()))
        for group, entries in list(self._groups.items()):
            self._keep(group, _still_waiting(entries, phase))
        return count

    def all_rows(self) -> list[Rows]:
        return [entry.rows for entries in self._groups.values() for entry in entries]

    def times(self, row: int) -> tuple[float, float] | None:
        """When a row here is retried at the earliest, and at the latest; None if it is not here."""
        for entries in self._groups.values():
            for entry in entries:
                if row in entry.rows:
                    return entry.not_before, entry.flush_at
        return None

    def _keep(self, group: WaitingGroup, entries: list[_Entry]) -> None:
        if entries:
            self._groups[group] = entries
        else:
            self._groups.pop(group, None)


def _still_waiting(entries: list[_Entry], phase: NDArray[np.uint8]) -> list[_Entry]:
    kept = [
        _Entry(p.order, p.rows[phase[p.rows] == Phase.UNSCHEDULABLE], p.not_before, p.flush_at)
        for p in entries
    ]
    return [p for p in kept if len(p.rows)]
