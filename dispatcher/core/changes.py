"""What happened in the cluster that pods may wait for, as values; and the latest of it, for refusals made on an older view.

Changes are facts about nodes and pods, not about who waits: `hints` says whom they may help.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec

# Changes within this time are one.
WINDOW_SECONDS = 0.1

# Windows kept: longer ago than the pods in hand were given to their workers, and some megabytes at the very most.
KEPT_WINDOWS = 128

Seen = Mapping[int, int]  # shard -> the seq that a view stood at


class Aspect(IntFlag):
    """What of a node's spec changed (kube-scheduler's ActionType for nodes)."""

    ADDED = 1
    ALLOCATABLE = 2
    LABELS = 4
    TAINTS = 8
    UNCORDONED = 16
    REMOVED = 32


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node came or went, or some aspects of its spec are others now. `labels_before` are those before that."""

    spec: NodeSpec
    aspects: Aspect
    labels_before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """n > 0 nodes that have more room than before, and how much they have now. Nodes that get nothing more are left out."""

    schema: tuple[str, ...]  # R resource names
    allocatable: NDArray[np.int64]  # (R, n)
    requested: NDArray[np.int64]  # (R, n)
    cards_used: NDArray[np.uint16]  # (k, 16): the cards of those that have any, thousandths used
    most_free: Mapping[str, int] = field(init=False)  # by resource: on the node that has most of it

    def __post_init__(self) -> None:
        most = (self.allocatable - self.requested).max(axis=1, initial=0).tolist()
        object.__setattr__(self, "most_free", dict(zip(self.schema, most, strict=True)))


@dataclass(frozen=True, slots=True)
class Changes:
    """Some changes together. `anything`: what changed is not known."""

    nodes: tuple[NodeChange, ...] = ()
    rooms: tuple[Room, ...] = ()
    left: frozenset[PodSpec] = frozenset()  # pods that hold nothing any more
    came: frozenset[PodSpec] = frozenset()  # pods that are bound now
    anything: bool = False
    relabelled: frozenset[str] = frozenset()  # namespaces that came, went, or have other labels

    def __bool__(self) -> bool:
        return bool(self.nodes or self.rooms or self.left or self.came or self.anything or self.relabelled)


ANYTHING = Changes(anything=True)


def together(parts: Sequence[Changes]) -> Changes:
    """All changes of several, rooms of one schema as one."""
    if len(parts) == 1:
        return parts[0]
    return Changes(
        nodes=tuple(change for part in parts for change in part.nodes),
        rooms=_joined([room for part in parts for room in part.rooms]),
        left=reduce(or_, (part.left for part in parts), frozenset()),
        came=reduce(or_, (part.came for part in parts), frozenset()),
        anything=any(part.anything for part in parts),
        relabelled=reduce(or_, (part.relabelled for part in parts), frozenset()),
    )


def _joined(rooms: list[Room]) -> tuple[Room, ...]:
    by_schema: dict[tuple[str, ...], list[Room]] = {}
    for room in rooms:
        by_schema.setdefault(room.schema, []).append(room)
    return tuple(
        Room(
            schema,
            np.concatenate([room.allocatable for room in same], axis=1),
            np.concatenate([room.requested for room in same], axis=1),
            np.concatenate([room.cards_used for room in same]),
        )
        for schema, same in by_schema.items()
    )


@dataclass(slots=True)
class _Window:
    """Changes of a short while: of the feed, each at a place in it, or (`positions` empty) of the dispatcher's own doing."""

    number: int
    begun: float
    positions: dict[int, int] = field(default_factory=dict)  # shard -> seq of the latest
    parts: list[Changes] = field(default_factory=list)
    told: bool = False

    def changes(self) -> Changes:
        self.parts = [together(self.parts)]
        return self.parts[0]

    def unseen(self, since: int, seen: Seen) -> bool:
        """Whether a view misses some of it: by its place in the feed, or, where nothing is known of that, by number."""
        if self.positions and self.positions.keys() <= seen.keys():
            return any(seq > seen[shard] for shard, seq in self.positions.items())
        return self.number > since


class History:
    """The latest changes. `number` grows with each; whoever notes it down can ask later what came after."""

    def __init__(self) -> None:
        self.number = 0
        self._kept: deque[_Window] = deque()
        self._untold: list[_Window] = []
        # By whether they are the dispatcher's own doings: the window that new changes join, and how far those reached that
        # were dropped.
        self._open: dict[bool, _Window] = {}
        self._dropped = {own: _Window(0, 0.0) for own in (False, True)}

    def note(self, changes: Changes, now: float, *, shard: int = -1, seq: int = 0) -> None:
        """Something changed: at this place of the feed, or, without a shard, by the dispatcher itself."""
        self.number += 1
        own = shard < 0
        window = self._open.get(own)
        if window is None or window.told or now - window.begun >= WINDOW_SECONDS:
            window = self._open[own] = _Window(self.number, now)
            self._keep(window)
            self._untold.append(window)
        window.number = self.number
        window.parts.append(changes)
        if not own:
            window.positions[shard] = max(seq, window.positions.get(shard, 0))

    def outdate(self, now: float) -> None:
        """What workers say of pods sent before now is old news, whatever their views. Nobody that waits is told."""
        self.number += 1
        self._keep(_Window(self.number, now, parts=[ANYTHING], told=True))

    def untold(self, now: float) -> list[Changes]:
        """What nobody was told of yet. The dispatcher's own doings are told a moment later: workers hear of them through
        their feeds, and a pod that is sent before that is refused for nothing."""
        ripe = [
            window
            for window in self._untold
            if window.positions or now - window.begun >= WINDOW_SECONDS or window.changes().anything
        ]
        for window in ripe:
            window.told = True
        self._untold = [window for window in self._untold if not window.told]
        return [window.changes() for window in ripe]

    @property
    def all_told(self) -> bool:
        """Whether there is nothing to tell."""
        return not self._untold

    def missed(self, since: int, seen: Seen) -> Iterator[Changes]:
        """What a view misses that stood at `seen`, of a pod that was sent at number `since`."""
        if any(window.unseen(since, seen) for window in self._dropped.values()):
            yield ANYTHING
        for window in self._kept:
            if window.unseen(since, seen):
                yield window.changes()

    def _keep(self, window: _Window) -> None:
        self._kept.append(window)
        if len(self._kept) > KEPT_WINDOWS:
            self._drop(self._kept.popleft())

    def _drop(self, window: _Window) -> None:
        dropped = self._dropped[not window.positions]
        dropped.number = window.number
        for shard, seq in window.positions.items():
            dropped.positions[shard] = max(seq, dropped.positions.get(shard, 0))
