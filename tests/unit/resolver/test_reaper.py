"""Leases end whatever else is away."""

import asyncio
from collections import Counter

from waiting import DEADLINE_SECONDS

from hoss.errors import LedgerUnavailable
from resolver.api.maintenance import reap_periodically
from resolver.ledger.memory import MemoryLedger


class WithoutFirstShard(MemoryLedger):
    """Its shard 0 is away. `reaped` once shard 1 was asked."""

    def __init__(self):
        super().__init__(2, lambda: 0)
        self.reaped = asyncio.Event()

    async def reap(self, shard):
        if shard == 0:
            raise LedgerUnavailable("away")
        self.reaped.set()
        return 3


async def test_leases_end_on_the_other_shards_while_one_is_away():
    ledger, counters = WithoutFirstShard(), Counter()
    reaping = asyncio.create_task(reap_periodically(ledger, counters, period_seconds=0.0))
    await asyncio.wait_for(ledger.reaped.wait(), DEADLINE_SECONDS)
    reaping.cancel()
    await asyncio.gather(reaping, return_exceptions=True)
    assert counters["reaped"] >= 3
