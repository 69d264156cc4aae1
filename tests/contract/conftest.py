"""Both ledgers, held to one contract: the scripts in a real Redis, and the model in memory.

What a script decides does not depend on how its server is found: every test runs in memory and on one server.
Under Sentinel and on a Cluster run those that are marked `topologies`, where that could matter: every script
that the others run once, for on a Cluster all keys of a script must be declared and lie on one server;
whatever is sent to several shards, which lie on several servers there; what is sent in one round trip; and
what finds scripts forgotten."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import pytest_asyncio
from redis_topologies import SENTINEL_AND_CLUSTER, servers

from resolver.ledger.memory import MemoryLedger
from resolver.ledger.port import Ledger
from resolver.ledger.store import RedisLedger

LEASE_OVER_AT_ONCE = 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Where the ledger of each test is, but for those that say so themselves."""
    chosen = any("ledger_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "ledger_url" in metafunc.fixturenames and not chosen:
        everywhere = metafunc.definition.get_closest_marker("topologies") is not None
        places = ["memory", *servers(), *(SENTINEL_AND_CLUSTER if everywhere else ())]
        metafunc.parametrize("ledger_url", places, indirect=True)


@pytest.fixture
def ledger_url(request: pytest.FixtureRequest, empty_redis: Callable[..., str]) -> str:
    """Of the Redis that holds the test's ledger; empty: it is in memory."""
    return "" if request.param == "memory" else empty_redis(request.param, "hoss-resolver")


async def epochs_from_one(ledger: RedisLedger) -> None:
    """The new ledger in Redis counts worker epochs as the one in memory does, and not from the server's
    time."""
    await (await ledger.scripts.access.at(ledger.epochs_key)).set(ledger.epochs_key, 0, nx=True)


@pytest.fixture
def make_ledger(ledger_url: str) -> Callable[[int], AbstractAsyncContextManager[Ledger]]:
    """Makes an empty ledger of so many shards; its commits' leases are over at once, which shows only where
    one reaps."""

    @asynccontextmanager
    async def make(shards: int) -> AsyncIterator[Ledger]:
        if not ledger_url:
            yield MemoryLedger(shards, lambda: 0, lease_ms=LEASE_OVER_AT_ONCE)
            return
        ledger = RedisLedger(ledger_url, lease_ms=LEASE_OVER_AT_ONCE)
        await ledger.open(shards)
        await epochs_from_one(ledger)
        yield ledger
        await ledger.close()

    return make


@pytest_asyncio.fixture
async def ledger(make_ledger: Callable[[int], AbstractAsyncContextManager[Ledger]]) -> AsyncIterator[Ledger]:
    """A ledger of two shards."""
    async with make_ledger(2) as made:
        yield made


@pytest_asyncio.fixture
async def one_shard(
    make_ledger: Callable[[int], AbstractAsyncContextManager[Ledger]],
) -> AsyncIterator[Ledger]:
    """A ledger of one shard, which judges rules as it commits."""
    async with make_ledger(1) as made:
        yield made
