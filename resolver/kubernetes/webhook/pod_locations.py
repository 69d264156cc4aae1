"""Where pods hold reservations, for the binding webhook: on any shard, many pods in one look-up."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hoss.wire.columns import NONE_U32, decode_uids
from resolver.core.values import ReservationState
from resolver.ledger.port import Ledger, lookup_on_shards
from resolver.messages.nodes import shard_of


class PodLocation(NamedTuple):
    """Where a pod holds a reservation; NONE_U32: nowhere."""

    shard: int
    node: int
    seq: int = 0
    state: int = ReservationState.NONE


class FoundLocation(NamedTuple):
    """Where a pod holds a reservation, and if it does, the index of the node that it was asked for; NONE_U32:
    the ledger does not have that node."""

    location: PodLocation
    asked: int


class PodLocator:
    """Pods that are asked for in one turn of the event loop share a call of the ledger. Every caller gets the
    exception that it raises."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[tuple[bytes, str, asyncio.Future[FoundLocation]]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def find(self, uid: bytes, node: str) -> FoundLocation:
        """Where the pod is, and the index of this node now: a cached one may be another node's, on which the
        pod is."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._start)
        future: asyncio.Future[FoundLocation] = loop.create_future()
        self._waiting.append((uid, node, future))
        return await future

    async def look_up(self, uids: Sequence[bytes]) -> list[PodLocation]:
        """Look on every shard. What is merely prepared counts where there is nothing else."""
        location = [PodLocation(0, NONE_U32)] * len(uids)
        found = await lookup_on_shards(self._ledger, decode_uids(b"".join(uids)))
        for shard, records in enumerate(found):
            for position in np.flatnonzero(records["node"] != NONE_U32).tolist():
                node, seq, _, state = records[position].tolist()
                if state != ReservationState.PREPARED or location[position].node == NONE_U32:
                    location[position] = PodLocation(shard, node, seq, state)
        return location

    def _start(self) -> None:
        batch, self._waiting = self._waiting, []
        task = asyncio.ensure_future(self._serve(batch))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, batch: list[tuple[bytes, str, asyncio.Future[FoundLocation]]]) -> None:
        try:
            answers = await self._find([uid for uid, _, _ in batch], [node for _, node, _ in batch])
        except Exception as exc:  # noqa: BLE001 - raised to the callers
            for _, _, future in batch:
                if not future.done():
                    future.set_exception(exc)
            return
        for (_, _, future), answer in zip(batch, answers, strict=True):
            if not future.done():  # the caller may be gone
                future.set_result(answer)

    async def _find(self, uids: Sequence[bytes], nodes: Sequence[str]) -> list[FoundLocation]:
        locations = await self.look_up(uids)
        reserved = [node for at, node in zip(locations, nodes, strict=True) if at.node != NONE_U32]
        indexes = await self._indexes(reserved)
        return [
            FoundLocation(at, indexes.get(node, NONE_U32)) for at, node in zip(locations, nodes, strict=True)
        ]

    async def _indexes(self, nodes: Sequence[str]) -> dict[str, int]:
        names: dict[int, list[str]] = {}
        for name in dict.fromkeys(nodes):
            names.setdefault(shard_of(name, self._ledger.shards), []).append(name)
        found = await asyncio.gather(*(self._ledger.node_indexes(*of_shard) for of_shard in names.items()))
        return {
            name: int(index)
            for of_shard, known in zip(names.values(), found, strict=True)
            for name, index in zip(of_shard, known.tolist(), strict=True)
        }
