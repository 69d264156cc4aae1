"""Many calls of the ledger at once, against a real Redis."""

import asyncio

from hossctl.redis_server import RedisServer
from resolver.ledger.store import RedisLedger

MORE_THAN_ANY_POOL_HAS = 500


async def test_calls_beyond_the_connections_there_are_wait_for_their_turn(redis_server: RedisServer) -> None:
    ledger = RedisLedger(redis_server.url)
    await ledger.open(1)
    try:
        seqs = await asyncio.gather(*(ledger.seq(0) for _ in range(MORE_THAN_ANY_POOL_HAS)))
        assert set(seqs) == {0}
    finally:
        await ledger.close()


async def test_readers_that_wait_for_news_hold_up_nobody(redis_server: RedisServer) -> None:
    ledger = RedisLedger(redis_server.url)
    await ledger.open(1)
    waiting = [asyncio.ensure_future(ledger.feed(0, 0, 1000)) for _ in range(100)]
    try:
        assert await asyncio.wait_for(ledger.seq(0), 0.9) == 0  # before any of them has waited its second
        assert await asyncio.gather(*waiting) == [[]] * len(waiting)
    finally:
        await ledger.close()
