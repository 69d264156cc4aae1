"""Finds what the dispatcher's table and the ledger do not agree on while both run, and repairs it by rule.

No call of the normal course needs this: it is for what a fault, an operator or a defect left behind. So it is
slow and steady: a slice of the table, and a part of the reservations, every few seconds. Rules:

- A pod that is bound in the table and has no reservation is verified, as after a node was lost: it is queued
  again, or reserved anew where the API server has it on its node.
- A confirmed reservation of a pod that neither is bound there nor is with a worker is released, with what the
  dispatcher knew when it decided that. So is a second one, on another shard than the pod's own.
- A confirmed reservation of a pod that the table does not know is released in Kubernetes mode, where every
  pod is known. Elsewhere it is released if its worker made it under an epoch of this term: this term had
  given the pod to the worker, so the pod is over. Any other is only logged: it may be all that is left of a
  lost submission, or restored from a dump.

Nothing is released that was not found in two passes, so that what is on its way can arrive."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.ports import ReservationColumns
from dispatcher.runtime import Runtime
from hoss.errors import LedgerUnavailable, Overloaded, TransportError
from hoss.telemetry import logger
from hoss.wire.columns import NONE_U32
from hoss.wire.uids import uid_text

_PERIOD_SECONDS = 2.0
_SLICE_ROWS = 2000  # of the table; the ledger sends parts of about that size
_SETTLED_MS = 10_000  # a pod that is bound for less may still be on its way
_WITHOUT_POD_KEPT = 100_000
# UID, shard and seq of a reservation -> passes in a row that found no pod for it.
_WithoutPod = dict[tuple[bytes, int, int], int]
_WITH_A_WORKER = (Phase.SCHEDULING, Phase.BOUND)


class Reconciler:
    """Run `jobs` in the background of a term. `every_pod_known`: the table has all pods that exist."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        every_pod_known: bool,
        period_seconds: float = _PERIOD_SECONDS,
        settled_ms: int = _SETTLED_MS,
    ) -> None:
        self._runtime = runtime
        self._every_pod_known = every_pod_known
        self._period_seconds = period_seconds
        self._settled_ms = settled_ms
        self._next_row = 0
        self._without_pod: _WithoutPod = {}  # of the last whole pass

    def jobs(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """They look the table's bound pods up in the ledger, slice after slice, and compare the ledger's
        reservations with the table, pass after pass, until cancelled."""
        return self._follow(self.check_pods), self._follow(self.check_reservations)

    async def _follow(self, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._period_seconds)
            try:
                await check()
            except (LedgerUnavailable, Overloaded, TransportError) as exc:
                logger().debug("not_reconciled", error=str(exc))

    async def check_pods(self) -> None:
        """The next slice of the table."""
        pods = self._runtime.machine.registry.pods
        first = self._next_row if self._next_row < pods.size else 0
        rows = np.arange(first, min(first + _SLICE_ROWS, pods.size), dtype=np.uint32)
        self._next_row = first + _SLICE_ROWS
        settled = pods.since_ms[rows] <= self._runtime.now_ms() - self._settled_ms
        rows = rows[(pods.phase[rows] == Phase.BOUND) & settled]
        if not len(rows):
            return
        uids, nodes, changes = pods.uid[rows], pods.node[rows], pods.changes[rows]
        found = await self._runtime.ledger.lookup(uids)
        shards = np.uint32(await self._runtime.ledger.shard_count())
        # A pod that was moved or placed again meanwhile was asked for too early.
        same = (pods.uid[rows] == uids).all(axis=1) & (pods.changes[rows] == changes)
        same &= pods.node[rows] == nodes
        missing = same & (found.nodes == NONE_U32)
        # On another shard it may be a second reservation: `check_reservations` finds that.
        moved = same & ~missing & (found.nodes != nodes) & (found.nodes % shards == nodes % shards)
        wrong = missing | moved
        if not wrong.any():
            return
        self._count("reservations_missing", int(missing.sum()))
        logger().warning(
            "bound_pods_not_reserved_there",
            missing=int(missing.sum()),
            moved=int(moved.sum()),
            first=uid_text(uids[wrong][0].tobytes()),
        )
        # Looked up once more, because a pod may be on its way from one node to another.
        await self._runtime.carry_out(m.Verify(rows[wrong], uids[wrong]))

    async def check_reservations(self) -> None:
        """One pass over all reservations, with a pause after each part."""
        without_pod: _WithoutPod = {}
        async with aclosing(self._runtime.ledger.reservations()) as parts:
            async for part in parts:
                await self._check_part(part, without_pod)
                await asyncio.sleep(self._period_seconds)
        self._without_pod = without_pod

    async def _check_part(self, part: ReservationColumns, without_pod: _WithoutPod) -> None:
        stray, unknown = self._unwanted(part, await self._runtime.ledger.shard_count())
        earlier = np.zeros(len(part.uids), np.int64)  # passes that found it before
        for row in np.flatnonzero(stray).tolist():
            reservation = part.uids[row].tobytes(), int(part.shards[row]), int(part.seqs[row])
            earlier[row] = self._without_pod.get(reservation, 0)
            if len(without_pod) < _WITHOUT_POD_KEPT:
                without_pod[reservation] = int(earlier[row]) + 1
        again = earlier > 0
        if not again.any():
            return
        over = self._every_pod_known | self._runtime.ledger.granted_in_term(part.epochs)
        released = again & (~unknown | over)
        told = earlier == 1  # once each, however long it stays
        if told.any():
            self._count("reservations_without_pod", int(told.sum()))
            logger().warning(
                "reservations_without_pod",
                pods=int(told.sum()),
                released=int((told & released).sum()),
                first=uid_text(part.uids[told][0].tobytes()),
            )
        if released.any():
            as_of = self._runtime.ledger.known()
            await self._runtime.ledger.release(part.uids[released], part.nodes[released], as_of)
            self._count("reservations_released", int(released.sum()))

    def _unwanted(self, part: ReservationColumns, shards: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which reservations no pod of the table has, and which of these are of pods that it does not
        know."""
        registry = self._runtime.machine.registry
        rows = registry.directory.rows_of_uids(part.uids)
        unknown: NDArray[np.bool_] = rows == NONE_U32
        stray, known = unknown.copy(), rows[~unknown]
        phase, node = registry.pods.phase[known], registry.pods.node[known]
        elsewhere = (phase == Phase.BOUND) & (node != NONE_U32)
        elsewhere &= node % np.uint32(shards) != part.shards[~unknown]
        stray[~unknown] = elsewhere | ~np.isin(phase, _WITH_A_WORKER)
        return stray & ~part.assumed, unknown

    def _count(self, event: str, pods: int) -> None:
        if pods:
            self._runtime.machine.counters[event] += pods
