"""Since when NoExecute taints are on their nodes: the ledger knows, so that every dispatcher counts from the
same moment."""

import time

import pytest

from hoss.client.resolver import ResolverClient
from hoss.model.node import NO_EXECUTE, NodeSpec, Taint

BROKEN, SLOW = Taint("disk", "broken", NO_EXECUTE), Taint("disk", "slow", NO_EXECUTE)
SOFT = Taint("disk", "broken")


def node(*taints, name="a", cpu=1000):
    return NodeSpec(name, taints=taints, allocatable=(("cpu", cpu), ("pods", 10)))


@pytest.fixture
async def client(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url)])
    await client.upsert_nodes([node(), node(name="b")])
    yield client
    await client.close()


async def times(client, name="a"):
    (found,) = await client.list_nodes([name])
    return [taint.time_added_unix_ms for taint in found.spec.taints]


async def test_a_taint_without_a_time_has_come_when_it_was_put_there_and_keeps_that(client):
    begun = time.time() * 1000
    await client.upsert_nodes([node(BROKEN, SOFT)])
    first = await times(client)
    assert begun - 1 <= first[0] <= time.time() * 1000
    assert first[1] == 0  # only those that send pods away
    await client.upsert_nodes([node(SOFT, BROKEN, cpu=500)])
    assert await times(client) == first[::-1]
    await client.cordon_node("a", True)
    assert await times(client) == first[::-1]
    assert await times(client, "b") == []


async def test_a_time_that_is_given_is_kept(client):
    await client.upsert_nodes([node(Taint("disk", "broken", NO_EXECUTE, 1234))])
    assert await times(client) == [1234]


async def test_a_taint_that_was_away_or_has_another_value_is_a_new_one(client):
    await client.upsert_nodes([node(Taint("disk", "broken", NO_EXECUTE, 1234))])
    await client.upsert_nodes([node()])
    await client.upsert_nodes([node(BROKEN)])
    (again,) = await times(client)
    assert again > 1234
    await client.upsert_nodes([node(Taint("disk", "broken", NO_EXECUTE, 1234))])
    await client.upsert_nodes([node(SLOW)])
    assert (await times(client))[0] > 1234


async def test_a_node_that_is_told_the_same_again_does_not_change(client):
    await client.upsert_nodes([node(BROKEN)])
    before = (await client.audit()).digests[0].seq
    await client.upsert_nodes([node(BROKEN)])
    assert (await client.audit()).digests[0].seq == before


async def test_a_node_that_comes_back_has_its_taints_from_then_on(client):
    await client.upsert_nodes([node(Taint("disk", "broken", NO_EXECUTE, 1234))])
    await client.remove_nodes(["a"])
    await client.upsert_nodes([node(BROKEN)])
    assert (await times(client))[0] > 1234
