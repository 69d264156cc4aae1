"""Nodes between messages and the ledger: which shard a node lies on, and what its spec means there."""

import zlib
from collections.abc import Iterable, Mapping, Sequence

from hoss.errors import InvalidInput
from hoss.model.resources import DEVICE_RESOURCE, MAX_AMOUNT
from hoss.model.taints import NO_EXECUTE
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
            if not amount.resource:
                raise InvalidInput("offers a resource without a name", where=where)
            if not 0 <= amount.amount <= MAX_AMOUNT:
                raise InvalidInput(f"{amount.amount} is not between 0 and 2^53", where=f"{where} {amount.resource}")
        if cards_of(node) > CARD_SLOTS:
            raise InvalidInput(f"{cards_of(node)} cards where a node has {CARD_SLOTS} at most", where=where)


def has_undated_taints(node: common_pb2.NodeSpec) -> bool:
    """Whether a NoExecute taint does not say since when it is there."""
    return any(map(_undated, node.taints))


def date_taints(nodes: Iterable[common_pb2.NodeSpec], known: Mapping[str, tuple[int, bytes]], *, now_ms: int) -> None:
    """Let NoExecute taints say, in place, since when they are there: those that the node has already (`known`: index and spec by
    name) since then, others since now. So whoever counts from that moment counts from the same one, in every life."""
    for node in nodes:
        undated = [taint for taint in node.taints if _undated(taint)]
        before = common_pb2.NodeSpec.FromString(known[node.name][1]).taints if undated and node.name in known else ()
        times = {_identity(taint): taint.time_added_unix_ms for taint in before}
        for taint in undated:
            taint.time_added_unix_ms = times.get(_identity(taint)) or now_ms


def _undated(taint: common_pb2.Taint) -> bool:
    return taint.effect == NO_EXECUTE and not taint.time_added_unix_ms


def _identity(taint: common_pb2.Taint) -> tuple[str, str, str]:
    return taint.key, taint.value, taint.effect


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
