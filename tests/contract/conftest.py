"""Both ledgers, held to one contract: the scripts in a real Redis, and the model in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import pytest_asyncio

from hossctl.redis_server import RedisServer
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.port import Ledger
from resolver.ledger.store import RedisLedger

LEASE_OVER_AT_ONCE = 0


@pytest.fixture(params=["redis", "memory"])
def make_ledger(
    request: pytest.FixtureRequest, redis_server: RedisServer
) -> Callable[[int], AbstractAsyncContextManager[Ledger]]:
    """Makes an empty ledger of so many shards; its commits' leases are over at once, which shows only where one reaps."""

    @asynccontextmanager
    async def make(shards: int) -> AsyncIterator[Ledger]:
        if request.param == "memory":
            yield MemoryLedger(shards, lambda: 0, lease_ms=LEASE_OVER_AT_ONCE)
            return
        ledger = RedisLedger(redis_server.url, lease_ms=LEASE_OVER_AT_ONCE)
        await ledger.open(shards)
        yield ledger
        await ledger.close()

    return make


@pytest_asyncio.fixture
async def ledger(make_ledger: Callable[[int], AbstractAsyncContextManager[Ledger]]) -> AsyncIterator[Ledger]:
    """A ledger of two shards."""
    async with make_ledger(2) as made:
        yield made


@pytest_asyncio.fixture
async def one_shard(make_ledger: Callable[[int], AbstractAsyncContextManager[Ledger]]) -> AsyncIterator[Ledger]:
    """A ledger of one shard, which judges rules as it commits."""
    async with make_ledger(1) as made:
        yield made
