"""Nodes, from messages to the ledger: the shard of a node, and the change that a NodeSpec describes."""

import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgpack

from hoss.errors import InvalidInput, quoted
from hoss.model.node import NO_EXECUTE
from hoss.model.resources import DEVICE_RESOURCE, MAX_AMOUNT
from hoss.v1 import common_pb2
from hoss.wire.columns import CARD_SLOTS, MAX_RESOURCES
from hoss.wire.convert_selectors import labels_from_proto
from resolver.core.values import LedgerNodeChange

_MAX_NAME = 253  # as in Kubernetes, as are those of resources: a prefix, a slash and a name
_MAX_RESOURCE_NAME = 317


def shard_of(name: str, shards: int) -> int:
    """The node's shard, from its name alone: a node that comes back gets its index again."""
    return zlib.crc32(name.encode()) % shards


def check_nodes(nodes: Iterable[common_pb2.NodeSpec], seen: set[str]) -> None:
    """Raises InvalidInput for the first invalid node. `seen`: names of the request so far, which are added
    to."""
    for node in nodes:
        where = f"node {quoted(node.name)}"
        if not node.name:
            raise InvalidInput("a node has no name", where="nodes")
        if len(node.name) > _MAX_NAME or len(node.allocatable) > MAX_RESOURCES:
            raise InvalidInput(
                f"has a name of {len(node.name):,} characters and {len(node.allocatable):,} resources; a node"
                f" has up to {_MAX_NAME} and {MAX_RESOURCES:,}",
                where=where,
            )
        if node.name in seen:
            raise InvalidInput("is named twice in one request", where=where)
        seen.add(node.name)
        labels_from_proto(node.labels, f"{where} labels")
        for amount in node.allocatable:
            if not amount.resource:
                raise InvalidInput("offers a resource without a name", where=where)
            if len(amount.resource) > _MAX_RESOURCE_NAME:
                raise InvalidInput(
                    f"offers {quoted(amount.resource)}; the name of a resource has up to {_MAX_RESOURCE_NAME}"
                    " characters",
                    where=where,
                )
            if not 0 <= amount.amount <= MAX_AMOUNT:
                raise InvalidInput(
                    f"{amount.amount} is not between 0 and 2^53", where=f"{where} {amount.resource}"
                )
        if cards_of(node) > CARD_SLOTS:
            raise InvalidInput(f"{cards_of(node)} cards where a node has {CARD_SLOTS} at most", where=where)


def has_undated_taints(node: common_pb2.NodeSpec) -> bool:
    """Whether a NoExecute taint has no timeAdded."""
    return any(map(_undated, node.taints))


def date_taints(
    nodes: Iterable[common_pb2.NodeSpec], known: Mapping[str, tuple[int, bytes]], *, now_ms: int
) -> None:
    """Fill in timeAdded of NoExecute taints, in place: the time of the same taint that the node had before
    (`known`: index and spec by name), else now. So everybody counts tolerationSeconds from the same moment,
    also after a restart."""
    for node in nodes:
        undated = [taint for taint in node.taints if _undated(taint)]
        before = (
            common_pb2.NodeSpec.FromString(known[node.name][1]).taints
            if undated and node.name in known
            else ()
        )
        times = {_identity(taint): taint.time_added_unix_ms for taint in before}
        for taint in undated:
            taint.time_added_unix_ms = times.get(_identity(taint)) or now_ms


def _undated(taint: common_pb2.Taint) -> bool:
    return taint.effect == NO_EXECUTE and not taint.time_added_unix_ms


def _identity(taint: common_pb2.Taint) -> tuple[str, str, str]:
    return taint.key, taint.value, taint.effect


def cards_of(node: common_pb2.NodeSpec) -> int:
    """The number of accelerator cards: as given, else the amount of the device resource."""
    if node.cards:
        return int(node.cards)
    return next((int(a.amount) for a in node.allocatable if a.resource == DEVICE_RESOURCE), 0)


def node_change(node: common_pb2.NodeSpec, schema: Sequence[str]) -> LedgerNodeChange:
    """The node as the ledger takes it. Every resource it offers is in the schema. The resource version is
    kept beside the spec: it changes with every heartbeat of a node, and a follower has no use for it."""
    spec = common_pb2.NodeSpec()
    spec.CopyFrom(node)
    spec.resource_version = 0
    offered = {amount.resource: int(amount.amount) for amount in node.allocatable}
    return LedgerNodeChange(
        name=node.name,
        spec=spec.SerializeToString(deterministic=True),
        allocatable=tuple(offered.get(resource, 0) for resource in schema),
        unschedulable=node.unschedulable,
        cards=cards_of(node),
        labels=tuple((label.key, label.value) for label in node.labels),
        resource_version=node.resource_version,
    )


def are_labels_of(record: bytes | None, node: common_pb2.NodeSpec) -> bool:
    """Whether the record of labels, None where there is none, is what the node's spec says. Whoever judges
    rules goes by the records."""
    labels = {label.key: label.value for label in node.labels}
    if not labels or record is None:
        return not labels and record is None  # a node without labels has no record
    if record == msgpack.packb(labels):
        return True
    try:
        return bool(msgpack.unpackb(record) == labels)  # in another order
    except (ValueError, msgpack.UnpackException):
        return False
