"""Redis does not stand still for a large ledger: it is read in slices, and removed by another thread. A
status asks it as little as it can."""

import asyncio

import numpy as np
import pytest
import redis
from redis_topologies import as_documented

from hoss.redis.accounts import RESOLVER
from hoss.wire.columns import account_dtype, numbered_uids
from resolver.core.quarantine import QuarantineRequest
from resolver.core.values import Writer
from resolver.ledger import shards
from resolver.ledger.quarantine import RedisQuarantine
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.store import RedisLedger

RESERVATIONS, DEFINITIONS = "{hoss:0}:reservations", "{hoss:0}:groups"
READS = {
    "an audit's": lambda ledger: ledger.state(0),
    "a follower's": lambda ledger: ledger.snapshot(0, groups=True),
}


@pytest.fixture
async def ledger(redis_server, make_node, make_proposal):
    """With three reservations."""
    opened = RedisLedger(redis_server.url)
    await opened.open(1)
    await opened.upsert_nodes(0, [make_node("a")])
    await opened.grant("w1")
    await opened.commit(0, [make_proposal([1, 2, 3], [[0]] * 3, groups=["web"] * 3)])
    yield opened
    await opened.close()


@pytest.fixture
def asked(ledger, monkeypatch):
    """The commands that read reservations and definitions of groups, in their order. More than two are
    many."""
    monkeypatch.setattr(shards, "_AT_ONCE", 2)
    commands, read = [], ledger._read

    async def noted(shard, *wanted, **more):
        commands.extend(
            command[:2] for command in wanted if command[1:2] in ((RESERVATIONS,), (DEFINITIONS,))
        )
        return await read(shard, *wanted, **more)

    monkeypatch.setattr(ledger, "_read", noted)
    return commands


def of_both(command):
    return [(command, RESERVATIONS), (command, DEFINITIONS)]


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
async def test_many_reservations_and_definitions_are_read_in_slices_while_nothing_changes(
    ledger, asked, read
):
    found = await read(ledger)
    assert asked == of_both("hlen") + of_both("hscan")
    pods = len(found.reservations.uids) if hasattr(found, "reservations") else len(found.runs[0].nodes) // 4
    assert pods == 3


@pytest.mark.parametrize(
    ("after", "slices"),
    [
        (("hlen", RESERVATIONS), [("hscan", RESERVATIONS)]),
        (("hscan", RESERVATIONS), of_both("hscan")),
        (("hscan", DEFINITIONS), of_both("hscan")),
    ],
    ids=["the first look", "a slice of reservations", "a slice of definitions"],
)
@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
async def test_if_the_shard_changes_meanwhile_they_are_read_at_one_moment(
    ledger, asked, monkeypatch, make_proposal, *, read, after, slices
):
    sliced = ledger._read

    async def changed_after_it(shard, *wanted, **more):
        answer = await sliced(shard, *wanted, **more)
        if wanted and wanted[0][:2] == after:
            await ledger.commit(0, [make_proposal([9], [[0]])])
        return answer

    monkeypatch.setattr(ledger, "_read", changed_after_it)
    found = await read(ledger)
    assert asked == of_both("hlen") + slices + of_both("hgetall")
    if hasattr(found, "reservations"):
        rows = found.snapshot.accounts
        requested = np.frombuffer(rows.records, account_dtype(rows.resources))["amounts"][0, 0, 1]
        assert requested == found.reservations.records["requests"][:, 0].sum() == 400


async def test_a_summary_reads_each_shard_once(redis_server, make_node):
    ledger = RedisLedger(redis_server.url)
    await ledger.open(3)
    for shard in range(3):
        await ledger.upsert_nodes(shard, [make_node(f"n{shard}-{number}") for number in range(2)])
    await ledger.release(1, numbered_uids(b"test-prefix-", 1, 1), Writer(4, journal_write=7))
    out = QuarantineRequest("it refuses", milliseconds=60_000, most_per_mille=1000, unchanged_since=0)
    assert await RedisQuarantine(ledger).take(2, 2, out) == "taken"
    with redis.Redis(port=redis_server.port) as client:
        client.config_resetstat()
        summary = await ledger.summary()
        assert client.info("commandstats")["cmdstat_exec"]["calls"] == 3
    await ledger.close()
    assert (summary.nodes, summary.reservations, summary.marks) == (6, 0, (4, (4, 7)))
    assert {node: found.reason for node, found in summary.quarantined.items()} == {2: "it refuses"}


async def rebuild_over(url, leftover):
    """Begin a rebuild where an earlier one has left a loaded key. `leftover`: a client that may do all."""
    leftover.hset(f"{RESERVATIONS}:loaded", "field", "value")
    ledger = RedisLedger(url)
    await ledger.open(1)
    store = RedisRebuild(ledger, feed_window=100, lease_ms=30_000)
    await store.set_tombstone(0, "recovering-test", ledger.epoch)
    await ledger.close()


def test_a_rebuild_removes_what_is_large_by_another_thread_or_in_one_step_where_its_account_is_older(
    redis_server,
):
    url = as_documented(redis_server.url, [redis_server], RESOLVER.name)
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        for right, command in (("+unlink", "cmdstat_unlink"), ("-unlink", "cmdstat_del")):
            client.flushall()
            client.execute_command("ACL", "SETUSER", RESOLVER.name, right)
            client.config_resetstat()
            asyncio.run(rebuild_over(url, client))
            assert client.info("commandstats")[command]["calls"] == 1
            assert not client.exists(f"{RESERVATIONS}:loaded")
        client.execute_command("ACL", "SETUSER", RESOLVER.name, "+unlink")
