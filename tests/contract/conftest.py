"""Both ledgers, held to one contract: the scripts in a real Redis however it is run, and the model in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import pytest_asyncio

from resolver.ledger.memory import MemoryLedger
from resolver.ledger.port import Ledger
from resolver.ledger.store import RedisLedger

LEASE_OVER_AT_ONCE = 0


@pytest.fixture(params=["server", "sentinel", "cluster", "memory"])
def ledger_url(request: pytest.FixtureRequest, empty_redis: Callable[[str], str]) -> str:
    """Of the Redis that holds the test's ledger; empty: it is in memory."""
    return "" if request.param == "memory" else empty_redis(request.param)


@pytest.fixture
def make_ledger(ledger_url: str) -> Callable[[int], AbstractAsyncContextManager[Ledger]]:
    """Makes an empty ledger of so many shards; its commits' leases are over at once, which shows only where one reaps."""

    @asynccontextmanager
    async def make(shards: int) -> AsyncIterator[Ledger]:
        if not ledger_url:
            yield MemoryLedger(shards, lambda: 0, lease_ms=LEASE_OVER_AT_ONCE)
            return
        ledger = RedisLedger(ledger_url, lease_ms=LEASE_OVER_AT_ONCE)
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
