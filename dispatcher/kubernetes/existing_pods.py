"""Kubernetes mode: reserves room in the ledger for pods that are on nodes already.

Reservations and releases of one pod keep their order. Otherwise the release of a pod could reach the ledger
before its reservation, and the reservation would stay for ever. Other pods do not wait for a release: it may
be refused for as long as a claim to devices cannot be written.

Of a pod whose binding nobody has reviewed people are told once at least: its reservation is marked until they
are, so an answer that is lost, or a dispatcher that ends, does not hide it
(docs/adr/0117-told-before-the-mark-goes.md).
"""

import asyncio
from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.contents import kind_of
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U32, Uids, decode

WRITER = "kubernetes mirror"  # its epoch fences this writer of earlier terms
_PODS_PER_CALL = 1000
_MOST_KINDS = 20_000  # some 1.2 kB each


class UnreviewedPods(Protocol):
    """What tells of pods whose bindings nobody has reviewed."""

    def to_be_told(self, rows: Rows) -> Rows:
        """Those of these pods of which it would tell."""

    def report(self, rows: Rows) -> None:
        """Tell of those of these pods that are to be told of: nobody had reserved room for them."""


class ExistingPods:
    """Executes Reserve instructions, one after the other, and between them begins what Release instructions
    want."""

    def __init__(
        self,
        runtime: Runtime,
        client: ResolverClient,
        leadership: Leadership,
        nodes: ClusterNodes,
        unreviewed: UnreviewedPods,
    ) -> None:
        """`unreviewed` gets pods whose bindings no resolver has reviewed, where resolvers do that."""
        self._runtime = runtime
        self._client = client
        self._leadership = leadership
        self._nodes = nodes
        self._unreviewed = unreviewed
        self._order = asyncio.Lock()  # asyncio's locks are first come, first served
        self._releases: dict[bytes, asyncio.Event] = {}  # under way, by UID: the latest of each pod
        self._behind: set[asyncio.Event] = set()  # reservations that wait for one of these
        self._waiting: deque[m.Reserve | m.Release] = deque()  # for the lock, in the same order
        self._epoch = 0
        self._kinds: dict[int, pb.PodKind] = {}  # by template, of those that pods have
        runtime.machine.registry.templates.on_forgotten.append(self._forget_kind)
        runtime.set_executor(m.Reserve, self._reserve)
        runtime.set_executor(m.Release, self._release)

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table about existing pods."""
        return {"existing_pod_kinds": len(self._kinds)}

    async def done(self) -> None:
        """Return once the ledger has all reservations that were asked for."""
        await asyncio.sleep(0)  # jobs that were just spawned wait for the lock first
        async with self._order:
            pass
        for reservation in tuple(self._behind):
            await reservation.wait()

    async def _release(self, instruction: m.Release) -> None:
        self._waiting.append(instruction)
        uids, over = [uid.tobytes() for uid in instruction.uids], asyncio.Event()
        async with self._order:
            self._waiting.popleft()
            self._releases.update(dict.fromkeys(uids, over))
        try:
            await self._runtime.release(instruction)
        finally:
            over.set()
            for uid in uids:
                if self._releases.get(uid) is over:
                    del self._releases[uid]

    async def _reserve(self, instruction: m.Reserve) -> None:
        self._waiting.append(instruction)
        async with self._order:
            rows, uids = self._take_reserves(instruction)
            releases = [self._releases.get(uid.tobytes()) for uid in uids] if self._releases else []
            behind = np.zeros(len(uids), np.bool_)
            behind[[at for at, release in enumerate(releases) if release is not None]] = True
            here, here_uids = rows[~behind], uids[~behind]
            for start in range(0, len(here), _PODS_PER_CALL):
                part = slice(start, start + _PODS_PER_CALL)
                await self._reserve_part(here[part], here_uids[part])
            if not behind.any():
                return
            reserved = asyncio.Event()
            self._behind.add(reserved)
        try:
            for release in set(filter(None, releases)):
                await release.wait()
            await self._reserve(m.Reserve(rows[behind], uids[behind]))
        finally:
            reserved.set()
            self._behind.discard(reserved)

    def _take_reserves(self, instruction: m.Reserve) -> tuple[Rows, Uids]:
        """The pods of this instruction, with those of the next ones while they go into one call: a full
        cluster's pods come 250 at a time. No pods, if an earlier call had them."""
        if not self._waiting or self._waiting[0] is not instruction:
            return instruction.rows[:0], instruction.uids[:0]
        self._waiting.popleft()
        taken, pods = [instruction], len(instruction.rows)
        while self._waiting and isinstance(head := self._waiting[0], m.Reserve):
            pods += len(head.rows)
            if pods > _PODS_PER_CALL:
                break
            self._waiting.popleft()
            taken.append(head)
        return np.concatenate([each.rows for each in taken]), np.concatenate([each.uids for each in taken])

    async def _reserve_part(self, rows: Rows, uids: Uids) -> None:
        pods = self._runtime.machine.registry.pods
        present = (
            (pods.phase[rows] == Phase.BOUND)
            & (pods.uid[rows] == uids).all(axis=1)
            & (pods.node[rows] != NONE_U32)
        )
        rows = np.unique(rows[present])  # a pod that changes twice is asked for twice
        if not len(rows):
            return
        uids = pods.uid[rows]
        request = self._request(rows)
        # Else there is nothing to keep: a cluster that is told of at first costs no second call.
        request.keep_unreviewed = bool(len(self._unreviewed.to_be_told(rows)))
        verdicts, unreviewed = await self._runtime.until_answered(lambda: self._upsert(request))
        # Rows may have changed hands while the resolver was asked.
        still = (pods.uid[rows] == uids).all(axis=1) & (pods.phase[rows] == Phase.BOUND)
        passed = rows[still & unreviewed]
        self._unreviewed.report(passed)
        if request.keep_unreviewed and len(passed):
            unmarked = self._request(passed)
            await self._runtime.until_answered(lambda: self._upsert(unmarked))
        refused = ~np.isin(verdicts, (pb.COMMITTED, pb.DUPLICATE))
        if refused.any():
            names = sorted({pb.Verdict.Name(verdict) for verdict in verdicts[refused].tolist()})
            logger().warning("existing_pods_not_reserved", pods=int(refused.sum()), verdicts=names)

    def _request(self, rows: Rows) -> pb.UpsertPodsRequest:
        registry = self._runtime.machine.registry
        names = {index: self._nodes.name(index) for index in np.unique(registry.pods.node[rows]).tolist()}
        templates, kinds = np.unique(registry.pods.template[rows], return_inverse=True)
        return pb.UpsertPodsRequest(
            writer=WRITER,
            kinds=[self._kind(template) for template in templates.tolist()],
            pods=pb.PodColumns(
                uids=registry.pods.uid[rows].tobytes(),
                nodes=registry.pods.node[rows].astype(U32).tobytes(),
                kinds=kinds.astype(U32).tobytes(),
            ),
            node_names=[common_pb2.NodeName(index=index, name=name) for index, name in names.items() if name],
        )

    def _kind(self, template: int) -> pb.PodKind:
        """Each call has a few pods of many templates, so most have been read for earlier calls."""
        known = self._kinds.get(template)
        if known is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            known = self._kinds[template] = kind_of(self._runtime.machine.registry, template)
        return known

    def _forget_kind(self, template: int) -> None:
        self._kinds.pop(template, None)

    async def _upsert(self, request: pb.UpsertPodsRequest) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """The verdicts, and which pods' bindings nobody has reviewed."""
        self._leadership.require_valid_lease()
        if not self._epoch:
            self._epoch = await self._client.grant_epoch(WRITER)
        request.epoch = self._epoch
        reply = await self._client.upsert_pods(request)
        verdicts: NDArray[np.uint8] = decode(reply.verdicts, U8, name="verdicts")
        unreviewed = np.zeros(len(verdicts), np.bool_)
        if reply.unreviewed:
            unreviewed = decode(reply.unreviewed, U8, name="unreviewed", rows=len(verdicts)) != 0
        if (verdicts == pb.STALE_EPOCH).any():
            self._epoch = 0  # the ledger was rebuilt, or another dispatcher has a newer term
            raise LedgerUnavailable("the ledger has fenced this writer")
        return verdicts, unreviewed
