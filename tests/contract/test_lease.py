"""What every lease promises, held against each implementation."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
import redis
from redis_topologies import SENTINEL_AND_CLUSTER, RunningRedis, servers
from waiting import until

from dispatcher.journal.fenced_redis import FORMAT, STATE, Superseded
from dispatcher.journal.redis_store import RedisJournal
from dispatcher.leader.lease import LEASE, Granted, Lease, LeaseHeld, MemoryLease, RedisLease
from dispatcher.ports import Record
from hoss.errors import ConfigError, LedgerUnavailable
from hossctl.local.redis_server import RedisServer

SECONDS = 600.0  # no machine is held up for so long: a lease ends where time passes for it, see `Passing`
SHORT_SECONDS = (
    2.0  # of those that end by the clock; a request is given half of it, and a busy machine takes its time
)
Passing = Callable[[float], None]


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


def redis_passing(servers: Sequence[RedisServer]) -> Passing:
    """Redis has no clock that a test could set: what is left of the lease is made shorter, on the one of
    these that has it."""

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
    request: pytest.FixtureRequest, empty_redis: Callable[..., str], running_redis: RunningRedis
) -> AsyncIterator[tuple[Lease, Passing]]:
    if request.param == "memory":
        clock = Clock()
        made: tuple[Lease, Passing] = MemoryLease(SECONDS, lambda: clock.now), clock.pass_time
    else:
        url = empty_redis(request.param, "hoss-dispatcher")
        made = RedisLease(url, SECONDS), redis_passing(running_redis[request.param].masters)
    yield made
    await made[0].close()


@pytest.fixture
def lease(lease_and_time: tuple[Lease, Passing]) -> Lease:
    return lease_and_time[0]


@pytest.fixture
def pass_time(lease_and_time: tuple[Lease, Passing]) -> Passing:
    return lease_and_time[1]


def granted_term(answer):
    """The term of a lease that was granted. The first of a Redis may be any number: another life of it may
    have had lower ones."""
    assert isinstance(answer, Granted)
    return answer.term


async def test_the_first_to_ask_has_it_and_the_next_is_told_who(lease):
    term = granted_term(await lease.acquire("a:1"))
    assert await lease.acquire("b:2") == LeaseHeld(term, "a:1")


async def test_it_ends_when_its_time_is_over_and_the_next_term_is_higher(lease, pass_time):
    term = granted_term(await lease.acquire("a:1"))
    pass_time(SECONDS - 10)
    assert await lease.acquire("b:2") == LeaseHeld(term, "a:1")
    pass_time(20)
    assert await lease.acquire("b:2") == Granted(term + 1)


async def test_redis_ends_it_by_its_own_clock(redis_server):
    lease = RedisLease(redis_server.url, SHORT_SECONDS)
    asked, term = time.monotonic(), granted_term(await lease.acquire("a:1"))

    async def ended() -> bool:
        return await lease.acquire("b:2") == Granted(term + 1)

    await until(ended, "the lease to end")
    assert time.monotonic() - asked > SHORT_SECONDS / 2
    await lease.close()


async def test_renewed_in_time_it_stays(lease, pass_time):
    term = granted_term(await lease.acquire("a:1"))
    for _ in range(8):
        pass_time(SECONDS / 2)
        assert await lease.renew(term, "a:1")
        assert await lease.acquire("b:2") == LeaseHeld(term, "a:1")


async def test_one_that_ran_out_is_taken_up_again_if_nobody_else_had_it(lease, pass_time):
    term = granted_term(await lease.acquire("a:1"))
    pass_time(2 * SECONDS)
    assert await lease.renew(term, "a:1")
    assert await lease.acquire("b:2") == LeaseHeld(term, "a:1")


async def test_a_former_holder_can_neither_renew_nor_release(lease, pass_time):
    term = granted_term(await lease.acquire("a:1"))
    pass_time(2 * SECONDS)
    assert await lease.acquire("b:2") == Granted(term + 1)
    assert not await lease.renew(term, "a:1")
    await lease.release(term)
    assert await lease.acquire("c:3") == LeaseHeld(term + 1, "b:2")


async def test_released_it_is_free_at_once(lease):
    term = granted_term(await lease.acquire("a:1"))
    await lease.release(term)
    assert await lease.acquire("b:2") == Granted(term + 1)


async def test_of_many_that_ask_at_once_one_has_it(lease):
    answers = await asyncio.gather(*(lease.acquire(f"host:{number}") for number in range(20)))
    assert sum(isinstance(answer, Granted) for answer in answers) == 1


@pytest.mark.parametrize("topology", ["server", *SENTINEL_AND_CLUSTER])
async def test_nothing_is_written_to_the_journal_under_an_older_term(empty_redis, running_redis, topology):
    url = empty_redis(topology, "hoss-dispatcher")
    lease = RedisLease(url, SECONDS)
    term = granted_term(await lease.acquire("a:1"))
    paused = RedisJournal(url, term)
    kept = Record(b"k" * 12, 1, b"kept")
    order = await paused.record(kept)
    redis_passing(running_redis[topology].masters)(2 * SECONDS)
    assert await lease.acquire("b:2") == Granted(term + 1)
    writes = [
        paused.record(Record(b"l" * 12, 1, b"late")),
        paused.delete({b"p" * 12: np.ones(3, np.bool_)}),
        paused.ungate({b"p" * 12: {"a.io/g": np.ones(3, np.bool_)}}),
        paused.drop(kept.key, order, [b"p" * 12]),
        paused.add_worker("w1"),
    ]
    for write in writes:
        with pytest.raises(Superseded):
            await write
    successor = RedisJournal(url, term + 1)
    recovered = await successor.recover()
    assert (recovered.records, recovered.deletions, recovered.ungated, recovered.workers) == (
        [kept],
        {},
        {},
        set(),
    )
    for closed in (paused, successor, lease):
        await closed.close()


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
    term = granted_term(await lease.acquire("a:1"))
    await lease.release(term)
    assert await lease.acquire("b:2") == Granted(term + 1)
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    assert await lease.renew(term + 1, "b:2")
    journal = RedisJournal(redis_server.url, term + 1)
    await journal.record(Record(b"k" * 12, 1, b"kept"))
    assert len((await journal.recover()).records) == 1
    await lease.release(term + 1)
    assert await lease.acquire("c:3") == Granted(term + 2)
    await journal.close()
    await lease.close()


async def test_a_standby_that_finds_the_lease_gone_with_redis_leaves_it_to_the_holder_for_a_while(
    redis_server,
):
    """Who holds the newest term is the only one that knows what Redis has lost; the dead are not waited for
    longer."""
    holder, standby = RedisLease(redis_server.url, SECONDS), RedisLease(redis_server.url, SECONDS)
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
        granted = await holder.acquire("a")
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        client.flushall()
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        assert await holder.renew(granted.term, "a")
        client.flushall()
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
    redis_passing([redis_server])(2 * SECONDS)
    taken = await standby.acquire("b")
    assert isinstance(taken, Granted)
    assert taken.term > granted.term
    for lease in (holder, standby):
        await lease.close()


def without_lease(client: redis.Redis) -> dict[bytes, Any]:
    """What a file has of the journal. Its lease has run out when the file is read."""
    return {key: client.dump(key) for key in client.keys("*journal*") if key != LEASE.encode()}


def roll_back(client: redis.Redis, to: dict[bytes, Any]) -> None:
    client.flushall()
    for key, value in to.items():
        client.restore(key, 0, value)


async def test_after_a_restart_of_redis_the_holder_may_renew_before_a_standby_takes_over(own_redis, tmp_path):
    """The lease ran out while Redis was away, and the standby is the first to ask."""
    holder, standby = RedisLease(own_redis.url, SECONDS), RedisLease(own_redis.url, SECONDS)
    granted = await holder.acquire("a")
    assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
    with redis.Redis(port=own_redis.port) as client:
        client.delete(LEASE)
    own_redis.stop()
    restarted = RedisServer.start(tmp_path / "redis", port=own_redis.port, append_only=True)
    try:
        assert await until(lambda: standby.acquire("b")) == LeaseHeld(granted.term, "a")
        assert await until(lambda: holder.renew(granted.term, "a"))
        await holder.release(granted.term)
        assert await standby.acquire("b") == Granted(granted.term + 1), "the holder has spoken on this server"
    finally:
        for lease in (holder, standby):
            await lease.close()
        restarted.kill()


async def test_after_a_restart_of_redis_a_dispatcher_that_starts_waits_for_the_length_of_one_lease(
    own_redis, tmp_path
):
    """Whoever knows the lost terms may live, so that the next term leaves many out."""
    former = RedisLease(own_redis.url, SECONDS)
    term = granted_term(await former.acquire("a"))
    with redis.Redis(port=own_redis.port) as client:
        client.delete(LEASE)
    own_redis.stop()
    restarted = RedisServer.start(tmp_path / "redis", port=own_redis.port, append_only=True)
    new, newer = RedisLease(own_redis.url, SECONDS), RedisLease(own_redis.url, SECONDS)
    try:
        assert await until(lambda: new.acquire("b")) == LeaseHeld(term, "")
        redis_passing([restarted])(SECONDS / 2)
        assert await newer.acquire("c") == LeaseHeld(term, "")
        redis_passing([restarted])(SECONDS / 2 + 1)
        granted = await newer.acquire("c")
        assert isinstance(granted, Granted)
        assert granted.term > term + 1000
        assert not await former.renew(term, "a"), "who speaks late has lost"
    finally:
        for lease in (former, new, newer):
            await lease.close()
        restarted.kill()


async def test_a_redis_that_was_emptied_grants_no_term_that_it_granted_before(own_redis):
    """Whoever knows the lost terms has ended, and what it told of itself is remembered by others. Redis runs
    on, or another one runs in its place."""
    terms = []
    for second in (1_000_000_000, 1_000_000_001):
        lease = RedisLease(own_redis.url, SECONDS, unix=lambda second=second: second)
        terms.append(granted_term(await lease.acquire("a")))
        await lease.close()
        with redis.Redis(port=own_redis.port) as client:
            client.flushall()
    assert len(set(terms)) == 2
    assert min(terms) >= 1000


async def test_a_standby_that_saw_a_newer_journal_leaves_it_to_the_holder_and_calls_it_incomplete(
    redis_server,
):
    """The journal alone went back: the term is the same, and Redis was not restarted."""
    clock = Clock()
    holder = RedisLease(redis_server.url, SECONDS)
    standby = RedisLease(redis_server.url, SECONDS, clock=lambda: clock.now)
    granted = await holder.acquire("a")
    journal = RedisJournal(redis_server.url, granted.term)
    await journal.recover()
    await journal.record(Record(b"k" * 12, 1, b"kept"))
    with redis.Redis(port=redis_server.port) as client:
        before = without_lease(client)
        await journal.record(Record(b"l" * 12, 1, b"lost"))
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        roll_back(client, before)
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        assert await holder.renew(granted.term, "a")
        assert await journal.check()
        successor = RedisJournal(redis_server.url, granted.term)
        recovered = await successor.recover()
        assert (len(recovered.records), recovered.gap) == (2, "")

        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        roll_back(client, before)
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        redis_passing([redis_server])(2 * SECONDS)  # and the holder is dead
        clock.pass_time(2 * SECONDS)
        next_term = await standby.acquire("b")
    assert isinstance(next_term, Granted)
    assert next_term.term > granted.term + 1
    last = RedisJournal(redis_server.url, next_term.term)
    recovered = await last.recover()
    assert [record.message for record in recovered.records] == [b"kept"]
    assert "went back" in recovered.gap
    for closed in (holder, standby, journal, successor, last):
        await closed.close()


@pytest.fixture
async def watched(redis_server: RedisServer) -> AsyncIterator[tuple[Clock, RedisLease, RedisLease, Granted]]:
    """The clock of a standby, the holder "a" and the standby "b", which has seen what the holder was
    granted."""
    clock = Clock()
    holder = RedisLease(redis_server.url, SECONDS)
    standby = RedisLease(redis_server.url, SECONDS, clock=lambda: clock.now)
    granted = await holder.acquire("a")
    assert isinstance(granted, Granted)
    assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
    yield clock, holder, standby, granted
    for lease in (holder, standby):
        await lease.close()


async def test_a_clock_of_redis_that_jumps_ends_no_lease_that_a_standby_saw_renewed(redis_server, watched):
    clock, holder, standby, granted = watched
    held = LeaseHeld(granted.term, "a")
    clock.pass_time(1)
    assert await holder.renew(granted.term, "a")
    assert await standby.acquire("b") == held
    redis_passing([redis_server])(2 * SECONDS)
    assert await standby.acquire("b") == held
    assert await holder.renew(granted.term, "a"), "the holder lives"
    clock.pass_time(SECONDS - 2)
    assert await standby.acquire("b") == held
    redis_passing([redis_server])(2 * SECONDS)
    clock.pass_time(SECONDS + 1)  # and the holder is silent
    assert await standby.acquire("b") == Granted(granted.term + 1)


async def test_a_clock_of_redis_that_goes_back_keeps_no_lease_that_is_not_renewed(redis_server, watched):
    clock, holder, standby, granted = watched
    held = LeaseHeld(granted.term, "a")
    with redis.Redis(port=redis_server.port) as client:
        client.pexpire(LEASE, int(20 * 1000 * SECONDS))
        clock.pass_time(1.3 * SECONDS)
        assert await holder.renew(granted.term, "a"), "the holder lives"
        assert await standby.acquire("b") == held
        client.pexpire(LEASE, int(20 * 1000 * SECONDS))
        clock.pass_time(1.2 * SECONDS)
        assert await standby.acquire("b") == held
        clock.pass_time(0.1 * SECONDS)  # and the holder is silent
        client.hset(STATE, "counting", str(granted.term))
        assert await standby.acquire("b") == held, (
            "a holder that does not tell the length of its lease need not count its renewals"
        )
        client.hset(STATE, "counting", f"{granted.term} {1000 * SECONDS:.0f}")
    assert await standby.acquire("b") == Granted(granted.term + 1)
    assert not await holder.renew(granted.term, "a")


@pytest.mark.parametrize("first", ["standby", "holder"])
async def test_a_number_of_renewals_that_another_run_of_redis_counts_again_ends_no_lease(
    own_redis, tmp_path, first
):
    """Redis was away for longer than a lease and came back without the last renewal. The next one to count
    reaches the number that the standby saw."""
    clock = Clock()
    holder = RedisLease(own_redis.url, SECONDS)
    standby = RedisLease(own_redis.url, SECONDS, clock=lambda: clock.now)
    granted = await holder.acquire("a")
    held = LeaseHeld(granted.term, "a")
    with redis.Redis(port=own_redis.port) as client:
        before = without_lease(client)
    assert await holder.renew(granted.term, "a")
    assert await standby.acquire("b") == held
    own_redis.stop()
    restarted = RedisServer.start(tmp_path / "redis", port=own_redis.port)
    try:
        with redis.Redis(port=restarted.port) as client:
            roll_back(client, before)
        clock.pass_time(2 * SECONDS)
        if first == "holder":
            assert await until(lambda: holder.renew(granted.term, "a"))
        assert await until(lambda: standby.acquire("b")) == held
        assert await until(lambda: holder.renew(granted.term, "a")), "the holder lives"
    finally:
        for lease in (holder, standby):
            await lease.close()
        restarted.kill()


async def test_a_holder_with_a_longer_lease_is_waited_for_as_long_as_its_lease_lasts(redis_server):
    clock = Clock()
    holder = RedisLease(redis_server.url, 10 * SECONDS)
    standby = RedisLease(redis_server.url, SECONDS, clock=lambda: clock.now)
    granted = await holder.acquire("a")
    held = LeaseHeld(granted.term, "a")
    assert await standby.acquire("b") == held
    clock.pass_time(12 * SECONDS)
    assert await standby.acquire("b") == held
    clock.pass_time(SECONDS)
    assert await standby.acquire("b") == Granted(granted.term + 1)
    for lease in (holder, standby):
        await lease.close()


async def test_a_lease_that_was_seen_renewed_and_is_released_is_free_at_once(redis_server):
    holder, standby = RedisLease(redis_server.url, SECONDS), RedisLease(redis_server.url, SECONDS)
    granted = await holder.acquire("a")
    await standby.acquire("b")
    assert await holder.renew(granted.term, "a")
    assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
    await holder.release(granted.term)
    assert await standby.acquire("b") == Granted(granted.term + 1)
    for lease in (holder, standby):
        await lease.close()


async def test_a_lease_that_came_back_with_little_time_left_is_prolonged_once_for_its_holder(redis_server):
    holder, standby = RedisLease(redis_server.url, SECONDS), RedisLease(redis_server.url, SECONDS)
    granted = await holder.acquire("a")
    await standby.acquire("b")
    with redis.Redis(port=redis_server.port) as client:
        client.hset(STATE, "server", "the run before")
        client.pexpire(LEASE, 1000)
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        assert client.pttl(LEASE) > 1000 * SECONDS / 2
        client.pexpire(LEASE, 1000)
        assert await standby.acquire("b") == LeaseHeld(granted.term, "a")
        assert client.pttl(LEASE) <= 1000
    for lease in (holder, standby):
        await lease.close()


async def test_a_dispatcher_that_cannot_read_the_journal_does_not_take_the_lease(redis_server):
    lease = RedisLease(redis_server.url, SECONDS)
    with redis.Redis(port=redis_server.port) as client:
        client.hset(STATE, "format", FORMAT + 1)
        with pytest.raises(ConfigError, match=f"format {FORMAT + 1}"):
            await lease.acquire("a")
        assert not client.exists(LEASE)
    await lease.close()
