"""Segments of rows by lane, priority and tenant, in order of arrival: what the active queue holds. Who is next, it does not know."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.core.podtable import Rows


@dataclass(slots=True)
class Segment:
    """Pods that were queued together."""

    rows: Rows
    arrival: int
    queued_at: float
    gang: int = 0  # its number, where the rows are one and leave together
    suspects: bool = False  # the rows leave together, and with nothing else

    @property
    def together(self) -> bool:
        """Whether the rows leave as one."""
        return self.gang != 0 or self.suspects


class Place(NamedTuple):
    """Where segments stand in a lane."""

    priority: int
    tenant: int
    aged: bool = False  # chosen for its age


Level = dict[int, deque[Segment]]  # by tenant: none is empty


class Lanes:
    """A lane is there as long as it has rows; so are its levels, and the tenants in these."""

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, Level]] = {}  # lane -> priority -> tenant -> segments
        self._counts: dict[int, int] = {}  # rows per lane, deleted ones included
        self._counts_of: Counter[tuple[int, int]] = Counter()  # the same per lane and tenant
        self._tenants: Counter[int] = Counter()  # deques that each has

    @property
    def contended(self) -> bool:
        """Whether there are pods of several tenants."""
        return len(self._tenants) > 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._lanes)

    def levels(self, lane: int) -> dict[int, Level]:
        """A lane's levels by priority; none if the lane is empty."""
        return self._lanes.get(lane, {})

    def count(self, lane: int) -> int:
        """Rows in a lane."""
        return self._counts.get(lane, 0)

    def count_of(self, lane: int, tenant: int) -> int:
        """A tenant's rows in a lane."""
        return self._counts_of[lane, tenant]

    def head(self, lane: int, place: Place) -> Segment:
        """The first segment of a place that has any."""
        return self._lanes[lane][place.priority][place.tenant][0]

    def add(self, lane: int, place: Place, segment: Segment, *, front: bool = False) -> None:
        """Put a segment behind those of its place, or before them."""
        level = self._lanes.setdefault(lane, {}).setdefault(place.priority, {})
        if place.tenant not in level:
            level[place.tenant] = deque()
            self._tenants[place.tenant] += 1
        segments = level[place.tenant]
        (segments.appendleft if front else segments.append)(segment)
        self._counts[lane] = self._counts.get(lane, 0) + len(segment.rows)
        self._counts_of[lane, place.tenant] += len(segment.rows)

    def cut(self, lane: int, place: Place, limit: int) -> Rows:
        """Remove up to `limit` rows from the first segment of a place."""
        segments = self._lanes[lane][place.priority][place.tenant]
        part, rest = segments[0].rows[:limit], segments[0].rows[limit:]
        self._counts[lane] -= len(part)
        self._counts_of[lane, place.tenant] -= len(part)
        if not self._counts_of[lane, place.tenant]:
            del self._counts_of[lane, place.tenant]
        if len(rest):
            segments[0].rows = rest
            return part
        segments.popleft()
        if not segments:
            self._remove(lane, place)
        return part

    def heads(self) -> Iterator[tuple[int, Place, Segment]]:
        """The first segment of every place."""
        for lane, priorities in self._lanes.items():
            for priority, level in priorities.items():
                for tenant, segments in level.items():
                    yield lane, Place(priority, tenant), segments[0]

    def segments(self) -> Iterator[tuple[int, Place, Segment]]:
        """Every segment, those of one place in their order."""
        for lane, place, _ in self.heads():
            for segment in self._lanes[lane][place.priority][place.tenant]:
                yield lane, place, segment

    def take_all(self) -> list[tuple[int, Place, Segment]]:
        """Empty the lanes: every segment, those of one place in their order."""
        everything = list(self.segments())
        self._lanes.clear()
        self._counts.clear()
        self._counts_of.clear()
        self._tenants.clear()
        return everything

    def _remove(self, lane: int, place: Place) -> None:
        level = self._lanes[lane][place.priority]
        del level[place.tenant]
        self._tenants[place.tenant] -= 1
        if not self._tenants[place.tenant]:
            del self._tenants[place.tenant]
        if not level:
            del self._lanes[lane][place.priority]
        if not self._lanes[lane]:
            del self._lanes[lane], self._counts[lane]
