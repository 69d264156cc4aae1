"""Pods that wait for a worker, in lanes; within a lane by priority, then by arrival.

A lane is what the policy makes of a template: pods of one lane may go to the same workers. The queue holds segments
of row numbers, so a job of a million replicas is one entry and taking a batch costs the segments it touches.
Deleted pods stay in their segments until taken or swept.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Phase, Rows


@dataclass(slots=True)
class _Segment:
    rows: Rows
    arrival: int
    queued_at: float
    gang: int = 0  # its number, where the rows are one and leave together


class ActiveQueue:
    """Lanes of segments. A row stands in it once at most."""

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, deque[_Segment]]] = {}  # lane -> priority -> segments
        self._counts: dict[int, int] = {}  # rows per lane, deleted ones included
        self._newest = 0
        self._oldest = 0

    def push(self, lane: int, priority: int, rows: Rows, now: float, *, gang: int = 0) -> None:
        """Append pods of one priority, or a gang, to a lane."""
        self._newest += 1
        self._segments(lane, priority).append(_Segment(rows, self._newest, now, gang))
        self._counts[lane] = self._counts.get(lane, 0) + len(rows)

    def push_front(self, lane: int, priority: int, rows: Rows, now: float, *, gang: int = 0) -> None:
        """Put pods that had their turn already before all others of their priority."""
        self._oldest -= 1
        self._segments(lane, priority).appendleft(_Segment(rows, self._oldest, now, gang))
        self._counts[lane] = self._counts.get(lane, 0) + len(rows)

    def lanes(self) -> list[int]:
        """Lanes that hold pods."""
        return list(self._lanes)

    def count(self, lane: int) -> int:
        """Rows in a lane, deleted ones included."""
        return self._counts.get(lane, 0)

    def most_urgent(self, excluding: Container[int]) -> int | None:
        """The lane whose head has the highest priority, of equals the one that came first; None if there is none."""
        best, best_key = None, (0, 0)
        for lane, priorities in self._lanes.items():
            if lane in excluding:
                continue
            top = max(priorities)
            key = (-top, priorities[top][0].arrival)
            if best is None or key < best_key:
                best, best_key = lane, key
        return best

    def waiting_since(self, lane: int) -> float:
        """When the pod that is next in this lane was queued."""
        priorities = self._lanes[lane]
        return priorities[max(priorities)][0].queued_at

    def next_row(self, lane: int) -> int:
        """The row that is next in this lane."""
        priorities = self._lanes[lane]
        return int(priorities[max(priorities)][0].rows[0])

    def next_gang(self, lane: int) -> int:
        """The number of the gang that is next in this lane, 0 where ordinary pods are."""
        priorities = self._lanes[lane]
        return priorities[max(priorities)][0].gang

    def drop_next(self, lane: int) -> None:
        """Remove what is next in this lane: a gang whose pods were taken."""
        priorities = self._lanes[lane]
        top = max(priorities)
        self._counts[lane] -= len(priorities[top].popleft().rows)
        if not priorities[top]:
            del priorities[top]
        if not priorities:
            del self._lanes[lane], self._counts[lane]

    def take(self, lane: int, limit: int, phase: NDArray[np.uint8]) -> Rows:
        """Remove and return up to `limit` rows of a lane, highest priority first, leaving out those no longer QUEUED.

        Stops before a gang.
        """
        taken: list[Rows] = []
        wanted = limit
        priorities = self._lanes.get(lane)
        while priorities and wanted:
            top = max(priorities)
            segments = priorities[top]
            segment = segments[0]
            if segment.gang:
                break
            part, rest = segment.rows[:wanted], segment.rows[wanted:]
            if len(rest):
                segment.rows = rest
            else:
                segments.popleft()
                if not segments:
                    del priorities[top]
            self._counts[lane] -= len(part)
            part = part[phase[part] == Phase.QUEUED]
            wanted -= len(part)
            taken.append(part)
        if not priorities:
            self._lanes.pop(lane, None)
            self._counts.pop(lane, None)
        if not taken:
            return np.empty(0, np.uint32)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def sweep(self, phase: NDArray[np.uint8]) -> None:
        """Drop rows that are no longer QUEUED, so that nothing here refers to them."""
        for lane in self.lanes():
            self._counts[lane] = 0
            for priority, segments in list(self._lanes[lane].items()):
                kept = deque[_Segment]()
                for segment in segments:
                    segment.rows = segment.rows[phase[segment.rows] == Phase.QUEUED]
                    if len(segment.rows):
                        kept.append(segment)
                        self._counts[lane] += len(segment.rows)
                if kept:
                    self._lanes[lane][priority] = kept
                else:
                    del self._lanes[lane][priority]
            if not self._lanes[lane]:
                del self._lanes[lane], self._counts[lane]

    def drain(self) -> list[tuple[Rows, float]]:
        """Empty the queue: all segments in order of arrival, each with the time it was queued."""
        segments = [s for priorities in self._lanes.values() for queue in priorities.values() for s in queue]
        segments.sort(key=lambda s: s.arrival)
        self._lanes.clear()
        self._counts.clear()
        return [(s.rows, s.queued_at) for s in segments]

    def _segments(self, lane: int, priority: int) -> deque[_Segment]:
        return self._lanes.setdefault(lane, {}).setdefault(priority, deque())
