"""Cluster changes that waiting pods may benefit from, as values, and the latest of them, for refusals by
workers whose view was older. Changes are facts about nodes and pods; `hints` decides which waiting pods they
may help."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NodeSpec
from hoss.model.pod import PodGroup

# Changes within this time are merged.
WINDOW_SECONDS = 0.1

# Windows kept. They reach back further than any outstanding batch and take some megabytes at most.
KEPT_WINDOWS = 128

ViewPosition = Mapping[int, int]  # shard -> the last seq that a worker's view contains


class Aspect(IntFlag):
    """What changed of a node's spec (kube-scheduler's ActionType for nodes)."""

    ADDED = 1
    ALLOCATABLE = 2
    LABELS = 4
    TAINTS = 8
    UNCORDONED = 16
    REMOVED = 32
    FEATURES = 64


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node was added, removed, or changed in some aspects. `labels_before` are the labels before the
    change."""

    spec: NodeSpec
    aspects: Aspect
    labels_before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """n > 0 nodes with more free capacity than before, and their accounts now. Nodes that accept no pods are
    left out."""

    schema: tuple[str, ...]  # R resource names
    allocatable: NDArray[np.int64]  # (R, n)
    requested: NDArray[np.int64]  # (R, n)
    cards_used: NDArray[np.uint16]  # (k, 16): cards of the nodes that have any, thousandths used
    most_free: Mapping[str, int] = field(init=False)  # by resource, on the node with the most of it

    def __post_init__(self) -> None:
        most = (self.allocatable - self.requested).max(axis=1, initial=0).tolist()
        object.__setattr__(self, "most_free", dict(zip(self.schema, most, strict=True)))


@dataclass(frozen=True, slots=True)
class Changes:
    """A set of changes. `anything`: what changed is unknown."""

    nodes: tuple[NodeChange, ...] = ()
    rooms: tuple[Room, ...] = ()
    deleted_pods: frozenset[PodGroup] = frozenset()  # groups of pods that hold nothing any more
    bound_pods: frozenset[PodGroup] = frozenset()  # groups of pods that have reservations now
    anything: bool = False
    relabelled: frozenset[str] = frozenset()  # namespaces that were added, removed or relabelled
    claims: frozenset[tuple[str, str]] = frozenset()  # volume claims that came or changed: namespace, name
    storage: frozenset[str] = frozenset()  # kinds of which other storage objects came or changed

    def __bool__(self) -> bool:
        pods_or_nodes = self.nodes or self.rooms or self.deleted_pods or self.bound_pods
        return bool(pods_or_nodes or self.anything or self.relabelled or self.claims or self.storage)


ANYTHING = Changes(anything=True)


def merge(parts: Sequence[Changes]) -> Changes:
    """The union of several changes, with the rooms of equal schema joined."""
    if len(parts) == 1:
        return parts[0]
    return Changes(
        nodes=tuple(change for part in parts for change in part.nodes),
        rooms=_joined([room for part in parts for room in part.rooms]),
        deleted_pods=reduce(or_, (part.deleted_pods for part in parts), frozenset()),
        bound_pods=reduce(or_, (part.bound_pods for part in parts), frozenset()),
        anything=any(part.anything for part in parts),
        relabelled=reduce(or_, (part.relabelled for part in parts), frozenset()),
        claims=reduce(or_, (part.claims for part in parts), frozenset()),
        storage=reduce(or_, (part.storage for part in parts), frozenset()),
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
class _Reach:
    """How far changes reach: the number of the latest, and its position in the feed of each shard. Changes of
    the dispatcher's own have no position."""

    number: int = 0
    positions: dict[int, int] = field(default_factory=dict)  # shard -> seq

    def extend(self, further: "_Reach") -> None:
        self.number = further.number
        for shard, seq in further.positions.items():
            self.positions[shard] = max(seq, self.positions.get(shard, 0))

    def unseen(self, since: int, seen: ViewPosition) -> bool:
        """Whether a view misses the latest. Decided by change number where the changes are the dispatcher's
        own, else by feed position, and by both where the view's position is unknown."""
        if self.positions:
            if any(seq > seen[shard] for shard, seq in self.positions.items() if shard in seen):
                return True
            if self.positions.keys() <= seen.keys():
                return False
        return self.number > since


@dataclass(slots=True)
class _Window:
    """Changes of a short time: from the feed, or the dispatcher's own. Each keeps its reach: a view between
    two of them has seen the former."""

    begun: float
    reach: _Reach = field(default_factory=_Reach)
    parts: list[tuple[_Reach, Changes]] = field(default_factory=list)
    processed: bool = False
    _merged: Changes | None = None

    def add(self, reach: _Reach, changes: Changes) -> None:
        self.reach.extend(reach)
        self.parts.append((reach, changes))
        self._merged = None

    def changes(self) -> Changes:
        if self._merged is None:
            self._merged = merge([changes for _, changes in self.parts])
        return self._merged

    def missed(self, since: int, seen: ViewPosition) -> Changes:
        """What a view misses of it."""
        if not self.reach.unseen(since, seen):
            return Changes()
        missed = [changes for reach, changes in self.parts if reach.unseen(since, seen)]
        return self.changes() if len(missed) == len(self.parts) else merge(missed)


class ChangeHistory:
    """The latest changes. `number` grows with each change; a caller that stores it can later ask what
    followed."""

    def __init__(self) -> None:
        self.number = 0
        self._kept: deque[_Window] = deque()
        self._pending: list[_Window] = []
        # Both by whether the changes are the dispatcher's own: the window that new changes join, and how far
        # the dropped windows reached.
        self._open: dict[bool, _Window] = {}
        self._dropped = {own: _Reach() for own in (False, True)}

    def __len__(self) -> int:
        return len(self._kept)

    def record(
        self,
        changes: Changes,
        now: float,
        *,
        shard: int = -1,
        seq: int = 0,
    ) -> None:
        """Record a change at this position of the feed, or, without a shard, one of the dispatcher's own."""
        self.number += 1
        own = shard < 0
        window = self._open.get(own)
        if window is None or window.processed or now - window.begun >= WINDOW_SECONDS:
            window = self._open[own] = _Window(now)
            self._keep(window)
            self._pending.append(window)
        window.add(_Reach(self.number, {} if own else {shard: seq}), changes)

    def outdate_views(self, now: float) -> None:
        """Refusals of pods that were sent before now are outdated, whatever the workers' views. No waiting
        pod is woken."""
        self.number += 1
        window = _Window(now, processed=True)
        window.add(_Reach(self.number), ANYTHING)
        self._keep(window)

    def take_pending(self, now: float) -> list[Changes]:
        """Changes that were not processed yet. The dispatcher's own changes follow a moment later: workers
        learn of them through the feed, and would refuse pods that are sent before that."""
        ripe = [
            window
            for window in self._pending
            if window.reach.positions or now - window.begun >= WINDOW_SECONDS or window.changes().anything
        ]
        for window in ripe:
            window.processed = True
        self._pending = [window for window in self._pending if not window.processed]
        return [window.changes() for window in ripe]

    @property
    def none_pending(self) -> bool:
        """Whether all changes are processed."""
        return not self._pending

    def unseen_by(self, since: int, seen: ViewPosition) -> Iterator[Changes]:
        """Changes that a view at `seen` misses, for a pod that was sent at change number `since`."""
        if any(dropped.unseen(since, seen) for dropped in self._dropped.values()):
            yield ANYTHING
        for window in self._kept:
            if missed := window.missed(since, seen):
                yield missed

    def _keep(self, window: _Window) -> None:
        self._kept.append(window)
        if len(self._kept) > KEPT_WINDOWS:
            dropped = self._kept.popleft().reach
            self._dropped[not dropped.positions].extend(dropped)
