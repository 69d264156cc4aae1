"""Pods that wait for a worker, in lanes; within a lane by priority, then fairly between tenants, then by arrival.

A lane is what the policy makes of a template: pods of one lane may go to the same workers. The queue holds segments
of row numbers, so a job of a million replicas is one entry and taking a batch costs the segments it touches.
Deleted pods stay in their segments until taken or swept. Work of one tenant and priority keeps its order.
"""

import heapq
from collections import Counter, deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.aging import Aging
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.shares import Shares

# Tenants take turns within a batch, the least share first, each so often if it has enough pods; a turn costs some
# microseconds, so there are only so many in a batch and the others' come in the next.
TURNS_PER_TENANT = 4
MOST_TURNS = 32


@dataclass(slots=True)
class _Segment:
    rows: Rows
    arrival: int
    queued_at: float
    gang: int = 0  # its number, where the rows are one and leave together
    suspects: bool = False  # the rows leave together, and with nothing else

    @property
    def together(self) -> bool:
        """Whether the rows leave as one."""
        return self.gang != 0 or self.suspects


class _Place(NamedTuple):
    """Where segments stand in a lane."""

    priority: int
    tenant: int
    aged: bool = False  # chosen for its age


_Turn = tuple[float, int, int]  # share, arrival, tenant
_Level = dict[int, deque[_Segment]]  # by tenant: none is empty


class ActiveQueue:
    """Lanes of segments. A row stands in it once at most. What is next is asked for between `begin` and the next `begin`."""

    def __init__(self, shares: Shares, aging: Aging) -> None:
        self._shares = shares
        self._aging = aging
        self._lanes: dict[int, dict[int, _Level]] = {}  # lane -> priority -> tenant -> segments
        self._counts: dict[int, int] = {}  # rows per lane, deleted ones included
        self._tenants: Counter[int] = Counter()  # deques that each has
        self._next: dict[int, _Place | None] = {}  # lane -> what is next, where that is known
        self._passed_over: dict[tuple[int, int], int] = {}  # (lane, tenant) -> rows that it has there
        self._newest = 0
        self._oldest = 0

    def push(
        self, lane: int, priority: int, tenant: int, rows: Rows, now: float, *, gang: int = 0, suspects: bool = False
    ) -> None:
        """Append pods of one tenant and priority, a gang, or suspects that travel together, to a lane."""
        self._newest += 1
        self._segments(lane, priority, tenant).append(_Segment(rows, self._newest, now, gang, suspects))
        self._counts[lane] = self._counts.get(lane, 0) + len(rows)

    def push_front(
        self, lane: int, priority: int, tenant: int, rows: Rows, now: float, *, gang: int = 0, suspects: bool = False
    ) -> None:
        """Put pods that had their turn already before all others of their tenant and priority."""
        self._oldest -= 1
        self._segments(lane, priority, tenant).appendleft(_Segment(rows, self._oldest, now, gang, suspects))
        self._counts[lane] = self._counts.get(lane, 0) + len(rows)

    def begin(self, now: float) -> None:
        """Pods are about to be taken: nobody is passed over any more, and shares and ages are as of now."""
        self._passed_over.clear()
        if self.contended:
            self._shares.refresh(now)
        else:
            self._shares.relax(now)
        self._aging.look(now, (segment.queued_at for _, _, segment in self._heads()))
        self._next.clear()

    @property
    def contended(self) -> bool:
        """Whether pods of several tenants wait."""
        return len(self._tenants) > 1

    def lanes(self) -> list[int]:
        """Lanes that hold pods."""
        return list(self._lanes)

    def count(self, lane: int) -> int:
        """Rows in a lane, deleted ones included, without those that are passed over."""
        passed = sum(rows for (where, _), rows in self._passed_over.items() if where == lane)
        return self._counts.get(lane, 0) - passed

    def most_urgent(self, excluding: Container[int]) -> int | None:
        """The lane to be served next: where a pod is owed a turn for its age, the longest waiting; else the one whose head
        has the highest priority, of equals that of the tenant with the least share, then the one that came first. None
        if there is none."""
        aged = self._longest_waiting(excluding) if self._aging.turn_due else None
        if aged is not None:
            return aged
        best, best_key = None, (0, 0.0, 0)
        for lane, priorities in self._lanes.items():
            place = None if lane in excluding else self._place(lane)
            if place is None:
                continue
            share = self._shares.share(place.tenant) if self.contended else 0.0
            key = (-place.priority, share, priorities[place.priority][place.tenant][0].arrival)
            if best is None or key < best_key:
                best, best_key = lane, key
        return best

    def rivals(self, priority: int, tenant: int) -> tuple[bool, set[int]]:
        """Whether pods of a higher priority wait, and which other tenants' pods of this one do."""
        places = [place for _, place, _ in self._heads()]
        others = {place.tenant for place in places if place.priority == priority} - {tenant}
        return any(place.priority > priority for place in places), others

    def waiting_since(self, lane: int) -> float:
        """When the pod that is next in this lane was queued."""
        return self._head(lane).queued_at

    def next_row(self, lane: int) -> int:
        """The row that is next in this lane."""
        return int(self._head(lane).rows[0])

    def next_gang(self, lane: int) -> int:
        """The number of the gang that is next in this lane, 0 where ordinary pods are."""
        return self._head(lane).gang

    def suspects_next(self, lane: int) -> bool:
        """Whether what is next in this lane is suspect."""
        return self._head(lane).suspects

    def next_rows(self, lane: int) -> Rows:
        """The rows of what is next in this lane: a gang's, or suspects."""
        return self._head(lane).rows

    def pass_over(self, lane: int) -> None:
        """What is next in this lane must wait; others' pods need not, until the next `begin`."""
        tenant = self._place_known(lane).tenant
        levels = (level.get(tenant, ()) for level in self._lanes[lane].values())
        self._passed_over[lane, tenant] = sum(len(segment.rows) for segments in levels for segment in segments)
        self._next.pop(lane, None)

    def drop_next(self, lane: int, taken: Rows) -> None:
        """Remove what is next in this lane, a gang or suspects, of which these pods leave."""
        place = self._place_known(lane)
        self._cut(lane, place, len(self._head(lane).rows))
        self._account(place, taken)

    def take(self, lane: int, limit: int, phase: NDArray[np.uint8]) -> Rows:
        """Remove and return up to `limit` rows of a lane, leaving out those no longer QUEUED: highest priority first, and
        within a priority from tenants in turn, the least share first.

        Stops before a gang, and before suspects.
        """
        taken: list[Rows] = []
        wanted = limit
        place = self._place(lane)
        if place is not None and place.aged:
            rows = self._cut(lane, place, min(wanted, self._aging.owed))
            taken.append(rows[phase[rows] == Phase.QUEUED])
            wanted -= len(taken[0])
            self._account(place, taken[0])
            place = self._place(lane)
        while wanted and place is not None:
            parts = self._take_of_priority(lane, place.priority, wanted, phase)
            taken += parts
            wanted -= sum(map(len, parts))
            place = self._place(lane)
            if place is not None and self._head(lane).together:
                break
        if not taken:
            return np.empty(0, np.uint32)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def sweep(self, phase: NDArray[np.uint8]) -> None:
        """Drop rows that are no longer QUEUED, so that nothing here refers to them."""
        kept = [
            (lane, place, segment, segment.rows[phase[segment.rows] == Phase.QUEUED])
            for lane, place, segment in self._all_segments()
        ]
        self._clear()
        for lane, place, segment, rows in kept:
            if len(rows):
                segment.rows = rows
                self._segments(lane, place.priority, place.tenant).append(segment)
                self._counts[lane] = self._counts.get(lane, 0) + len(rows)

    def drain(self) -> list[tuple[Rows, float]]:
        """Empty the queue: all segments in order of arrival, each with the time it was queued."""
        segments = sorted((segment for _, _, segment in self._all_segments()), key=lambda s: s.arrival)
        self._clear()
        return [(s.rows, s.queued_at) for s in segments]

    def _take_of_priority(self, lane: int, priority: int, wanted: int, phase: NDArray[np.uint8]) -> list[Rows]:
        """Rows of one priority until enough are taken, there are no more, or the turn comes of what leaves together."""
        level = self._lanes[lane][priority]
        turns = self._turns(lane, level)
        heapq.heapify(turns)
        turn = wanted if len(turns) == 1 else -(-wanted // min(TURNS_PER_TENANT * len(turns), MOST_TURNS))
        taken: list[Rows] = []
        while wanted and turns:
            tenant = turns[0][2]
            if level[tenant][0].together:
                break
            place = _Place(priority, tenant)
            rows = self._cut(lane, place, min(turn, wanted))
            rows = rows[phase[rows] == Phase.QUEUED]
            if len(rows):
                wanted -= len(rows)
                taken.append(rows)
                self._account(place, rows)
            if tenant in level:
                heapq.heapreplace(turns, self._turn(level, tenant))
            else:
                heapq.heappop(turns)
        return taken

    def _turns(self, lane: int, level: _Level) -> list[_Turn]:
        """Of all tenants of one priority that are not passed over; the least is next."""
        if len(level) == 1 and not self._passed_over:
            (only,) = level
            return [self._turn(level, only)]
        share, passed = self._shares.share, self._passed_over
        return [(share(t), s[0].arrival, t) for t, s in level.items() if (lane, t) not in passed]

    def _turn(self, level: _Level, tenant: int) -> _Turn:
        return (self._shares.share(tenant) if self.contended else 0.0, level[tenant][0].arrival, tenant)

    def _account(self, place: _Place, rows: Rows) -> None:
        """These pods leave: shares and ages reckon with it."""
        if not len(rows):
            return
        self._aging.taken(len(rows), aged=place.aged)
        (self._shares.charge if self.contended else self._shares.note)(place.tenant, rows)

    def _longest_waiting(self, excluding: Container[int]) -> int | None:
        """The lane of the longest waiting head that is overdue, which becomes next there."""
        best: tuple[float, int, _Place] | None = None
        for lane, place, segment in self._heads():
            out = lane in excluding or (lane, place.tenant) in self._passed_over
            if not out and self._aging.overdue(segment.queued_at) and (best is None or segment.queued_at < best[0]):
                best = (segment.queued_at, lane, place._replace(aged=True))
        if best is None:
            return None
        self._next[best[1]] = best[2]
        return best[1]

    def _place(self, lane: int) -> _Place | None:
        """What is next in a lane; None if all that is there is passed over."""
        if lane not in self._next:
            self._next[lane] = self._find_place(lane)
        return self._next[lane]

    def _find_place(self, lane: int) -> _Place | None:
        priorities = self._lanes.get(lane)
        for priority in sorted(priorities, reverse=True) if priorities else ():
            level = self._lanes[lane][priority]
            turns = self._turns(lane, level)
            if turns:
                return _Place(priority, min(turns)[2])
        return None

    def _place_known(self, lane: int) -> _Place:
        place = self._place(lane)
        if place is None:
            raise KeyError(lane)
        return place

    def _head(self, lane: int) -> _Segment:
        place = self._place_known(lane)
        return self._lanes[lane][place.priority][place.tenant][0]

    def _cut(self, lane: int, place: _Place, limit: int) -> Rows:
        """Remove up to `limit` rows from the first segment of a place."""
        level = self._lanes[lane][place.priority]
        segments = level[place.tenant]
        part, rest = segments[0].rows[:limit], segments[0].rows[limit:]
        self._counts[lane] -= len(part)
        if self.contended:
            self._next.clear()  # shares change everywhere
        else:
            self._next.pop(lane, None)
        if len(rest):
            segments[0].rows = rest
            return part
        segments.popleft()
        if not segments:
            self._remove(lane, place)
        return part

    def _remove(self, lane: int, place: _Place) -> None:
        """Nothing is left at a place."""
        level = self._lanes[lane][place.priority]
        del level[place.tenant]
        self._tenants[place.tenant] -= 1
        if not self._tenants[place.tenant]:
            del self._tenants[place.tenant]
        if not level:
            del self._lanes[lane][place.priority]
        if not self._lanes[lane]:
            del self._lanes[lane], self._counts[lane]

    def _segments(self, lane: int, priority: int, tenant: int) -> deque[_Segment]:
        level = self._lanes.setdefault(lane, {}).setdefault(priority, {})
        self._next.pop(lane, None)
        if tenant not in level:
            level[tenant] = deque()
            self._tenants[tenant] += 1
        return level[tenant]

    def _heads(self) -> Iterator[tuple[int, _Place, _Segment]]:
        for lane, priorities in self._lanes.items():
            for priority, level in priorities.items():
                for tenant, segments in level.items():
                    yield lane, _Place(priority, tenant), segments[0]

    def _all_segments(self) -> Iterator[tuple[int, _Place, _Segment]]:
        for lane, place, _ in self._heads():
            for segment in self._lanes[lane][place.priority][place.tenant]:
                yield lane, place, segment

    def _clear(self) -> None:
        self._lanes.clear()
        self._counts.clear()
        self._tenants.clear()
        self._next.clear()
