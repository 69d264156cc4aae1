"""The node feed: one reader per shard, any number of followers.

Every entry is read and converted once; a ring keeps the latest messages. A follower has only a position. If
it falls behind the ring it reads the stream in Redis, and if it falls behind that it starts again with a
snapshot. So a slow follower takes no memory and delays nobody."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import islice

from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from resolver.api.nodes import slices
from resolver.core.values import FeedEntry, Position
from resolver.ledger.port import Ledger
from resolver.messages.proposals import accounts_message, group_runs_message

_RING_MESSAGES = 128
_WAIT_MS = 1000  # below the ledger's own time-out
_RETRY_SECONDS = 0.2


class ShardFeed:
    """One shard's feed. Run `run` in the background."""

    def __init__(self, ledger: Ledger, shard: int) -> None:
        self._ledger = ledger
        self._shard = shard
        self._ring: deque[pb.FeedMessage] = deque(maxlen=_RING_MESSAGES)
        self._tip: int | None = None  # seq of the last entry read
        # How often the ledger was away. It may come back without its last second: older positions are void.
        self._generation = 0
        self._changed = asyncio.Event()  # set and replaced at every change
        self._snapshot: pb.FeedMessage | None = None
        self._snapshot_lock = asyncio.Lock()

    async def run(self) -> None:
        """Read the shard's stream until cancelled."""
        while True:
            try:
                if self._tip is None:
                    self._tip = await self._ledger.seq(self._shard)
                    self._notify()  # followers at a void position
                entries = await self._ledger.feed(self._shard, self._tip, _WAIT_MS)
                messages = [await self._message(entry) for entry in entries or ()]
            except LedgerUnavailable as exc:
                if self._tip is not None:
                    logger().warning("feed_interrupted", shard=self._shard, error=str(exc))
                self._reset()
                self._generation += 1
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if entries is None:
                self._reset()
            elif messages:
                self._ring.extend(messages)
                self._tip = messages[-1].seq
                self._notify()

    async def follow(self, resume: Position | None) -> AsyncGenerator[pb.FeedMessage, None]:
        """Messages after `resume` if the feed still has them, else a snapshot and the messages after it. If
        `resume` is not in the history of the ledger, the snapshot says so."""
        position, verified = resume, -1  # the generation in which the position was found in the history
        while True:
            generation = self._generation
            try:
                if position is None:
                    messages = [await self._take_snapshot()]
                elif verified != generation and await self._went_back(position):
                    messages = [await self._snapshot_of_other_history()]
                else:
                    verified = generation
                    messages = await self._after(position.seq)
            except LedgerUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for message in messages:
                yield message
                position = Position(message.seq, message.nonce)
                verified = generation

    async def _went_back(self, position: Position) -> bool:
        """Whether the ledger does not have this position in its history. A position that the feed no longer
        has counts as there: then nobody can tell."""
        if position.seq > await self._ledger.seq(self._shard):
            return True
        found = Position(position.seq, await self._ledger.nonce_at(self._shard, position.seq))
        return position.differs(found)

    async def _snapshot_of_other_history(self) -> pb.FeedMessage:
        message = pb.FeedMessage()
        message.CopyFrom(await self._take_snapshot())
        message.went_back = True
        return message

    async def catch_up(self, resume: Position | None) -> AsyncIterator[pb.FeedMessage]:
        """As `follow`, but ends at the shard's present state or a later one."""
        while True:
            try:
                now = await self._ledger.seq(self._shard)
                break
            except LedgerUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
        if resume is not None and resume.seq == now and not await self._went_back(resume):
            return
        async with aclosing(self.follow(resume)) as messages:
            async for message in messages:
                yield message
                if message.seq >= now:
                    return

    async def _after(self, position: int) -> list[pb.FeedMessage]:
        """Wait for the next messages; a snapshot if there is a gap. May be empty."""
        if self._tip is None or position == self._tip:
            await self._changed.wait()
            return []
        if self._ring and self._ring[0].seq <= position + 1 <= self._tip:
            return list(islice(self._ring, position + 1 - self._ring[0].seq, None))
        if position > self._tip:
            if position > await self._ledger.seq(self._shard):
                return [await self._snapshot_of_other_history()]
            # A snapshot, or another resolver, was ahead of this reader.
            if self._tip is not None and position > self._tip:
                await self._changed.wait()
            return []
        entries = await self._ledger.feed(self._shard, position, 1)
        if entries is None:
            return [await self._take_snapshot()]
        return [await self._message(entry) for entry in entries]

    async def _take_snapshot(self) -> pb.FeedMessage:
        # Workers that start together share a snapshot, as long as the ring continues it and no node has come
        # or gone since: a dispatcher that starts compares reservations with the nodes of its first snapshot.
        async with self._snapshot_lock:
            if self._snapshot is None or not self._is_usable(self._snapshot):
                self._snapshot = await self._read_snapshot()
            return self._snapshot

    def _is_usable(self, snapshot: pb.FeedMessage) -> bool:
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
        message = pb.FeedMessage(
            shard=self._shard,
            shards=self._ledger.shards,
            seq=snapshot.seq,
            nonce=snapshot.nonce,
            snapshot=True,
            accounts=accounts_message(snapshot.accounts),
            schema=await self._ledger.schema(),
            ledger_epoch=self._ledger.epoch,
            holds=snapshot.prepared,
        )
        async for specs in slices(sorted(snapshot.specs.items())):
            message.nodes.extend(_node_entry(index, spec) for index, spec in specs)
        async for runs in slices(snapshot.runs):
            message.groups.extend(group_runs_message(runs))
        return message

    async def _message(self, entry: FeedEntry) -> pb.FeedMessage:
        message = pb.FeedMessage(
            shard=self._shard,
            seq=entry.seq,
            nonce=entry.nonce,
            previous_seq=entry.seq - 1,
            accounts=accounts_message(entry.accounts),
            released=entry.released,
            groups=group_runs_message(entry.runs),
            holds=(entry.seq,) if entry.prepared else (),
            ended_holds=entry.ended,
            worker_epoch=entry.epoch,
            evictions=[pb.Eviction(uid=e.uid, node=e.node, victim_uids=e.victims) for e in entry.evictions],
        )
        if entry.specs or entry.removed:
            message.nodes.extend(_node_entry(index, spec) for index, spec in entry.specs)
            message.nodes.extend(pb.NodeEntry(index=index, removed=True) for index in entry.removed)
            message.schema.extend(await self._ledger.schema())  # only nodes bring new resources
        return message

    def _reset(self) -> None:
        self._tip = None
        self._ring.clear()
        self._snapshot = None
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _node_entry(index: int, spec: bytes) -> pb.NodeEntry:
    return pb.NodeEntry(index=index, spec=common_pb2.NodeSpec.FromString(spec))
