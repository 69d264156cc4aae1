"""The active queue: pods that wait for a worker.

Pods are in sub-queues; a sub-queue is what the policy makes of a template, and its pods may go to the same
workers. Within a sub-queue pods are served by priority, then fairly between tenants, then by arrival. Pods of
one tenant and priority keep their order. The queue holds segments of row numbers: a job of a million replicas
is one entry, and taking a batch costs only the segments that it touches. Deleted pods stay in their segments
until they are taken or swept.

No pod starves. Priority is strict, as in kube-scheduler, and so is the fairness between tenants, until a pod
has been queued for `after_seconds`. From then on a tenth of all dispatched pods are the longest waiting ones,
whatever their priority and tenant. An endless stream of urgent pods thus loses a tenth at most, and each
batch of ten pods brings the oldest pod forward by one. A pod's priority does not change."""

import heapq
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import Phase, Rows
from dispatcher.core.queue.tenants import Tenants


@dataclass(slots=True)
class Segment:
    """Pods that were queued together."""

    rows: Rows
    arrival: int
    queued_at: float
    gang: int = 0  # number of the gang that the rows are; 0: ordinary pods
    suspects: bool = False  # the rows leave together, and with no other pods

    @property
    def indivisible(self) -> bool:
        return self.gang != 0 or self.suspects


class Place(NamedTuple):
    """A position in a sub-queue that has its own segments."""

    priority: int
    tenant: int
    aged: bool = False  # chosen for its age


Level = dict[int, deque[Segment]]  # by tenant, never empty


class SubQueues:
    """The segments of all sub-queues. A sub-queue exists while it has rows; so do its priority levels, and
    the tenants in them."""

    def __init__(self) -> None:
        self._sub_queues: dict[int, dict[int, Level]] = {}  # sub_queue -> priority -> tenant -> segments
        self._counts: dict[int, int] = {}  # rows per sub-queue, deleted ones included
        self._counts_of: Counter[tuple[int, int]] = Counter()  # the same per sub-queue and tenant
        self._tenants: Counter[int] = Counter()  # deques of each

    @property
    def contended(self) -> bool:
        return len(self._tenants) > 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._sub_queues)

    def levels(self, sub_queue: int) -> dict[int, Level]:
        """Its levels, by priority; empty: it has no rows."""
        return self._sub_queues.get(sub_queue, {})

    def count(self, sub_queue: int) -> int:
        """Its rows, those of deleted pods included."""
        return self._counts.get(sub_queue, 0)

    def count_of(self, sub_queue: int, tenant: int) -> int:
        """The same of one tenant."""
        return self._counts_of[sub_queue, tenant]

    def head(self, sub_queue: int, place: Place) -> Segment:
        """The first segment of a place that has any."""
        return self._sub_queues[sub_queue][place.priority][place.tenant][0]

    def add(self, sub_queue: int, place: Place, segment: Segment, *, front: bool = False) -> None:
        """Put a segment behind those of its place, or in front of them."""
        level = self._sub_queues.setdefault(sub_queue, {}).setdefault(place.priority, {})
        if place.tenant not in level:
            level[place.tenant] = deque()
            self._tenants[place.tenant] += 1
        segments = level[place.tenant]
        (segments.appendleft if front else segments.append)(segment)
        self._counts[sub_queue] = self._counts.get(sub_queue, 0) + len(segment.rows)
        self._counts_of[sub_queue, place.tenant] += len(segment.rows)

    def cut(self, sub_queue: int, place: Place, limit: int) -> Rows:
        """Remove up to `limit` rows from the first segment of a place."""
        segments = self._sub_queues[sub_queue][place.priority][place.tenant]
        part, rest = segments[0].rows[:limit], segments[0].rows[limit:]
        self._counts[sub_queue] -= len(part)
        self._counts_of[sub_queue, place.tenant] -= len(part)
        if not self._counts_of[sub_queue, place.tenant]:
            del self._counts_of[sub_queue, place.tenant]
        if len(rest):
            segments[0].rows = rest
            return part
        segments.popleft()
        if not segments:
            self._remove(sub_queue, place)
        return part

    def heads(self) -> Iterator[tuple[int, Place, Segment]]:
        """The first segment of every place."""
        for sub_queue, priorities in self._sub_queues.items():
            for priority, level in priorities.items():
                for tenant, segments in level.items():
                    yield sub_queue, Place(priority, tenant), segments[0]

    def segments(self) -> Iterator[tuple[int, Place, Segment]]:
        """Every segment; those of one place in order."""
        for sub_queue, place, _ in self.heads():
            for segment in self._sub_queues[sub_queue][place.priority][place.tenant]:
                yield sub_queue, place, segment

    def rows(self, sub_queue: int, start: int, limit: int) -> Rows:
        """Up to `limit` rows of a sub-queue from a position on."""
        found = [np.zeros(0, np.uint32)]
        levels = self._sub_queues.get(sub_queue, {}).values()
        for segment in (each for level in levels for segments in level.values() for each in segments):
            part = segment.rows[start : start + limit]
            start = max(start - len(segment.rows), 0)
            limit -= len(part)
            found.append(part)
            if not limit:
                break
        return np.concatenate(found)

    def take_all(self) -> list[tuple[int, Place, Segment]]:
        """Empty the sub-queues: every segment, those of one place in order."""
        everything = list(self.segments())
        self._sub_queues.clear()
        self._counts.clear()
        self._counts_of.clear()
        self._tenants.clear()
        return everything

    def _remove(self, sub_queue: int, place: Place) -> None:
        level = self._sub_queues[sub_queue][place.priority]
        del level[place.tenant]
        self._tenants[place.tenant] -= 1
        if not self._tenants[place.tenant]:
            del self._tenants[place.tenant]
        if not level:
            del self._sub_queues[sub_queue][place.priority]
        if not self._sub_queues[sub_queue]:
            del self._sub_queues[sub_queue], self._counts[sub_queue]


AGED_PART = 0.1

# No more is saved up: when workers have room again after a long time, urgent pods still get most of it.
MAX_OWED = 500

_UPDATE_SECONDS = 1.0


class Aging:
    """Accounts for how many pods are owed to the overdue ones. With zero seconds no pod is ever overdue."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._overdue_before = float("-inf")
        self._updated_at = float("-inf")
        self._any_overdue = False
        self._owed = 0.0

    def update(self, now: float, queued_at: Iterable[float]) -> None:
        """Once a second, see whether any head of a place is overdue, given since when the heads have been
        queued."""
        if not self._after_seconds or now - self._updated_at < _UPDATE_SECONDS:
            return
        self._updated_at = now
        self._overdue_before = now - self._after_seconds
        self._any_overdue = any(map(self.overdue, queued_at))
        if not self._any_overdue:
            self._owed = 0.0

    def overdue(self, queued_at: float) -> bool:
        """Whether a pod queued at that time has waited too long."""
        return queued_at <= self._overdue_before

    @property
    def owed(self) -> int:
        """How many pods are to be taken for their age now."""
        return int(self._owed)

    @property
    def turn_due(self) -> bool:
        """Whether any pod is to be taken for its age."""
        return self._any_overdue and self._owed >= 1

    def taken(self, pods: int, *, aged: bool) -> None:
        """So many pods were taken, for their age or not. A gang may exceed what is owed; the debt is paid off
        later."""
        if aged:
            self._owed -= pods
        elif self._any_overdue:
            self._owed = min(self._owed + pods * AGED_PART / (1 - AGED_PART), MAX_OWED)


# Within a batch tenants take turns, the least share first, and each gets this many turns if it has enough
# pods. A turn costs some microseconds, so a batch has a limited number, and other tenants follow in the next
# batch.
TURNS_PER_TENANT = 4
MAX_TURNS = 32


_Turn = tuple[float, int, int]  # share, arrival, tenant


class ActiveQueue:
    """A row is in it at most once. Callers ask for what is next between one `begin` and the following one."""

    def __init__(self, shares: Tenants, aging: Aging) -> None:
        self._shares = shares
        self._aging = aging
        self._sub_queues = SubQueues()
        self._next: dict[int, Place | None] = {}  # sub-queue -> what is next, where known
        self._passed_over: dict[tuple[int, int], int] = {}  # (sub-queue, tenant) -> its rows there
        self._newest = 0
        self._oldest = 0

    def push(
        self,
        sub_queue: int,
        place: Place,
        rows: Rows,
        now: float,
        *,
        gang: int = 0,
        suspects: bool = False,
        front: bool = False,
    ) -> None:
        """Append to a sub-queue: pods of one tenant and priority, a gang, or suspects that travel together.
        `front`: put them before all others of their place, because they had their turn already."""
        if front:
            self._oldest -= 1
        else:
            self._newest += 1
        segment = Segment(rows, self._oldest if front else self._newest, now, gang, suspects)
        self._sub_queues.add(sub_queue, place, segment, front=front)
        self._next.pop(sub_queue, None)

    def begin(self, now: float) -> None:
        """Pods are about to be taken: nothing is passed over, and shares and ages are updated."""
        self._passed_over.clear()
        if self.contended:
            self._shares.refresh(now)
        else:
            self._shares.drop_deferred(now)
        self._aging.update(now, (segment.queued_at for _, _, segment in self._sub_queues.heads()))
        self._next.clear()

    @property
    def contended(self) -> bool:
        return self._sub_queues.contended

    def sub_queues(self) -> list[int]:
        return list(self._sub_queues)

    @property
    def segments(self) -> int:
        return sum(1 for _ in self._sub_queues.segments())

    def count(self, sub_queue: int) -> int:
        """Rows in a sub-queue, deleted ones included, passed-over ones not."""
        passed = sum(rows for (where, _), rows in self._passed_over.items() if where == sub_queue)
        return self._sub_queues.count(sub_queue) - passed

    def most_urgent(self, excluding: Container[int]) -> int | None:
        """The sub-queue to serve next, None if there is none: the one with the longest waiting pod if a pod
        is owed a turn for its age. Otherwise the one whose head has the highest priority; among equals the
        tenant with the least share, then the first arrival."""
        aged = self._longest_waiting(excluding) if self._aging.turn_due else None
        if aged is not None:
            return aged
        best, best_key = None, (0, 0.0, 0)
        for sub_queue in self._sub_queues:
            place = None if sub_queue in excluding else self._place(sub_queue)
            if place is None:
                continue
            share = self._shares.share(place.tenant) if self.contended else 0.0
            key = (-place.priority, share, self._sub_queues.head(sub_queue, place).arrival)
            if best is None or key < best_key:
                best, best_key = sub_queue, key
        return best

    def rivals(self, priority: int, tenant: int) -> tuple[bool, set[int]]:
        """Whether pods of a higher priority wait, and which other tenants' pods of this priority do."""
        places = [place for _, place, _ in self._sub_queues.heads()]
        others = {place.tenant for place in places if place.priority == priority} - {tenant}
        return any(place.priority > priority for place in places), others

    def head(self, sub_queue: int) -> Segment:
        """The segment that is next in this sub-queue."""
        return self._sub_queues.head(sub_queue, self._place_known(sub_queue))

    def pass_over(self, sub_queue: int) -> None:
        """The next pods of this sub-queue must wait until the next `begin`. Other tenants' pods need not."""
        tenant = self._place_known(sub_queue).tenant
        self._passed_over[sub_queue, tenant] = self._sub_queues.count_of(sub_queue, tenant)
        self._next.pop(sub_queue, None)

    def drop_next(self, sub_queue: int, taken: Rows) -> None:
        """Remove the gang or suspects that are next in this sub-queue; `taken` are those of them that
        leave."""
        place = self._place_known(sub_queue)
        self._cut(sub_queue, place, len(self.head(sub_queue).rows))
        self._account(place, taken)

    def take(self, sub_queue: int, limit: int, phase: NDArray[np.uint8]) -> Rows:
        """Remove and return up to `limit` QUEUED rows of a sub-queue: highest priority first, and within a
        priority from tenants in turn, the least share first. Stops before a gang and before suspects."""
        taken: list[Rows] = []
        remaining = limit
        place = self._place(sub_queue)
        if place is not None and place.aged:
            rows = self._cut(sub_queue, place, min(remaining, self._aging.owed))
            taken.append(rows[phase[rows] == Phase.QUEUED])
            remaining -= len(taken[0])
            self._account(place, taken[0])
            place = self._place(sub_queue)
        while remaining and place is not None:
            parts = self._take_priority(sub_queue, place.priority, remaining, phase)
            taken += parts
            remaining -= sum(map(len, parts))
            place = self._place(sub_queue)
            if place is not None and self.head(sub_queue).indivisible:
                break
        if not taken:
            return np.empty(0, np.uint32)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def sweep(self, phase: NDArray[np.uint8]) -> int:
        """Drop rows that are no longer QUEUED. Returns how many segments it went through."""
        segments = self._sub_queues.take_all()
        for sub_queue, place, segment in segments:
            segment.rows = segment.rows[phase[segment.rows] == Phase.QUEUED]
            if len(segment.rows):
                self._sub_queues.add(sub_queue, place, segment)
        self._next.clear()
        return len(segments)

    def rows(self, sub_queue: int, start: int, limit: int) -> Rows:
        """Up to `limit` rows of a sub-queue from a position on, as they lie there: deleted and passed-over
        ones included."""
        return self._sub_queues.rows(sub_queue, start, limit)

    def all_rows(self) -> list[Rows]:
        """All rows in the queue, also those no longer QUEUED."""
        return [segment.rows for _, _, segment in self._sub_queues.segments()]

    def gangs(self) -> set[int]:
        """Numbers of the gangs in the queue."""
        return {segment.gang for _, _, segment in self._sub_queues.segments()}

    def drain(self) -> list[tuple[Rows, float]]:
        """Empty the queue: all segments in order of arrival, each with the time it was queued."""
        segments = sorted((segment for _, _, segment in self._sub_queues.take_all()), key=lambda s: s.arrival)
        self._next.clear()
        return [(s.rows, s.queued_at) for s in segments]

    def _take_priority(
        self, sub_queue: int, priority: int, remaining: int, phase: NDArray[np.uint8]
    ) -> list[Rows]:
        """Rows of one priority, until enough are taken, none is left, or an indivisible segment is next."""
        level = self._sub_queues.levels(sub_queue)[priority]
        turns = self._turns(sub_queue, level)
        heapq.heapify(turns)
        turn = remaining
        if len(turns) > 1:
            turn = -(-remaining // min(TURNS_PER_TENANT * len(turns), MAX_TURNS))
        taken: list[Rows] = []
        while remaining and turns:
            tenant = turns[0][2]
            if level[tenant][0].indivisible:
                break
            place = Place(priority, tenant)
            rows = self._cut(sub_queue, place, min(turn, remaining))
            rows = rows[phase[rows] == Phase.QUEUED]
            if len(rows):
                remaining -= len(rows)
                taken.append(rows)
                self._account(place, rows)
            if tenant in level:
                heapq.heapreplace(turns, self._turn(level, tenant))
            else:
                heapq.heappop(turns)
        return taken

    def _turns(self, sub_queue: int, level: Level) -> list[_Turn]:
        """The turns of all tenants of one priority that are not passed over; the least is next."""
        if len(level) == 1 and not self._passed_over:
            (only,) = level
            return [self._turn(level, only)]
        share, passed = self._shares.share, self._passed_over
        return [(share(t), s[0].arrival, t) for t, s in level.items() if (sub_queue, t) not in passed]

    def _turn(self, level: Level, tenant: int) -> _Turn:
        return (self._shares.share(tenant) if self.contended else 0.0, level[tenant][0].arrival, tenant)

    def _account(self, place: Place, rows: Rows) -> None:
        """These pods leave: charge them to shares and ages."""
        if not len(rows):
            return
        self._aging.taken(len(rows), aged=place.aged)
        (self._shares.charge if self.contended else self._shares.defer_charge)(place.tenant, rows)

    def _longest_waiting(self, excluding: Container[int]) -> int | None:
        """The sub-queue of the longest waiting overdue head. That head becomes next there."""
        best: tuple[float, int, Place] | None = None
        for sub_queue, place, segment in self._sub_queues.heads():
            out = sub_queue in excluding or (sub_queue, place.tenant) in self._passed_over
            if (
                not out
                and self._aging.overdue(segment.queued_at)
                and (best is None or segment.queued_at < best[0])
            ):
                best = (segment.queued_at, sub_queue, place._replace(aged=True))
        if best is None:
            return None
        self._next[best[1]] = best[2]
        return best[1]

    def _place(self, sub_queue: int) -> Place | None:
        """What is next in a sub-queue; None if everything there is passed over."""
        if sub_queue not in self._next:
            self._next[sub_queue] = self._find_place(sub_queue)
        return self._next[sub_queue]

    def _find_place(self, sub_queue: int) -> Place | None:
        levels = self._sub_queues.levels(sub_queue)
        for priority in sorted(levels, reverse=True):
            turns = self._turns(sub_queue, levels[priority])
            if turns:
                return Place(priority, min(turns)[2])
        return None

    def _place_known(self, sub_queue: int) -> Place:
        place = self._place(sub_queue)
        if place is None:
            raise KeyError(sub_queue)
        return place

    def _cut(self, sub_queue: int, place: Place, limit: int) -> Rows:
        if self._sub_queues.contended:
            self._next.clear()  # shares change everywhere
        else:
            self._next.pop(sub_queue, None)
        return self._sub_queues.cut(sub_queue, place, limit)
