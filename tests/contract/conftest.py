"""Both ledgers, held to one contract: the scripts in a real Redis however it is run, and the model in memory."""

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from resolver.ledger.memory import MemoryLedger
from resolver.ledger.port import Ledger
from resolver.ledger.store import RedisLedger

LEASE_OVER_AT_ONCE = 0


@pytest_asyncio.fixture(params=["server", "sentinel", "cluster", "memory"])
async def ledger(request: pytest.FixtureRequest, empty_redis: Callable[[str], str]) -> AsyncIterator[Ledger]:
    """An empty ledger of two shards; its commits' leases are over at once, which shows only where one reaps."""
    if request.param == "memory":
        yield MemoryLedger(2, lambda: 0, lease_ms=LEASE_OVER_AT_ONCE)
        return
    ledger = RedisLedger(empty_redis(request.param), lease_ms=LEASE_OVER_AT_ONCE)
    await ledger.open(2)
    yield ledger
    await ledger.close()
