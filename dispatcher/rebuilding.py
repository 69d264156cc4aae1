"""What the dispatcher does when Redis has lost the ledger, or a part of it: it alone still knows what was bound where.

The ledger is known by its epoch. Another one, or a mark in its place, means that what was committed is gone: all workers are
let go, so that what they still had in hand comes back as unbound; the journal is written anew; and the ledger is rebuilt from
the record of bound pods and nodes. Until that is done nothing is granted, looked up or learnt from a feed: a ledger that
knows of nothing would have every pod placed a second time.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from dispatcher.cluster_changes import NodeHistory
from dispatcher.core import messages as m
from dispatcher.ledger import Standing
from dispatcher.ledger_record import record_parts
from dispatcher.runtime import Runtime
from hoss import rpc
from hoss.errors import HossError, LedgerUnavailable
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import UID_BYTES

_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 0.25


class Rebuildable(Protocol):
    """The ledger as a whole. Methods raise LedgerUnavailable or TransportError when nothing is known, InvalidInput where the
    ledger is another by now."""

    # The epoch of the ledger that is ours, "" before any was seen. Answers from another one are as good as none.
    known_epoch: str

    async def standing(self) -> Standing:
        """As of now."""
        ...

    async def rebuild(self, parts: Iterable[pb.LedgerPart]) -> pb.RebuildReply:
        """Replace it."""
        ...


class Rebuilding:
    """Looks at the ledger once a second. `run` must be running whenever anything is asked of the ledger."""

    def __init__(
        self, runtime: Runtime, ledger: Rebuildable, nodes: NodeHistory, *, may_rebuild: Callable[[], bool]
    ) -> None:
        """`may_rebuild`: whether no other dispatcher can be the active one."""
        self._runtime = runtime
        self._ledger = ledger
        self._nodes = nodes
        self._may_rebuild = may_rebuild
        self._foreign: set[int] = set()  # shards whose feed tells of another ledger
        self._recovered = False

    @asynccontextmanager
    async def as_kept(self) -> AsyncIterator[None]:
        """While the body learns what there is, a lost ledger is rebuilt from what Redis has kept of it; afterwards from what was
        learnt."""
        await self.look()
        async with rpc.background(self.run()):
            yield
        self._recovered = True

    async def run(self) -> None:
        """Look and rebuild until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Once; rebuild the ledger if it is not the one that was known. Returns when it is."""
        while True:
            standing = await self._runtime.until_answered(self._ledger.standing)
            if not standing.recovering and (self._ledger.known_epoch or standing.epoch) == standing.epoch:
                self._ledger.known_epoch = standing.epoch
                self._runtime.problems.pop("ledger", None)
                return
            try:
                await self._rebuild(standing)
            except HossError as exc:
                self._runtime.problems["ledger"] = f"the ledger is being rebuilt, nothing is bound meanwhile: {exc}"
                logger().warning("rebuild_failed", error=str(exc))
                await asyncio.sleep(_RETRY_SECONDS)

    def passing(self, *followers: Callable[[pb.FeedMessage], None]) -> Callable[[pb.FeedMessage], None]:
        """A follower of the feed that hands on, to each of these, what tells of the ledger that is ours."""

        def apply(message: pb.FeedMessage) -> None:
            if self._ours(message):
                for follower in followers:
                    follower(message)

        return apply

    def _ours(self, message: pb.FeedMessage) -> bool:
        if message.snapshot:
            if message.ledger_epoch and self._ledger.known_epoch not in ("", message.ledger_epoch):
                self._foreign.add(message.shard)
            else:
                self._foreign.discard(message.shard)
        return message.shard not in self._foreign

    async def _rebuild(self, standing: Standing) -> None:
        epoch = secrets.token_hex(8)
        head = pb.LedgerHead(ledger_epoch=epoch, shards=standing.shards, replaces=standing.epoch)
        self._runtime.problems["ledger"] = "Redis has lost the ledger; it is being rebuilt, nothing is bound meanwhile"
        logger().warning("ledger_lost", was=self._ledger.known_epoch, stands=standing.epoch)
        if self._recovered:
            self._runtime.tell(m.LedgerLost())
            await self._runtime.until_answered(self._runtime.journal.rewrite, "journal")
            head.schema.extend(self._nodes.schema)
            parts = record_parts(self._runtime.machine.registry, self._nodes.by_index, head)
        else:
            head.as_kept = True
            parts = [pb.LedgerPart(head=head)]
        if not self._may_rebuild():
            raise LedgerUnavailable("the dispatcher's lease could not be renewed in time; another may be active")
        self._ledger.known_epoch = epoch  # first: its feed may be heard before the answer
        reply = await self._ledger.rebuild(parts)
        logger().warning(
            "ledger_rebuilt",
            source="the dispatcher's record" if self._recovered else "what Redis has kept; nobody knew more",
            ledger_epoch=reply.ledger_epoch,
            nodes=reply.nodes,
            reservations=reply.reservations,
            unplaced=len(reply.unplaced_uids) // UID_BYTES,
            overcommitted=list(reply.overcommitted),
        )
