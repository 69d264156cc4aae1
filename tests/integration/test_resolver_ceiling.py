"""The ceiling is measured beside a ledger in use and leaves nothing behind."""

import redis

from hossctl.bench.ceiling import measure_ceiling


async def test_the_ceiling_is_measured_and_its_scratch_ledger_is_gone(redis_server):
    with redis.Redis(port=redis_server.port) as direct:
        direct.flushall()
        direct.set("{hoss:0}:meta", "somebody's")
        assert await measure_ceiling(redis_server.url, nodes=50, batch=100, seconds=0.05) > 0
        assert direct.keys("*") == [b"{hoss:0}:meta"]
