"""The audit finds commits that would never end, or that nobody made, and the repair ends them by rule. The
records are damaged by hand in Redis."""

import time
from dataclasses import replace

import numpy as np
import pytest
from redis import Redis

from hoss.wire.columns import NONE_U32
from resolver.api.auditing import audit_ledger
from resolver.api.rebuilding import RebuildService
from resolver.core.values import Leases, ReservationState
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.store import RedisLedger

S = ReservationState
HOUR_MS = 3_600_000
LEASES, PENDING, HOLDS, META = (f"{{hoss:0}}:{key}" for key in ("leases", "pending", "holds", "meta"))


@pytest.fixture
def redis(redis_server):
    with Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
async def ledger(redis_server, redis, make_node):
    """One node, worker w1 with epoch 1, and leases that do not end by themselves during a test."""
    ledger = RedisLedger(redis_server.url)
    ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=HOUR_MS)
    await ledger.open(1)
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.grant("w1")
    await ledger.reap(0)
    yield ledger
    await ledger.close()


@pytest.fixture
async def prepared(ledger, make_proposal):
    """The seq of a prepared commit of pod 1."""
    proposal = make_proposal([1], [[0]])
    [decision] = await ledger.commit(0, [replace(proposal, prepared=True)])
    return decision.seq


@pytest.fixture
async def assumed(ledger, make_proposal):
    """The seq of an assumed commit of pod 2."""
    [decision] = await ledger.commit(0, [make_proposal([2], [[0]])])
    return decision.seq


async def findings(ledger):
    reply = await audit_ledger(ledger)
    return [violation.text for violation in reply.violations]


async def repaired(ledger):
    store = RedisRebuild(ledger, feed_window=100, lease_ms=HOUR_MS)
    rebuilding = RebuildService(ledger, store, now_us=lambda: time.time_ns() // 1000)
    reply = await rebuilding.repair()
    assert await findings(ledger) == [], "nothing is left to find"
    return list(reply.changes)


async def states(ledger, make_proposal):
    found = await ledger.lookup(0, make_proposal([1, 2], [[0]] * 2).uids)
    return [S(state) for state in found["state"]]


async def test_commits_that_end_by_themselves_are_sound(ledger, prepared, assumed):
    assert await findings(ledger) == []


async def test_a_prepared_commit_without_a_lease_is_found_and_ended(
    ledger, redis, make_proposal, prepared, assumed
):
    redis.hdel(PENDING, prepared)
    redis.zrem(LEASES, prepared)
    text = f"commit {prepared} is prepared, with 1 pods, and has no lease: it would never end"
    assert await findings(ledger) == [f"shard 0: {text}"]
    assert await repaired(ledger) == [f"{text}; it ends now"]
    assert await ledger.reap(0) == 1
    assert await states(ledger, make_proposal) == [S.NONE, S.ASSUMED]
    assert redis.hlen(HOLDS) == 0


async def test_a_prepared_commit_without_pods_is_found_and_forgotten(ledger, redis):
    redis.hset(HOLDS, "1", 3)
    assert await findings(ledger) == ["shard 0: commit 1 is prepared and has no pods"]
    await repaired(ledger)
    assert redis.hlen(HOLDS) == 0


async def test_a_prepared_commit_that_counts_wrongly_is_found_and_counted_anew(ledger, redis, prepared):
    redis.hset(HOLDS, prepared, 3)
    assert await findings(ledger) == [f"shard 0: commit {prepared} is prepared with 3 pods and has 1"]
    await repaired(ledger)
    assert redis.hget(HOLDS, prepared) == b"1"


async def test_a_list_of_pods_without_a_lease_is_found_and_gets_one(ledger, redis, make_proposal, assumed):
    redis.zrem(LEASES, assumed)
    assert await findings(ledger) == [
        f"shard 0: commit {assumed} is not confirmed and has no lease: it would never end"
    ]
    await repaired(ledger)
    assert await states(ledger, make_proposal) == [S.NONE, S.ASSUMED]
    assert redis.zscore(LEASES, assumed) > time.time() * 1000 + HOUR_MS / 2


async def test_a_lease_without_a_list_of_pods_is_found_and_forgotten(ledger, redis, make_proposal, assumed):
    redis.hdel(PENDING, assumed)
    assert await findings(ledger) == [f"shard 0: a lease of commit {assumed}, which has no list of its pods"]
    await repaired(ledger)
    assert redis.zcard(LEASES) == 0
    assert await states(ledger, make_proposal) == [S.NONE, S.CONFIRMED]


async def test_a_lease_of_a_commit_that_the_shard_never_made_is_found_and_forgotten(ledger, redis, assumed):
    redis.zadd(LEASES, {"999": 1})
    redis.hset(PENDING, "999", bytes(16))
    [text] = await findings(ledger)
    assert (
        text == f"shard 0: commit 999 has a lease, and the shard is at {assumed}: it never made that commit"
    )
    await repaired(ledger)
    assert redis.hkeys(PENDING) == [str(assumed).encode()]


async def test_a_commit_that_outlives_its_lease_is_found_and_ended_by_a_repair(
    ledger, redis, make_proposal, prepared
):
    redis.zincrby(LEASES, -(HOUR_MS + 60_000), str(prepared))
    assert await findings(ledger) in (
        [f"shard 0: commit {prepared} should have ended {late} s ago"] for late in range(59, 200)
    )
    assert await repaired(ledger) == []
    assert await states(ledger, make_proposal) == [S.NONE, S.NONE]
    found = await ledger.lookup(0, make_proposal([1], [[0]]).uids)
    assert found["node"].tolist() == [NONE_U32]


async def test_leases_that_nobody_ends_are_found(ledger, redis, assumed):
    redis.hincrby(META, "lease_seen", -60_000)
    [text] = await findings(ledger)
    assert "no resolver is running" in text
    assert await repaired(ledger) == []
    assert np.array(redis.hkeys(PENDING)).tolist() == [str(assumed).encode()]


async def test_they_are_found_also_where_the_clock_went_back_while_there_were_none(
    ledger, redis, make_proposal
):
    redis.hincrby(META, "lease_seen", HOUR_MS)
    await ledger.reap(0)
    await ledger.commit(0, [make_proposal([1], [[0]])])
    redis.hincrby(META, "lease_seen", -60_000)
    [text] = await findings(ledger)
    assert "no resolver is running" in text
