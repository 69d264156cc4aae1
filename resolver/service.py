"""The resolver's gRPC service: checks requests, finds the shard, asks the ledger."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio
import numpy as np

from hoss import version
from hoss.client.errors import refuse
from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.v1.resolver_pb2_grpc import ResolverServicer
from hoss.wire.columns import I64, NONE_U32, U32, U64, decode, decode_uids, encode
from resolver.availability import Availability
from resolver.feed import ShardFeed
from resolver.ledger.port import Ledger
from resolver.ledger.scripts import RECOVERING, RESTORING
from resolver.node_changes import NodeChanges
from resolver.proposals import check_worker, reservation_chunk
from resolver.proposing import Proposing
from resolver.quarantine import Quarantine
from resolver.quarantine_reading import show_quarantine, tell_of_quarantine
from resolver.reading import audit_ledger, list_nodes
from resolver.rebuilding import Rebuilding, collect
from resolver.standing import Standing

if TYPE_CHECKING:
    from resolver.tracing import ResolverTraces

_FEED_BUFFER = 8

Context = grpc.aio.ServicerContext
ReplyT = TypeVar("ReplyT")
Handler = Callable[[Any, Any, Context[Any, Any]], Awaitable[ReplyT]]


def _answering(handler: Handler[ReplyT]) -> Handler[ReplyT]:
    """Turns the errors that a client may see into statuses."""

    @wraps(handler)
    async def answer(self: Any, request: Any, context: Context[Any, Any]) -> ReplyT:
        try:
            return await handler(self, request, context)
        except (InvalidInput, LedgerUnavailable) as exc:
            await refuse(context, exc)

    return answer


class ResolverService(ResolverServicer):
    """Stateless but for the feed's ring and counters."""

    def __init__(
        self,
        ledger: Ledger,
        feeds: list[ShardFeed],
        proposing: Proposing,
        availability: Availability,
        *,
        quarantine: Quarantine,
        counters: Callable[[], Counter[str]],
        rebuilding: Rebuilding,
        standing: Standing,
        traces: "ResolverTraces | None" = None,
    ) -> None:
        self._traces = traces
        self._ledger = ledger
        self._feeds = feeds
        self._proposing = proposing
        self._availability = availability
        self._quarantine = quarantine
        self._nodes = NodeChanges(ledger, quarantine)
        self._counters = counters
        self._rebuilding = rebuilding
        self._standing = standing

    # -- streams ------------------------------------------------------------------------------------------------------

    async def Propose(  # noqa: N802 - gRPC's names, here and below
        self,
        request_iterator: Any,
        context: Any,  # noqa: ARG002
    ) -> AsyncIterator[pb.VerdictBatch]:
        async for message in self._proposing.serve(request_iterator):
            yield message

    async def Feed(self, request: pb.FeedRequest, context: Any) -> AsyncIterator[pb.FeedMessage]:  # noqa: N802
        if request.as_of_now and self._availability.problem:
            await refuse(context, LedgerUnavailable(self._availability.problem))
        resume = {position.shard: position.seq for position in request.resume}
        if request.ledger_epoch != self._ledger.epoch:
            resume = {}
        for shard, seq in resume.items():
            try:
                self._check_shard(shard)
            except InvalidInput as exc:
                await refuse(context, exc)
            self._ledger.heard_of(shard, seq)  # a resolver that was started after a loss learns of it here
        messages: asyncio.Queue[pb.FeedMessage | None] = asyncio.Queue(_FEED_BUFFER)

        async def copy(shard: int) -> None:
            feed = self._feeds[shard]
            read = feed.catch_up if request.as_of_now else feed.follow
            async for message in read(resume.get(shard)):
                await messages.put(message)
            await messages.put(None)

        copying = [asyncio.ensure_future(copy(shard)) for shard in range(self._ledger.shards)]
        unfinished = len(copying)
        try:
            while unfinished:
                message = await messages.get()
                if message is None:
                    unfinished -= 1
                else:
                    yield message
        finally:
            for task in copying:
                task.cancel()

    @_answering
    async def GrantEpoch(self, request: pb.GrantEpochRequest, context: Any) -> pb.GrantEpochReply:  # noqa: N802, ARG002
        check_worker(request.worker)
        return pb.GrantEpochReply(epoch=await self._ledger.grant(request.worker), ledger_epoch=self._ledger.epoch)

    # -- reservations -------------------------------------------------------------------------------------------------

    @_answering
    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupReply:  # noqa: N802, ARG002
        uids = decode_uids(request.uids)
        nodes = np.full(len(uids), NONE_U32, U32)
        seqs, epochs = np.zeros(len(uids), U64), np.zeros(len(uids), U64)
        for shard in range(self._ledger.shards):
            found = await self._ledger.lookup(shard, uids)
            held = found["node"] != NONE_U32
            nodes[held], seqs[held], epochs[held] = found["node"][held], found["seq"][held], found["epoch"][held]
        return pb.LookupReply(
            nodes=nodes.tobytes(), seqs=seqs.tobytes(), epochs=epochs.tobytes(), ledger_epoch=self._ledger.epoch
        )

    @_answering
    async def UpsertPods(self, request: pb.UpsertPodsRequest, context: Any) -> pb.UpsertPodsReply:  # noqa: N802, ARG002
        return await self._standing.upsert(request)

    @_answering
    async def Bind(self, request: pb.BindRequest, context: Any) -> pb.BindReply:  # noqa: N802
        began_ns = time.time_ns()
        reply = await self._standing.bind(request)
        if self._traces is not None:
            self._traces.bound(context, reply, began_ns)
        return reply

    @_answering
    async def Confirm(self, request: pb.ConfirmRequest, context: Any) -> pb.ConfirmReply:  # noqa: N802
        began_ns = time.time_ns()
        for commits in request.commits:
            self._check_shard(commits.shard)
        of_shards = [(commits.shard, decode(commits.seqs, U64, name="seqs")) for commits in request.commits]
        confirmed = [await self._ledger.confirm(shard, seqs) for shard, seqs in of_shards]
        if self._traces is not None:
            self._traces.confirmed(context, request, began_ns)
        return pb.ConfirmReply(confirmed=sum(confirmed))

    @_answering
    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:  # noqa: N802, ARG002
        uids, released = decode_uids(request.uids), 0
        nodes = decode(request.nodes, U32, name="nodes", rows=len(uids)) if request.nodes else None
        for shard in range(self._ledger.shards):
            here = uids if nodes is None else uids[nodes % self._ledger.shards == shard]
            if len(here):
                released += await self._ledger.release(shard, here)
        return pb.ReleaseReply(released=released)

    async def ListReservations(  # noqa: N802
        self, request: pb.ListReservationsRequest, context: Any
    ) -> AsyncIterator[pb.ReservationChunk]:
        try:
            if not request.all_shards:
                self._check_shard(request.shard)
            for shard in range(self._ledger.shards) if request.all_shards else (request.shard,):
                async for chunk in self._reservations(shard, details=request.details):
                    yield chunk
        except (InvalidInput, LedgerUnavailable) as exc:
            await refuse(context, exc)

    async def _reservations(self, shard: int, *, details: bool) -> AsyncIterator[pb.ReservationChunk]:
        named: set[int] = set()
        schema = await self._ledger.schema(left=True)
        names = {
            i: common_pb2.NodeSpec.FromString(s).name
            for i, s in (await self._ledger.snapshot(shard, left=True)).specs.items()
        }
        async for part in self._ledger.reservations(shard):
            chunk = reservation_chunk(shard, part.uids, part.records, part.assumed)
            if not named:
                chunk.schema.extend(schema)
            for index in set(np.unique(part.records["node"]).tolist()) - named:
                named.add(index)
                chunk.node_names.add(index=index, name=names.get(index, ""))
            if details:
                leases = await self._ledger.leases(shard, np.where(part.assumed, part.records["seq"], 0))
                chunk.assumed_since_ms, chunk.lease_ends_ms = (encode(column, I64) for column in leases.T)
                workers = await self._ledger.workers_of(np.unique(part.records["epoch"]).tolist())
                chunk.workers.extend(pb.WorkerEpoch(epoch=e, worker=name) for e, name in workers.items())
            yield chunk

    def _check_shard(self, shard: int) -> None:
        if shard >= self._ledger.shards:
            raise InvalidInput(f"{shard} where the ledger has shards 0 to {self._ledger.shards - 1}", where="shard")

    # -- nodes --------------------------------------------------------------------------------------------------------

    @_answering
    async def UpsertNodes(self, request: pb.UpsertNodesRequest, context: Any) -> pb.UpsertNodesReply:  # noqa: N802, ARG002
        return await self._nodes.upsert(request)

    @_answering
    async def RemoveNodes(self, request: pb.RemoveNodesRequest, context: Any) -> pb.RemoveNodesReply:  # noqa: N802, ARG002
        return await self._nodes.remove(request)

    @_answering
    async def CordonNode(self, request: pb.CordonNodeRequest, context: Any) -> pb.CordonNodeReply:  # noqa: N802, ARG002
        return await self._nodes.cordon(request)

    @_answering
    async def ListNodes(self, request: pb.ListNodesRequest, context: Any) -> pb.ListNodesReply:  # noqa: N802, ARG002
        reply = await list_nodes(self._ledger, request.names, request.label_selector)
        await show_quarantine(self._quarantine, self._ledger.shards, reply.nodes)
        return reply

    # -- about itself -------------------------------------------------------------------------------------------------

    @_answering
    async def Audit(self, request: pb.AuditRequest, context: Any) -> pb.AuditReply:  # noqa: N802, ARG002
        self._check_available()
        return await audit_ledger(self._ledger)

    @_answering
    async def Repair(self, request: pb.RepairRequest, context: Any) -> pb.RepairReply:  # noqa: N802, ARG002
        self._check_available()
        return await self._rebuilding.repair()

    async def DumpLedger(  # noqa: N802
        self,
        request: pb.DumpLedgerRequest,  # noqa: ARG002
        context: Any,
    ) -> AsyncIterator[pb.LedgerPart]:
        try:
            async for part in self._rebuilding.dump():
                yield part
        except LedgerUnavailable as exc:
            await refuse(context, exc)

    @_answering
    async def Rebuild(self, request: Any, context: Any) -> pb.RebuildReply:  # noqa: N802, ARG002
        return await self._rebuilding.rebuild(*await collect(request))

    def _check_available(self) -> None:
        if self._availability.problem:
            raise LedgerUnavailable(self._availability.problem)

    async def GetStatus(self, request: pb.ResolverStatusRequest, context: Any) -> pb.ResolverStatus:  # noqa: N802, ARG002
        status = pb.ResolverStatus(
            version=version(),
            ledger_epoch=self._ledger.epoch,
            shards=self._ledger.shards,
            problem=self._availability.problem,
            counters=dict(self._counters()),
            redis=self._availability.facts,
        )
        try:
            if not status.problem or self._availability.recovering:
                standing = await self._rebuilding.standing()
                status.recovering = standing.startswith(RECOVERING)
                status.standing = "" if standing.startswith(RESTORING) else standing
            if not status.problem:
                status.nodes, status.reservations = await self._ledger.counts()
                await tell_of_quarantine(self._quarantine, self._ledger, status)
        except LedgerUnavailable as exc:
            status.problem = str(exc)
        status.serving = not status.problem
        return status
