"""A ledger that goes back, or is lost, is recognised by every resolver that knew it, even if others have
written to it since. One that knew less goes on."""

from contextlib import AsyncExitStack

import numpy as np
import pytest
from contract.conftest import epochs_from_one
from redis import Redis

from resolver.ledger.memory import MemoryLedger
from resolver.ledger.port import LedgerLostError
from resolver.ledger.store import RedisLedger


class InMemory:
    """Resolvers' ledgers on one shard in memory."""

    def __init__(self):
        self._first = MemoryLedger(1, lambda: 0)

    async def opened(self):
        return self._first.another()

    def checkpoint(self):
        return self._first.checkpoint(0)

    def roll_back(self, to):
        self._first.roll_back(0, to)

    def empty(self):
        self._first.empty()


class InRedis:
    """The same on one shard in Redis."""

    def __init__(self, url, stack):
        self._url = url
        self._stack = stack
        # For the documented user of the ledger may do none of what follows.
        self._redis = stack.enter_context(Redis.from_url(f"redis://{url.rpartition('@')[2]}"))

    async def opened(self):
        ledger = RedisLedger(self._url)
        await ledger.open(1)
        await epochs_from_one(ledger)
        self._stack.push_async_callback(ledger.close)
        return ledger

    def checkpoint(self):
        return {key: self._redis.dump(key) for key in self._redis.keys("*")}

    def roll_back(self, to):
        self._redis.flushdb()
        for key, value in to.items():
            self._redis.restore(key, 0, value)

    def empty(self):
        self._redis.flushdb()


@pytest.fixture
async def place(ledger_url):
    async with AsyncExitStack() as stack:
        yield InRedis(ledger_url, stack) if ledger_url else InMemory()


@pytest.fixture
async def resolvers(place, make_node):
    """Two, on one node, with worker w1. The second has not looked yet."""
    one, other = await place.opened(), await place.opened()
    await one.upsert_nodes(0, [make_node("a", cpu=100_000)])
    await one.grant("w1")
    return one, other


async def test_a_ledger_that_went_back_is_recognised(place, resolvers, make_proposal):
    one, _ = resolvers
    before = place.checkpoint()
    await one.commit(0, [make_proposal([1], [[0]])])
    place.roll_back(before)
    for call in (one.check, lambda: one.seq(0), lambda: one.snapshot(0), lambda: one.grant("w2")):
        with pytest.raises(
            LedgerLostError, match="lost acknowledged changes: a shard of the ledger stands at 1"
        ):
            await call()


async def test_a_resolver_that_has_merely_read_the_feed_recognises_that_the_ledger_went_back(
    place, resolvers, make_proposal
):
    one, other = resolvers
    seq = await other.seq(0)
    before = place.checkpoint()
    await one.commit(0, [make_proposal([1], [[0]])])
    assert len(await other.feed(0, seq, 1)) == 1
    place.roll_back(before)
    for call in (lambda: other.lookup(0, make_proposal([1], [[0]]).uids), lambda: other.seq(0)):
        with pytest.raises(LedgerLostError, match="lost acknowledged changes"):
            await call()


async def test_a_ledger_that_went_back_and_was_overtaken_is_recognised(place, resolvers, make_proposal):
    """Redis loses the last commit of one resolver, and the other one writes past it."""
    one, other = resolvers
    before = place.checkpoint()
    [lost] = await one.commit(0, [make_proposal([1], [[0]])])
    place.roll_back(before)
    for pod in (2, 3, 4):
        await other.commit(0, [make_proposal([pod], [[0]])])
    assert await other.seq(0) > lost.seq
    with pytest.raises(LedgerLostError, match="written to since"):
        await one.commit(0, [make_proposal([5], [[0]])])
    with pytest.raises(LedgerLostError, match="written to since"):
        await one.confirm(0, np.array([lost.seq], np.uint64))
    with pytest.raises(LedgerLostError):
        await one.check()
    with pytest.raises(LedgerLostError):
        await one.snapshot(0)
    await other.check()
    assert (await other.lookup(0, make_proposal([1, 2], [[0]] * 2).uids))["seq"].tolist() == [0, lost.seq]


async def test_a_ledger_that_went_back_and_was_overtaken_by_as_many_changes_is_recognised(
    place, resolvers, make_proposal
):
    """Its number is the one that was lost: only the nonce is another one."""
    one, other = resolvers
    before = place.checkpoint()
    [lost] = await one.commit(0, [make_proposal([1], [[0]])])
    place.roll_back(before)
    await other.commit(0, [make_proposal([2], [[0]])])
    assert await other.seq(0) == lost.seq
    with pytest.raises(LedgerLostError, match="written to since"):
        await one.confirm(0, np.array([lost.seq], np.uint64))
    with pytest.raises(LedgerLostError, match="written to since"):
        await one.check()
    await other.check()


async def test_who_reads_a_ledger_that_was_overtaken_does_not_take_it_for_its_own(
    place, resolvers, make_proposal
):
    one, other = resolvers
    before = place.checkpoint()
    await one.commit(0, [make_proposal([1], [[0]])])
    place.roll_back(before)
    await other.commit(0, [make_proposal([2], [[0]])])  # exactly as far
    with pytest.raises(LedgerLostError):
        await one.seq(0)


async def test_who_knew_nothing_of_what_was_lost_goes_on(place, resolvers, make_proposal):
    one, other = resolvers
    await other.check()
    before = place.checkpoint()
    await one.commit(0, [make_proposal([1], [[0]])])
    place.roll_back(before)
    (decision,) = await other.commit(0, [make_proposal([2], [[0]])])
    assert decision.verdicts.tolist() == [1]


async def test_a_ledger_that_is_empty_is_recognised_and_takes_nothing(
    place, resolvers, make_node, make_proposal
):
    one, other = resolvers
    place.empty()
    for ledger in (one, other):
        with pytest.raises(LedgerLostError, match="Redis is empty"):
            await ledger.commit(0, [make_proposal([1], [[0]])])
        with pytest.raises(LedgerLostError, match="Redis is empty"):
            await ledger.upsert_nodes(0, [make_node("b")])
        with pytest.raises(LedgerLostError):
            await ledger.snapshot(0)
        assert (await ledger.snapshot(0, incomplete=True)).seq == 0


@pytest.mark.parametrize("lost", ["some of it", "all of it"])
async def test_a_worker_epoch_is_above_all_before_it_although_the_count_of_them_was_lost_alone(
    redis_server, lost
):
    ledger = RedisLedger(redis_server.url)
    await ledger.open(1)
    try:
        with Redis(port=redis_server.port) as client:
            await ledger.grant("w1")
            before = client.dump(ledger.epochs_key) if lost == "some of it" else None
            last = max([await ledger.next_epoch(f"w{number}", above=0) for number in range(2, 6)])
            client.delete(ledger.epochs_key)
            if before is not None:
                client.restore(ledger.epochs_key, 0, before)
            assert await ledger.next_epoch("w6", above=0) > last
    finally:
        await ledger.close()
