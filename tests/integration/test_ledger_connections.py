"""Many calls of the ledger at once, against a real Redis however it is run."""

import asyncio
from collections.abc import Callable

import pytest
from redis_topologies import SENTINEL_AND_CLUSTER
from waiting import DEADLINE_SECONDS

from resolver.core.values import LedgerNodeChange
from resolver.ledger.store import RedisLedger

MORE_THAN_ANY_POOL_HAS = 100


@pytest.fixture(params=["server", *SENTINEL_AND_CLUSTER])
def url(request: pytest.FixtureRequest, empty_redis: Callable[[str], str]) -> str:
    """Of an empty Redis."""
    return empty_redis(request.param)


async def test_calls_beyond_the_connections_there_are_wait_for_their_turn(url: str) -> None:
    ledger = RedisLedger(url)
    await ledger.open(1)
    try:
        seqs = await asyncio.gather(*(ledger.seq(0) for _ in range(MORE_THAN_ANY_POOL_HAS)))
        assert set(seqs) == {0}
        server = await ledger.scripts.access.at(ledger._keys[0][0])
        assert int((await server.info("clients"))["connected_clients"]) < MORE_THAN_ANY_POOL_HAS / 2
    finally:
        await ledger.close()


async def test_readers_that_wait_for_news_hold_up_nobody(
    url: str, make_node: Callable[..., LedgerNodeChange]
) -> None:
    ledger = RedisLedger(url)
    await ledger.open(1)
    waiting = [asyncio.ensure_future(ledger.feed(0, 0, int(1000 * DEADLINE_SECONDS))) for _ in range(40)]
    try:
        assert await ledger.seq(0) == 0
        assert not any(reader.done() for reader in waiting)
        await ledger.upsert_nodes(0, [make_node("news")])
        assert [[entry.seq for entry in entries] for entries in await asyncio.gather(*waiting)] == [
            [1]
        ] * len(waiting)
    finally:
        await ledger.close()
