"""Nodes in quarantine, as the ledger in Redis keeps them."""

import numpy as np
from numpy.typing import NDArray

from hoss.wire.account import account_dtype
from resolver.core.quarantine import Kept, Taking
from resolver.ledger.store import RedisLedger

_TIMES = np.dtype([("since", "<i8"), ("until", "<i8")])


class RedisQuarantine:
    """See resolver.quarantine.NodeWatch for what the operations promise."""

    def __init__(self, ledger: RedisLedger) -> None:
        self._ledger = ledger

    async def schema(self) -> list[str]:
        return await self._ledger.schema()

    async def tell_again(self, shard: int, node: int) -> tuple[int, NDArray[np.int64]] | None:
        reply = await self._ledger.run("tell_again", shard, _field(node))
        if reply is None:
            return None
        width = account_dtype(int(reply[1]))
        account = np.frombuffer(reply[2][: width.itemsize], width)[0]
        return int(reply[0]), account["amounts"][:, 1]

    async def reserved(self, shard: int, node: int) -> NDArray[np.int64]:
        total = np.zeros(0, np.int64)
        seen: set[bytes] = set()  # a scan may tell of one twice
        async for part in self._ledger.reservations(shard):
            here = part.records["node"] == node
            for uid, requests in zip(part.uids[here], part.records["requests"][here], strict=True):
                if uid.tobytes() not in seen:
                    seen.add(uid.tobytes())
                    missing = part.resources - len(total)
                    total = np.pad(total, (0, max(0, missing))) + requests
        return total

    async def take(self, shard: int, node: int, taking: Taking) -> str:
        reply = await self._ledger.run(
            "quarantine",
            shard,
            _field(node),
            taking.milliseconds,
            taking.reason,
            taking.most_per_mille,
            taking.unchanged_since,
        )
        return str(reply.decode())

    async def end(self, shard: int, node: int | None = None) -> list[int]:
        ended = await self._ledger.run("end_quarantine", shard, b"" if node is None else _field(node))
        return [int.from_bytes(field, "little") for field in ended]

    async def kept(self, shard: int) -> dict[int, Kept]:
        found = {}
        for field, record in (await self._ledger.quarantine_records(shard)).items():
            since, until = np.frombuffer(record, _TIMES, 1)[0].tolist()
            found[int.from_bytes(field, "little")] = Kept(record[_TIMES.itemsize :].decode(), since, until)
        return found


def _field(node: int) -> bytes:
    return node.to_bytes(4, "little")
