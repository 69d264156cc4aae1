"""A shard's feed to its followers, on the ledger in memory."""

import asyncio
from contextlib import aclosing

import pytest
from waiting import DEADLINE_SECONDS

from hoss.errors import LedgerUnavailable
from resolver.api.feed import ShardFeed
from resolver.core.values import Position
from resolver.ledger.memory import MemoryLedger


class Flaky(MemoryLedger):
    """Can be away; counts snapshots."""

    def __init__(self):
        super().__init__(1, lambda: 0)
        self.away = False
        self.refused = asyncio.Event()
        self.snapshots = 0

    async def feed(self, shard, after, wait_ms):
        if self.away:
            self.refused.set()
            raise LedgerUnavailable("away")
        return await super().feed(shard, after, min(wait_ms, 10))

    async def snapshot(self, shard, *, groups=False):
        self.snapshots += 1
        return await super().snapshot(shard, groups=groups)


@pytest.fixture
async def running(make_node):
    ledger = Flaky()
    await ledger.upsert_nodes(0, [make_node("a")])
    feed = ShardFeed(ledger, 0)
    task = asyncio.ensure_future(feed.run())
    yield ledger, feed
    task.cancel()


async def take(follower, count):
    return [await asyncio.wait_for(anext(follower), DEADLINE_SECONDS) for _ in range(count)]


async def another_history(make_node):
    """A shard at 1 as well, whose change has another nonce."""
    ledger = MemoryLedger(1, lambda: 0)
    await ledger.seq(0)
    await ledger.upsert_nodes(0, [make_node("a")])
    return ledger.checkpoint(0)


async def change(ledger, make_node, times):
    for _ in range(times):
        cpu = 1000 + await ledger.seq(0)
        await ledger.upsert_nodes(0, [make_node("a", cpu=cpu)])


async def test_a_follower_begins_with_a_snapshot_and_then_has_every_change(running, make_node):
    ledger, feed = running
    async with aclosing(feed.follow(None)) as follower:
        [snapshot] = await take(follower, 1)
        await change(ledger, make_node, 5)
        messages = await take(follower, 5)
    assert (snapshot.snapshot, snapshot.seq) == (True, 1)
    assert [(m.previous_seq, m.seq) for m in messages] == [(s, s + 1) for s in range(1, 6)]


async def test_a_follower_slower_than_the_ring_misses_nothing(running, make_node):
    ledger, feed = running
    async with aclosing(feed.follow(None)) as slow, aclosing(feed.follow(None)) as quick:
        await take(slow, 1)
        await take(quick, 1)
        await change(ledger, make_node, 300)
        await take(quick, 300)
        messages = await take(slow, 300)
    assert [m.seq for m in messages] == list(range(2, 302))


async def test_followers_that_begin_together_share_one_snapshot(running, make_node):
    ledger, feed = running
    async with aclosing(feed.follow(None)) as one, aclosing(feed.follow(None)) as other:
        first = await take(one, 1)
        await change(ledger, make_node, 3)
        await take(one, 3)
        assert await take(other, 1) == first
        assert [m.seq for m in await take(other, 3)] == [2, 3, 4]
    assert ledger.snapshots == 1


@pytest.mark.parametrize("went_back", [False, True], ids=["the same", "another history"])
async def test_after_the_ledger_was_away_a_follower_goes_on_only_in_the_history_that_it_knows(
    running, make_node, went_back
):
    ledger, feed = running
    async with aclosing(feed.follow(None)) as follower:
        await take(follower, 1)
        ledger.away = True
        if went_back:
            ledger.roll_back(0, await another_history(make_node))
            ledger.adopt("memory")
        following = asyncio.ensure_future(anext(follower))
        await asyncio.wait_for(ledger.refused.wait(), DEADLINE_SECONDS)
        await change(ledger, make_node, 1)
        ledger.away = False
        message = await asyncio.wait_for(following, DEADLINE_SECONDS)
    assert (message.snapshot, message.went_back) == (went_back, went_back)


async def test_a_follower_ahead_of_the_reader_needs_no_other_snapshot(running, make_node):
    ledger, feed = running
    await change(ledger, make_node, 3)  # the reader has not seen them yet
    async with aclosing(feed.follow(None)) as follower:
        assert [m.seq for m in await take(follower, 1)] == [4]
        await change(ledger, make_node, 1)
        [message] = await take(follower, 1)
    assert (message.seq, message.snapshot) == (5, False)
    assert ledger.snapshots == 1


async def caught_up(feed, resume):
    async def read():
        return [
            (m.seq, m.snapshot) async for m in feed.catch_up(None if resume is None else Position(resume))
        ]

    return await asyncio.wait_for(read(), DEADLINE_SECONDS)


async def test_catching_up_ends_with_the_state_of_the_moment_it_was_asked_for(running, make_node):
    ledger, feed = running
    await change(ledger, make_node, 3)
    assert await caught_up(feed, None) == [(4, True)]
    await change(ledger, make_node, 2)
    assert await caught_up(feed, 4) == [(5, False), (6, False)]
    assert await caught_up(feed, 6) == []


async def test_catching_up_from_a_position_of_the_future_brings_a_snapshot(running):
    _, feed = running
    assert await caught_up(feed, 50) == [(1, True)]


async def test_who_begins_has_the_nodes_of_that_moment_in_the_snapshot_and_not_after_it(running, make_node):
    """A dispatcher that starts takes bound pods on nodes that its first snapshot lacks for pods whose node is
    gone."""
    ledger, feed = running
    async with aclosing(feed.follow(None)) as earlier:
        await take(earlier, 1)
        await ledger.upsert_nodes(0, [make_node("b")])
        await take(earlier, 1)
        async with aclosing(feed.follow(None)) as later:
            [snapshot] = await take(later, 1)
    assert [entry.spec.name for entry in snapshot.nodes] == ["a", "b"]
    assert ledger.snapshots == 2
