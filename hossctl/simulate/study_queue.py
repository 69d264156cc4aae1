"""The pods of a study that are not placed: those that go to a worker next, and those that fit nowhere.

Simpler than the dispatcher's queues: priority, then arrival. What fits nowhere waits until a departure makes
room, or pods come or leave that its rules look at. As with the dispatcher, a gang is queued, given to a
worker and waits as a whole until its minimum was bound; from then on its pods are ordinary ones."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import Changes
from dispatcher.core.pods.gangs import MAX_GANG_PODS
from dispatcher.core.queue.hints import worth_another_attempt
from hoss.model.pod import PodGroup, PodSpec, group_of

PodNumbers = NDArray[np.intp]

# Plugins whose refusals other pods can end, by the dispatcher's hints; the last one only of pods that spread.
_OF_OTHER_PODS = frozenset(("NodePorts", "InterPodAffinity"))
_OF_SPREAD = _OF_OTHER_PODS | {"PodTopologySpread"}


class PodsOfClass(NamedTuple):
    """Equal pods, in the order of submission."""

    number: int  # of their class
    pods: PodNumbers


@dataclass(slots=True, eq=False)
class StudyGang:
    """A gang: `minimum` of its pods are bound at once, or none."""

    name: str
    minimum: int
    parts: tuple[PodsOfClass, ...]
    complete: bool = False  # its minimum was bound

    @property
    def next_parts(self) -> Iterator[PodsOfClass]:
        """As many of its pods as a worker is given at once."""
        room = MAX_GANG_PODS
        for number, pods in self.parts:
            if room:
                yield PodsOfClass(number, pods[:room])
            room -= len(pods[:room])

    @property
    def further_parts(self) -> Iterator[PodsOfClass]:
        """Its other pods, which come once it is complete."""
        skipped = MAX_GANG_PODS
        for number, pods in self.parts:
            if len(pods) > skipped:
                yield PodsOfClass(number, pods[skipped:])
            skipped -= len(pods[:skipped])


class StudyBatch(NamedTuple):
    """Pods for a worker."""

    parts: tuple[PodsOfClass, ...]
    gang: StudyGang | None  # it has only pods of this gang, which is not complete


class StudyQueue:
    """See the module. Every pod that came is here, with a worker, or bound."""

    def __init__(self, specs: Mapping[int, PodSpec]) -> None:
        """`specs`: the classes of pods by number; more may come."""
        self._specs = specs
        # Heaps of minus priority, order, pods. No two orders are equal.
        self._next: list[tuple[int, int, PodsOfClass | StudyGang]] = []
        self._order = 0
        self._waiting: dict[int, deque[PodNumbers]] = {}  # by class
        self._waiting_gangs: dict[StudyGang, None] = {}  # in the order in which they began to wait

    def __bool__(self) -> bool:
        """Whether any pod can go to a worker."""
        return bool(self._next)

    def add(self, pods: PodsOfClass) -> None:
        """Queue pods behind those of the same priority."""
        self._push(self._specs[pods.number].priority, pods)

    def add_gang(self, gang: StudyGang) -> None:
        """Queue a gang. Its most urgent pod decides on its place."""
        self._push(max(self._specs[number].priority for number, _ in gang.parts), gang)

    def _push(self, priority: int, pods: PodsOfClass | StudyGang) -> None:
        self._order += 1
        heapq.heappush(self._next, (-priority, self._order, pods))

    def take(self, most: int) -> StudyBatch:
        """Take out the next pods: at most so many, or a whole gang."""
        parts: list[PodsOfClass] = []
        while self._next and most:
            minus_priority, order, entry = self._next[0]
            if isinstance(entry, StudyGang):
                if parts:
                    break
                heapq.heappop(self._next)
                return StudyBatch(tuple(entry.next_parts), entry)
            number, pods = entry
            heapq.heappop(self._next)
            if len(pods) > most:
                heapq.heappush(self._next, (minus_priority, order, PodsOfClass(number, pods[most:])))
                pods = pods[:most]
            parts.append(PodsOfClass(number, pods))
            most -= len(pods)
        return StudyBatch(tuple(parts), None)

    # Pods that fit nowhere

    def wait(self, pods: PodsOfClass) -> None:
        """Keep pods until they are woken."""
        self._waiting.setdefault(pods.number, deque()).append(pods.pods)

    def wait_as_gang(self, gang: StudyGang) -> None:
        """The same for a gang."""
        self._waiting_gangs[gang] = None

    def wake_by_room(self, room: Callable[[int], int]) -> None:
        """Queue as many pods of each class as have room somewhere, `room` by class, and the gangs of which
        any pod has."""
        found: dict[int, int] = {}

        def room_of(number: int) -> int:
            if number not in found:
                found[number] = room(number)
            return found[number]

        for number, waiting in list(self._waiting.items()):
            left = room_of(number)
            while waiting and left > 0:
                pods = waiting.popleft()
                if len(pods) > left:
                    waiting.appendleft(pods[left:])
                    pods = pods[:left]
                left -= len(pods)
                self.add(PodsOfClass(number, pods))
            if not waiting:
                del self._waiting[number]
        self._wake_gangs(lambda number: room_of(number) > 0)

    def wake_by_rules(self, bound: Iterable[int], left: Iterable[int]) -> None:
        """Queue the pods that may fit because pods of these classes were bound or have left, whatever room
        there is: by the dispatcher's hints."""
        if not (self._waiting or self._waiting_gangs):
            return
        changes = Changes(bound_pods=self._groups_of(bound), deleted_pods=self._groups_of(left))

        def helped(number: int) -> bool:
            spec = self._specs[number]
            return worth_another_attempt(spec, _OF_SPREAD if spec.spread else _OF_OTHER_PODS, changes)

        for number in [number for number in self._waiting if helped(number)]:
            for pods in self._waiting.pop(number):
                self.add(PodsOfClass(number, pods))
        self._wake_gangs(helped)

    def _wake_gangs(self, helped: Callable[[int], bool]) -> None:
        """Queue the gangs that have pods of such a class."""
        for gang in list(self._waiting_gangs):
            if any(helped(number) for number, _ in gang.parts):
                del self._waiting_gangs[gang]
                self.add_gang(gang)

    def _groups_of(self, numbers: Iterable[int]) -> frozenset[PodGroup]:
        return frozenset(group_of(self._specs[number]) for number in numbers)
