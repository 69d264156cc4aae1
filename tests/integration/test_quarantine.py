"""Nodes that keep refusing what fits them as they are known: a real resolver over a real Redis, and a cache
that follows it."""

import asyncio

import numpy as np
import pytest
import redis
from google.protobuf.json_format import MessageToDict
from waiting import DEADLINE_SECONDS, until

from hoss.client.resolver import ResolverClient
from hoss.model.node import NodeSpec
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import FLAG_QUARANTINED, account_dtype, numbered_uids
from resolver.core.values import Verdict
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.messages import account_batch, feed_update

CPU = 1000
NODES = [NodeSpec(f"n{i}", allocatable=(("cpu", CPU), ("memory", 2**30), ("pods", 10))) for i in range(4)]
SPREAD_BYTES = 7
REFUSALS = 3


@pytest.fixture
async def platform(empty_redis, start_resolver, tmp_path):
    """(client, Redis, propose). Three refusals count; a node is out until `time_is_over`."""
    url = empty_redis("server")
    config = tmp_path / "resolver.yaml"
    config.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: ResolverConfig\n"
        f"quarantine: {{refusals: {REFUSALS}, seconds: 600, most_share: 0.25}}\n"
    )
    client = ResolverClient([start_resolver(url, "--config", str(config))])
    await client.upsert_nodes(NODES)
    epoch = await client.grant_epoch("w1")
    stream = client.stub.Propose()
    pods = iter(range(10**6))

    async def propose(node, *, cpu=100, seen=None):
        """One pod; the verdict's message. `seen`: where the worker's cache stands; else where the ledger
        does."""
        seen = seq_of(connection) if seen is None else seen
        requests = np.array([cpu, 0, 0, 1, 0, 0], "<i8")
        await stream.write(
            pb.ProposalBatch(
                worker="w1",
                epoch=epoch,
                batch_id=next(pods),
                snapshot_seq=seen,
                resources=6,
                uids=numbered_uids(b"test-prefix-", next(pods), 1).tobytes(),
                slots=bytes(2),
                candidates=1,
                nodes=np.array([node], "<u4").tobytes(),
                requests=requests.tobytes(),
                priorities=bytes(4),
                attempts=bytes(2),
            )
        )
        return await asyncio.wait_for(stream.read(), DEADLINE_SECONDS)

    connection = redis.Redis.from_url(url)
    yield client, connection, propose
    connection.close()
    await client.close()


def seq_of(connection):
    return int(connection.hget("{hoss:0}:meta", "seq"))


def corrupt(connection, node, cpu):
    """Someone writes into the ledger by hand that so much is requested there."""
    field = node.to_bytes(4, "little")
    record = bytearray(connection.hget("{hoss:0}:accounts", field))
    account = np.frombuffer(record, account_dtype(6), 1)
    account["amounts"][0, 0, 1] = cpu
    connection.hset("{hoss:0}:accounts", field, bytes(record))


def time_is_over(connection, node):
    """Of the node's quarantine, as the ledger keeps it."""
    key, field = "{hoss:0}:quarantine", node.to_bytes(4, "little")
    record = connection.hget(key, field)
    connection.hset(key, field, record[:8] + bytes(8) + record[16:])


async def status_of(client, node):
    """Why the node is out; None where it is not."""
    [found] = await client.list_nodes([NODES[node].name])
    return MessageToDict(found.quarantine)["reason"] if found.HasField("quarantine") else None


async def test_an_account_that_disagrees_with_its_reservations_is_quarantined_and_returns_by_itself(
    platform,
):
    client, connection, propose = platform
    corrupt(connection, 1, CPU)
    for _ in range(REFUSALS):
        assert (await propose(1)).verdicts[0] == Verdict.CONFLICT_RESOURCE
    reason = await until(lambda: status_of(client, 1))
    assert reason.startswith("its account has, as requested, cpu 1, 1 more than its reservations ask for;")
    assert (await propose(1, cpu=0)).verdicts[0] == Verdict.NODE_UNSCHEDULABLE
    assert (await propose(0)).verdicts[0] == Verdict.COMMITTED
    status = await client.status()
    assert [(event.node, event.text[:20]) for event in status.events] == [
        ("n1", "refused 3 proposals "),
        ("n1", "taken out of schedul"),
    ]
    assert "node n1 gets nothing until" in status.quarantined[0]
    assert status.counters["node_quarantined"] == 1

    async def back():
        return await status_of(client, 1) is None

    assert not await back()
    time_is_over(connection, 1)
    await until(back)
    assert (await propose(1, cpu=0)).verdicts[0] == Verdict.COMMITTED
    assert (await client.status()).events[-1].text == "back in scheduling: its time is over"


async def test_uncordon_ends_a_quarantine_at_once_and_too_many_are_never_out(platform):
    client, connection, propose = platform
    for node in (1, 2):
        corrupt(connection, node, CPU)
        for _ in range(REFUSALS):
            await propose(node)

    async def settled():
        return len((await client.status()).events) == 4

    await until(settled)
    assert [await status_of(client, node) is not None for node in (1, 2)] == [
        True,
        False,
    ]  # a quarter of four is one
    assert "too many are out" in (await client.status()).events[-1].text
    await client.cordon_node("n1", unschedulable=False)
    assert await status_of(client, 1) is None


async def test_a_cordon_and_its_end_are_events_once_each_and_say_from_where(platform):
    client, _, _ = platform
    for unschedulable in (True, True, False):  # the second changes nothing
        await client.cordon_node("n2", unschedulable)
    events = (await client.status()).events
    assert [(event.node, event.text) for event in events] == [
        ("n2", "cordoned from 127.0.0.1"),
        ("n2", "uncordoned from 127.0.0.1"),
    ]
    assert 0 < events[0].unix_ms <= events[1].unix_ms


async def test_a_node_that_lost_races_is_left_alone(platform):
    client, connection, propose = platform
    seen = seq_of(connection)
    await propose(1, cpu=CPU)
    for _ in range(5):
        assert (await propose(1, seen=seen)).verdicts[0] == Verdict.CONFLICT_RESOURCE
    assert list((await client.status()).events) == []


async def test_a_worker_with_a_corrupted_cache_is_noticed_and_its_view_of_the_node_mended_by_the_feed(
    platform,
):
    client, _, propose = platform
    await propose(1, cpu=CPU)
    cache = NodeInfoCache()
    feed = client.stub.Feed(pb.FeedRequest(subscriber="w1"))

    async def follow(node_is):
        while not node_is():
            cache.apply_feed(feed_update(await asyncio.wait_for(feed.read(), DEADLINE_SECONDS)))

    await follow(lambda: cache.size > 1 and cache.requested[0, 1] == CPU)
    cache.accounts.committed[0, 1] = cache.requested[0, 1] = 0  # the fault: it takes the node for empty,
    cache.accounts._seqs[1] = 2**50  # and whatever a refusal brings for old news
    for _ in range(REFUSALS):
        assert cache.requested[0, 1] == 0
        refused = await propose(1, seen=cache.seqs[0])
        cache.apply_fresh(account_batch(refused.fresh))
    await follow(lambda: cache.requested[0, 1] == CPU)
    assert "published again" in (await client.status()).events[-1].text
    assert await status_of(client, 1) is None


async def test_a_worker_avoids_a_node_whose_account_is_damaged_from_its_first_refusal_until_a_repair(
    platform,
):
    client, connection, propose = platform
    cache, feed = NodeInfoCache(), client.stub.Feed(pb.FeedRequest(subscriber="w1"))

    async def follow(node_is):
        while not node_is():
            cache.apply_feed(feed_update(await asyncio.wait_for(feed.read(), DEADLINE_SECONDS)))

    await follow(lambda: cache.size > 1 and cache.accounts.allocatable[0, 1] == CPU)
    connection.hset("{hoss:0}:accounts", (1).to_bytes(4, "little"), b"damaged")
    refused = await propose(1, seen=cache.seqs[0])
    assert refused.verdicts[0] == Verdict.NODE_GONE
    cache.apply_fresh(account_batch(refused.fresh))
    assert (cache.accounts.flags[1], cache.accounts.allocatable[0, 1]) == (FLAG_QUARANTINED, 0)
    await client.repair()
    await follow(lambda: not cache.accounts.flags[1])
    assert cache.accounts.allocatable[0, 1] == CPU
    assert (await propose(1, seen=cache.seqs[0])).verdicts[0] == Verdict.COMMITTED
