"""A clock that jumps ends no lease, removals that were broken off are finished, and data of older releases is
brought forward."""

import json
from pathlib import Path

import numpy as np
import pytest
from redis import Redis

from hoss.errors import ConfigError
from hoss.wire.columns import NONE_U32
from hoss.wire.uids import UID_BYTES
from resolver.core.quarantine import QuarantineRequest
from resolver.core.values import ReservationState, Verdict
from resolver.ledger.quarantine import RedisQuarantine
from resolver.ledger.store import FORMAT, RedisLedger
from resolver.ledger.stored import MOST_AHEAD_MS

GOLDEN = Path(__file__).parents[1] / "golden" / "ledger-0.2.json"


EPOCHS = "{hoss}:epochs"


@pytest.fixture
def redis(redis_server):
    with Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.set(EPOCHS, 0)
        yield client


@pytest.fixture
async def opened(redis_server, redis):
    """Opens resolvers' ledgers on one Redis."""
    made = []

    async def open_one(**options):
        ledger = RedisLedger(redis_server.url, **options)
        made.append(ledger)
        await ledger.open(1)
        return ledger

    yield open_one
    for ledger in made:
        await ledger.close()


async def test_a_new_ledger_in_an_emptied_redis_grants_epochs_above_all_of_the_one_before(
    opened, redis, make_node, make_proposal
):
    """A worker of the lost ledger still proposes under its epoch: the new ledger knows it as fenced."""
    redis.delete(EPOCHS)
    before = await opened()
    granted = [await before.grant("w1") for _ in range(2)]
    redis.flushall()
    new = await opened()
    again = await new.grant("w1")
    assert again > granted[1] > granted[0]
    await new.upsert_nodes(0, [make_node("a")])
    for epoch, verdict in ((granted[0], Verdict.STALE_EPOCH), (again, Verdict.COMMITTED)):
        (decision,) = await new.commit(0, [make_proposal([1], [[0]], worker="w1", epoch=epoch)])
        assert decision.verdicts.tolist() == [verdict]
    assert await new.workers_of([*granted, again]) == {again: "w1"}


@pytest.mark.parametrize("count", [None, 7], ids=["lost", "older"])
async def test_a_count_of_epochs_that_went_back_alone_goes_on_above_what_the_shards_know(
    opened, redis, count, monkeypatch
):
    """As where it lies on another server of a Redis Cluster than the shards."""
    ledger = await opened()
    redis.delete(EPOCHS)
    granted, asked, next_epoch = await ledger.grant("w1"), [], ledger.next_epoch

    async def counted(worker, *, above):
        asked.append(above)
        return await next_epoch(worker, above=above)

    monkeypatch.setattr(ledger, "next_epoch", counted)
    redis.delete(EPOCHS)
    if count is not None:
        redis.set(EPOCHS, count)
    assert await ledger.grant("w1") > granted
    assert asked == ([0] if count is None else [0, granted])


async def test_a_count_that_lost_its_end_grants_no_epoch_twice(opened, redis):
    """The shards know the last epoch of each worker, and so of another one none of those that were lost."""
    ledger = await opened()
    redis.delete(EPOCHS)
    kept = await ledger.grant("w1")
    lost = await ledger.grant("w1")
    redis.set(EPOCHS, kept)
    assert await ledger.grant("w2") > lost > kept


async def test_while_the_clock_is_behind_the_count_epochs_go_on_one_by_one(opened, redis):
    """As after a step of the clock back by an hour."""
    ledger = await opened()
    ahead = clock_ms(redis) * 1000 + 3_600_000_000
    redis.set(EPOCHS, ahead)
    assert [await ledger.grant("w1"), await ledger.grant("w2")] == [ahead + 1, ahead + 2]
    assert ahead < 2**53, "numbers in scripts are exact up to there"


async def test_the_latest_grants_are_remembered_and_no_more_than_a_tenth_above_that(
    opened, redis, monkeypatch
):
    monkeypatch.setattr("resolver.ledger.store._GRANTS_KEPT", 20)
    ledger = await opened()
    redis.delete(EPOCHS)
    granted = [await ledger.grant(f"w{number}") for number in range(60)]
    assert 20 <= redis.hlen("{hoss}:grants") <= 22
    assert list(await ledger.workers_of(granted[-20:])) == granted[-20:]


def clock_ms(redis):
    seconds, micros = redis.time()
    return seconds * 1000 + micros // 1000


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000], ids=["forward", "backward"])
async def test_a_clock_that_jumps_ends_no_lease_and_prolongs_none(
    opened, redis, make_node, make_proposal, jump_ms
):
    """The server's clock cannot be moved here, so what it showed at the last reaping is moved instead. A
    clock that goes back costs lease time what passed since the last reaping, one that goes forward adds at
    most two seconds."""
    ledger = await opened(lease_ms=10_000)
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.grant("w1")
    began_ms = clock_ms(redis)
    await ledger.reap(0)
    [decision] = await ledger.commit(0, [make_proposal([1], [[0]])])
    for _ in range(2):
        redis.hincrby("{hoss:0}:meta", "lease_seen", -jump_ms)
        assert await ledger.reap(0) == 0
    [(since, ends)] = (await ledger.leases(0, np.array([decision.seq], np.uint64))).tolist()
    now_ms = clock_ms(redis)
    # A clock that goes back also costs what passed from the reaping to the commit: it looks older by that.
    assert 10_000 <= ends - since <= 10_000 + (now_ms - began_ms)
    assert began_ms + 10_000 - 2 * MOST_AHEAD_MS <= ends <= now_ms + 10_000 + (now_ms - began_ms)
    ends_by_lease_time = float(redis.zscore("{hoss:0}:leases", str(decision.seq)))
    redis.hset("{hoss:0}:meta", "lease_time", int(ends_by_lease_time))
    assert await ledger.reap(0) == 1


async def test_a_removal_that_was_broken_off_is_finished_later(opened, redis, make_node, make_proposal):
    """The resolver dies after it closed the node, and before it released what the node held."""
    ledger = await opened()
    await ledger.upsert_nodes(0, [make_node("a"), make_node("b")])
    await ledger.grant("w1")
    proposal = make_proposal([1], [[0]])
    await ledger.commit(0, [proposal])
    await ledger.run("remove_nodes", 0, names=["a"])
    assert (await ledger.node_indexes(0, ["a"])).tolist() == [0]
    assert await ledger.forget_removed(0, await ledger.removals(0)) == 1
    assert (await ledger.lookup(0, proposal.uids))["node"].tolist() == [NONE_U32]
    assert (await ledger.upsert_nodes(0, [make_node("c")])).indexes.tolist() == [0]
    assert await ledger.forget_removed(0, await ledger.removals(0)) == 0


async def test_a_removed_node_that_came_back_before_its_removal_was_finished_stays(
    opened, redis, make_node, make_proposal
):
    ledger = await opened()
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.grant("w1")
    await ledger.run("remove_nodes", 0, names=["a"])
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.commit(0, [make_proposal([1], [[0]])])
    assert await ledger.forget_removed(0, await ledger.removals(0)) == 0
    assert (await ledger.node_indexes(0, ["a"])).tolist() == [0]
    assert (await ledger.lookup(0, make_proposal([1], [[0]]).uids))["node"].tolist() == [0]


async def test_a_node_whose_quarantine_ended_while_it_was_removed_is_open_when_it_comes_back(
    opened, redis, make_node, make_proposal
):
    ledger = await opened()
    quarantine = RedisQuarantine(ledger)
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.grant("w1")
    request = QuarantineRequest("a test", milliseconds=0, most_per_mille=1000)
    assert await quarantine.take(0, 0, request) == "taken"
    await ledger.run("remove_nodes", 0, names=["a"])
    assert await quarantine.end(0) == [0]
    await ledger.upsert_nodes(0, [make_node("a")])
    (decision,) = await ledger.commit(0, [make_proposal([1], [[0]])])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]


def write_golden(redis, hexed):
    def raw(text):
        return bytes.fromhex(text)

    for key, entry in hexed.items():
        value = entry["value"]
        match entry["type"]:
            case "hash":
                redis.hset(key, mapping={raw(field): raw(text) for field, text in value.items()})
            case "string":
                redis.set(key, raw(value))
            case "list":
                redis.rpush(key, *map(raw, value))
            case "stream":
                for entry_id, fields in value:
                    redis.xadd(key, {raw(field): raw(text) for field, text in fields.items()}, id=entry_id)


async def test_a_ledger_of_release_0_2_is_brought_forward(redis_server, redis, make_proposal):
    """Two nodes a shard, one of them removed; pods 1 and 2 confirmed, pod 3 assumed, pod 4 prepared."""
    write_golden(redis, json.loads(GOLDEN.read_text()))
    ledger = RedisLedger(redis_server.url, lease_ms=10_000)
    await ledger.open(2)
    try:
        assert redis.hget("{hoss:0}:meta", "format") == str(FORMAT).encode()
        uids = np.array([list(b"golden-%09d" % pod) for pod in (1, 2, 3, 4)], np.uint8)
        assert uids.shape == (4, UID_BYTES)
        states = [ReservationState(state) for state in (await ledger.lookup(0, uids))["state"]]
        s = ReservationState
        assert states == [s.CONFIRMED, s.CONFIRMED, s.ASSUMED, s.NONE]
        assert (await ledger.lookup(1, uids))["state"].tolist() == [s.NONE] * 3 + [s.PREPARED]
        [decision] = await ledger.commit(0, [make_proposal([1], [[2]], worker="w1", epoch=1)])
        assert decision.verdicts.tolist() == [Verdict.COMMITTED]
        for shard in (0, 1):
            redis.zadd(f"{{hoss:{shard}}}:leases", dict.fromkeys(redis.hkeys(f"{{hoss:{shard}}}:pending"), 1))
        assert [await ledger.reap(0), await ledger.reap(1)] == [2, 1], "leases of both formats end"
        assert (
            await ledger.forget_removed(0, await ledger.removals(0))
            + await ledger.forget_removed(1, await ledger.removals(1))
            == 1
        )
        await ledger.check()
    finally:
        await ledger.close()


async def test_a_ledger_of_a_newer_release_is_refused_in_a_sentence(opened, redis):
    await opened()
    redis.hset("{hoss:0}:meta", "format", FORMAT + 1)
    with pytest.raises(ConfigError, match=r"has format 3, .* written by a newer release"):
        await opened()
