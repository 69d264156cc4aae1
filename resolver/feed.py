"""The node feed: one reader of each shard's stream, any number of followers.

Every entry is read and made into a message once, and the latest stand in a ring. A follower has nothing but its position: one that
falls behind the ring reads the stream in Redis for itself, one that falls behind that begins again with a snapshot. So a
slow follower costs no memory and holds up nobody.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import islice

from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from resolver.core.values import FeedEntry
from resolver.ledger.port import Ledger
from resolver.proposals import accounts_message, group_runs_message

_RING_MESSAGES = 128
_WAIT_MS = 1000  # below the ledger's own time-out
_RETRY_SECONDS = 0.2


class ShardFeed:
    """One shard's feed. `run` must be running beside the followers."""

    def __init__(self, ledger: Ledger, shard: int) -> None:
        self._ledger = ledger
        self._shard = shard
        self._ring: deque[pb.FeedMessage] = deque(maxlen=_RING_MESSAGES)
        self._tip: int | None = None  # seq of the last entry read
        # Counts the times the ledger was away. It may have come back without its last second: positions of before mean nothing.
        self._generation = 0
        self._news = asyncio.Event()  # set and replaced at every change
        self._snapshot: pb.FeedMessage | None = None
        self._snapshot_lock = asyncio.Lock()

    async def run(self) -> None:
        """Read the shard's stream until cancelled."""
        while True:
            try:
                if self._tip is None:
                    self._tip = await self._ledger.seq(self._shard)
                    self._announce()  # to whoever stood at a place that is no more
                entries = await self._ledger.feed(self._shard, self._tip, _WAIT_MS)
                messages = [await self._message(entry) for entry in entries or ()]
            except LedgerUnavailable as exc:
                if self._tip is not None:
                    logger().warning("feed_interrupted", shard=self._shard, error=str(exc))
                self._begin_anew()
                self._generation += 1
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if entries is None:
                self._begin_anew()
            elif messages:
                self._ring.extend(messages)
                self._tip = messages[-1].seq
                self._announce()

    async def follow(self, resume: int | None) -> AsyncGenerator[pb.FeedMessage, None]:
        """Messages for one follower: those after `resume` where they can still be had, else a snapshot and those after it."""
        position, generation = resume, self._generation
        while True:
            try:
                if generation != self._generation:
                    position, generation = None, self._generation
                messages = [await self._take_snapshot()] if position is None else await self._after(position)
            except LedgerUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for message in messages:
                yield message
                position = message.seq

    async def catch_up(self, resume: int | None) -> AsyncIterator[pb.FeedMessage]:
        """As `follow`, and ends with the state that the shard has now, or a later one."""
        while True:
            try:
                now = await self._ledger.seq(self._shard)
                break
            except LedgerUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
        if resume == now:
            return
        # A position of the future is of a ledger that has forgotten since.
        async with aclosing(self.follow(None if resume is None or resume > now else resume)) as messages:
            async for message in messages:
                yield message
                if message.seq >= now:
                    return

    async def _after(self, position: int) -> list[pb.FeedMessage]:
        """The next messages, waiting for them; a snapshot where there is a gap. May be empty."""
        if self._tip is None or position == self._tip:
            await self._news.wait()
            return []
        if self._ring and self._ring[0].seq <= position + 1 <= self._tip:
            return list(islice(self._ring, position + 1 - self._ring[0].seq, None))
        if position > self._tip:
            if position > await self._ledger.seq(self._shard):
                return [await self._take_snapshot()]  # of a ledger that has forgotten since
            # A snapshot, or another resolver, was quicker than the reader here.
            if self._tip is not None and position > self._tip:
                await self._news.wait()
            return []
        entries = await self._ledger.feed(self._shard, position, 1)
        if entries is None:
            return [await self._take_snapshot()]
        return [await self._message(entry) for entry in entries]

    async def _take_snapshot(self) -> pb.FeedMessage:
        # Workers that start together share one: it serves for as long as the ring continues it, and no node has come or gone since. A
        # dispatcher that starts holds what is reserved against the nodes of its first snapshot.
        async with self._snapshot_lock:
            if self._snapshot is None or not self._serves(self._snapshot):
                self._snapshot = await self._read_snapshot()
            return self._snapshot

    def _serves(self, snapshot: pb.FeedMessage) -> bool:
        if snapshot.seq == self._tip:
            return True
        if not (self._ring and self._tip and self._ring[0].seq <= snapshot.seq + 1 <= self._tip):
            return False
        since = [entry for message in self._ring if message.seq > snapshot.seq for entry in message.nodes]
        if not since:
            return True
        listed = {entry.index for entry in snapshot.nodes}
        return all(entry.index in listed and not entry.removed for entry in since)

    async def _read_snapshot(self) -> pb.FeedMessage:
        snapshot = await self._ledger.snapshot(self._shard, groups=True)
        return pb.FeedMessage(
            shard=self._shard,
            shards=self._ledger.shards,
            seq=snapshot.seq,
            snapshot=True,
            accounts=accounts_message(snapshot.accounts),
            nodes=[_node_entry(index, spec) for index, spec in sorted(snapshot.specs.items())],
            schema=await self._ledger.schema(),
            ledger_epoch=self._ledger.epoch,
            groups=group_runs_message(snapshot.runs),
            holds=snapshot.holds,
        )

    async def _message(self, entry: FeedEntry) -> pb.FeedMessage:
        message = pb.FeedMessage(
            shard=self._shard,
            seq=entry.seq,
            previous_seq=entry.seq - 1,
            accounts=accounts_message(entry.accounts),
            released=entry.released,
            groups=group_runs_message(entry.runs),
            holds=(entry.seq,) if entry.hold else (),
            ended_holds=entry.ended,
            worker_epoch=entry.epoch,
            evictions=[pb.Eviction(uid=e.uid, node=e.node, victim_uids=e.victims) for e in entry.evictions],
        )
        if entry.specs or entry.removed:
            message.nodes.extend(_node_entry(index, spec) for index, spec in entry.specs)
            message.nodes.extend(pb.NodeEntry(index=index, removed=True) for index in entry.removed)
            message.schema.extend(await self._ledger.schema())  # new nodes are what brings new resources
        return message

    def _begin_anew(self) -> None:
        self._tip = None
        self._ring.clear()
        self._snapshot = None
        self._announce()

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _node_entry(index: int, spec: bytes) -> pb.NodeEntry:
    return pb.NodeEntry(index=index, spec=common_pb2.NodeSpec.FromString(spec))
