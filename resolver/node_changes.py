"""Nodes that come, change, go, are closed and opened: what callers ask, shard by shard, in the ledger."""

import time

import numpy as np

from hoss.errors import LedgerUnavailable, NotFound
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U32
from resolver.ledger.port import Ledger
from resolver.nodes import check_nodes, date_taints, has_undated_taints, node_change, shard_of
from resolver.quarantine import Quarantine

_CORDON_ATTEMPTS = 10


class NodeChanges:
    """Raises InvalidInput for what is no node, NotFound for a name that none has."""

    def __init__(self, ledger: Ledger, quarantine: Quarantine) -> None:
        self._ledger = ledger
        self._quarantine = quarantine

    async def upsert(self, request: pb.UpsertNodesRequest) -> pb.UpsertNodesReply:
        """Add these nodes, or make them so."""
        check_nodes(request.nodes)
        offered = dict.fromkeys(amount.resource for node in request.nodes for amount in node.allocatable)
        schema = await self._ledger.schema(list(offered))
        indexes = np.zeros(len(request.nodes), U32)
        overcommitted: list[str] = []
        shards = np.array([shard_of(node.name, self._ledger.shards) for node in request.nodes], np.int64)
        for shard in np.unique(shards).tolist():
            positions = np.flatnonzero(shards == shard)
            nodes = [request.nodes[position] for position in positions.tolist()]
            if undated := [node.name for node in nodes if has_undated_taints(node)]:
                date_taints(nodes, await self._ledger.nodes_named(shard, undated), now_ms=time.time_ns() // 10**6)
            changes = [node_change(node, schema) for node in nodes]
            upserted = await self._ledger.upsert_nodes(shard, changes)
            if upserted is not None:
                indexes[positions] = upserted.indexes
                overcommitted.extend(changes[position].name for position in upserted.overcommitted)
        return pb.UpsertNodesReply(indexes=indexes.tolist(), overcommitted=sorted(overcommitted))

    async def remove(self, request: pb.RemoveNodesRequest) -> pb.RemoveNodesReply:
        """Remove the nodes, with what is reserved on them."""
        by_shard: dict[int, list[str]] = {}
        for name in dict.fromkeys(request.names):
            by_shard.setdefault(shard_of(name, self._ledger.shards), []).append(name)
        reply = pb.RemoveNodesReply()
        for shard, names in by_shard.items():
            removed = await self._ledger.remove_nodes(shard, names)
            reply.released_uids += removed.uids.tobytes()
            reply.not_found.extend(names[position] for position in removed.missing)
        return reply

    async def cordon(self, request: pb.CordonNodeRequest) -> pb.CordonNodeReply:
        """Close a node, or open it: also one that is in quarantine."""
        shard = shard_of(request.name, self._ledger.shards)
        schema = await self._ledger.schema()
        for _ in range(_CORDON_ATTEMPTS):
            index, node = await self._find(request.name, shard)
            if not request.unschedulable:
                await self._quarantine.release(shard, index)
            was = node.SerializeToString(deterministic=True)
            node.unschedulable = request.unschedulable
            if await self._ledger.upsert_nodes(shard, [node_change(node, schema)], expected=was) is not None:
                return pb.CordonNodeReply(node=node)
        raise LedgerUnavailable(f"node {request.name} changes faster than it can be cordoned; try again")

    async def _find(self, name: str, shard: int) -> tuple[int, common_pb2.NodeSpec]:
        found = await self._ledger.nodes_named(shard, [name])
        if name not in found:
            raise NotFound(f"there is no node {name!r}", where="name")
        index, spec = found[name]
        return index, common_pb2.NodeSpec.FromString(spec)
