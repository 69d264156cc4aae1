"""What every lease promises, held against each implementation."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest
import redis
from redis_topologies import SENTINEL_AND_CLUSTER, RunningRedis, servers
from waiting import until

from dispatcher.fenced_redis import Superseded
from dispatcher.journal import Record
from dispatcher.lease import LEASE, Granted, Held, Lease, MemoryLease, RedisLease
from dispatcher.redis_journal import RedisJournal
from hoss.errors import LedgerUnavailable
from hossctl.redis_server import RedisServer

SECONDS = 600.0  # no machine is held up for so long: a lease ends where time passes for it, see `Passing`
SHORT_SECONDS = 2.0  # of those that end by the clock; a request is given half of it, and a busy machine takes its time
Passing = Callable[[float], None]


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


def redis_passing(servers: Sequence[RedisServer]) -> Passing:
    """Redis has no clock that a test could set: what is left of the lease is made shorter, on the one of these that has it."""

    def pass_time(seconds: float) -> None:
        for server in servers:
            with (
                redis.Redis(port=server.port) as client,
                contextlib.suppress(redis.ResponseError),
            ):  # another has the key
                if (left := client.pttl(LEASE)) > 0:
                    client.pexpire(LEASE, max(0, left - int(1000 * seconds)))
                    return
        raise AssertionError("there is no lease for which time could pass")

    return pass_time


@pytest.fixture(params=["memory", *servers()])
async def lease_and_time(
    request: pytest.FixtureRequest, empty_redis: Callable[[str], str], running_redis: RunningRedis
) -> AsyncIterator[tuple[Lease, Passing]]:
    if request.param == "memory":
        clock = Clock()
        made: tuple[Lease, Passing] = MemoryLease(SECONDS, lambda: clock.now), clock.pass_time
    else:
        url = empty_redis(request.param)
        made = RedisLease(url, SECONDS), redis_passing(running_redis[request.param].masters)
    yield made
    await made[0].close()


@pytest.fixture
def lease(lease_and_time: tuple[Lease, Passing]) -> Lease:
    return lease_and_time[0]


@pytest.fixture
def pass_time(lease_and_time: tuple[Lease, Passing]) -> Passing:
    return lease_and_time[1]


async def test_the_first_to_ask_has_it_and_the_next_is_told_who(lease):
    assert await lease.acquire("a:1") == Granted(1)
    assert await lease.acquire("b:2") == Held(1, "a:1")


async def test_it_ends_when_its_time_is_over_and_the_next_term_is_higher(lease, pass_time):
    await lease.acquire("a:1")
    pass_time(SECONDS - 10)
    assert await lease.acquire("b:2") == Held(1, "a:1")
    pass_time(20)
    assert await lease.acquire("b:2") == Granted(2)


async def test_redis_ends_it_by_its_own_clock(redis_server):
    lease = RedisLease(redis_server.url, SHORT_SECONDS)
    granted, asked = await lease.acquire("a:1"), time.monotonic()
    assert granted == Granted(1)

    async def ended() -> bool:
        nonlocal granted
        granted = await lease.acquire("b:2")
        return granted == Granted(2)

    await until(ended, "the lease to end")
    assert time.monotonic() - asked > SHORT_SECONDS / 2
    await lease.close()


async def test_renewed_in_time_it_stays(lease, pass_time):
    await lease.acquire("a:1")
    for _ in range(8):
        pass_time(SECONDS / 2)
        assert await lease.renew(1, "a:1")
        assert await lease.acquire("b:2") == Held(1, "a:1")


async def test_one_that_ran_out_is_taken_up_again_if_nobody_else_had_it(lease, pass_time):
    await lease.acquire("a:1")
    pass_time(2 * SECONDS)
    assert await lease.renew(1, "a:1")
    assert await lease.acquire("b:2") == Held(1, "a:1")


async def test_a_former_holder_can_neither_renew_nor_release(lease, pass_time):
    await lease.acquire("a:1")
    pass_time(2 * SECONDS)
    assert await lease.acquire("b:2") == Granted(2)
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
async def test_nothing_is_written_to_the_journal_under_an_older_term(empty_redis, running_redis, topology):
    url = empty_redis(topology)
    lease = RedisLease(url, SECONDS)
    await lease.acquire("a:1")
    paused = RedisJournal(url, 1)
    kept = Record(b"k" * 12, 1, b"kept")
    await paused.record(kept)
    redis_passing(running_redis[topology].masters)(2 * SECONDS)
    assert await lease.acquire("b:2") == Granted(2)
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
    await lease.acquire("a:1")
    await lease.release(1)
    assert await lease.acquire("b:2") == Granted(2)
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
    redis_passing([redis_server])(2 * SECONDS)
    assert await standby.acquire("b") == Granted(granted.term + 1)
    for lease in (holder, standby):
        await lease.close()
