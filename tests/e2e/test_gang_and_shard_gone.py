"""A gang half held when a shard's Redis stalls and the resolver dies: nothing of it outlives the hold, and
asked again it is placed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from e2e.cluster import Cluster
from integration.proposing import Stream, batch
from redis_topologies import ClusterSetup
from waiting import until

from hoss.client.resolver import ResolverClient
from hoss.model.node import NodeSpec
from hoss.v1 import resolver_pb2 as pb
from hossctl.local.redis_server import RedisServer
from resolver.core.values import Verdict

SHARDS = 6  # so many that several masters have some
NODES = [NodeSpec(f"n{i}", allocatable=(("cpu", 1000), ("memory", 2**30), ("pods", 10))) for i in range(24)]
RESERVED = {Verdict.COMMITTED, Verdict.DUPLICATE}


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[tuple[Cluster, ClusterSetup, ResolverClient, list[int]]]:
    """A resolver over a Redis Cluster of its own, and nodes on every shard: an index of each."""
    setup = ClusterSetup(tmp_path)
    cluster = Cluster(tmp_path, shards=SHARDS, dispatchers=0, redis_url=setup.url)
    client = ResolverClient([cluster.address("resolver")])
    try:
        indexes = list((await client.upsert_nodes(NODES)).indexes)
        with redis.RedisCluster.from_url(f"redis://127.0.0.1:{setup.servers[0].port}") as direct:
            direct.set("{hoss}:epochs", 0)  # the proposals are of epoch 1
        await client.grant_epoch("w1")
        yield (
            cluster,
            setup,
            client,
            [next(i for i in indexes if i % SHARDS == shard) for shard in range(SHARDS)],
        )
    finally:
        await client.close()
        cluster.stop()
        setup.stop()


def server_of(setup: ClusterSetup, shard: int) -> RedisServer:
    """The master that has a shard."""
    with redis.RedisCluster.from_url(f"redis://127.0.0.1:{setup.servers[0].port}") as client:
        port = client.get_node_from_key(f"{{hoss:{shard}}}:meta").port
    return next(server for server in setup.servers if server.port == port)


def held(server: RedisServer, shard: int) -> int:
    with redis.Redis(port=server.port) as client:
        return int(client.hlen(f"{{hoss:{shard}}}:reservations"))


def gang(node_of: list[int], shards: tuple[int, int]) -> pb.ProposalBatch:
    """A pod on each of two shards."""
    first, second = (
        batch(1, [node_of[shard]], first=shard, shard=shard, cpu=600, gang_minimum=0) for shard in shards
    )
    first.gang_minimum = 2
    first.parts.append(second)
    return first


async def test_invariant_5_a_shard_that_stalls_and_a_resolver_that_dies_leave_no_half_of_a_gang(
    platform: Any,
) -> None:
    cluster, setup, client, node_of = platform
    servers = [server_of(setup, shard) for shard in range(SHARDS)]
    later = next(shard for shard in range(SHARDS) if servers[shard] is not servers[0])
    proposal = gang(node_of, (0, later))
    stalled = psutil.Process(servers[later].pid)
    stalled.suspend()
    try:
        asking = asyncio.ensure_future(Stream(client).ask(proposal))

        async def half_held() -> bool:
            return held(servers[0], 0) == 1

        await until(half_held)
        cluster.kill("resolver")
        await asyncio.gather(asking, return_exceptions=True)
    finally:
        stalled.resume()
    await asyncio.to_thread(cluster.start_resolver)

    async def nothing_is_held() -> bool:
        return held(servers[0], 0) == held(servers[later], later) == 0

    await until(nothing_is_held)

    async def answered() -> bool:
        answer = await Stream(client).ask(proposal)
        return not answer.unavailable and {*answer.verdicts, *answer.parts[0].verdicts} <= RESERVED

    await until(answered)
    assert (held(servers[0], 0), held(servers[later], later)) == (1, 1)
    assert list((await client.audit()).violations) == []
