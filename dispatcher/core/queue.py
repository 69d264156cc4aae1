"""Pods that wait for a worker, in lanes; within a lane by priority, then fairly between tenants, then by arrival.

A lane is what the policy makes of a template: pods of one lane may go to the same workers. The queue holds segments
of row numbers, so a job of a million replicas is one entry and taking a batch costs the segments it touches.
Deleted pods stay in their segments until taken or swept. Work of one tenant and priority keeps its order.
"""

import heapq
from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.aging import Aging
from dispatcher.core.lanes import Lanes, Level, Place, Segment
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.shares import Shares

# Tenants take turns within a batch, the least share first, each so often if it has enough pods; a turn costs some
# microseconds, so there are only so many in a batch and the others' come in the next.
TURNS_PER_TENANT = 4
MOST_TURNS = 32


_Turn = tuple[float, int, int]  # share, arrival, tenant


class ActiveQueue:
    """Lanes of segments. A row stands in it once at most. What is next is asked for between `begin` and the next `begin`."""

    def __init__(self, shares: Shares, aging: Aging) -> None:
        self._shares = shares
        self._aging = aging
        self._lanes = Lanes()
        self._next: dict[int, Place | None] = {}  # lane -> what is next, where that is known
        self._passed_over: dict[tuple[int, int], int] = {}  # (lane, tenant) -> rows that it has there
        self._newest = 0
        self._oldest = 0

    def push(
        self, lane: int, priority: int, tenant: int, rows: Rows, now: float, *, gang: int = 0, suspects: bool = False
    ) -> None:
        """Append pods of one tenant and priority, a gang, or suspects that travel together, to a lane."""
        self._newest += 1
        self._lanes.add(lane, Place(priority, tenant), Segment(rows, self._newest, now, gang, suspects))
        self._next.pop(lane, None)

    def push_front(
        self, lane: int, priority: int, tenant: int, rows: Rows, now: float, *, gang: int = 0, suspects: bool = False
    ) -> None:
        """Put pods that had their turn already before all others of their tenant and priority."""
        self._oldest -= 1
        self._lanes.add(lane, Place(priority, tenant), Segment(rows, self._oldest, now, gang, suspects), front=True)
        self._next.pop(lane, None)

    def begin(self, now: float) -> None:
        """Pods are about to be taken: nobody is passed over any more, and shares and ages are as of now."""
        self._passed_over.clear()
        if self.contended:
            self._shares.refresh(now)
        else:
            self._shares.relax(now)
        self._aging.look(now, (segment.queued_at for _, _, segment in self._lanes.heads()))
        self._next.clear()

    @property
    def contended(self) -> bool:
        """Whether pods of several tenants wait."""
        return self._lanes.contended

    def lanes(self) -> list[int]:
        """Lanes that hold pods."""
        return list(self._lanes)

    def count(self, lane: int) -> int:
        """Rows in a lane, deleted ones included, without those that are passed over."""
        passed = sum(rows for (where, _), rows in self._passed_over.items() if where == lane)
        return self._lanes.count(lane) - passed

    def most_urgent(self, excluding: Container[int]) -> int | None:
        """The lane to be served next: where a pod is owed a turn for its age, the longest waiting; else the one whose head
        has the highest priority, of equals that of the tenant with the least share, then the one that came first. None
        if there is none."""
        aged = self._longest_waiting(excluding) if self._aging.turn_due else None
        if aged is not None:
            return aged
        best, best_key = None, (0, 0.0, 0)
        for lane in self._lanes:
            place = None if lane in excluding else self._place(lane)
            if place is None:
                continue
            share = self._shares.share(place.tenant) if self.contended else 0.0
            key = (-place.priority, share, self._lanes.head(lane, place).arrival)
            if best is None or key < best_key:
                best, best_key = lane, key
        return best

    def rivals(self, priority: int, tenant: int) -> tuple[bool, set[int]]:
        """Whether pods of a higher priority wait, and which other tenants' pods of this one do."""
        places = [place for _, place, _ in self._lanes.heads()]
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
        self._passed_over[lane, tenant] = self._lanes.count_of(lane, tenant)
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

    def sweep(self, phase: NDArray[np.uint8]) -> int:
        """Drop rows that are no longer QUEUED, so that nothing here refers to them. Returns how many segments it went through."""
        segments = self._lanes.take_all()
        for lane, place, segment in segments:
            segment.rows = segment.rows[phase[segment.rows] == Phase.QUEUED]
            if len(segment.rows):
                self._lanes.add(lane, place, segment)
        self._next.clear()
        return len(segments)

    def standing(self) -> list[Rows]:
        """All rows that stand here, those that wait no more included."""
        return [segment.rows for _, _, segment in self._lanes.segments()]

    def gangs(self) -> set[int]:
        """Numbers of the gangs that stand here."""
        return {segment.gang for _, _, segment in self._lanes.segments()}

    def drain(self) -> list[tuple[Rows, float]]:
        """Empty the queue: all segments in order of arrival, each with the time it was queued."""
        segments = sorted((segment for _, _, segment in self._lanes.take_all()), key=lambda s: s.arrival)
        self._next.clear()
        return [(s.rows, s.queued_at) for s in segments]

    def _take_of_priority(self, lane: int, priority: int, wanted: int, phase: NDArray[np.uint8]) -> list[Rows]:
        """Rows of one priority until enough are taken, there are no more, or the turn comes of what leaves together."""
        level = self._lanes.levels(lane)[priority]
        turns = self._turns(lane, level)
        heapq.heapify(turns)
        turn = wanted if len(turns) == 1 else -(-wanted // min(TURNS_PER_TENANT * len(turns), MOST_TURNS))
        taken: list[Rows] = []
        while wanted and turns:
            tenant = turns[0][2]
            if level[tenant][0].together:
                break
            place = Place(priority, tenant)
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

    def _turns(self, lane: int, level: Level) -> list[_Turn]:
        """Of all tenants of one priority that are not passed over; the least is next."""
        if len(level) == 1 and not self._passed_over:
            (only,) = level
            return [self._turn(level, only)]
        share, passed = self._shares.share, self._passed_over
        return [(share(t), s[0].arrival, t) for t, s in level.items() if (lane, t) not in passed]

    def _turn(self, level: Level, tenant: int) -> _Turn:
        return (self._shares.share(tenant) if self.contended else 0.0, level[tenant][0].arrival, tenant)

    def _account(self, place: Place, rows: Rows) -> None:
        """These pods leave: shares and ages reckon with it."""
        if not len(rows):
            return
        self._aging.taken(len(rows), aged=place.aged)
        (self._shares.charge if self.contended else self._shares.note)(place.tenant, rows)

    def _longest_waiting(self, excluding: Container[int]) -> int | None:
        """The lane of the longest waiting head that is overdue, which becomes next there."""
        best: tuple[float, int, Place] | None = None
        for lane, place, segment in self._lanes.heads():
            out = lane in excluding or (lane, place.tenant) in self._passed_over
            if not out and self._aging.overdue(segment.queued_at) and (best is None or segment.queued_at < best[0]):
                best = (segment.queued_at, lane, place._replace(aged=True))
        if best is None:
            return None
        self._next[best[1]] = best[2]
        return best[1]

    def _place(self, lane: int) -> Place | None:
        """What is next in a lane; None if all that is there is passed over."""
        if lane not in self._next:
            self._next[lane] = self._find_place(lane)
        return self._next[lane]

    def _find_place(self, lane: int) -> Place | None:
        levels = self._lanes.levels(lane)
        for priority in sorted(levels, reverse=True):
            turns = self._turns(lane, levels[priority])
            if turns:
                return Place(priority, min(turns)[2])
        return None

    def _place_known(self, lane: int) -> Place:
        place = self._place(lane)
        if place is None:
            raise KeyError(lane)
        return place

    def _head(self, lane: int) -> Segment:
        return self._lanes.head(lane, self._place_known(lane))

    def _cut(self, lane: int, place: Place, limit: int) -> Rows:
        if self._lanes.contended:
            self._next.clear()  # shares change everywhere
        else:
            self._next.pop(lane, None)
        return self._lanes.cut(lane, place, limit)
