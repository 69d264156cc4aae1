"""Pods that wait for time or for a cluster change before they are queued again, as in kube-scheduler's
backoffQ and unschedulablePods. A pod that fits no node is retried after a change that may help it, but not
before its backoff is over, and after five minutes at the latest."""

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterable
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
        """Put in pods that are due at `due`, monotonic seconds."""
        heapq.heappush(self._heap, (due, next(self._order), rows))

    def take_due(self, now: float, phase: NDArray[np.uint8], *, most_pods: int) -> list[Rows]:
        """Remove and return pods whose time has come and that are still in BACKOFF: about so many."""
        due: list[Rows] = []
        while self._heap and self._heap[0][0] <= now and most_pods > 0:
            rows = heapq.heappop(self._heap)[2]
            due.append(rows[phase[rows] == Phase.BACKOFF])
            most_pods -= len(rows)
        return [rows for rows in due if len(rows)]

    def hasten(self, selects: Callable[[Rows], NDArray[np.bool_]], now: float) -> None:
        """The selected pods are due now."""
        hastened = []
        for due, order, rows in self._heap:
            chosen = selects(rows)
            if chosen.any():
                hastened.append((min(due, now), order, rows[chosen]))
            if not chosen.all():
                hastened.append((due, order, rows[~chosen]))
        self._heap = hastened
        heapq.heapify(self._heap)

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
        """Rows of all entries, also of pods that no longer wait here."""
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


class Waking:
    """Groups that a change may help and that are still to be looked at, and the pods of them that are meant:
    those that came before a place in the order of arrival."""

    def __init__(self, groups: Iterable[WaitingGroup], before: int) -> None:
        self.groups = deque(groups)
        self.before = before


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

    def waking(self, classes: Container[int] | None = None) -> Waking:
        """All that wait here now, or those of these classes, for `wake`."""
        groups = [g for g in self._groups if classes is None or g.class_id in classes]
        return Waking(groups, self._next_order)

    def wake(
        self,
        waking: Waking,
        helped: Callable[[WaitingGroup], bool],
        now: float,
        phase: NDArray[np.uint8],
        *,
        most_pods: int,
        most_groups: int,
    ) -> Woken:
        """The cluster changed: remove and return pods of the groups that it may help, each ready after its
        backoff. About so many, of so many groups: the rest stays, and is still in `waking`."""
        entries: list[_Entry] = []
        left = most_pods
        for _ in range(min(most_groups, len(waking.groups))):
            group, number = waking.groups[0], 0
            waiting = self._groups.get(group, [])  # a group that has ended since may be of a class that has
            if waiting and not helped(group):
                waiting = []
            while number < len(waiting) and waiting[number].order < waking.before and left > 0:
                entries += (there := _still_waiting(waiting[number : number + 1], phase))
                left -= sum(len(entry.rows) for entry in there)
                number += 1
            if number:
                self._keep(group, waiting[number:])
            if left <= 0:
                break
            waking.groups.popleft()
        entries.sort(key=lambda entry: entry.order)
        return Woken(
            ready=[p.rows for p in entries if p.not_before <= now],
            later=[(p.not_before, p.rows) for p in entries if p.not_before > now],
        )

    def wake_pods(
        self, rows: Rows, now: float, phase: NDArray[np.uint8], classes: Container[int] | None = None
    ) -> Woken:
        """These pods have changed: remove and return those that wait here, each ready after its backoff.
        `classes`: theirs, where they are known to be what they were when they came; else all are looked
        at."""
        ready: list[tuple[float, Rows]] = []
        later: list[tuple[float, Rows]] = []
        for group, entries in list(self._groups.items()):
            if classes is not None and group.class_id not in classes:
                continue
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

    def take_overdue(
        self, now: float, phase: NDArray[np.uint8], *, most_pods: int, most_entries: int
    ) -> list[Rows]:
        """Remove and return pods that waited five minutes, in case a change was missed: about so many, of so
        many entries."""
        overdue: list[Rows] = []
        while self._flushes and self._flushes[0][0] <= now and most_pods > 0 and most_entries > 0:
            flush_at, group = self._flushes.popleft()
            most_entries -= 1
            entries = self._groups.get(group, [])
            if entries and entries[0].flush_at <= flush_at:  # else that entry was woken before
                overdue += [entry.rows for entry in _still_waiting(entries[:1], phase)]
                most_pods -= len(entries[0].rows)
                self._keep(group, entries[1:])
        return overdue

    def sweep(self, phase: NDArray[np.uint8]) -> int:
        """Drop rows that no longer wait here. Returns how many entries it went through."""
        count = sum(map(len, self._groups.values()))
        for group, entries in list(self._groups.items()):
            self._keep(group, _still_waiting(entries, phase))
        return count

    def all_rows(self) -> list[Rows]:
        """Rows of all entries, also of pods that no longer wait here."""
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
