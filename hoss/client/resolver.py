"""The resolver's client: it takes model types and columns and returns columns and messages.

Calls raise InvalidInput (the request is wrong or names something unknown), LedgerUnavailable (the resolver
answers and its ledger does not: nothing was done, try again) or TransportError (no answer in time)."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc.aio

from hoss.client.access import found_channel
from hoss.client.errors import translate
from hoss.rpc import OpenChannel
from hoss.telemetry.context import metadata
from hoss.v1 import resolver_pb2 as pb
from hoss.v1.resolver_pb2_grpc import ResolverStub
from hoss.wire.pages import PAGE_ENTRIES, pages

# Columns need NumPy, and are imported by what has them alone: a command that lists nodes would wait for it as
# long as for everything else together.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hoss.model.node import NodeSpec
    from hoss.v1.resolver_pb2_grpc import ResolverAsyncStub
    from hoss.wire.columns import Uids

# Answers come in milliseconds. Calls that touch every node or every reservation have more time.
_CALL_SECONDS = 10.0
# Leases go on meanwhile: of what the next call confirms, and of the rest of a commit, which is confirmed when
# what was not ready of it is released. A repeated call finds the work of the one before done.
_LEASED_CALL_SECONDS = 2.0
# Where pods are is not known until these are answered, and a reply may be lost. A resolver waits 2 s for
# Redis, and then says so. A repeated call finds the work of the one before done.
_AWAITED_CALL_SECONDS = 3.0
_LONG_CALL_SECONDS = 60.0
_REBUILD_SECONDS = 600.0
_BIND_SECONDS = 30.0  # the resolver waits 20 s for an API server

ReplyT = TypeVar("ReplyT")


class Lookup(NamedTuple):
    """The reservations of pods, in the ledger of this epoch. Row i belongs to UID i."""

    nodes: "NDArray[np.uint32]"  # NONE_U32: no reservation
    seqs: "NDArray[np.uint64]"  # the shard's seq of the commit
    epochs: "NDArray[np.uint64]"  # the worker epoch that committed it
    ledger_epoch: str
    other_pods: "NDArray[np.uint32]"  # positions of pods that have more than one, once for each further one
    other_nodes: "NDArray[np.uint32]"  # of these further reservations
    states: "NDArray[np.uint8]"  # pb.ReservationState


class ResolverClient:
    """One channel to one resolver or several equal ones."""

    def __init__(self, addresses: Sequence[str], *, open_channel: OpenChannel = found_channel) -> None:
        self.peer = f"resolver at {','.join(addresses)}"
        self.term = 0  # of the dispatcher that makes changes; see ReleaseRequest.term
        self.journal_write: Callable[[], int] = lambda: 0  # see ReleaseRequest
        self._channel = open_channel(addresses, kind="resolver")
        self.stub: ResolverAsyncStub = ResolverStub(self._channel)

    def under(self, term: int) -> "ResolverClient":
        """The same channel, for a dispatcher's term."""
        client = copy(self)
        client.term = term
        return client

    async def close(self) -> None:
        """End every stream and call of this client."""
        await self._channel.close()

    async def grant_epoch(self, worker: str) -> int:
        """A new epoch for the worker. Its earlier epochs can no longer commit on any shard."""
        return int((await self.grant(worker)).epoch)

    async def grant(self, worker: str, ledger_epoch: str = "") -> pb.GrantEpochReply:
        """As `grant_epoch`, with the ledger's epoch. With `ledger_epoch`, in no other ledger."""
        request = pb.GrantEpochRequest(
            worker=worker, term=self.term, ledger_epoch=ledger_epoch, journal_write=self.journal_write()
        )
        return await self._call(self.stub.GrantEpoch, request, _AWAITED_CALL_SECONDS)

    async def lookup(self, uids: "Uids") -> Lookup:
        """The reservations of these pods on all shards."""
        from hoss.wire.columns import U8, U32, U64, decode  # noqa: PLC0415 - as said above

        request = pb.LookupRequest(uids=uids.tobytes())
        reply = await self._call(self.stub.Lookup, request, _AWAITED_CALL_SECONDS)
        return Lookup(
            decode(reply.nodes, U32, name="nodes", rows=len(uids)),
            decode(reply.seqs, U64, name="seqs", rows=len(uids)),
            decode(reply.epochs, U64, name="epochs", rows=len(uids)),
            reply.ledger_epoch,
            other_pods := decode(reply.other_pods, U32, name="other_pods"),
            decode(reply.other_nodes, U32, name="other_nodes", rows=len(other_pods)),
            decode(reply.states, U8, name="states", rows=len(uids)),
        )

    async def confirm(self, commits: "Mapping[int, NDArray[np.uint64]]") -> int:
        """End the lease of commits, by shard. Returns how many were still pending.

        The others were confirmed before, or their lease has ended; `lookup` shows which."""
        from hoss.wire.columns import U64, encode  # noqa: PLC0415 - as said above

        request = pb.ConfirmRequest(
            commits=[pb.ShardCommits(shard=shard, seqs=encode(seqs, U64)) for shard, seqs in commits.items()],
            term=self.term,
            journal_write=self.journal_write(),
        )
        return int((await self._call(self.stub.Confirm, request, _LEASED_CALL_SECONDS)).confirmed)

    async def release(
        self,
        uids: "Uids",
        nodes: "NDArray[np.uint32] | None" = None,
        as_of: Mapping[int, int] | None = None,
        ledger_epoch: str = "",
    ) -> pb.ReleaseReply:
        """Release the reservations of these pods.

        With `nodes`, the node of each pod, the resolver need not search every shard. `as_of`: by shard, the
        sequence number up to which the caller knew it; newer reservations stay. `ledger_epoch`: in no other
        ledger; raises LedgerUnavailable where there is another."""
        from hoss.wire.columns import U32, encode  # noqa: PLC0415 - as said above

        known = (as_of or {}).items()
        request = pb.ReleaseRequest(
            uids=uids.tobytes(),
            nodes=b"" if nodes is None else encode(nodes, U32),
            term=self.term,
            journal_write=self.journal_write(),
            as_of=[pb.ShardPosition(shard=shard, seq=seq) for shard, seq in known],
            ledger_epoch=ledger_epoch,
        )
        return await self._call(self.stub.Release, request, _LEASED_CALL_SECONDS)

    async def move(self, request: pb.MoveRequest) -> pb.MoveReply:
        """Make a step of moves, under the dispatcher's term."""
        request.term, request.journal_write = self.term, self.journal_write()
        return await self._call(self.stub.Move, request, _AWAITED_CALL_SECONDS)

    async def upsert_pods(self, request: pb.UpsertPodsRequest) -> pb.UpsertPodsReply:
        """Reserve for pods that are already on their nodes."""
        return await self._call(self.stub.UpsertPods, request)

    async def bind(self, request: pb.BindRequest) -> pb.BindReply:
        """Bind reserved pods at the API server."""
        return await self._call(self.stub.Bind, request, _BIND_SECONDS)

    async def upsert_nodes(self, nodes: "Sequence[NodeSpec]", ledger_epoch: str = "") -> pb.UpsertNodesReply:
        """Add nodes or change them by name. Their reservations stay. With `ledger_epoch`, in no other
        ledger."""
        from hoss.wire.convert import node_to_proto  # noqa: PLC0415 - as said above

        specs = [node_to_proto(node) for node in nodes]
        request = pb.UpsertNodesRequest(nodes=specs, term=self.term, ledger_epoch=ledger_epoch)
        return await self._call(self.stub.UpsertNodes, request, _LONG_CALL_SECONDS)

    async def remove_nodes(self, names: Sequence[str], ledger_epoch: str = "") -> pb.RemoveNodesReply:
        """Remove nodes and release the reservations on them. The reply names the pods. With `ledger_epoch`,
        from no other ledger."""
        request = pb.RemoveNodesRequest(names=names, term=self.term, ledger_epoch=ledger_epoch)
        return await self._call(self.stub.RemoveNodes, request, _LONG_CALL_SECONDS)

    async def cordon_node(self, name: str, unschedulable: bool) -> pb.CordonNodeReply:
        """Cordon or uncordon a node. Raises InvalidInput for an unknown node."""
        request = pb.CordonNodeRequest(name=name, unschedulable=unschedulable, term=self.term)
        return await self._call(self.stub.CordonNode, request)

    async def list_nodes(self, names: Sequence[str] = (), label_selector: str = "") -> list[pb.NodeInfo]:
        """Nodes with their requested amounts, by name. Without names: all."""
        request = pb.ListNodesRequest(names=names, label_selector=label_selector, limit=PAGE_ENTRIES)

        async def page(wanted: pb.ListNodesRequest) -> pb.ListNodesReply:
            return await self._call(self.stub.ListNodes, wanted, _LONG_CALL_SECONDS)

        return [node async for reply in pages(page, request) for node in reply.nodes]

    def reservations(self, *, details: bool = False) -> AsyncIterator[pb.ReservationChunk]:
        """Every reservation as columns, shard by shard. `details`: with leases and names of workers.

        A reservation may come twice while others are being made."""
        request = pb.ListReservationsRequest(all_shards=True, details=details)
        return self._stream(self.stub.ListReservations, request)

    def feed_as_of_now(self, subscriber: str) -> AsyncIterator[pb.FeedMessage]:
        """Snapshots of all shards, and the changes after them up to the moment of the call."""
        request = pb.FeedRequest(subscriber=subscriber, as_of_now=True)
        return self._stream(self.stub.Feed, request, _LONG_CALL_SECONDS)

    async def audit(self) -> pb.AuditReply:
        """Check the ledger against those invariants that it can check."""
        return await self._call(self.stub.Audit, pb.AuditRequest(), _LONG_CALL_SECONDS)

    async def repair(self) -> pb.RepairReply:
        """Recompute accounts, cards, ports and group counts from the reservations. Returns the changes."""
        return await self._call(self.stub.Repair, pb.RepairRequest(), _LONG_CALL_SECONDS)

    def dump(self) -> AsyncIterator[pb.LedgerPart]:
        """The ledger in parts, each shard as of one moment. Also works for a ledger that must be rebuilt."""
        return self._stream(self.stub.DumpLedger, pb.DumpLedgerRequest())

    async def rebuild(self, parts: Iterable[pb.LedgerPart]) -> pb.RebuildReply:
        """Replace the ledger by these parts, the head first. Raises InvalidInput, and changes nothing, where
        the head does not match."""
        try:
            return await self.stub.Rebuild(iter(parts), timeout=_REBUILD_SECONDS)
        except grpc.aio.AioRpcError as exc:
            raise translate(exc, self.peer) from exc

    async def announce_rebuild(self, waits_for: str) -> None:
        """Tell the resolver that the caller will rebuild the lost ledger, and what that waits for."""
        await self._call(self.stub.AnnounceRebuild, pb.AnnounceRebuildRequest(waits_for=waits_for))

    async def status(self, timeout_seconds: float = _CALL_SECONDS) -> pb.ResolverStatus:
        """The resolver's identity, state and counters. Works without the ledger, too. Not a short call: it
        asks each shard, and reads all nodes of those that have nodes in quarantine, for their names."""
        return await self._call(self.stub.GetStatus, pb.ResolverStatusRequest(), timeout_seconds)

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

    async def _stream(
        self,
        method: "grpc.aio.UnaryStreamMultiCallable[Any, ReplyT]",
        request: Any,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[ReplyT]:
        call = method(request, timeout=timeout_seconds)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as exc:
            raise translate(exc, self.peer) from exc
        finally:
            call.cancel()  # of a reader that stops early: gRPC does not end its call by itself
