"""The binding webhook's judgement of volumes and devices, by a view of the ledger that the ledger proves to
be complete: the proposal names what the pod takes, and up to where the view knew each shard.

The ledger does not refuse what a writer itself placed in between, because the writer is to know that. So each
resolver judges bindings of pods with volumes or devices in turns. Those that come while a turn lasts share
the next one, and one look at the ledger. They are judged one after the other, each with what those before it
take, and are proposed together. Of several resolvers the ledger refuses the later one, which looks again."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hoss.errors import LedgerUnavailable
from hoss.model.volumes import PodVolumes
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.convert_rules import definition_of, definition_taking
from hoss.wire.convert_selectors import labels_from_proto
from hoss.wire.uids import uid_from_text
from resolver.core.kubernetes.held_view import ClaimKey, HeldView
from resolver.core.kubernetes.volumes_and_devices import (
    BindingNode,
    NotGiven,
    StorageView,
    Wanted,
    allocated_claims,
    judge,
)
from resolver.core.values import Group
from resolver.kubernetes.pod_source import PodDemand
from resolver.kubernetes.storage_source import StorageSource
from resolver.ledger.port import Ledger, lookup_on_shards
from resolver.messages.proposals import group_of

_LOOK_SECONDS = 1.0  # a view that is not asked follows the ledger all the same, or it would need a snapshot


class VolumeFacts(NamedTuple):
    """What the API server says of a pod's volumes and devices."""

    wanted: Wanted
    storage: StorageView


class Share(NamedTuple):
    """What a pod proposes to take. `seen`: by shard, the seq up to which the view knew it."""

    group: Group
    seen: tuple[int, ...]


class _Turn:
    """Those who share one look at the ledger. `over`: the ledger has decided about all they proposed."""

    def __init__(self) -> None:
        self.members = 0
        self.open = True  # more may come
        self.over = asyncio.Event()
        self.begun: asyncio.Future[None] | None = None

    def leave(self) -> None:
        self.members -= 1
        self.end_if_empty()

    def end_if_empty(self) -> None:
        if not (self.open or self.members):
            self.over.set()


class VolumesAndDevices:
    """`run` must be running."""

    def __init__(self, ledger: Ledger, storage: StorageSource) -> None:
        self._ledger = ledger
        self._storage = storage
        self._view = HeldView(ledger.shards)
        self._ledger_epoch = ledger.epoch  # that the view belongs to
        self._turn: _Turn | None = None  # the latest

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered here."""
        return {"webhook_held": len(self._view), "webhook_storage": len(self._storage)}

    async def run(self) -> None:
        """Follow the ledger until cancelled."""
        while True:
            try:
                async with self.turn():
                    pass
            except LedgerUnavailable as exc:
                logger().warning("held_volumes_and_devices_unknown", error=str(exc))
            await asyncio.sleep(_LOOK_SECONDS)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Judge, and propose by it, within the block. Raises LedgerUnavailable."""
        turn = self._turn
        if turn is None or not turn.open:
            before, turn = turn, _Turn()
            self._turn = turn
            turn.begun = asyncio.ensure_future(self._begin(turn, before))
        turn.members += 1
        try:
            if turn.begun is not None:
                await asyncio.shield(turn.begun)
            yield
        finally:
            turn.leave()

    async def _begin(self, turn: _Turn, before: _Turn | None) -> None:
        if before is not None:
            await before.over.wait()
        try:
            self._view.forget_assumed()
            await self._catch_up()
        finally:
            turn.open = False
            turn.end_if_empty()

    async def read(self, namespace: str, demand: PodDemand) -> VolumeFacts:
        """What the pod mounts and claims. Raises TransportError, and InvalidInput for a claim that cannot be
        read."""
        storage, wanted = await asyncio.gather(
            self._storage.storage_for(namespace, demand.spec.volumes or PodVolumes()),
            self._wanted(namespace, demand),
        )
        return VolumeFacts(wanted, storage)

    async def judge(
        self, facts: VolumeFacts, demand: PodDemand, node: str, index: int, *, assume: bool
    ) -> Share | NotGiven:
        """What the pod takes on the node, or why it does not get it. The pod must hold no reservation.
        `assume`: the others of this turn do not get it. Only within a turn. Raises LedgerUnavailable."""
        place = BindingNode(index, node, await self._labels(node, index))
        found = judge(facts.wanted, place, facts.storage, self._storage.shared_devices, self._view)
        if isinstance(found, NotGiven) and (idle := await self._idle(facts.wanted)):
            found = judge(
                facts.wanted, place, facts.storage, self._storage.shared_devices, self._view, idle=idle
            )
        if isinstance(found, NotGiven):
            return found._replace(tentative=self._view.has_assumed)
        definition = definition_of(replace(demand.group_model, held_claims=found.held_claims))
        if assume:
            self._view.assume(definition, index)
        return Share(group_of(definition_taking(definition, found.names)), self._view.seen)

    async def existing(self, namespace: str, demand: PodDemand) -> PodDemand:
        """The demand of a pod that is on its node already, with the devices that its claims have. Raises as
        `read`."""
        wanted = await self._wanted(namespace, demand)
        definition = definition_of(replace(demand.group_model, held_claims=allocated_claims(wanted)))
        return replace(demand.having(wanted.device_claims), group=group_of(definition))

    async def _idle(self, wanted: Wanted) -> set[ClaimKey]:
        """Claims to devices of the same pools, by the API server's record, none of whose pods has a
        reservation. Two schedulers may have given one device to two pods that are not bound: the first of
        them gets it."""
        users = self._storage.shared_devices.recorded_users(allocated_claims(wanted))
        if not users:
            return set()
        uids = list({uid for of_claim in users.values() for uid in of_claim})
        found = await lookup_on_shards(self._ledger, decode_uids(b"".join(map(uid_from_text, uids))))
        reserved = {
            uids[i] for records in found for i in np.flatnonzero(records["node"] != NONE_U32).tolist()
        }
        return {claim for claim, of_claim in users.items() if reserved.isdisjoint(of_claim)}

    async def _wanted(self, namespace: str, demand: PodDemand) -> Wanted:
        claims = demand.spec.claims
        device_claims = {} if claims is None else await self._storage.device_claims(namespace, claims)
        return Wanted(namespace, demand.spec.volumes, claims, device_claims)

    async def _labels(self, name: str, index: int) -> Mapping[str, str]:
        labels = self._view.labels
        if index not in labels:
            found = await self._ledger.nodes_named(index % self._ledger.shards, [name])
            spec = common_pb2.NodeSpec.FromString(found[name][1]) if name in found else common_pb2.NodeSpec()
            labels[index] = dict(labels_from_proto(spec.labels))
        return labels[index]

    async def _catch_up(self) -> None:
        if self._ledger_epoch != self._ledger.epoch:
            self._view, self._ledger_epoch = HeldView(self._ledger.shards), self._ledger.epoch
        await asyncio.gather(*map(self._catch_up_with, range(self._ledger.shards)))

    async def _catch_up_with(self, shard: int) -> None:
        now, known = await self._ledger.seq(shard), self._view.seqs[shard]
        while known is None or known < now:
            entries = None if known is None else await self._ledger.feed(shard, known, 1)
            if entries:
                self._view.apply(shard, entries)
            else:  # the first look, or the feed does not go back so far
                self._view.replace(shard, await self._ledger.snapshot(shard, groups=True))
            known = self._view.seqs[shard]
