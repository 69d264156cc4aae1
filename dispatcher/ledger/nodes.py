"""The dispatcher's one record of the cluster's nodes, as the ledger's node feed last described them.

`ClusterNodes` owns names, specs, totals and the quarantine of nodes, by index. Everything else asks it, or
gets the events that `read` returns. The core keeps its own view, fed by those events.

What this dispatcher has written to the ledger itself is also kept until the feed shows it: a ledger that is
lost in between is rebuilt with it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.changes import ANYTHING, Aspect, Changes, NodeChange, Room
from hoss.model.node import NO_EXECUTE, NodeSpec, Taint
from hoss.model.resources import DEVICE_SHARE_RESOURCE
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import CARDS, FLAG_GONE, FLAG_QUARANTINED, FLAGS_CLOSED, U32, decode, decode_accounts
from hoss.wire.convert import node_from_proto, node_to_proto, taints_from_proto
from hoss.wire.convert_rules import group_defined
from hoss.wire.convert_selectors import labels_from_proto

# With these, the room of a node counts as new. What became free while it was closed helped nobody.
_OF_ROOM = Aspect.ADDED | Aspect.ALLOCATABLE | Aspect.UNCORDONED


class _Node(NamedTuple):
    name: str
    spec: bytes  # a NodeSpec message

    def message(self) -> common_pb2.NodeSpec:
        return common_pb2.NodeSpec.FromString(self.spec)

    def model(self) -> NodeSpec:
        return node_from_proto(self.message())


class NodeTraits(NamedTuple):
    """What policies match on."""

    labels: Sequence[dict[str, str]]  # of each node
    resources: frozenset[str]  # that at least one node offers


class ClusterNodes:
    """Follows the node feed with `read`; answers by index and by name."""

    def __init__(self) -> None:
        self.schema: tuple[str, ...] = ()  # names of resources, by their number in accounts
        self._nodes: dict[int, _Node] = {}
        self._indexes: dict[str, int] = {}
        self._totals: Counter[str] = Counter()  # allocatable of all nodes, by resource
        self._quarantined: set[int] = set()
        self._shards_read: set[int] = set()  # of which a snapshot has come
        self._shards = 0  # 0: not known yet
        # By name: index and node as the ledger has acknowledged them and the feed has not shown them yet.
        # None: the node was removed.
        self._written: dict[str, tuple[int, _Node] | None] = {}
        self._listed: dict[int, _Node] = {}  # of shards of which no snapshot has come

    @property
    def complete(self) -> bool:
        """Whether all nodes of the ledger have been told of."""
        return 0 < self._shards <= len(self._shards_read)

    def name(self, index: int) -> str:
        """The node's name; "" for an index without a node."""
        node = self._nodes.get(index)
        return "" if node is None else node.name

    def allocatable(self, index: int) -> dict[str, int]:
        """What the node offers, by resource."""
        node = self._nodes.get(index)
        return {} if node is None else _allocatable(node.message())

    def index_of(self, name: str) -> int | None:
        """The index of a node by name."""
        return self._indexes.get(name)

    def upserted(self, nodes: Sequence[NodeSpec], indexes: Iterable[int]) -> None:
        """The ledger has acknowledged these nodes, and given them these indexes."""
        for node, index in zip(nodes, indexes, strict=True):
            spec = node_to_proto(node).SerializeToString()
            self._written[node.name] = index, _Node(node.name, spec)
        self._forget_shown([node.name for node in nodes])

    def listed(self, nodes: Sequence[pb.NodeInfo]) -> None:
        """The ledger has these nodes; the feed has not shown any yet."""
        self._listed = {n.index: _Node(n.spec.name, n.spec.SerializeToString()) for n in nodes}

    def removed(self, names: Sequence[str]) -> None:
        """The ledger has acknowledged that it does not have these nodes any more."""
        self._written |= dict.fromkeys(names)
        self._forget_shown(names)

    def to_rebuild(self) -> Iterator[tuple[int, common_pb2.NodeSpec]]:
        """All nodes with their specs, by index, and with what was acknowledged and not shown yet."""
        known = self._listed | self._nodes
        nodes = {index: node for index, node in known.items() if node.name not in self._written}
        nodes |= dict(written for written in self._written.values() if written is not None)
        return ((index, nodes[index].message()) for index in sorted(nodes))

    @cached_property
    def traits(self) -> NodeTraits:
        """Of all nodes; computed again only after a node changed."""
        specs = [node.message() for node in self._nodes.values()]
        offered = {amount.resource for spec in specs for amount in spec.allocatable if amount.amount > 0}
        if any(spec.cards for spec in specs):
            offered.add(DEVICE_SHARE_RESOURCE)
        return NodeTraits([dict(labels_from_proto(spec.labels)) for spec in specs], frozenset(offered))

    def read(self, message: pb.FeedMessage) -> list[m.Event]:
        """Take in a feed message. Returns what changed, in the order in which the machine has to learn it."""
        self.schema = tuple(message.schema) or self.schema
        removed: set[int] = set()
        changes: list[NodeChange] = []
        events: list[m.Event] = []
        if message.snapshot or message.nodes:
            totals_before = Counter(self._totals)
            if message.snapshot:
                shown = list(self._written)
            else:
                shown = [
                    name for entry in message.nodes for name in (self.name(entry.index), entry.spec.name)
                ]
            removed = self._remove_unlisted(message)
            for entry in message.nodes:
                known = self._nodes.get(entry.index)
                if known is not None and (entry.removed or known.name != entry.spec.name):
                    removed.add(entry.index)
                if (change := self._replace(entry)) is not None:
                    changes.append(change)
            self._totals = +self._totals  # without zeros
            self.__dict__.pop("traits", None)
            self._forget_shown(shown)
            if removed:
                events.append(m.NodesGone(np.array(sorted(removed), np.uint32), message.seq))
            if self._totals != totals_before:
                events.append(m.AllocatableChanged(dict(self._totals)))
            if seen := {e.index: _known_node(e.spec) for e in message.nodes if not e.removed}:
                events.append(m.NodesSeen(seen))
        changes += self._released_from_quarantine(message.accounts)
        if found := self._changes(message, tuple(changes)):
            events.append(m.ClusterChanged(found, message.shard, message.seq))
        return events

    def _remove_unlisted(self, message: pb.FeedMessage) -> set[int]:
        """A snapshot lists every node of its shard. Returns the indexes of those it does not list."""
        if not message.snapshot:
            return set()
        shards, shard = max(1, message.shards), message.shard
        self._shards = shards
        self._shards_read.add(shard)
        self._listed = {index: node for index, node in self._listed.items() if index % shards != shard}
        self._quarantined = {index for index in self._quarantined if index % shards != shard}
        unlisted = {index for index in self._nodes if index % shards == shard}
        unlisted -= {entry.index for entry in message.nodes}
        for index in unlisted:
            self._pop(index)
        return unlisted

    def _forget_shown(self, names: Iterable[str]) -> None:
        """What the feed has shown of these nodes need not be kept any longer."""
        for name in names:
            if name in self._written and self._is_shown(name, self._written[name]):
                del self._written[name]

    def _is_shown(self, name: str, written: tuple[int, _Node] | None) -> bool:
        """Whether the feed has shown this. The resolver may have dated the node's taints."""
        index = self._indexes.get(name)
        if index is None or written is None:
            return index is None and written is None
        node = self._nodes[index]
        return index == written[0] and (node == written[1] or node.model() == written[1].model())

    def _pop(self, index: int) -> _Node | None:
        node = self._nodes.pop(index, None)
        if node is not None:
            self._totals.subtract(_allocatable(node.message()))
            if self._indexes.get(node.name) == index:
                del self._indexes[node.name]
        return node

    def _replace(self, entry: pb.NodeEntry) -> NodeChange | None:
        before = self._pop(entry.index)
        if entry.removed:
            return None if before is None else _removal(before.model())
        node = _Node(entry.spec.name, entry.spec.SerializeToString())
        self._nodes[entry.index] = node
        self._indexes[node.name] = entry.index
        self._totals.update(_allocatable(entry.spec))
        if before is None:
            return NodeChange(node.model(), Aspect.ADDED)
        return None if before.spec == node.spec else _difference(before.model(), node.model())

    def _released_from_quarantine(self, accounts: pb.Accounts) -> list[NodeChange]:
        """Nodes that opened because their quarantine ended. Only their accounts show it."""
        flags = _records(accounts)["flags"]
        quarantined = (flags & FLAG_QUARANTINED) != 0
        if not (quarantined.any() or self._quarantined):
            return []
        indexes = decode(accounts.indexes, U32, name="accounts.indexes", rows=len(flags))
        released = self._quarantined.intersection(indexes[~quarantined].tolist())
        self._quarantined = (self._quarantined - released).union(indexes[quarantined].tolist())
        specs = [self._nodes[index].model() for index in sorted(released & self._nodes.keys())]
        return [NodeChange(spec, Aspect.UNCORDONED, spec.labels) for spec in specs]

    def _changes(self, message: pb.FeedMessage, nodes: tuple[NodeChange, ...]) -> Changes:
        """A snapshot may hide any change.

        Pods that came or left are told of whoever they were: a lease may have ended of a pod that the
        dispatcher does not know any more, and another scheduler's pods may be none of its own. A commit helps
        those alone who wait for pods beside them."""
        if message.snapshot:
            return ANYTHING
        came, left = (
            frozenset(group_defined(run.group) for run in message.groups if run.gone == gone and run.group)
            for gone in (False, True)
        )
        grew = any(node.aspects & _OF_ROOM for node in nodes)
        rooms: tuple[Room, ...] = ()
        if message.released or grew:
            room = _room(message.accounts, self.schema)
            rooms = (room,) if room.allocatable.shape[1] else ()
        return Changes(nodes=nodes, rooms=rooms, bound_pods=came, deleted_pods=left)


def _allocatable(spec: common_pb2.NodeSpec) -> dict[str, int]:
    return {amount.resource: amount.amount for amount in spec.allocatable}


def _known_node(spec: common_pb2.NodeSpec) -> m.KnownNode:
    return m.KnownNode(spec.name, dict(labels_from_proto(spec.labels)), _no_execute(spec.taints))


def _no_execute(taints: Iterable[common_pb2.Taint]) -> tuple[tuple[Taint, int], ...]:
    return tuple((taint, taint.added_ms) for taint in taints_from_proto(taints) if taint.effect == NO_EXECUTE)


def _removal(spec: NodeSpec) -> NodeChange:
    return NodeChange(spec, Aspect.REMOVED, spec.labels)


def _difference(old: NodeSpec, new: NodeSpec) -> NodeChange | None:
    if old.name != new.name:
        return NodeChange(new, Aspect.ADDED)
    aspects = Aspect(0)
    if old.allocatable != new.allocatable or old.cards != new.cards:
        aspects |= Aspect.ALLOCATABLE
    if old.labels != new.labels:
        aspects |= Aspect.LABELS
    if old.taints != new.taints:
        aspects |= Aspect.TAINTS
    if old.unschedulable and not new.unschedulable:
        aspects |= Aspect.UNCORDONED
    if old.declared_features != new.declared_features:
        aspects |= Aspect.FEATURES
    return NodeChange(new, aspects, old.labels) if aspects else None


def _records(accounts: pb.Accounts) -> NDArray[Any]:
    return decode_accounts(accounts.records, accounts.resources)


def _room(accounts: pb.Accounts, schema: tuple[str, ...]) -> Room:
    records = decode_accounts(accounts.records, accounts.resources, most=len(schema))
    indexes = decode(accounts.indexes, U32, name="accounts.indexes", rows=len(records))
    takes_pods = (records["flags"] & (FLAG_GONE | FLAGS_CLOSED)) == 0
    amounts = records["amounts"][takes_pods].astype(np.int64)
    with_cards = decode(accounts.card_indexes, U32, name="accounts.card_indexes")
    cards: NDArray[np.uint16] = decode(accounts.cards, CARDS, name="accounts.cards", rows=len(with_cards))
    return Room(
        schema=schema[: accounts.resources],
        allocatable=amounts[:, :, 0].T,
        requested=amounts[:, :, 1].T,
        cards_used=cards[np.isin(with_cards, indexes[takes_pods])],
    )
