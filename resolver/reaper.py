"""Takes back what commits reserved and nobody confirmed, and forgets what rules about pods need no more.

Every resolver does; the ledger's clock and its seqs decide, so none is too many.
"""

import asyncio
from collections import Counter

from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from resolver.ledger.port import Ledger


async def reap_for_ever(ledger: Ledger, counters: Counter[str], *, period_seconds: float) -> None:
    """Look for ended leases every `period_seconds`, until cancelled."""
    while True:
        await asyncio.sleep(period_seconds)
        for shard in range(ledger.shards):
            try:
                reaped = await ledger.reap(shard)
            except LedgerUnavailable:
                continue  # told by resolver.availability already; other shards may be there
            if reaped:
                counters["reaped"] += reaped
                logger().warning("leases_ended", shard=shard, pods=reaped)


async def forget_for_ever(ledger: Ledger, counters: Counter[str], *, period_seconds: float) -> None:
    """Every `period_seconds`, until cancelled, forget what only matters to proposals older than the period before."""
    floors: list[int] | None = None
    while True:
        try:
            now = [await ledger.seq(shard) for shard in range(ledger.shards)]
            if floors is not None:
                # No floor above the present: a ledger may have come back without its last second.
                forgotten = await ledger.forget_rules([min(pair) for pair in zip(floors, now, strict=True)])
                counters["rules_forgotten"] += forgotten
            floors = now
        except LedgerUnavailable:
            pass  # told by resolver.availability already
        await asyncio.sleep(period_seconds)
