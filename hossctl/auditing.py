"""`hoss audit`: checks the invariants of docs/architecture.md on a live system.

The resolver checks the ledger itself (invariants 1, 2, and its half of 6). This module compares the workers'
caches and the dispatcher's bound pods with the ledger, and gangs with their minimum. The data come from
several processes at slightly different moments. So a difference counts when it was there in every comparison
of the waiting time, or at once where both sides are of the same sequence number."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.client.dispatcher import DispatcherClient
from hoss.client.resolver import ResolverClient
from hoss.errors import counted
from hoss.v1 import dispatcher_pb2, resolver_pb2
from hoss.wire.columns import U8, U32, decode, decode_uids
from hoss.wire.uids import UID_BYTES, uid_text
from hossctl.console import Document

_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_VIEW_TIMEOUT_MS = 2000
_MOST_NAMED = 20  # pods named one by one in the evidence

_ON_REFUSAL = "refusal"  # see Heartbeat.synchronisation
_GONE = ("Lost", "Left")  # states of workers that have no cache to compare

# Numbers of invariants.
_NOTHING_LOST = 3
_ALL_OR_NOTHING = 5
_AGREEMENT = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant: its number, and the evidence in a sentence."""

    invariant: int
    text: str

    def as_json(self) -> Document:
        """For programs."""
        return {"invariant": self.invariant, "text": self.text}


@dataclass(slots=True)
class AuditResult:
    """The result of an audit. `unchecked` names what could not be compared in time."""

    nodes: int = 0
    reservations: int = 0
    bound: int = 0
    workers: int = 0
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)  # by --repair, before the audit
    unrepaired: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0: clean; 1: an invariant is broken; 2: not everything could be checked."""
        return 1 if self.findings else 2 if self.unchecked else 0

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if self.findings:
            return counted(len(self.findings), "violation")
        return "could not be checked whole" if self.unchecked else "clean"


async def audit(
    dispatcher: DispatcherClient, resolver: ResolverClient, *, wait_seconds: float = _WAIT_SECONDS
) -> AuditResult:
    """Check all invariants. While the platform changes, compare again for up to `wait_seconds`."""
    deadline = time.monotonic() + wait_seconds
    persistent: set[str] | None = None  # differences that every comparison had
    while True:
        ledger = await resolver.audit()
        seen = await dispatcher.audit(_VIEW_TIMEOUT_MS)
        workers = await dispatcher.list_workers()
        views = _compare_views(ledger.digests, seen.views, workers)
        partial = [_gang_text(gang) for gang in seen.broken_gangs if not gang.complete_before]
        differences = [*_compare_bound(seen, await _reservations(resolver)), *partial]
        persistent = set(differences) if persistent is None else persistent & set(differences)
        settled = not views.moving and not differences
        if ledger.violations or views.broken or settled or time.monotonic() > deadline:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
    result = AuditResult(
        nodes=ledger.nodes,
        reservations=ledger.reservations,
        bound=len(seen.bound_uids) // UID_BYTES,
        workers=len({view.worker for view in seen.views} - views.excluded.keys()),
        reports=[
            *ledger.reports,
            *views.excluded.values(),
            *seen.reports,
            *(_gang_text(gang) for gang in seen.broken_gangs if gang.complete_before),
        ],
        unchecked=views.moving,
    )
    result.findings += [
        Finding(v.invariant, v.text or f"{v.node} {v.pod_uid}".strip()) for v in ledger.violations
    ]
    result.findings += [Finding(_AGREEMENT, text) for text in views.broken]
    gangs = persistent.intersection(partial)
    result.findings += [Finding(_ALL_OR_NOTHING, text) for text in sorted(gangs)[:_MOST_NAMED]]
    result.findings += [Finding(_NOTHING_LOST, text) for text in sorted(persistent - gangs)[:_MOST_NAMED]]
    if differences and not persistent:
        result.unchecked.append("the bound pods: they and the reservations changed all the time")
    return result


async def until_caches_agree(
    dispatcher: DispatcherClient, resolver: ResolverClient, workers: int, *, wait_seconds: float = 120.0
) -> bool:
    """Wait until `workers` workers serve and each has the ledger's state. False where that takes too long."""
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        if not await disagreements(dispatcher, resolver, workers):
            return True
        await asyncio.sleep(_PAUSE_SECONDS)
    return False


async def disagreements(dispatcher: DispatcherClient, resolver: ResolverClient, workers: int) -> list[str]:
    """Why it is not yet so that `workers` workers serve and each has the ledger's state: a sentence for each
    reason."""
    listed = await dispatcher.list_workers()
    ready = [worker for worker in listed if worker.state not in _GONE]
    if len(ready) < workers:
        return [f"worker {worker.name} is {worker.state}" for worker in listed] or [
            "no worker has registered"
        ]
    seen = await dispatcher.worker_views(_VIEW_TIMEOUT_MS)
    views = _compare_views((await resolver.audit()).digests, seen, ready)
    return [*views.broken, *views.moving]


@dataclass(slots=True)
class _Views:
    broken: list[str] = field(default_factory=list)
    moving: list[str] = field(default_factory=list)
    # Workers whose caches do not follow the ledger, and why.
    excluded: dict[str, str] = field(default_factory=dict)


def _compare_views(
    ledger: Sequence[resolver_pb2.ShardDigest],
    views: Sequence[dispatcher_pb2.WorkerView],
    workers: Sequence[dispatcher_pb2.WorkerInfo],
) -> _Views:
    result = _Views()
    by_worker = {(view.worker, view.shard): view for view in views}
    for worker in workers:
        if worker.state in _GONE:
            continue
        if worker.synchronisation == _ON_REFUSAL:
            why = f"worker {worker.name} hears of the ledger by refusals only: its cache is not compared"
            result.excluded[worker.name] = why
            continue
        for digest in ledger:
            view = by_worker.get((worker.name, digest.shard))
            who = f"worker {worker.name}, shard {digest.shard}"
            if view is None:
                result.moving.append(f"{who}: no answer")
            elif view.seq != digest.seq:
                result.moving.append(f"{who}: its cache is at {view.seq}, the ledger at {digest.seq}")
            elif view.digest != digest.digest:
                result.broken.append(
                    f"{who}: cache and ledger differ at the same sequence number {view.seq} "
                    f"(digests {view.digest:016x} and {digest.digest:016x})"
                )
            elif not view.idle:
                result.moving.append(f"{who}: it waits for verdicts")
    return result


@dataclass(frozen=True, slots=True)
class _Reservations:
    uids: NDArray[Any]  # keys, n
    nodes: NDArray[Any]  # u32, n
    ending: NDArray[np.bool_]  # n: assumed or terminating, so that its pod need not be bound


async def _reservations(resolver: ResolverClient) -> _Reservations:
    uids, nodes, ending = [_keys(b"")], [np.empty(0, U32)], [np.empty(0, np.bool_)]
    async for chunk in resolver.reservations(details=True):
        uids.append(_keys(chunk.uids))
        nodes.append(decode(chunk.nodes, U32, name="nodes"))
        ending.append(decode(chunk.assumed, U8, name="assumed") != 0)
        if chunk.states:  # resolvers of 0.2 do not send them
            ending[-1] |= decode(chunk.states, U8, name="states") == resolver_pb2.RESERVATION_TERMINATING
    return _Reservations(np.concatenate(uids), np.concatenate(nodes), np.concatenate(ending))


def _compare_bound(seen: dispatcher_pb2.DispatcherAuditReply, held: _Reservations) -> list[str]:
    """A sentence for each pod that is bound and has no reservation, or is not bound and has one."""
    bound = _keys(seen.bound_uids)
    bound_nodes = decode(seen.bound_nodes, U32, name="bound_nodes", rows=len(bound))
    found = _positions(held.uids, bound)
    missing = found < 0
    elsewhere = ~missing
    elsewhere[elsewhere] = held.nodes[found[elsewhere]] != bound_nodes[elsewhere]
    # An assumed reservation is confirmed soon or ends with its lease; a terminating one ends with its pod,
    # which was evicted.
    claimed = held.ending.copy()
    claimed[found[~missing]] = True
    return [
        *(f"pod {_text(uid)} is bound and has no reservation" for uid in bound[missing]),
        *(
            f"pod {_text(uid)} is bound to node {node} and its reservation is on another"
            for uid, node in zip(bound[elsewhere], bound_nodes[elsewhere], strict=True)
        ),
        *(f"pod {_text(uid)} has a confirmed reservation and is not bound" for uid in held.uids[~claimed]),
    ]


def _gang_text(gang: dispatcher_pb2.BrokenGang) -> str:
    since = ", after it was complete" if gang.complete_before else ""
    return f"gang {gang.namespace}/{gang.name} has {gang.bound} pods bound and needs {gang.needed}{since}"


def _positions(keys: NDArray[Any], searched: NDArray[Any]) -> NDArray[np.int64]:
    """The index in `keys` of each searched key; -1 where it is missing."""
    if not len(keys):
        return np.full(len(searched), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys, searched, sorter=order), len(keys) - 1)]
    return np.where(keys[at] == searched, at, -1)


def _keys(column: bytes) -> NDArray[Any]:
    # NumPy drops trailing zeros of a byte string when it is read, and ignores them in comparisons, which is
    # right for keys of equal width.
    return np.ascontiguousarray(decode_uids(column)).view(f"S{UID_BYTES}").ravel()


def _text(key: bytes) -> str:
    return uid_text(key.ljust(UID_BYTES, b"\0"))
