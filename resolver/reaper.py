"""Takes back what commits reserved and nobody confirmed. Every resolver does; the ledger's clock decides, so none is too many."""

import asyncio
from collections import Counter

from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from resolver.ledger.port import Ledger


async def reap_for_ever(ledger: Ledger, counters: Counter[str], *, period_seconds: float) -> None:
    """Look for ended leases every `period_seconds`, until cancelled."""
    while True:
        await asyncio.sleep(period_seconds)
        try:
            for shard in range(ledger.shards):
                reaped = await ledger.reap(shard)
                if reaped:
                    counters["reaped"] += reaped
                    logger().warning("leases_ended", shard=shard, pods=reaped)
        except LedgerUnavailable:
            continue  # told by resolver.availability already
