"""The node feed over real gRPC: whoever follows it has the ledger's own state."""

import asyncio
import contextlib

import numpy as np
import pytest
import redis
from waiting import DEADLINE_SECONDS, until

from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable
from hoss.model.node import NodeSpec
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import CARDS, account_dtype, digest, numbered_uids
from hossctl.local.redis_server import RedisServer


def node(name, cpu=100_000, gpus=0):
    amounts = (("cpu", cpu), ("pods", 1000), *((("nvidia.com/gpu", gpus),) if gpus else ()))
    return NodeSpec(name, allocatable=amounts)


def proposal(batch_id, nodes, *, shard=0, resources=6, devices=b""):
    requests = np.zeros(resources, "<i8")
    requests[[0, 3]] = 10, 1
    return pb.ProposalBatch(
        worker="w1",
        epoch=1,
        batch_id=batch_id,
        shard=shard,
        snapshot_seq=2**40,
        resources=resources,
        uids=numbered_uids(batch_id.to_bytes(12, "big"), 0, len(nodes)).tobytes(),
        slots=bytes(2 * len(nodes)),
        candidates=1,
        nodes=np.array(nodes, "<u4").tobytes(),
        requests=requests.tobytes(),
        priorities=bytes(4),
        attempts=bytes(2),
        devices=devices,
    )


async def propose(client, *proposals):
    call = client.stub.Propose()
    for message in proposals:
        await call.write(message)
    await call.done_writing()
    return [answer async for answer in call]


class Cache:
    """What a subscriber knows from the feed alone."""

    def __init__(self):
        self.seqs, self.snapshots, self.accounts, self.cards, self.names = {}, 0, {}, {}, {}

    def apply(self, message):
        if message.snapshot:
            self.snapshots += 1
            for known in (self.accounts, self.cards, self.names):
                for index in [i for i in known if i % message.shards == message.shard]:
                    del known[index]
        else:
            assert self.seqs[message.shard] == message.previous_seq, "a gap"
        rows = message.accounts
        records = np.frombuffer(rows.records, account_dtype(rows.resources))
        self.accounts.update(zip(np.frombuffer(rows.indexes, "<u4").tolist(), records, strict=True))
        cards = np.frombuffer(rows.cards, CARDS.base).reshape(-1, 16)
        self.cards.update(zip(np.frombuffer(rows.card_indexes, "<u4").tolist(), cards, strict=True))
        for entry in message.nodes:
            self.names[entry.index] = None if entry.removed else entry.spec.name
        self.seqs[message.shard] = message.seq

    def digest(self, shard, shards):
        indexes = [index for index in self.accounts if index % shards == shard]
        widest = max(self.accounts[index]["amounts"].shape[0] for index in indexes)
        records = np.zeros(len(indexes), account_dtype(widest))
        for record, index in zip(records, indexes, strict=True):
            known = self.accounts[index]
            record["flags"] = known["flags"]
            record["amounts"][: len(known["amounts"])] = known["amounts"]
        card_indexes = [index for index in self.cards if index % shards == shard]
        cards = np.array([self.cards[index] for index in card_indexes], "<u2").reshape(-1, 16)
        return digest(np.array(indexes, "<u4"), records, np.array(card_indexes, "<u4"), cards)


@contextlib.asynccontextmanager
async def following(client):
    cache = Cache()
    task = asyncio.ensure_future(Subscription(client, "test", cache.apply).follow())
    try:
        yield cache
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task  # what `apply` raised fails the test


@pytest.fixture
async def client(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url)])
    await client.upsert_nodes([node("a"), node("b"), node("c", gpus=2)])
    await client.grant_epoch("w1")
    yield client
    await client.close()


async def agrees(client, cache, shards=1):
    audit = await client.audit()
    assert list(audit.violations) == []
    await until(lambda: all(cache.seqs.get(d.shard) == d.seq for d in audit.digests))
    return [cache.digest(d.shard, shards) for d in audit.digests] == [d.digest for d in audit.digests]


async def test_invariant_6_a_follower_of_the_feed_has_the_ledgers_digest_after_every_kind_of_change(client):
    async with following(client) as cache:
        await until(lambda: cache.snapshots)
        await propose(
            client, proposal(1, [0, 1, 1]), proposal(2, [2], devices=np.array([1, 400], "<u2").tobytes())
        )
        assert await agrees(client, cache)
        await client.release(numbered_uids((1).to_bytes(12, "big"), 0, 2))
        await client.cordon_node("a", True)
        await client.upsert_nodes([node("b", cpu=5), node("new", gpus=1)])
        assert await agrees(client, cache)
        await client.remove_nodes(["c"])
        assert await agrees(client, cache)
        assert cache.snapshots == 1
        assert cache.names == {0: "a", 1: "b", 2: None, 3: "new"}


async def test_every_shard_has_a_feed_of_its_own(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url, "--shards", "3")])
    reply = await client.upsert_nodes([node(f"n{i}") for i in range(30)])
    await client.grant_epoch("w1")
    async with following(client) as cache:
        await until(lambda: cache.snapshots == 3)
        await propose(client, *(proposal(i, [i], shard=i % 3) for i in list(reply.indexes)[:9]))
        assert await agrees(client, cache, shards=3)
        assert sorted(cache.names) == sorted(reply.indexes)
    await client.close()


async def first_message(client, **request):
    call = client.stub.Feed(pb.FeedRequest(subscriber="test", **request))
    message = await asyncio.wait_for(call.read(), DEADLINE_SECONDS)
    call.cancel()
    return message


async def test_a_position_that_can_still_be_had_is_resumed(client):
    snapshot = await first_message(client)
    await propose(client, proposal(1, [0]))
    resume = [pb.ShardPosition(shard=0, seq=snapshot.seq)]
    message = await first_message(client, resume=resume, ledger_epoch=snapshot.ledger_epoch)
    assert not message.snapshot
    assert (message.previous_seq, message.seq) == (snapshot.seq, snapshot.seq + 1)


async def test_a_position_of_another_ledger_gets_a_snapshot(client):
    await first_message(client)
    message = await first_message(
        client, resume=[pb.ShardPosition(shard=0, seq=1)], ledger_epoch="another ledger"
    )
    assert message.snapshot


@pytest.mark.parametrize("position", [(99, ""), (1, "another")], ids=["of the future", "of another history"])
async def test_a_position_that_the_ledger_never_had_is_told_to_who_has_it_and_believed_by_nobody(
    client, position
):
    """The dispatcher rebuilds the ledger then. A resolver that believed it would stop for anybody's word."""
    seq, nonce = position
    known = (await first_message(client)).ledger_epoch
    resume = [pb.ShardPosition(shard=0, seq=seq, nonce=nonce)]
    message = await first_message(client, resume=resume, ledger_epoch=known)
    assert (message.snapshot, message.went_back, message.seq) == (True, True, 1)
    assert not (await client.status()).problem


async def test_a_resolver_that_starts_later_resumes_from_the_stream_in_redis(
    client, redis_server, start_resolver
):
    snapshot = await first_message(client)
    await propose(client, *(proposal(i, [0]) for i in range(1, 30)))
    other = ResolverClient([start_resolver(redis_server.url)])
    resume = [pb.ShardPosition(shard=0, seq=snapshot.seq)]
    message = await first_message(other, resume=resume, ledger_epoch=snapshot.ledger_epoch)
    assert (message.snapshot, message.previous_seq) == (False, snapshot.seq)
    await other.close()


async def test_a_position_behind_the_window_gets_a_snapshot(client, redis_server, start_resolver):
    first = await first_message(client)
    await propose(client, proposal(1, [0]), proposal(2, [0]), proposal(3, [0]))
    with redis.Redis(port=redis_server.port) as direct:
        direct.xtrim("{hoss:0}:feed", maxlen=1, approximate=False)
    # A resolver that read these entries still has them; one that starts now has the stream alone.
    other = ResolverClient([start_resolver(redis_server.url)])
    resume = [pb.ShardPosition(shard=0, seq=first.seq)]
    assert (await first_message(other, resume=resume, ledger_epoch=first.ledger_epoch)).snapshot
    await other.close()


async def serves(client):
    return (await client.status()).serving


async def test_a_follower_goes_on_when_redis_was_away_and_agrees_again(own_redis, start_resolver, tmp_path):
    client = ResolverClient([start_resolver(own_redis.url)])
    await client.upsert_nodes([node("a")])
    await client.grant_epoch("w1")
    async with following(client) as cache:
        await until(lambda: cache.snapshots == 1)
        own_redis.stop()
        back = RedisServer.start(tmp_path / "redis", port=own_redis.port, append_only=True)
        try:
            await until(lambda: serves(client), "the resolver to serve again")
            await client.upsert_nodes([node("b")])
            assert await agrees(client, cache)
            assert cache.snapshots == 1, "it has missed nothing"
        finally:
            back.kill()
            await client.close()


async def test_a_feed_as_of_now_holds_all_that_has_happened_and_ends(client):
    for round_ in range(1, 6):  # the snapshot that is at hand is as old as the first one's
        await propose(client, proposal(round_, [0, 1]))
        cache = Cache()
        async for message in client.feed_as_of_now("test"):
            cache.apply(message)
        [told] = (await client.audit()).digests
        assert (cache.seqs[0], cache.digest(0, 1)) == (told.seq, told.digest)


async def test_a_feed_as_of_now_ends_at_once_for_whoever_has_it_all(client):
    status, [told] = await client.status(), (await client.audit()).digests
    request = pb.FeedRequest(
        subscriber="test",
        as_of_now=True,
        resume=[pb.ShardPosition(shard=0, seq=told.seq)],
        ledger_epoch=status.ledger_epoch,
    )
    assert [message async for message in client.stub.Feed(request, timeout=DEADLINE_SECONDS)] == []


async def test_nodes_are_written_into_and_removed_from_the_named_ledger_only(client):
    async def names():
        return [found.spec.name for found in await client.list_nodes()]

    before = await names()
    for changed in (client.upsert_nodes([node("new")], "another"), client.remove_nodes(before, "another")):
        with pytest.raises(LedgerUnavailable, match="another ledger"):
            await changed
    assert await names() == before
    epoch = (await client.status()).ledger_epoch
    await client.upsert_nodes([node("new")], epoch)
    await client.remove_nodes(["new"], epoch)
    assert await names() == before
