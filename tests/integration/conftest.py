"""A real resolver over a real Redis, for tests that propose to it."""

import pytest
from integration.proposing import NODES
from redis import Redis

from hoss.client.resolver import ResolverClient


@pytest.fixture(autouse=True)
def _epochs_from_one(request):
    """A new ledger in a test's Redis counts worker epochs from 1, and not from the server's time."""
    for name in {"redis_server", "own_redis"}.intersection(request.fixturenames):
        with Redis.from_url(request.getfixturevalue(name).url) as client:
            client.set("{hoss}:epochs", 0)


@pytest.fixture
async def resolver(redis_server, start_resolver):
    """A client of a resolver whose ledger has NODES and worker w1 at epoch 1."""
    client = ResolverClient([start_resolver(redis_server.url, "--reservation-lease-seconds", "600")])
    assert list((await client.upsert_nodes(NODES)).indexes) == [0, 1, 2, 3]
    assert await client.grant_epoch("w1") == 1
    yield client
    await client.close()
