"""Kubernetes mode: has the ledger reserve what stands on nodes already, and keeps this in order with what is given back.

Without the order a pod's end could reach the ledger before its beginning, and its reservation would stay for ever.
"""

import asyncio
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.podtable import Phase, Rows
from dispatcher.ledger_record import kind_of
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U32, Uids, decode

WRITER = "kubernetes mirror"  # its epoch fences mirrors of earlier terms
_PODS = 1000  # in one call


class StandingPods:
    """Carries out Reserve and Release, one after the other."""

    def __init__(self, runtime: Runtime, client: ResolverClient, certain: Callable[[], bool]) -> None:
        """`certain`: whether nobody else can be the active dispatcher."""
        self._runtime = runtime
        self._client = client
        self._certain = certain
        self._order = asyncio.Lock()  # whoever asks for it first has it first
        self._epoch = 0
        runtime.carry_out(m.Reserve, self._reserve)
        runtime.carry_out(m.Release, self._release)

    async def done(self) -> None:
        """Return once the ledger has all that was to be reserved or given back before."""
        await asyncio.sleep(0)  # what was spawned just now gets in line
        async with self._order:
            pass

    async def _release(self, wanted: m.Release) -> None:
        async with self._order:
            await self._runtime.release(wanted)

    async def _reserve(self, wanted: m.Reserve) -> None:
        async with self._order:
            for start in range(0, len(wanted.rows), _PODS):
                part = slice(start, start + _PODS)
                await self._reserve_part(wanted.rows[part], wanted.uids[part])

    async def _reserve_part(self, rows: Rows, uids: Uids) -> None:
        pods = self._runtime.machine.registry.pods
        there = (pods.phase[rows] == Phase.BOUND) & (pods.uid[rows] == uids).all(axis=1) & (pods.node[rows] != NONE_U32)
        rows = rows[there]
        if not len(rows):
            return
        request = self._request(rows)
        verdicts = await self._runtime.until_answered(lambda: self._upsert(request))
        refused = ~np.isin(verdicts, (pb.COMMITTED, pb.DUPLICATE))
        if refused.any():
            names = sorted({pb.Verdict.Name(verdict) for verdict in verdicts[refused].tolist()})
            logger().warning("standing_pods_not_reserved", pods=int(refused.sum()), verdicts=names)

    def _request(self, rows: Rows) -> pb.UpsertPodsRequest:
        registry = self._runtime.machine.registry
        templates, kinds = np.unique(registry.pods.template[rows], return_inverse=True)
        return pb.UpsertPodsRequest(
            writer=WRITER,
            kinds=[kind_of(registry, template) for template in templates.tolist()],
            pods=pb.PodColumns(
                uids=registry.pods.uid[rows].tobytes(),
                nodes=registry.pods.node[rows].astype(U32).tobytes(),
                kinds=kinds.astype(U32).tobytes(),
            ),
        )

    async def _upsert(self, request: pb.UpsertPodsRequest) -> NDArray[np.uint8]:
        if not self._certain():
            raise LedgerUnavailable("the dispatcher's lease could not be renewed in time; another may be active")
        if not self._epoch:
            self._epoch = await self._client.grant_epoch(WRITER)
        request.epoch = self._epoch
        verdicts: NDArray[np.uint8] = decode((await self._client.upsert_pods(request)).verdicts, U8, name="verdicts")
        if (verdicts == pb.STALE_EPOCH).any():
            self._epoch = 0  # the ledger was rebuilt; or there is a newer term, of which we shall hear
            raise LedgerUnavailable("the ledger does not know this mirror any more")
        return verdicts
