"""The leases of bindings that the webhook allowed.

The dispatcher confirms a reservation once it sees the pod on its node. While no dispatcher does, the resolver
that allowed the binding keeps the lease, until it has seen that the pod is bound (then it confirms the
reservation under its own epoch), or that the binding came to nothing (then it gives the room back).
Invariant: a reservation that was made for an allowed binding does not end while the pod may still get bound,
or is. So before a binding is allowed, its lease is made as long as the API server may take to write it: the
resolver may die in the next moment (docs/adr/0110-leases-as-long-as-a-binding.md).

An entry is forgotten once its reservation is confirmed or gone, and after `BINDING_REQUEST_SECONDS` at the
latest, unless the API server does not answer."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from hoss.errors import LedgerUnavailable, TransportError
from hoss.kube.api import BINDING_REQUEST_SECONDS
from hoss.tasks import background
from hoss.telemetry import logger
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.uids import uid_from_text
from resolver.core.kubernetes.binding_review import Review
from resolver.core.values import ReservationState, Writer
from resolver.kubernetes.pod_source import PodSource
from resolver.ledger.port import Ledger

BINDING_LEASE_MS = round(BINDING_REQUEST_SECONDS * 1000)
_ROUNDS_A_LEASE = 4
# A binding is asked for only when it is older. A round before, `renew` has forgotten what a dispatcher
# confirmed within the first one, so the API server gets no request for it.
_ROUNDS_UNASKED = 2
_RENEWED_AT_ONCE = 1000  # in one call of the ledger
_ASKED_AT_ONCE = 20  # requests to the API server


class _Binding(NamedTuple):
    review: Review
    uid: bytes
    seq: int
    allowed_at: float
    ledger_epoch: str


class _Fate(Enum):
    UNKNOWN = auto()  # nobody can tell now
    UNBOUND = auto()  # it may still come
    BOUND = auto()
    NEVER = auto()  # the API server would refuse it


class BindingsUnderWay:
    """`writer` returns the webhook's epoch. Run `run` in the background."""

    def __init__(
        self,
        ledger: Ledger,
        pods: PodSource,
        writer: Callable[[], Writer],
        *,
        lease_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._writer = writer
        self._lease_ms = round(lease_seconds * 1000)
        self._round_seconds = lease_seconds / _ROUNDS_A_LEASE
        self._clock = clock
        self._bindings: dict[tuple[int, bytes], _Binding] = {}  # by shard and UID
        self.counters: Counter[str] = Counter()  # lease_confirmed, lease_given_back

    def __len__(self) -> int:
        return len(self._bindings)

    async def begin(self, review: Review, shard: int, uid: bytes, seq: int) -> bool:
        """Call it before the binding is allowed, for which commit `seq` of the shard reserved the room some
        time ago. From now on the reservation lasts as long as the binding may take, even if nobody looks
        after it. False: there is no such reservation, or the writer is fenced. Raises LedgerUnavailable."""
        epoch, seqs, lease_ms = self._ledger.epoch, np.array([seq], np.uint64), BINDING_LEASE_MS
        held = await self._ledger.renew(shard, decode_uids(uid), seqs, self._writer(), lease_ms=lease_ms)
        if held[0]:
            self.reserved(review, shard, uid, seq, epoch)
        return bool(held[0])

    def reserved(self, review: Review, shard: int, uid: bytes, seq: int, ledger_epoch: str) -> None:
        """The room for this binding was reserved just now, for BINDING_LEASE_MS, in that epoch of the
        ledger."""
        self._bindings[shard, uid] = _Binding(review, uid, seq, self._clock(), ledger_epoch)

    async def run(self) -> None:
        """Look after the leases until cancelled. They are renewed while the API server is asked, which may
        take longer than they last."""
        async with background(self._repeat(self.settle)):
            await self._repeat(self.renew)

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._round_seconds)
            try:
                await step()
            except LedgerUnavailable as exc:
                logger().warning("bindings_not_kept", bindings=len(self), error=str(exc))

    async def renew(self) -> None:
        """Renew the lease of every binding that is not confirmed, and forget the others. Raises
        LedgerUnavailable."""
        for shard in {shard for shard, _ in self._bindings}:
            of_shard = [binding for (at, _), binding in self._bindings.items() if at == shard]
            for start in range(0, len(of_shard), _RENEWED_AT_ONCE):
                await self._renew(shard, of_shard[start : start + _RENEWED_AT_ONCE])

    async def _renew(self, shard: int, bindings: list[_Binding]) -> None:
        found = await self._ledger.lookup(shard, decode_uids(b"".join(binding.uid for binding in bindings)))
        lasting = []
        for binding, node, seq, state in zip(
            bindings,
            found["node"].tolist(),
            found["seq"].tolist(),
            found["state"].tolist(),
            strict=True,
        ):
            is_ours = node != NONE_U32 and seq == binding.seq and binding.ledger_epoch == self._ledger.epoch
            if is_ours and state != ReservationState.CONFIRMED:
                lasting.append(binding)
            else:
                self._forget(shard, binding)
        if lasting:
            uids = decode_uids(b"".join(binding.uid for binding in lasting))
            seqs = np.array([binding.seq for binding in lasting], np.uint64)
            await self._ledger.renew(shard, uids, seqs, self._writer(), lease_ms=self._lease_ms)

    async def settle(self) -> None:
        """Ask the API server once what became of every binding that no dispatcher has confirmed for some
        rounds. Raises LedgerUnavailable."""
        allowed_before = self._clock() - _ROUNDS_UNASKED * self._round_seconds
        known = [
            (shard, binding)
            for (shard, _), binding in self._bindings.items()
            if binding.allowed_at <= allowed_before
        ]
        for start in range(0, len(known), _ASKED_AT_ONCE):
            part = known[start : start + _ASKED_AT_ONCE]
            await asyncio.gather(*(self._settle(shard, binding) for shard, binding in part))

    async def _settle(self, shard: int, binding: _Binding) -> None:
        """Confirm the reservation, or give it back, or leave it until it is asked for again."""
        if self._bindings.get((shard, binding.uid)) != binding:
            return  # confirmed while others were asked for
        fate = await self._fate(binding)
        if self._bindings.get((shard, binding.uid)) != binding or binding.ledger_epoch != self._ledger.epoch:
            return
        seqs = np.array([binding.seq], np.uint64)
        is_late = self._clock() - binding.allowed_at >= BINDING_REQUEST_SECONDS
        if fate is _Fate.BOUND:
            await self._ledger.confirm(shard, seqs, self._writer())
            self.counters["lease_confirmed"] += 1
            self._forget(shard, binding)
        elif fate is _Fate.NEVER or (fate is _Fate.UNBOUND and is_late):
            await self._ledger.abort(shard, decode_uids(binding.uid), seqs, self._writer())
            self.counters["lease_given_back"] += 1
            self._forget(shard, binding)

    def _forget(self, shard: int, binding: _Binding) -> None:
        """Unless it was allowed again meanwhile."""
        if self._bindings.get((shard, binding.uid)) == binding:
            del self._bindings[shard, binding.uid]

    async def _fate(self, binding: _Binding) -> _Fate:
        review = binding.review
        try:
            pod = await self._pods.find(review.namespace, review.pod, binding.uid)
        except TransportError:
            return _Fate.UNKNOWN
        if pod is None or uid_from_text(str(pod["metadata"]["uid"])) != binding.uid:
            # A binding that names no UID may bind the next pod of that name.
            return _Fate.NEVER if review.pod_uid else _Fate.UNBOUND
        node = pod["spec"].get("nodeName")
        if node == review.node:
            return _Fate.BOUND
        return _Fate.NEVER if node or pod["metadata"].get("deletionTimestamp") else _Fate.UNBOUND
