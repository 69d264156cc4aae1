"""Nodes between messages and the ledger: which shard a node lies on, and what its spec means there."""

import zlib
from collections.abc import Iterable, Sequence

from hoss.errors import InvalidInput
from hoss.model.resources import DEVICE_RESOURCE, MAX_AMOUNT
from hoss.v1 import common_pb2
from hoss.wire.account import CARD_SLOTS
from resolver.core.values import NodeChange


def shard_of(name: str, shards: int) -> int:
    """The shard a node lies on, from its name alone: a node that comes back finds its index again."""
    return zlib.crc32(name.encode()) % shards


def check_nodes(nodes: Iterable[common_pb2.NodeSpec]) -> None:
    """Raises InvalidInput for the first node that cannot be accepted."""
    seen = set()
    for node in nodes:
        where = f"node {node.name!r}"
        if not node.name:
            raise InvalidInput("a node has no name", where="nodes")
        if node.name in seen:
            raise InvalidInput("is named twice in one request", where=where)
        seen.add(node.name)
        for amount in node.allocatable:
            if not 0 <= amount.amount <= MAX_AMOUNT:
                raise InvalidInput(f"{amount.amount} is not between 0 and 2^53", where=f"{where} {amount.resource}")
        if cards_of(node) > CARD_SLOTS:
            raise InvalidInput(f"{cards_of(node)} cards where a node has {CARD_SLOTS} at most", where=where)


def cards_of(node: common_pb2.NodeSpec) -> int:
    """How many accelerator cards a node has: as it says, else as many as it offers whole."""
    if node.cards:
        return int(node.cards)
    return next((int(a.amount) for a in node.allocatable if a.resource == DEVICE_RESOURCE), 0)


def node_change(node: common_pb2.NodeSpec, schema: Sequence[str]) -> NodeChange:
    """The node as the ledger takes it. Every resource it offers is in the schema."""
    offered = {amount.resource: int(amount.amount) for amount in node.allocatable}
    return NodeChange(
        name=node.name,
        spec=node.SerializeToString(deterministic=True),
        allocatable=tuple(offered.get(resource, 0) for resource in schema),
        unschedulable=node.unschedulable,
        cards=cards_of(node),
        labels=tuple((label.key, label.value) for label in node.labels),
    )
