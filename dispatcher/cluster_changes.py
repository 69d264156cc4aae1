"""What a feed message says has changed, in the core's words. Most messages are commits, which help nobody: of these only the
flags are looked at."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import ANYTHING, Aspect, Changes, NodeChange, Room
from hoss.model.node import NodeSpec
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.account import CARDS, FLAG_GONE, FLAG_QUARANTINED, FLAGS_CLOSED, account_dtype
from hoss.wire.columns import U32, decode
from hoss.wire.convert import node_from_proto


class NodeHistory:
    """Every node's last known spec, as bytes: kept to tell what is different in the next one."""

    def __init__(self) -> None:
        self._specs: dict[int, bytes] = {}
        self._schema: tuple[str, ...] = ()
        self._quarantined: set[int] = set()
        self.generation = 0  # grows with every message that names nodes

    @property
    def by_index(self) -> Mapping[int, bytes]:
        """All nodes as they are now: NodeSpec messages."""
        return self._specs

    @property
    def schema(self) -> tuple[str, ...]:
        """Names of resources, by index."""
        return self._schema

    def specs(self) -> list[common_pb2.NodeSpec]:
        """All nodes as they are now."""
        return [common_pb2.NodeSpec.FromString(spec) for spec in self._specs.values()]

    def read(self, message: pb.FeedMessage) -> Changes:
        """What changed with this message; nothing for commits. A snapshot may hide anything."""
        self._schema = tuple(message.schema) or self._schema
        self.generation += bool(message.snapshot or message.nodes)
        if message.snapshot:
            for index in [index for index in self._specs if index % max(1, message.shards) == message.shard]:
                del self._specs[index]
            self._quarantined = {i for i in self._quarantined if i % max(1, message.shards) != message.shard}
        nodes = tuple(filter(None, [self._replace(entry) for entry in message.nodes]))
        nodes += self._back_from_quarantine(message.accounts)
        if message.snapshot:
            return ANYTHING
        if not message.released and not any(node.aspects & (Aspect.ADDED | Aspect.ALLOCATABLE) for node in nodes):
            return Changes(nodes=nodes)
        room = _room(message.accounts, self._schema)
        return Changes(nodes=nodes, rooms=(room,) if room.allocatable.shape[1] else ())

    def _back_from_quarantine(self, accounts: pb.Accounts) -> tuple[NodeChange, ...]:
        """Nodes that came open as their quarantine ended: their accounts alone tell of it."""
        flags = _records(accounts)["flags"]
        out = (flags & FLAG_QUARANTINED) != 0
        if not (out.any() or self._quarantined):
            return ()
        indexes = decode(accounts.indexes, U32, name="accounts.indexes", rows=len(flags))
        back = self._quarantined.intersection(indexes[~out].tolist())
        self._quarantined = (self._quarantined - back).union(indexes[out].tolist())
        specs = [
            node_from_proto(common_pb2.NodeSpec.FromString(self._specs[i])) for i in sorted(back & self._specs.keys())
        ]
        return tuple(NodeChange(spec, Aspect.UNCORDONED, spec.labels) for spec in specs)

    def _replace(self, entry: pb.NodeEntry) -> NodeChange | None:
        before = self._specs.pop(entry.index, None)
        old = None if before is None else node_from_proto(common_pb2.NodeSpec.FromString(before))
        if entry.removed:
            return None if old is None else NodeChange(old, Aspect.REMOVED, old.labels)
        self._specs[entry.index] = entry.spec.SerializeToString()
        if before == self._specs[entry.index]:
            return None
        return _difference(old, node_from_proto(entry.spec))


def _difference(old: NodeSpec | None, new: NodeSpec) -> NodeChange | None:
    if old is None or old.name != new.name:
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
    return NodeChange(new, aspects, old.labels) if aspects else None


def _records(accounts: pb.Accounts) -> NDArray[Any]:
    records: NDArray[Any] = decode(accounts.records, account_dtype(accounts.resources), name="accounts.records")
    return records


def _room(accounts: pb.Accounts, schema: tuple[str, ...]) -> Room:
    records = _records(accounts)
    indexes = decode(accounts.indexes, U32, name="accounts.indexes", rows=len(records))
    takes_pods = (records["flags"] & (FLAG_GONE | FLAGS_CLOSED)) == 0
    amounts = records["amounts"][takes_pods].astype(np.int64)
    carded = decode(accounts.card_indexes, U32, name="accounts.card_indexes")
    cards: NDArray[np.uint16] = decode(accounts.cards, CARDS, name="accounts.cards", rows=len(carded))
    return Room(
        schema=schema[: accounts.resources],
        allocatable=amounts[:, :, 0].T,
        requested=amounts[:, :, 1].T,
        cards_used=cards[np.isin(carded, indexes[takes_pods])],
    )
