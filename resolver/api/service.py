"""The resolver's gRPC service: checks requests, finds the shard, calls the ledger."""

# ruff: noqa: N802, ARG002 - gRPC's method names and signatures

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio
import numpy as np

from hoss import version
from hoss.client.errors import refuse
from hoss.errors import InvalidInput, LedgerUnavailable, Overloaded, clipped, quoted
from hoss.interceptor import caller_of
from hoss.limits.callers import RateLimits
from hoss.security.identity import caller
from hoss.telemetry.context import now_ns
from hoss.v1 import resolver_pb2 as pb
from hoss.v1.resolver_pb2_grpc import ResolverServicer
from hoss.wire.columns import I64, U32, U64, decode, decode_uids, encode
from resolver.api.auditing import audit_ledger
from resolver.api.feed import ShardFeed
from resolver.api.maintenance import Availability
from resolver.api.moving import Moving
from resolver.api.nodes import NodeChanges, decoded, list_nodes, writer_of_term
from resolver.api.proposing import ProposeStream
from resolver.api.quarantine import Quarantine, add_quarantine, add_quarantine_status
from resolver.api.rebuilding import RebuildService, collect
from resolver.core.commits import standing
from resolver.core.values import Position, Writer
from resolver.kubernetes.existing_pods import ExistingPodReservations
from resolver.ledger.port import Ledger
from resolver.ledger.scripts import RECOVERING, RESTORING
from resolver.messages.proposals import check_worker, reservation_chunk

if TYPE_CHECKING:
    from resolver.tracing import ResolverTraces

_FEED_BUFFER = 8

_MOST_REASON_CHARACTERS = 200  # that a caller may have us repeat

_GRANTS_BURST = 25.0  # seconds' worth
_GRANTS_NAMES = 20  # whose rate one caller has

Context = grpc.aio.ServicerContext
ReplyT = TypeVar("ReplyT")
Handler = Callable[[Any, Any, Context[Any, Any]], Awaitable[ReplyT]]


def _answering(handler: Handler[ReplyT]) -> Handler[ReplyT]:
    """Turn the errors that a client may see into gRPC statuses."""

    @wraps(handler)
    async def answer(self: Any, request: Any, context: Context[Any, Any]) -> ReplyT:
        try:
            return await handler(self, request, context)
        except (InvalidInput, LedgerUnavailable, Overloaded) as exc:
            await refuse(context, exc)

    return answer


class EpochGrants:
    """How often epochs are granted. Each grant fences the worker's epoch before it, and is a write to every
    shard."""

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._names = RateLimits(per_second, _GRANTS_BURST * per_second, clock=clock)
        per_second *= _GRANTS_NAMES
        self._callers = RateLimits(per_second, _GRANTS_BURST * per_second, clock=clock)

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered of grants."""
        return {"granted_workers": len(self._names), "granting_callers": len(self._callers)}

    def check(self, worker: str, caller: str) -> None:
        """Count a grant. Raises Overloaded where there were too many."""
        wait_seconds = self._callers.take(caller) or self._names.take(worker)
        if wait_seconds:
            raise Overloaded(
                f"{quoted(worker)} or {caller} gets more epochs than the resolver's grants_per_second; try"
                " again later",
                wait_seconds,
            )


class ResolverService(ResolverServicer):
    """Stateless except for the feed's ring, counters, and who was granted epochs lately."""

    def __init__(
        self,
        ledger: Ledger,
        feeds: list[ShardFeed],
        proposing: ProposeStream,
        availability: Availability,
        *,
        quarantine: Quarantine,
        counters: Callable[[], Counter[str]],
        rebuilding: RebuildService,
        existing_pods: ExistingPodReservations,
        unix_clock: Callable[[], float],
        max_request_rows: int = 100_000,
        grants: "EpochGrants | None" = None,
        traces: "ResolverTraces | None" = None,
    ) -> None:
        """`max_request_rows`: see ResolverConfig. `grants`: None for any number."""
        self._grants = grants
        self._traces = traces
        self._ledger = ledger
        self._feeds = feeds
        self._proposing = proposing
        self._availability = availability
        self._quarantine = quarantine
        self._nodes = NodeChanges(ledger, quarantine, unix_clock=unix_clock)
        self._counters = counters
        self._rebuilding = rebuilding
        self._existing_pods = existing_pods
        self._moving = Moving(ledger, proposing.decide)
        self._max_request_rows = max_request_rows

    # -- streams

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered of grants."""
        return {} if self._grants is None else self._grants.table_sizes()

    async def Propose(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.VerdictBatch]:
        try:
            async for message in self._proposing.serve(request_iterator):
                yield message
        except InvalidInput as exc:
            await refuse(context, exc)

    async def Feed(self, request: pb.FeedRequest, context: Any) -> AsyncIterator[pb.FeedMessage]:
        if request.as_of_now and self._availability.problem:
            await refuse(context, LedgerUnavailable(self._availability.problem))
        resume = {position.shard: Position(position.seq, position.nonce) for position in request.resume}
        if request.ledger_epoch != self._ledger.epoch:
            resume = {}
        try:
            for shard in resume:
                self._check_shard(shard)
        except InvalidInput as exc:
            await refuse(context, exc)
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
    async def GrantEpoch(self, request: pb.GrantEpochRequest, context: Any) -> pb.GrantEpochReply:
        check_worker(request.worker)
        self._check_ledger(request.ledger_epoch)
        if self._grants is not None:
            self._grants.check(request.worker, caller_of(context))
        return pb.GrantEpochReply(
            epoch=await self._ledger.grant(request.worker, _writer(request)),
            ledger_epoch=self._ledger.epoch,
        )

    # -- reservations

    @_answering
    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupReply:
        uids = decode_uids(request.uids)
        self._check_rows(len(uids), "uids")
        shards = range(self._ledger.shards)
        found, pods, nodes = standing([await self._ledger.lookup(shard, uids) for shard in shards])
        return pb.LookupReply(
            nodes=found["node"].tobytes(),
            seqs=found["seq"].tobytes(),
            epochs=found["epoch"].tobytes(),
            states=found["state"].tobytes(),
            ledger_epoch=self._ledger.epoch,
            other_pods=encode(pods, U32),
            other_nodes=encode(nodes, U32),
        )

    @_answering
    async def UpsertPods(self, request: pb.UpsertPodsRequest, context: Any) -> pb.UpsertPodsReply:
        return await self._existing_pods.upsert(request)

    @_answering
    async def Bind(self, request: pb.BindRequest, context: Any) -> pb.BindReply:
        began_ns = now_ns()
        reply = await self._existing_pods.bind(request)
        if self._traces is not None:
            self._traces.bound(context, reply, began_ns)
        return reply

    @_answering
    async def Confirm(self, request: pb.ConfirmRequest, context: Any) -> pb.ConfirmReply:
        began_ns = now_ns()
        self._check_rows(sum(len(commits.seqs) // U64.itemsize for commits in request.commits), "commits")
        for commits in request.commits:
            self._check_shard(commits.shard)
        of_shards = [(commits.shard, decode(commits.seqs, U64, name="seqs")) for commits in request.commits]
        writer = _writer(request)
        confirmed = [await self._ledger.confirm(shard, seqs, writer) for shard, seqs in of_shards]
        if self._traces is not None:
            self._traces.confirmed(context, request, began_ns)
        return pb.ConfirmReply(confirmed=sum(confirmed))

    @_answering
    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        uids, reply = decode_uids(request.uids), pb.ReleaseReply()
        self._check_rows(len(uids), "uids")
        nodes = decode(request.nodes, U32, name="nodes", rows=len(uids)) if request.nodes else None
        writer, as_of = _writer(request), {known.shard: known.seq for known in request.as_of}
        kept = 0
        for shard in range(self._ledger.shards):
            here = uids if nodes is None else uids[nodes % self._ledger.shards == shard]
            if len(here):
                self._check_ledger(request.ledger_epoch)
                released, kept_here = await self._existing_pods.release(
                    shard, here, writer, as_of=as_of.get(shard)
                )
                reply.released += released
                kept += kept_here
        if kept:
            raise LedgerUnavailable(
                f"{kept} pods keep their devices, and what they hold, until the API server says that nobody"
                " writes these into their claims any more; ask again"
            )
        return reply

    @_answering
    async def Move(self, request: pb.MoveRequest, context: Any) -> pb.MoveReply:
        self._check_ledger(request.ledger_epoch)
        return await self._moving.serve(request)

    async def ListReservations(
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
        schema = await self._ledger.schema(incomplete=True)
        snapshot = await self._ledger.snapshot(shard, incomplete=True)
        names = {i: node.name async for i, node in decoded(snapshot.specs)}
        async for part in self._ledger.reservations(shard):
            chunk = reservation_chunk(shard, part)
            if not named:
                chunk.schema.extend(schema)
                chunk.seq, chunk.nonce = snapshot.seq, snapshot.nonce
            for index in set(np.unique(part.records["node"]).tolist()) - named:
                named.add(index)
                chunk.node_names.add(index=index, name=names.get(index, ""))
            if details:
                leases = await self._ledger.leases(shard, np.where(part.assumed, part.records["seq"], 0))
                chunk.assumed_since_ms, chunk.lease_ends_ms = (encode(column, I64) for column in leases.T)
                workers = await self._ledger.workers_of(np.unique(part.records["epoch"]).tolist())
                chunk.workers.extend(pb.WorkerEpoch(epoch=e, worker=name) for e, name in workers.items())
            yield chunk

    def _check_ledger(self, epoch: str) -> None:
        """Raises LedgerUnavailable for a caller that means another ledger. Of two masters after a failover
        each may hold one, and this resolver may have adopted the other."""
        if epoch not in ("", self._ledger.epoch):
            raise LedgerUnavailable("Redis holds another ledger than the one that the caller knows")

    def _check_rows(self, rows: int, where: str) -> None:
        if rows > self._max_request_rows:
            raise InvalidInput(
                f"{rows} rows; max_request_rows of the resolver allows {self._max_request_rows} in a request:"
                " send it in parts",
                where=where,
            )

    def _check_shard(self, shard: int) -> None:
        if shard >= self._ledger.shards:
            raise InvalidInput(
                f"{shard} where the ledger has shards 0 to {self._ledger.shards - 1}", where="shard"
            )

    # -- nodes

    @_answering
    async def UpsertNodes(self, request: pb.UpsertNodesRequest, context: Any) -> pb.UpsertNodesReply:
        self._check_rows(len(request.nodes), "nodes")
        self._check_ledger(request.ledger_epoch)
        return await self._nodes.upsert(request)

    @_answering
    async def RemoveNodes(self, request: pb.RemoveNodesRequest, context: Any) -> pb.RemoveNodesReply:
        self._check_rows(len(request.names), "names")
        self._check_ledger(request.ledger_epoch)
        return await self._nodes.remove(request)

    @_answering
    async def CordonNode(self, request: pb.CordonNodeRequest, context: Any) -> pb.CordonNodeReply:
        who = f"from {caller_of(context)}" if caller() is None else f"by {caller()}"
        return await self._nodes.cordon(request, by=who)

    @_answering
    async def ListNodes(self, request: pb.ListNodesRequest, context: Any) -> pb.ListNodesReply:
        reply = await list_nodes(self._ledger, request)
        await add_quarantine(self._quarantine, self._ledger.shards, reply.nodes)
        return reply

    # -- the ledger and this resolver

    @_answering
    async def Audit(self, request: pb.AuditRequest, context: Any) -> pb.AuditReply:
        self._check_available()
        reply = await audit_ledger(self._ledger)
        if self._availability.advice:
            reply.reports.append(self._availability.advice)
        return reply

    @_answering
    async def Repair(self, request: pb.RepairRequest, context: Any) -> pb.RepairReply:
        self._check_available()
        return await self._rebuilding.repair()

    async def DumpLedger(self, request: pb.DumpLedgerRequest, context: Any) -> AsyncIterator[pb.LedgerPart]:
        try:
            async for part in self._rebuilding.dump():
                yield part
        except LedgerUnavailable as exc:
            await refuse(context, exc)

    @_answering
    async def Rebuild(self, request: Any, context: Any) -> pb.RebuildReply:
        return await self._rebuilding.rebuild(*await collect(request))

    async def AnnounceRebuild(self, request: Any, context: Any) -> pb.AnnounceRebuildReply:
        del context
        self._availability.announce_rebuild(clipped(request.waits_for, _MOST_REASON_CHARACTERS))
        return pb.AnnounceRebuildReply()

    def _check_available(self) -> None:
        if self._availability.problem:
            raise LedgerUnavailable(self._availability.problem)

    async def GetStatus(self, request: pb.ResolverStatusRequest, context: Any) -> pb.ResolverStatus:
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
                current, _, status.dispatcher_term = await self._rebuilding.status()
                status.recovering = current.startswith(RECOVERING)
                status.standing = "" if current.startswith(RESTORING) else current
            if not status.problem:
                summary = await self._ledger.summary()
                status.nodes, status.reservations = summary.nodes, summary.reservations
                status.journal_term, status.journal_write = summary.marks.journal
                await add_quarantine_status(self._quarantine, self._ledger, summary.quarantined, status)
                status.events.extend(self._nodes.events)
                status.events.sort(key=lambda event: event.unix_ms)
        except LedgerUnavailable as exc:
            status.problem = str(exc)
        status.serving = not status.problem
        return status


def _writer(request: pb.GrantEpochRequest | pb.ConfirmRequest | pb.ReleaseRequest) -> Writer:
    return writer_of_term(request.term, request.journal_write)
