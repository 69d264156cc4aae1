"""The resolver as its clients see it: model types and columns in, columns and messages out.

Calls raise InvalidInput (the request is wrong or names what is not there), LedgerUnavailable (the resolver answers, its
ledger does not: nothing was done, try again) or TransportError (nobody answers, or too late).
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from hoss import rpc
from hoss.client.errors import translate
from hoss.model.node import NodeSpec
from hoss.telemetry.context import metadata
from hoss.v1 import resolver_pb2 as pb
from hoss.v1.resolver_pb2_grpc import ResolverStub
from hoss.wire.columns import U32, U64, Uids, decode, encode
from hoss.wire.convert import node_to_proto

if TYPE_CHECKING:
    from hoss.v1.resolver_pb2_grpc import ResolverAsyncStub

# Answers come in milliseconds; more time is for calls that touch every node or every reservation.
_CALL_SECONDS = 10.0
_LONG_CALL_SECONDS = 60.0
_REBUILD_SECONDS = 600.0
_BIND_SECONDS = 30.0  # the resolver itself gives an API server 20

ReplyT = TypeVar("ReplyT")


class Lookup(NamedTuple):
    """Where pods hold reservations, in the ledger of this epoch; row i answers UID i."""

    nodes: NDArray[np.uint32]  # NONE_U32: no reservation
    seqs: NDArray[np.uint64]  # the shard's seq of the commit
    epochs: NDArray[np.uint64]  # the worker epoch that committed it
    ledger_epoch: str


class ResolverClient:
    """One channel to one or several resolvers, which answer alike."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.peer = f"resolver at {','.join(addresses)}"
        self._channel = rpc.channel(addresses)
        self.stub: ResolverAsyncStub = ResolverStub(self._channel)

    async def close(self) -> None:
        """End every stream and call of this client."""
        await self._channel.close()

    async def grant_epoch(self, worker: str) -> int:
        """A new epoch for the worker; every earlier one cannot commit any more, on any shard."""
        return int((await self.grant(worker)).epoch)

    async def grant(self, worker: str) -> pb.GrantEpochReply:
        """As `grant_epoch`, and says in which ledger."""
        return await self._call(self.stub.GrantEpoch, pb.GrantEpochRequest(worker=worker))

    async def lookup(self, uids: Uids) -> Lookup:
        """Which pods hold a reservation, on any shard."""
        reply = await self._call(self.stub.Lookup, pb.LookupRequest(uids=uids.tobytes()))
        return Lookup(
            decode(reply.nodes, U32, name="nodes", rows=len(uids)),
            decode(reply.seqs, U64, name="seqs", rows=len(uids)),
            decode(reply.epochs, U64, name="epochs", rows=len(uids)),
            reply.ledger_epoch,
        )

    async def confirm(self, commits: Mapping[int, NDArray[np.uint64]]) -> int:
        """End the lease of the commits given by shard. Returns how many were still pending.

        Fewer than given: some were confirmed before, or their lease ended; `lookup` tells which.
        """
        request = pb.ConfirmRequest(
            commits=[pb.ShardCommits(shard=shard, seqs=encode(seqs, U64)) for shard, seqs in commits.items()]
        )
        return int((await self._call(self.stub.Confirm, request)).confirmed)

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None = None) -> int:
        """Give back what these pods hold; those that hold nothing are passed over. Returns how many held something.

        `nodes` says where each is bound, which saves looking on every shard.
        """
        request = pb.ReleaseRequest(uids=uids.tobytes(), nodes=b"" if nodes is None else encode(nodes, U32))
        return int((await self._call(self.stub.Release, request)).released)

    async def upsert_pods(self, request: pb.UpsertPodsRequest) -> pb.UpsertPodsReply:
        """Reserve for pods that are on their nodes already."""
        return await self._call(self.stub.UpsertPods, request)

    async def bind(self, request: pb.BindRequest) -> pb.BindReply:
        """Bind reserved pods at the API server."""
        return await self._call(self.stub.Bind, request, _BIND_SECONDS)

    async def upsert_nodes(self, nodes: Sequence[NodeSpec]) -> pb.UpsertNodesReply:
        """Add nodes or change them by name. What is requested on them stays."""
        request = pb.UpsertNodesRequest(nodes=[node_to_proto(node) for node in nodes])
        return await self._call(self.stub.UpsertNodes, request, _LONG_CALL_SECONDS)

    async def remove_nodes(self, names: Sequence[str]) -> pb.RemoveNodesReply:
        """Remove nodes and release what is reserved on them; the reply names those pods."""
        return await self._call(self.stub.RemoveNodes, pb.RemoveNodesRequest(names=names), _LONG_CALL_SECONDS)

    async def cordon_node(self, name: str, unschedulable: bool) -> pb.CordonNodeReply:
        """Close a node to new pods, or open it again. Raises InvalidInput where there is no such node."""
        return await self._call(self.stub.CordonNode, pb.CordonNodeRequest(name=name, unschedulable=unschedulable))

    async def list_nodes(self, names: Sequence[str] = (), label_selector: str = "") -> list[pb.NodeInfo]:
        """Nodes with what is requested on them, by name; all when no names are given."""
        request = pb.ListNodesRequest(names=names, label_selector=label_selector)
        return list((await self._call(self.stub.ListNodes, request, _LONG_CALL_SECONDS)).nodes)

    async def reservations(self, *, details: bool = False) -> AsyncIterator[pb.ReservationChunk]:
        """Every reservation, shard by shard, as columns; with `details` also leases and names of workers. One may come twice while
        others are being made."""
        request = pb.ListReservationsRequest(all_shards=True, details=details)
        try:
            async for chunk in self.stub.ListReservations(request):
                yield chunk
        except grpc.aio.AioRpcError as exc:
            raise translate(exc, self.peer) from exc

    async def feed_as_of_now(self, subscriber: str) -> AsyncIterator[pb.FeedMessage]:
        """Snapshots of all shards and what came after them, until everything is told that had happened by now."""
        request = pb.FeedRequest(subscriber=subscriber, as_of_now=True)
        try:
            async for message in self.stub.Feed(request, timeout=_LONG_CALL_SECONDS):
                yield message
        except grpc.aio.AioRpcError as exc:
            raise translate(exc, self.peer) from exc

    async def audit(self) -> pb.AuditReply:
        """Check the ledger against the invariants it can see."""
        return await self._call(self.stub.Audit, pb.AuditRequest(), _LONG_CALL_SECONDS)

    async def repair(self) -> pb.RepairReply:
        """Make accounts, cards, ports and group counts what the reservations add up to; says what was changed."""
        return await self._call(self.stub.Repair, pb.RepairRequest(), _LONG_CALL_SECONDS)

    async def dump(self) -> AsyncIterator[pb.LedgerPart]:
        """The ledger in parts, each shard as at one moment. Also what is left of one that waits to be rebuilt."""
        try:
            async for part in self.stub.DumpLedger(pb.DumpLedgerRequest()):
                yield part
        except grpc.aio.AioRpcError as exc:
            raise translate(exc, self.peer) from exc

    async def rebuild(self, parts: Iterable[pb.LedgerPart]) -> pb.RebuildReply:
        """Replace the ledger by what the parts say, the head first. Raises InvalidInput, with nothing changed, where the head
        does not hold."""
        try:
            return await self.stub.Rebuild(iter(parts), timeout=_REBUILD_SECONDS)
        except grpc.aio.AioRpcError as exc:
            raise translate(exc, self.peer) from exc

    async def status(self) -> pb.ResolverStatus:
        """What it is, whether it serves, and its counters. Answers while the ledger is away, too."""
        return await self._call(self.stub.GetStatus, pb.ResolverStatusRequest())

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Any, ReplyT]",
        request: Any,
        timeout_seconds: float = _CALL_SECONDS,
    ) -> ReplyT:
        try:
            return await method(request, timeout=timeout_seconds, metadata=metadata())
        except grpc.aio.AioRpcError as exc:
            raise translate(exc, self.peer) from exc
