"""Redis in a simulation: HOSS's own code over it, virtual time, faults, and the same every time."""

import asyncio
import gc
import random
import sys
import warnings
from collections.abc import Awaitable

import pytest
from redis_topologies import oldest_redis

from dispatcher.journal.redis_store import SUBMISSIONS, RedisJournal
from dispatcher.leader.lease import LEASE, Granted, LeaseHeld, RedisLease
from dispatcher.ports import Record
from hoss.errors import LedgerUnavailable
from hoss.redis.access import NoScriptError, RedisError, ResponseError, reach
from resolver.core.values import Verdict
from resolver.ledger.port import LedgerLostError
from resolver.ledger.store import RedisLedger
from tools.simulation.loop import SimulationLoop
from tools.simulation.redis import SimulatedRedis
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.redis_commands import UnsupportedCommand

_URL = "redis://anywhere/0"
_START = 1_700_000_000.0


class World:
    """A loop, Redis and what its observers saw."""

    def __init__(self, server, seed=1):
        self.seed = seed
        self.loop = SimulationLoop(random.Random(seed))
        self.seen = []
        self.redis = SimulatedRedis(
            server,
            self.loop,
            random.Random(seed + 1000),
            lambda: _START + self.loop.time(),
            observe=lambda seen: self.seen.append((round(self.loop.time(), 6), seen)),
        )

    def run(self, awaitable: Awaitable, process=None):
        async def wait():
            return await awaitable

        process = process or self.loop.process("test")
        return self.loop.run_until_complete(self.loop.spawn(process, wait()))

    def open_redis(self, process="p"):
        return self.redis.opener(process)

    def ledger(self, process="p", **options):
        return RedisLedger(_URL, open_redis=self.open_redis(process), rng=random.Random(self.seed), **options)

    def client(self, process="p", timeout_seconds=2.0, connections=None):
        return self.run(
            self.open_redis(process)(_URL, timeout_seconds=timeout_seconds, connections=connections).at("key")
        )


@pytest.fixture
def world(server):
    made = World(server)
    yield made
    made.loop.close()


@pytest.fixture
def two_nodes(make_node):
    return [make_node("n1"), make_node("n2")]


def _outcome(awaitable):
    """The result of a command, or its error."""

    async def wait():
        try:
            return await awaitable
        except (RedisError, OSError) as exc:
            return exc

    return wait()


# -- HOSS's code


def test_the_ledger_commits_and_its_feed_tells_who_waits_at_that_moment(world, two_nodes, make_proposal):
    ledger, other = world.ledger("a"), world.ledger("b")

    async def story():
        await ledger.open(1)
        await other.open(1)
        await ledger.upsert_nodes(0, two_nodes)
        epoch = await ledger.grant("w1")
        seq = await ledger.seq(0)
        waiting = asyncio.create_task(other.feed(0, seq, 60_000))
        await asyncio.sleep(30)
        assert not waiting.done()
        (decision,) = await ledger.commit(0, [make_proposal([1, 2], [[0], [1]], epoch=epoch)])
        committed_at = world.loop.time()
        (entry,) = await waiting
        return decision, entry, world.loop.time() - committed_at

    # A real server would be asked for at most the client's timeout; the tests' is patient.
    decision, entry, seconds = world.run(story())
    assert decision.verdicts.tolist() == [Verdict.COMMITTED] * 2
    assert entry.seq == decision.seq
    assert seconds < 0.01


def test_a_client_that_is_closed_when_no_loop_runs_any_more_leaves_nothing_behind(world):
    """So it is when what a killed process left is freed: it cleans up, and has nobody who would run a
    task."""
    client = world.client()
    assert world.run(client.ping())
    closing = client.aclose()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error"
        )  # of a coroutine that was never awaited: raised where nobody sees it ...
        unseen, hook = [], sys.unraisablehook
        sys.unraisablehook = unseen.append  # ... but here
        try:
            with pytest.raises(StopIteration):
                closing.send(None)
            gc.collect()
        finally:
            sys.unraisablehook = hook
    assert unseen == []
    assert not client.connection_pool._available_connections[0].is_connected


def test_a_feed_without_news_is_empty_after_its_time(world, two_nodes):
    ledger = world.ledger()

    async def story():
        await ledger.open(1)
        began = world.loop.time()
        found = await ledger.feed(0, 0, 5000)
        return found, world.loop.time() - began

    found, seconds = world.run(story())
    assert found == []
    assert 5.0 <= seconds < 5.01


def test_leases_of_commits_end_by_virtual_time(world, two_nodes, make_proposal):
    ledger = world.ledger(lease_ms=30_000)

    async def story():
        await ledger.open(1)
        await ledger.upsert_nodes(0, two_nodes)
        epoch = await ledger.grant("w1")
        await ledger.commit(0, [make_proposal([1], [[0]], epoch=epoch)])
        await asyncio.sleep(29.9)
        early = await ledger.reap(0)
        await asyncio.sleep(0.2)
        return early, await ledger.reap(0)

    assert world.run(story()) == (0, 1)


def test_the_dispatchers_lease_expires_by_virtual_time(world):
    clock = lambda: asyncio.get_running_loop().time()  # noqa: E731
    first, second = (RedisLease(_URL, 10.0, open_redis=world.open_redis(name), clock=clock) for name in "ab")

    async def story():
        granted = await first.acquire("a:1")
        assert isinstance(granted, Granted)
        term = granted.term
        await asyncio.sleep(9.9)
        assert await second.acquire("b:1") == LeaseHeld(term, "a:1")
        assert await first.renew(term, "a:1")
        await asyncio.sleep(9.9)
        assert await second.acquire("b:1") == LeaseHeld(term, "a:1")
        await asyncio.sleep(0.2)
        assert await second.acquire("b:1") == Granted(term + 1)
        assert not await first.renew(term, "a:1")
        await second.release(term + 1)
        return await first.acquire("a:1") == Granted(term + 2)

    assert world.run(story())


def test_a_journal_is_recovered_by_another_process(world):
    records = [Record(b"%d" % i, 1000 + i, bytes(2000)) for i in range(40)]

    async def story():
        lease = RedisLease(_URL, 10.0, open_redis=world.open_redis("a"))
        granted = await lease.acquire("a:1")
        assert isinstance(granted, Granted)
        journal = RedisJournal(_URL, granted.term, open_redis=world.open_redis("a"))
        orders = await asyncio.gather(*map(journal.record, records))
        await journal.add_worker("w1")
        await journal.drop(records[7].key, orders[7], [])
        return await RedisJournal(_URL, granted.term, open_redis=world.open_redis("b")).recover()

    recovered = world.run(story())
    found = sorted(recovered.records, key=lambda record: record.submitted_ms)
    assert found == [record for record in records if record is not records[7]]
    assert recovered.workers == {"w1"}


# -- the same every time


def _busy(world, two_nodes, make_proposal):
    """A minute with faults. Returns everything that could be seen of it."""
    outcomes = []
    ledgers = [world.ledger(name) for name in "abc"]

    async def work(number, ledger):
        rng = random.Random(number)
        opened = False
        for step in range(30):
            try:
                if not opened:
                    await ledger.open(2)
                    await ledger.upsert_nodes(0, two_nodes)
                    opened = True
                pods = [1000 * number + 10 * step + i for i in range(3)]
                epoch = await ledger.grant(f"w{number}")
                decisions = await ledger.commit(
                    0, [make_proposal(pods, [[0], [0], [0]], worker=f"w{number}", epoch=epoch)]
                )
                await ledger.release(0, make_proposal(pods[:1], [[0]]).uids)
                feed = await ledger.feed(0, decisions[0].seq - 1, 100)
                outcomes.append((number, step, decisions[0].seq, [entry.seq for entry in feed or ()]))
                await ledger.snapshot(0, groups=True)
                outcomes.extend([part.uids.tobytes() async for part in ledger.reservations(0)])
            except LedgerUnavailable as exc:
                outcomes.append((number, step, str(exc)))
            await asyncio.sleep(rng.random())

    async def faults():
        for name in "abc":
            link = world.redis.link(name)
            link.lost_requests, link.lost_replies, link.broken_pipelines = 0.02, 0.02, 0.1
        await asyncio.sleep(5)
        position = world.redis.position
        world.redis.cut("silent", "a")
        await asyncio.sleep(1)
        world.redis.heal("a")
        world.redis.restart()
        await asyncio.sleep(3)
        world.redis.roll_back(position)
        world.redis.restart()
        world.redis.step_clock(-3.0)

    async def story():
        working = [
            world.loop.spawn(world.loop.process(name), work(number, ledger))
            for number, (name, ledger) in enumerate(zip("abc", ledgers, strict=True))
        ]
        await asyncio.gather(*working, faults())

    world.run(story())
    world.loop.close()
    return "\n".join(map(repr, [*world.seen, *outcomes, world.loop.time(), world.loop.steps]))


def test_equal_seeds_give_equal_logs_byte_for_byte(server, two_nodes, make_proposal):
    first = _busy(World(server, 5), two_nodes, make_proposal)
    other = _busy(World(server, 6), two_nodes, make_proposal)
    assert first.count("\n") > 300
    assert _busy(World(server, 5), two_nodes, make_proposal) == first
    assert other != first


def _orders(world):
    """Orders that Redis leaves open, of hashes so large that they are hash tables."""
    client = world.client()

    async def story():
        await client.hset("h", mapping=dict.fromkeys((f"f{i}" for i in range(700)), 1))
        return [
            list(await client.hgetall("h")),
            await client.hkeys("h"),
            [field async for field, _ in client.hscan_iter("h", count=100)],
            await client.eval("return redis.call('HKEYS', KEYS[1])", 1, "h"),
            await client.eval("return redis.call('HGETALL', KEYS[1])", 1, "h"),
        ]

    return world.run(story())


@pytest.mark.parametrize(
    "binary", dict.fromkeys((None, oldest_redis())), ids=lambda binary: "oldest" if binary else "same"
)
def test_another_server_gives_the_same_log(server, binary, two_nodes, make_proposal):
    another = DrivenRedis.start(binary)
    try:
        logs = [_busy(World(of, 5), two_nodes, make_proposal) for of in (server, another)]
        orders = [_orders(World(of, 5)) for of in (server, another)]
    finally:
        another.close()
    assert logs[0] == logs[1]
    assert orders[0] == orders[1]
    assert orders[0][0] != _orders(World(server, 6))[0]


def test_replies_are_those_of_redis(world, redis_server):
    """But for the order where Redis has none."""
    fields = {f"f{i}": f"v{i}" * 20 for i in range(700)}
    commands = [
        *(("HSET", "h", *item) for item in fields.items()),
        *(("HGETALL", "h"), ("HKEYS", "h"), ("HMGET", "h", "f1", "none"), ("HLEN", "h")),
        *(("SADD", "s", "a", "b", "c"), ("SMEMBERS", "s"), ("SMEMBERS", "none"), ("HGETALL", "none")),
        *(("SET", "k", "v", "PX", "60000"), ("GET", "k"), ("SET", "k", "w", "NX"), ("DEL", "k", "none")),
        *(("SET", "k", "v"), ("INCR", "k"), ("HSET", "k", "a", "b"), ("EXISTS", "k", "h")),
        *(("XADD", "x", "5-0", "a", "b"), ("XADD", "x", "5-0", "a", "b"), ("XLEN", "x")),
        *(("XREAD", "COUNT", 2, "STREAMS", "x", "0-0"), ("XREAD", "BLOCK", 5, "STREAMS", "x", "5-0")),
        *(("ZADD", "z", 1, "a"), ("ZRANGE", "z", 0, -1), ("SCRIPT LOAD", "return 1"), ("PING",)),
        *(
            ("EVALSHA", "f" * 40, 0),
            ("EVAL", "return {1, false, 'a', {ok = 'fine'}}", 0),
            ("EVAL", "return nil", 0),
        ),
        ("EVAL", "return redis.call('SET', KEYS[1], 'v', 'PX', 5000)", 1, "k"),
        ("EVAL", "return {#ARGV, ARGV[1], #redis.call('TIME')}", 1, "k", "a"),
        ("EVAL", "return redis.pcall('HKEYS', KEYS[1])", 1, "k"),
        ("EVAL", "return #redis.call('HGETALL', KEYS[1])", 1, "h"),
        ("EVAL", "return redis.error_reply('MINE of ours')", 0),
    ]

    def comparable(reply):
        if isinstance(reply, dict):
            return sorted(reply.items())
        if isinstance(reply, NoScriptError):
            return type(reply)
        if isinstance(reply, Exception):
            return type(reply), str(reply).split(" script: ")[0]
        return (
            sorted(reply) if isinstance(reply, list) and all(isinstance(w, bytes) for w in reply) else reply
        )

    async def replies(client):
        found = [await _outcome(client.execute_command(*command)) for command in commands]
        scanned = [item async for item in client.hscan_iter("h", count=50)]
        async with client.pipeline(transaction=True) as transaction:
            transaction.hgetall("h").time().smembers("s").hset("k", "a", "b")
            *kept, wrong_type = await transaction.execute(raise_on_error=False)
        kept[1] = len(kept[1])
        return [*map(comparable, found), sorted(set(scanned)), *map(comparable, [*kept, wrong_type])]

    async def really():
        access = reach(redis_server.url, timeout_seconds=60.0)
        try:
            return await replies(await access.at("k"))
        finally:
            await access.close()

    assert world.run(replies(world.client())) == asyncio.run(really())


def test_what_depends_on_the_machine_is_refused(world):
    client = world.client()
    for command in (
        ("SPOP", "s"),
        ("EXPIRE", "k", 5),
        ("EVAL", "return redis.call('PEXPIRE', KEYS[1], 5)", 1, "k"),
        ("EVAL", "return redis.call('time')", 0),
        ("XREAD", "STREAMS", "x", "$"),
        ("CONFIG SET", "hz", 10),
    ):
        with pytest.raises(UnsupportedCommand):
            world.run(client.execute_command(*command))


def test_a_scan_finds_what_is_there_throughout(world):
    client = world.client()
    kept = {b"kept%d" % i for i in range(60)}

    async def story():
        await client.hset("h", mapping=dict.fromkeys((*kept, *(f"gone{i}" for i in range(60))), 1))
        found, pages, cursor = [], 0, 0
        while cursor or not pages:
            cursor, page = await client.hscan("h", cursor, count=10)
            found += page
            await client.hdel("h", *(f"gone{pages * 5 + i}" for i in range(5)))
            pages += 1
        return found, pages

    found, pages = world.run(story())
    assert kept <= set(found)
    assert pages > 6


# -- the server's clock


def test_the_servers_clock_jumps_and_drifts(world):
    client = world.client()

    async def story():
        seen = []
        for change in (
            lambda: None,
            lambda: world.redis.step_clock(-50.0),
            lambda: world.redis.drift_clock(1.5),
        ):
            change()
            before = await client.time()
            await asyncio.sleep(100.0)
            seen.append((before[0] - _START, (await client.time())[0] - before[0]))
        return seen

    (first, passed), (jumped, later), (_, faster) = world.run(story())
    assert (first, passed, later) == (0, 100, 100)
    assert jumped == 50
    assert faster == 150


@pytest.mark.parametrize(
    ("text", "reply", "wrote"),
    [
        ("return redis.call('HGETALL', KEYS[1])", [], False),
        ("redis.call('TIME') return redis.call('INFO') ~= ''", 1, False),
        ("return", None, False),
        ("return redis.call('HSET', KEYS[1], 'f', 'v')", 1, True),
        ("return redis.call('DEL', KEYS[1])", 0, True),
        ("redis.call('SET', KEYS[1], 'v') return redis.call('GET', KEYS[1])", b"v", True),
        ("local found = {} redis.call('LPUSH', KEYS[1], 'v') return {found, false, 2}", [[], None, 2], True),
    ],
)
def test_who_looks_is_told_whether_a_script_wrote(world, text, reply, wrote):
    client = world.client()
    assert world.run(client.eval(text, 1, "key")) == reply
    assert [(told.command, told.key, told.wrote) for _, told in world.seen] == [("EVAL", "key", wrote)]


def test_a_deadline_that_a_script_is_given_as_an_argument_is_kept(world):
    client = world.client()

    async def story():
        await client.eval("return redis.call(unpack(ARGV))", 0, "SET", "k", "v", "px", 1000)
        await asyncio.sleep(0.9)
        early = await client.get("k")
        await asyncio.sleep(0.2)
        return early, await client.get("k")

    assert world.run(story()) == (b"v", None)


def test_a_jump_of_the_servers_clock_ends_the_dispatchers_lease(world):
    client = world.client()

    async def story():
        await client.set(LEASE, "1 a:1", px=10_000)
        await asyncio.sleep(5)
        assert await client.get(LEASE) == b"1 a:1"
        world.redis.step_clock(5.1)
        assert world.redis.read("GET", LEASE) is None
        await client.set(LEASE, "2 b:1", px=10_000)
        await client.set(LEASE, "2 b:1")
        await asyncio.sleep(11)
        return await client.get(LEASE)

    assert world.run(story()) == b"2 b:1"


# -- the network


def test_a_server_that_refuses_connections_is_an_error_at_once(world):
    client = world.client()
    world.run(client.incr("k"))
    world.redis.cut("refused", "p")
    began = world.loop.time()
    for _ in range(3):
        assert isinstance(world.run(_outcome(client.incr("k"))), RedisError)
    assert world.loop.time() - began < 0.1
    world.redis.heal("p")
    assert world.run(client.incr("k")) == 2
    world.redis.cut("refused")
    late = world.client("late")
    assert isinstance(world.run(_outcome(late.incr("k"))), RedisError)
    world.redis.heal()
    assert world.run(late.incr("k")) == 3


def test_a_silent_link_is_a_timeout_and_what_was_sent_may_arrive_when_it_heals(server):
    values = set()
    for seed in range(12):
        world = World(server, seed)
        client, other = world.client(), world.client("other")
        world.run(client.incr("k"))
        world.redis.cut("silent", "p")
        began = world.loop.time()
        assert "Timeout" in str(world.run(_outcome(client.incr("k"))))
        assert 2.0 <= world.loop.time() - began < 2.1
        assert "Timeout connecting" in str(world.run(_outcome(client.incr("k"))))
        assert world.run(other.get("k")) == b"1"
        world.redis.heal("p")
        world.loop.run_for(1)
        values.add(world.redis.read("GET", "k"))
        assert world.run(_outcome(client.incr("other"))) == 1
        world.loop.close()
    assert values == {b"1", b"2"}


def test_a_slow_server_carries_out_what_nobody_waits_for_any_more(world):
    client = world.client()
    world.run(client.ping())
    world.redis.link("p").delay_seconds = (1.5, 1.5)
    assert "Timeout" in str(world.run(_outcome(client.incr("k"))))
    world.loop.run_for(5)
    assert world.redis.read("GET", "k") == b"1"


def test_a_lost_reply_is_an_error_after_the_write_and_a_lost_request_one_before(world):
    client, link = world.client(), world.redis.link("p")
    world.run(client.ping())
    link.lost_replies = 1.0
    assert isinstance(world.run(_outcome(client.incr("k"))), RedisError)
    assert world.redis.read("GET", "k") == b"1"
    link.lost_replies, link.lost_requests = 0.0, 1.0
    assert isinstance(world.run(_outcome(client.incr("k"))), RedisError)
    assert world.redis.read("GET", "k") == b"1"
    link.lost_requests = 0.0
    assert world.run(client.incr("k")) == 2


async def _increments(client, *, transaction):
    pipeline = client.pipeline(transaction=transaction)
    for _ in range(10):
        pipeline.incr("k")
    return await pipeline.execute(raise_on_error=False)


def test_a_connection_breaks_in_the_middle_of_a_pipeline_and_never_of_a_transaction(world):
    client, link = world.client(), world.redis.link("p")
    link.broken_pipelines = 1.0
    counts = set()
    for _ in range(30):
        before = int(world.redis.read("GET", "k") or 0)
        assert isinstance(world.run(_outcome(_increments(client, transaction=False))), RedisError)
        counts.add(int(world.redis.read("GET", "k")) - before)
    assert min(counts) >= 1
    assert max(counts) <= 9
    assert len(counts) > 4
    found = world.run(_increments(client, transaction=True))
    assert found == list(range(found[0], found[0] + 10))


def test_others_are_served_in_the_middle_of_a_pipeline_and_never_of_a_transaction(world):
    client, other = world.client(), world.client("other")
    world.redis.link("p").parted_pipelines = 1.0

    def consecutive(*, transaction):
        async def story():
            return await asyncio.gather(
                _increments(client, transaction=transaction), *(other.incr("k") for _ in range(20))
            )

        found = world.run(story())[0]
        return found == list(range(found[0], found[0] + 10))

    assert not all(consecutive(transaction=False) for _ in range(10))
    assert all(consecutive(transaction=True) for _ in range(10))


def test_what_a_killed_process_sent_is_carried_out_or_not_and_tells_nobody(server):
    values, told = set(), []
    for seed in range(12):
        world = World(server, seed)
        client, process = world.client(), world.loop.process("p")

        async def write(client=client):
            told.append(await client.incr("k"))

        world.run(client.ping(), process)
        world.loop.spawn(process, write())
        world.loop.run_for(20e-6)
        world.loop.kill(process)
        world.loop.run_for(5)
        values.add(world.redis.read("GET", "k"))
        world.loop.close()
    assert values == {None, b"1"}
    assert not told


def test_replies_wait_for_a_frozen_process(world):
    client, process, told = world.client(), world.loop.process("p"), []

    async def write():
        told.append(await client.incr("k"))

    world.run(client.ping(), process)
    world.loop.spawn(process, write())
    world.loop.run_for(20e-6)
    world.loop.freeze(process)
    world.loop.run_for(1.5)
    assert world.redis.read("GET", "k") == b"1"
    assert not told
    world.loop.thaw(process)
    world.loop.run_for(0.1)
    assert told == [1]


# -- what Redis forgets


def test_a_restart_forgets_scripts_and_resets_connections(world):
    client = world.client()
    digest = world.run(client.script_load("return 7"))
    assert world.run(client.evalsha(digest, 0)) == 7
    world.redis.restart()
    found = world.run(_outcome(client.evalsha(digest, 0)))
    if not isinstance(found, NoScriptError):  # the reset was not there yet when the connection was taken
        found = world.run(_outcome(client.evalsha(digest, 0)))
    assert isinstance(found, NoScriptError)
    world.run(client.script_load("return 7"))
    assert world.run(client.evalsha(digest, 0)) == 7


def test_scripts_and_commands_see_that_the_server_was_restarted(world):
    client = world.client()

    async def runs() -> set[str]:
        told = await client.eval("return redis.call('INFO', 'server')", 0)
        return {(await client.info("server"))["run_id"], told.decode().removeprefix("run_id:")}

    (before,) = world.run(runs())
    assert world.run(runs()) == {before}
    world.redis.restart()
    found = world.run(_outcome(runs()))
    if isinstance(found, Exception):  # the connection was reset
        found = world.run(runs())
    assert len(found) == 1
    assert found != {before}


def test_an_emptied_redis_is_noticed_by_the_ledger(world, two_nodes):
    ledger = world.ledger()

    async def story():
        await ledger.open(2)
        await ledger.upsert_nodes(0, two_nodes)
        world.redis.empty()
        with pytest.raises(LedgerLostError, match="empty"):
            await ledger.snapshot(0)

    world.run(story())


def test_a_ledger_goes_back_to_any_earlier_write(world, two_nodes, make_proposal):
    ledger = world.ledger()

    async def story():
        await ledger.open(1)
        await ledger.upsert_nodes(0, two_nodes)
        epoch = await ledger.grant("w1")
        states = []
        for pod in range(5):
            states.append((world.redis.position, await ledger.state(0), await ledger.feed(0, 1, 1)))
            await ledger.commit(0, [make_proposal([pod], [[pod % 2]], epoch=epoch)])
        for at in (3, 1, 4, 0):
            position, state, entries = states[at]
            world.redis.roll_back(position)
            fresh = world.ledger("fresh")
            await fresh.open(1)
            assert repr(await fresh.state(0)) == repr(state)
            assert repr(await fresh.feed(0, 1, 1)) == repr(entries)
            await fresh.grant("w2")  # others write on
        with pytest.raises(LedgerLostError, match="lost acknowledged changes"):
            await ledger.snapshot(0)

    world.run(story())


def test_some_keys_go_back_and_the_others_stay(world):
    client = world.client()
    lease = RedisLease(_URL, 10.0, open_redis=world.open_redis())

    async def story():
        granted = await lease.acquire("a:1")
        assert isinstance(granted, Granted)
        journal = RedisJournal(_URL, granted.term, open_redis=world.open_redis())
        await client.set("{hoss:0}:k", "old")
        await journal.record(Record(b"first", 1, b"message"))
        position = world.redis.position
        await journal.record(Record(b"second", 2, b"message"))
        await asyncio.sleep(5)
        await lease.renew(granted.term, "a:1")
        await client.set("{hoss:0}:k", "new")
        await client.set("{hoss}:journal:more", "new")
        world.redis.roll_back(position, lambda key: key.startswith(b"{hoss}:journal:"))
        assert set(await client.hkeys(SUBMISSIONS)) == {b"first"}
        assert await client.exists("{hoss}:journal:more") == 0
        assert await client.get("{hoss:0}:k") == b"new"
        assert await client.get(LEASE) is not None
        await asyncio.sleep(5.1)  # its deadline went back as well
        assert await client.get(LEASE) is None

    world.run(story())


def test_refused_writes_stop_a_script_at_its_first_write(world):
    client = world.client()
    journal = RedisJournal(_URL, open_redis=world.open_redis())

    async def story():
        await client.set("lease", "held", px=1000)
        world.redis.refuse_writes()
        with pytest.raises(ResponseError, match="MISCONF"):
            await client.set("k", "v")
        with pytest.raises(LedgerUnavailable, match="No space left on device"):
            await journal.record(Record(b"key", 1, b"message"))
        assert await client.eval("return redis.call('GET', KEYS[1])", 1, "lease") == b"held"
        await asyncio.sleep(1.1)
        assert await client.get("lease") is None
        world.redis.refuse_writes(refused=False)
        await journal.add_worker("w1")
        world.redis.roll_back(world.redis.position)
        assert await client.exists("k", "lease", SUBMISSIONS) == 0

    world.run(story())


# -- observers


def test_observers_are_told_of_each_command_and_no_others(world):
    client = world.client()

    async def story():
        await client.set("k", "v", px=5)
        await client.hgetall("none")
        await asyncio.sleep(1)
        await _outcome(client.hget("k", "f"))
        async with client.pipeline(transaction=True) as transaction:
            await transaction.incr("n").get("n").execute()
        await client.execute_command("EVAL", "return redis.error_reply('MINE of ours')", 1, "s")

    world.run(_outcome(story()))
    assert [(seen.command, seen.key, seen.reply_bytes, seen.error) for _, seen in world.seen] == [
        ("SET", "k", 2, ""),
        ("HGETALL", "none", 0, ""),
        ("HGET", "k", 0, ""),
        ("INCRBY", "n", 0, ""),
        ("GET", "n", 1, ""),
        ("EVAL", "s", 0, "MINE of ours"),
    ]
    assert {seen.process for _, seen in world.seen} == {"p"}
    positions = [seen.position for _, seen in world.seen]
    assert positions == sorted(positions)


def test_connections_that_have_ended_are_forgotten(world):
    async def story():
        for name in "abc":
            access = world.open_redis(name)(_URL, timeout_seconds=2.0)
            client = await access.at("k")
            await asyncio.gather(*(client.incr("k") for _ in range(5)))
            await access.close()

    world.run(story())
    assert not world.redis._sessions


READING = (
    ("HGETALL", "{a}:hash"),
    ("HMGET", "{a}:hash", "x", "y"),
    ("GET", "{b}:text"),
    ("XREAD", "COUNT", 10, "STREAMS", "{a}:feed", "0"),
    ("HSCAN", "{a}:hash", 0),
    ("ECHO", "word"),
)
WRITING = (
    ("HSET", "{a}:hash", "x", 1),
    ("HDEL", "{a}:hash", "x"),
    ("SET", "{b}:text", "one"),
    ("SET", "{b}:text", "short", "PX", 3),
    ("DEL", "{b}:text", "{a}:hash"),
)
OF_A_SCRIPT = (
    "if #ARGV > 0 then redis.call('HSET', KEYS[1], 'x', ARGV[1]) end return redis.call('HGET', KEYS[1], 'x')"
)


def test_what_is_answered_from_memory_is_what_the_server_would_answer(server):
    """The same commands at the same times, with and without memory, by a driver that goes back and loses
    everything now and then."""

    def answers(*, forgets):
        rng, server_us, told = random.Random(7), 1_000_000, []
        server.begin(random.Random(1))
        for number in range(400):
            if forgets:
                server._memory.forget()
            server_us += rng.choice((0, 100, 2_000))
            what = rng.random()
            if what < 0.02:
                server.empty()
            elif what < 0.05:
                server.roll_back(rng.randint(0, server.position), server_us, rng.choice((None, _is_of_a)))
            elif what < 0.2:
                value = (f"v{number}",) if rng.random() < 0.3 else ()
                command = ("EVAL", OF_A_SCRIPT, 1, "{a}:hash", *value)
                told.append(server.carry_out([command], server_us)[:2])
            elif what < 0.4:
                entry = ("XADD", "{a}:feed", f"{number + 1}-1", "field", "value")
                told.append(server.carry_out([rng.choice((*WRITING, entry))], server_us, READING[3:4]))
            elif what < 0.5:
                transaction = [("MULTI",), *rng.choices(READING[:2], k=2), ("EXEC",)]
                told.append(server.carry_out(transaction, server_us)[:2])
            else:
                told.append(server.carry_out([rng.choice(READING)], server_us)[:2])
        return list(map(str, told)), server.round_trips

    (with_memory, fewer), (without, round_trips) = answers(forgets=False), answers(forgets=True)
    assert with_memory == without
    assert fewer < round_trips


def _is_of_a(key):
    return key.startswith(b"{a}")


def test_the_server_is_not_asked_again_while_nothing_there_was_written(server):
    server.begin(random.Random(1))
    server.carry_out([("HSET", "{a}:hash", "x", 1)], 1_000_000)
    at_first = server.carry_out([READING[0]], 1_000_000)
    asked = server.round_trips
    server.carry_out([READING[0]], 2_000_000)[0][0].clear()  # the caller's own copy
    assert server.carry_out([READING[0]], 3_000_000) == at_first
    assert server.round_trips == asked
    server.carry_out([("SET", "{b}:text", "elsewhere")], 3_000_000)
    assert server.carry_out([READING[0]], 3_000_000)[0] == at_first[0]
    assert server.round_trips == asked + 1
    server.carry_out([("HSET", "{a}:hash", "x", 2)], 3_000_000)
    assert server.carry_out([READING[0]], 3_000_000)[0] == [{b"x": b"2"}]


def test_a_script_that_asks_for_the_time_is_carried_out_each_time(server):
    server.begin(random.Random(1))
    command = ("EVAL", "return redis.call('TIME')[1]", 1, "{a}:any")
    assert [server.carry_out([command], at)[0] for at in (1_000_000, 2_000_000)] == [[b"1"], [b"2"]]


def test_a_word_that_is_equal_and_has_other_bytes_gets_an_answer_of_its_own(server):
    server.begin(random.Random(1))
    asked = [("EVAL", "return ARGV[1]", 1, "{a}:any", word) for word in (1, 1.0, 1)]
    assert [server.carry_out([command], 1_000_000)[0] for command in asked] == [[b"1"], [b"1.0"], [b"1"]]
