"""The quarantine of nodes in Redis. resolver.api.quarantine decides which nodes are taken, and when."""

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import account_dtype
from resolver.core.quarantine import QuarantineRecord, QuarantineRequest
from resolver.ledger import stored
from resolver.ledger.store import RedisLedger


class RedisQuarantine:
    """Implements resolver.api.quarantine.QuarantineStore."""

    def __init__(self, ledger: RedisLedger) -> None:
        self._ledger = ledger

    async def schema(self) -> list[str]:
        return await self._ledger.schema()

    async def republish(self, shard: int, node: int) -> tuple[int, NDArray[np.int64]] | None:
        reply = await self._ledger.run("republish", shard, node=stored.node_field(node))
        if reply is None:
            return None
        width = account_dtype(int(reply[1]))
        account = np.frombuffer(reply[2][: width.itemsize], width)[0]
        return int(reply[0]), account["amounts"][:, 1]

    async def reserved(self, shard: int, node: int) -> NDArray[np.int64]:
        total = np.zeros(0, np.int64)
        seen: set[bytes] = set()  # a scan may return one twice
        async for part in self._ledger.reservations(shard):
            here = part.records["node"] == node
            for uid, requests in zip(part.uids[here], part.records["requests"][here], strict=True):
                if uid.tobytes() not in seen:
                    seen.add(uid.tobytes())
                    missing = part.resources - len(total)
                    total = np.pad(total, (0, max(0, missing))) + requests
        return total

    async def take(self, shard: int, node: int, taking: QuarantineRequest) -> str:
        reply = await self._ledger.run(
            "quarantine",
            shard,
            node=stored.node_field(node),
            duration_ms=taking.milliseconds,
            reason=taking.reason,
            most_per_mille=taking.most_per_mille,
            unchanged_since=taking.unchanged_since,
        )
        return str(reply.decode())

    async def end(self, shard: int, node: int | None = None) -> list[int]:
        ended = await self._ledger.run(
            "end_quarantine", shard, node=None if node is None else stored.node_field(node)
        )
        return [stored.number(field) for field in ended]

    async def quarantined(self, shard: int) -> dict[int, QuarantineRecord]:
        return stored.read_quarantine(await self._ledger.quarantine_records(shard))
