"""What every lease promises, held against each implementation."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
import redis
from redis_topologies import SENTINEL_AND_CLUSTER, servers
from waiting import until

from dispatcher.fenced_redis import Superseded
from dispatcher.journal import Record
from dispatcher.lease import Granted, Held, Lease, MemoryLease, RedisLease
from dispatcher.redis_journal import RedisJournal
from hoss.errors import LedgerUnavailable

SECONDS = 2.0  # a request is given half of it, and a busy machine takes its time


@pytest.fixture(params=["memory", *servers()])
async def lease(request: pytest.FixtureRequest, empty_redis: Callable[[str], str]) -> AsyncIterator[Lease]:
    if request.param == "memory":
        made: Lease = MemoryLease(SECONDS, time.monotonic)
    else:
        made = RedisLease(empty_redis(request.param), SECONDS)
    yield made
    await made.close()


async def until_free(lease: Lease, address: str) -> Granted:
    async def granted() -> Granted | None:
        answer = await lease.acquire(address)
        return answer if isinstance(answer, Granted) else None

    return await until(granted, "the lease to end")


async def test_the_first_to_ask_has_it_and_the_next_is_told_who(lease):
    assert await lease.acquire("a:1") == Granted(1)
    assert await lease.acquire("b:2") == Held(1, "a:1")


async def test_it_ends_by_itself_and_the_next_term_is_higher(lease):
    await lease.acquire("a:1")
    begun = time.monotonic()
    assert await until_free(lease, "b:2") == Granted(2)
    assert time.monotonic() - begun > SECONDS / 2


async def test_renewed_in_time_it_stays(lease):
    await lease.acquire("a:1")
    for _ in range(8):
        await asyncio.sleep(SECONDS / 4)
        assert await lease.renew(1, "a:1")
        assert await lease.acquire("b:2") == Held(1, "a:1")


async def test_one_that_ran_out_is_taken_up_again_if_nobody_else_had_it(lease):
    await lease.acquire("a:1")
    await asyncio.sleep(2 * SECONDS)
    assert await lease.renew(1, "a:1")
    assert await lease.acquire("b:2") == Held(1, "a:1")


async def test_a_former_holder_can_neither_renew_nor_release(lease):
    await lease.acquire("a:1")
    await until_free(lease, "b:2")
    assert not await lease.renew(1, "a:1")
    await lease.release(1)
    assert await lease.acquire("c:3") == Held(2, "b:2")


async def test_released_it_is_free_at_once(lease):
    await lease.acquire("a:1")
    await lease.release(1)
    assert await lease.acquire("b:2") == Granted(2)


async def test_of_many_that_ask_at_once_one_has_it(lease):
    answers = await asyncio.gather(*(lease.acquire(f"host:{number}") for number in range(20)))
    assert sum(isinstance(answer, Granted) for answer in answers) == 1


@pytest.mark.parametrize("topology", ["server", *SENTINEL_AND_CLUSTER])
async def test_nothing_is_written_to_the_journal_under_an_older_term(empty_redis, topology):
    url = empty_redis(topology)
    lease = RedisLease(url, SECONDS)
    await lease.acquire("a:1")
    paused = RedisJournal(url, 1)
    kept = Record(b"k" * 12, 1, b"kept")
    await paused.record(kept)
    await until_free(lease, "b:2")
    writes = [
        paused.record(Record(b"l" * 12, 1, b"late")),
        paused.delete({b"p" * 12: np.ones(3, np.bool_)}),
        paused.ungate({b"p" * 12: {"a.io/g": np.ones(3, np.bool_)}}),
        paused.drop(kept.key, [b"p" * 12]),
        paused.remember_worker("w1"),
    ]
    for write in writes:
        with pytest.raises(Superseded):
            await write
    recovered = await RedisJournal(url, 2).recover()
    assert (recovered.records, recovered.deletions, recovered.ungated, recovered.workers) == ([kept], {}, {}, set())
    await paused.close()
    await lease.close()


async def test_with_redis_away_nobody_is_told_that_they_have_it(own_redis):
    lease = RedisLease(own_redis.url, SECONDS)
    own_redis.stop()
    with pytest.raises(LedgerUnavailable, match="cannot be asked"):
        await lease.acquire("a:1")
    with pytest.raises(LedgerUnavailable):
        await lease.renew(1, "a:1")
    await lease.close()


async def test_a_redis_that_lost_its_data_is_told_of_the_term_and_the_journal_is_written_again(redis_server):
    lease = RedisLease(redis_server.url, SECONDS)
    for address in ("a:1", "b:2"):
        await until_free(lease, address)
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    assert await lease.renew(2, "b:2")
    journal = RedisJournal(redis_server.url, 2)
    await journal.record(Record(b"k" * 12, 1, b"kept"))
    assert len((await journal.recover()).records) == 1
    await lease.release(2)
    assert await lease.acquire("c:3") == Granted(3)
    await journal.close()
    await lease.close()


async def test_a_standby_that_finds_the_lease_gone_with_redis_leaves_it_to_the_holder_for_a_while(redis_server):
    """Who holds the newest term is the only one that knows what Redis has lost; the dead are not waited for longer."""
    holder, standby = RedisLease(redis_server.url, SECONDS), RedisLease(redis_server.url, SECONDS)
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
        granted = await holder.acquire("a")
        assert await standby.acquire("b") == Held(granted.term, "a")
        client.flushall()
        assert await standby.acquire("b") == Held(granted.term, "a")
        assert await holder.renew(granted.term, "a")
        client.flushall()
        assert await standby.acquire("b") == Held(granted.term, "a")
    assert (await until_free(standby, "b")).term == granted.term + 1
    for lease in (holder, standby):
        await lease.close()
