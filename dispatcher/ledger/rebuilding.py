"""Rebuilds the ledger after Redis has lost it, or a part of it. Only the dispatcher still knows which pod is
bound where.

The epoch identifies a ledger. Another epoch, a recovery tombstone in its place, or a feed that does not have
what it had shown, means that commits are lost. Then all workers are disconnected, so that the pods in their
hands are unbound again; the journal is rewritten; and the ledger is rebuilt from the dispatcher's bound pods
and nodes. Until then the dispatcher grants nothing, looks nothing up and ignores the feed: an empty ledger
would let every pod be placed a second time.

In Kubernetes mode the lost ledger knew more than the dispatcher: it had the pods that others bound and the
watches have not shown yet. So the dispatcher catches up with the API server first, for as long as that takes
(docs/adr/0099-catching-up-before-a-rebuild.md)."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.contents import kind_of
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ports import LedgerStatus
from dispatcher.runtime import Runtime
from hoss.errors import HossError
from hoss.tasks import background
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U16, U32
from hoss.wire.uids import UID_BYTES

_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 0.25
_ROWS_PER_PART = 5000


def _node_parts(nodes: ClusterNodes) -> Iterator[pb.LedgerPart]:
    entries = [pb.NodeEntry(index=index, spec=spec) for index, spec in nodes.to_rebuild()]
    for start in range(0, len(entries), _ROWS_PER_PART):
        yield pb.LedgerPart(nodes=entries[start : start + _ROWS_PER_PART])


def _bound_pod_parts(registry: PodRegistry) -> Iterator[pb.LedgerPart]:
    pods = registry.pods
    # Pods that are being evicted as well: they are on their nodes. Such a node has less than its pods ask
    # for, so it gets nothing more, and no preemptor is bound to it, until they have ended.
    rows = np.flatnonzero((pods.phase[: pods.size] == Phase.BOUND) & (pods.node[: pods.size] != NONE_U32))
    templates, kinds = np.unique(pods.template[rows], return_inverse=True)
    if len(templates):
        yield pb.LedgerPart(kinds=[kind_of(registry, template) for template in templates.tolist()])
    for start in range(0, len(rows), _ROWS_PER_PART):
        part = rows[start : start + _ROWS_PER_PART]
        yield pb.LedgerPart(
            pods=pb.PodColumns(
                uids=np.ascontiguousarray(pods.uid[part]).tobytes(),
                nodes=pods.node[part].astype(U32).tobytes(),
                kinds=kinds[start : start + _ROWS_PER_PART].astype(U32).tobytes(),
                attempts=pods.attempts[part].astype(U16).tobytes(),
            )
        )


class RebuildableLedger(Protocol):
    """The ledger as a whole. Methods raise LedgerUnavailable or TransportError if the outcome is unknown, and
    InvalidInput if the ledger has been replaced meanwhile."""

    # The epoch of our ledger, "" before the first answer. Answers of another ledger are refused.
    known_epoch: str

    async def status(self) -> LedgerStatus:
        """The ledger's present status."""

    async def rebuild(self, parts: Iterable[pb.LedgerPart]) -> pb.RebuildReply:
        """Replace the ledger."""

    async def announce_rebuild(self, waits_for: str) -> None:
        """Tell one resolver, each in its turn, that the ledger will be rebuilt, and what that waits for."""


class LedgerRebuilder:
    """Checks the ledger every second. `run` must be running while requests to the ledger wait."""

    def __init__(
        self,
        runtime: Runtime,
        ledger: RebuildableLedger,
        nodes: ClusterNodes,
        leadership: Leadership,
        *,
        rng: random.Random,
        catch_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`catch_up` returns once the registry has every pod that others had bound when it was called. It
        raises a HossError where that cannot be found out yet. None: nobody else binds pods."""
        self._runtime = runtime
        self._ledger = ledger
        self._nodes = nodes
        self._leadership = leadership
        self._rng = rng
        self._foreign_shards: set[int] = set()  # whose feed comes from another ledger
        self._noticed = asyncio.Event()  # by the feed, that the ledger is lost
        self._recovered = False
        self._catch_up = catch_up
        self._behind = False  # what Redis has kept may lack pods that others have bound

    @contextlib.asynccontextmanager
    async def during_recovery(self) -> AsyncIterator[None]:
        """While the body recovers the dispatcher's state, a lost ledger is rebuilt from what Redis has kept;
        afterwards from the recovered state."""
        await self.check()
        async with background(self.run()):
            yield
            while self._behind:  # the pods were perhaps listed before the loss
                self._behind = False
                await self._caught_up()
        self._recovered = True

    async def run(self) -> None:
        """Check and rebuild until cancelled."""
        while True:
            self._noticed.clear()
            await self.check()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._noticed.wait(), _CHECK_SECONDS)

    async def check(self) -> None:
        """Check once. Rebuild a lost ledger, and return when that is done."""
        while True:
            status = await self._runtime.until_answered(self._ledger.status)
            if not status.recovering and self._ledger.known_epoch in ("", status.epoch):
                self._ledger.known_epoch = status.epoch
                self._runtime.problems.pop("ledger", None)
                return
            try:
                await self._rebuild(status)
            except HossError as exc:
                self._runtime.problems["ledger"] = (
                    f"the ledger is being rebuilt, nothing is bound meanwhile: {exc}"
                )
                logger().warning("rebuild_failed", error=str(exc))
                await asyncio.sleep(_RETRY_SECONDS)

    def filtered(self, *followers: Callable[[pb.FeedMessage], None]) -> Callable[[pb.FeedMessage], None]:
        """A follower of the feed that passes on, to each of these, the messages of our ledger."""

        def apply(message: pb.FeedMessage) -> None:
            if self._ours(message):
                for follower in followers:
                    follower(message)

        return apply

    def _ours(self, message: pb.FeedMessage) -> bool:
        if message.snapshot:
            if message.went_back and self._ledger.known_epoch == message.ledger_epoch:
                # It has lost changes that it had shown. From now on nothing that it answers counts, and it is
                # asked for nothing, until the one that takes its place is there.
                self._ledger.known_epoch = self._new_epoch()
                self._noticed.set()
            # A resolver that has started beside an emptied Redis sends no epoch, and no nodes.
            if self._ledger.known_epoch not in ("", message.ledger_epoch):
                self._foreign_shards.add(message.shard)
            else:
                self._foreign_shards.discard(message.shard)
        return message.shard not in self._foreign_shards

    async def _caught_up(self) -> None:
        """Return once the registry has all pods that others had bound before this call. While the API server
        does not answer, nothing can be bound anyway, so nothing is lost by waiting for it."""
        if self._catch_up is None:
            return
        async with background(self._tell_resolvers()):
            while True:
                try:
                    await self._catch_up()
                except HossError as exc:  # noqa: PERF203 - the loop is the retry
                    if "api_server" not in self._runtime.problems:
                        logger().warning("rebuild_waits_for_api_server", error=str(exc))
                    self._runtime.problems["api_server"] = (
                        f"the ledger is rebuilt once the API server has said which pods are bound: {exc}"
                    )
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    self._runtime.problems.pop("api_server", None)
                    return

    async def _tell_resolvers(self) -> None:
        """Until cancelled. A resolver that hears of no dispatcher advises people to do without one."""
        while True:
            with contextlib.suppress(HossError):
                await self._ledger.announce_rebuild("the API server to say which pods are bound")
            await asyncio.sleep(_CHECK_SECONDS)

    def _knows_nodes(self) -> bool:
        """Whether the ledger can be rebuilt with the nodes that this dispatcher knows. Without an API server
        it knows them from the feed alone; before that has shown every shard, Redis may have kept more."""
        return self._catch_up is not None or self._nodes.complete

    def _new_epoch(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    async def _rebuild(self, status: LedgerStatus) -> None:
        epoch = self._new_epoch()
        head = pb.LedgerHead(
            ledger_epoch=epoch, shards=status.shards, replaces=status.epoch, term=self._leadership.term
        )
        self._runtime.problems["ledger"] = (
            "Redis has lost the ledger; it is being rebuilt, nothing is bound meanwhile"
        )
        logger().warning("ledger_lost", was=self._ledger.known_epoch, stands=status.epoch)
        if self._recovered:
            self._runtime.handle(m.LedgerLost())
            await self._runtime.until_answered(self._runtime.journal.rewrite, "journal")
            await self._caught_up()
        from_record = self._recovered and self._knows_nodes()
        if from_record:
            head.schema.extend(self._nodes.schema)
            # Of one moment: nothing is awaited.
            registry = self._runtime.machine.registry
            parts = [pb.LedgerPart(head=head), *_node_parts(self._nodes), *_bound_pod_parts(registry)]
        else:
            head.as_kept = True
            self._behind = True
            parts = [pb.LedgerPart(head=head)]
        self._leadership.require_valid_lease()
        self._ledger.known_epoch = epoch  # first: its feed may arrive before the answer
        reply = await self._ledger.rebuild(parts)
        logger().warning(
            "ledger_rebuilt",
            source="the dispatcher's record" if from_record else "what Redis has kept; nobody knew more",
            ledger_epoch=reply.ledger_epoch,
            nodes=reply.nodes,
            reservations=reply.reservations,
            unplaced=len(reply.unplaced_uids) // UID_BYTES,
            overcommitted=list(reply.overcommitted),
        )
