"""Kubernetes mode: frees a resource claim whose devices keep its pod from every node (kube-scheduler's
PostFilter of DynamicResources).

A claim may have been given devices of a node for a pod that was never bound there, by a scheduler that died
or by one whose binding was refused. The node may be full or gone by now. Nobody else uses the claim, so it
gives its devices back, and the pod gets others at its next attempt. Like kube-scheduler this takes one claim
at a time, by chance. The claim that an attempt before left for the pod's extended resources is deleted: the
next attempt makes another one. What the API server does not do is tried again while the pod waits: its next
attempt, which would ask for the same, may be minutes away."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

import orjson

from dispatcher.core.kubernetes.conditions import WaitingPod
from dispatcher.core.machine import Machine
from dispatcher.core.pods.table import Phase
from hoss.client.backoff import Backoff
from hoss.errors import HossError, TransportError
from hoss.kube.api import MERGE_PATCH, KubeApi, Object, Reply
from hoss.kube.paths import object_path
from hoss.model.cluster import ObjectKey
from hoss.model.devices import (
    CLAIM_UNREACHABLE,
    EXTENDED_CLAIM_ANNOTATION,
    LEFT_OVER,
    DeviceManifest,
)
from hoss.telemetry import logger
from hoss.wire.uids import uid_text

DEALLOCATED = "deallocation of ResourceClaim completed"  # kube-scheduler's words
DELETED = "deletion of ResourceClaim completed"
_PLUGIN = "DynamicResources"
# After a failure, which is most often one of the API server or of the dispatcher's rights, all wait for a
# while.
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 1.0, 60.0
_GONE = 404
_FINALIZER = "resource.kubernetes.io/delete-protection"
_BINDS_TO_NODES = "nodeSelector"  # an allocation without it is good for every node


class _Blocked(NamedTuple):
    """A pod that its claims keep from every node."""

    row: int
    pod: WaitingPod
    claims: tuple[str, ...]


class _RefusedError(HossError):
    """The API server refuses to free a claim."""


def blocked_by_claims(pod: WaitingPod) -> bool:
    """Whether devices that the pod's claims have are the reason on any node."""
    return _PLUGIN in pod.refused_by and CLAIM_UNREACHABLE in pod.message


def left_over(pod: WaitingPod) -> bool:
    """Whether a claim that an attempt before left for the pod's extended resources is the reason."""
    return _PLUGIN in pod.refused_by and LEFT_OVER in pod.message


def is_for_extended_resources(claim: Object, uid: str) -> bool:
    """Whether a scheduler made the claim for the pod with this UID, nobody else uses it, and nobody deletes
    it yet."""
    metadata = claim["metadata"]
    marked = (metadata.get("annotations") or {}).get(EXTENDED_CLAIM_ANNOTATION) == "true"
    owners = metadata.get("ownerReferences") or ()
    owned = any(owner.get("controller") and owner.get("uid") == uid for owner in owners)
    return marked and owned and not metadata.get("deletionTimestamp") and not _others_use(claim, uid)


def unprotecting_patch(claim: Object) -> Object | None:
    """The merge patch after which the claim, in this very state, can be deleted; None: nothing keeps it."""
    metadata = claim["metadata"]
    finalizers = metadata.get("finalizers") or []
    if _FINALIZER not in finalizers:
        return None
    same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    return {"metadata": same | {"finalizers": [name for name in finalizers if name != _FINALIZER] or None}}


def is_idle(claim: Object, uid: str) -> bool:
    """Whether the claim has devices that bind it to some nodes, or that never became ready, for nobody but
    the pod with this UID."""
    status = claim.get("status") or {}
    allocation = status.get("allocation")
    if allocation is None or claim["metadata"].get("deletionTimestamp") or _others_use(claim, uid):
        return False
    results = (allocation.get("devices") or {}).get("results") or ()
    conditional = any(result.get("bindingConditions") for result in results)
    return conditional or bool(allocation.get(_BINDS_TO_NODES))


def _others_use(claim: Object, uid: str) -> bool:
    users = (claim.get("status") or {}).get("reservedFor") or ()
    return any(user.get("uid") != uid for user in users)


def deallocating_patch(claim: Object) -> Object:
    """The merge patch of the status after which the claim has no devices, nothing that their drivers said of
    them, and no users. It is for this very state of the claim: whoever has begun to use it makes the API
    server answer 409."""
    known = claim["metadata"]
    same = {"uid": known["uid"], "resourceVersion": known["resourceVersion"]}
    return {"metadata": same, "status": {"allocation": None, "devices": None, "reservedFor": None}}


class ClaimDeallocation:
    """`run` must be running. `tell` gets the row of a pod and what was done for it."""

    def __init__(
        self, machine: Machine, api: KubeApi, tell: Callable[[int, str], None], *, rng: random.Random
    ) -> None:
        self._registry = machine.registry
        self._storage = machine.storage
        self._counters = machine.counters
        self._api = api
        self._tell = tell
        self._rng = rng
        self._queue: asyncio.Queue[_Blocked] = asyncio.Queue()
        self._queued: set[bytes] = set()
        self._backoff = Backoff(_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS, rng=rng)

    def __len__(self) -> int:
        """How many pods wait for their turn."""
        return len(self._queued)

    def consider(self, row: int, pod: WaitingPod) -> None:
        """The pod fits nowhere. Free one of its claims if these are the reason."""
        if pod.uid in self._queued:
            return
        if left_over(pod):
            self._add(_Blocked(row, pod, ()))
            return
        if not blocked_by_claims(pod):
            return
        templates, pods = self._registry.templates, self._registry.pods
        claims = templates.pod_spec(int(templates.class_id[pods.template[row]])).claims
        names = () if claims is None else tuple(use.claim for use in claims.uses if use.needed and use.claim)
        if names:
            self._add(_Blocked(row, pod, names))

    def _add(self, blocked: _Blocked) -> None:
        self._queued.add(blocked.pod.uid)
        self._queue.put_nowait(blocked)

    async def run(self) -> None:
        """Free claims until cancelled."""
        while True:
            blocked = await self._queue.get()
            self._queued.discard(blocked.pod.uid)
            try:
                await self._free_one(blocked)
                self._backoff.succeeded()
            except (TransportError, _RefusedError) as exc:
                logger().warning("claim_not_deallocated", pod=blocked.pod.name, error=str(exc))
                self._add(blocked)
                await asyncio.sleep(self._backoff.failed(0.0) or _LONGEST_DELAY_SECONDS)

    def _waits(self, blocked: _Blocked) -> bool:
        pods = self._registry.pods
        same = pods.uid[blocked.row].tobytes() == blocked.pod.uid
        return same and bool(pods.phase[blocked.row] == Phase.UNSCHEDULABLE)

    async def _free_one(self, blocked: _Blocked) -> None:
        """Raises TransportError, or _RefusedError where the API server does not do it."""
        if not self._waits(blocked):
            return
        if left_over(blocked.pod):
            await self._delete_left_over(blocked)
            return
        namespace = blocked.pod.namespace
        idle = [
            claim
            for claim in self._claims(namespace, blocked.claims)
            if is_idle(claim, uid_text(blocked.pod.uid))
        ]
        if not idle:
            return
        claim = self._rng.choice(idle)
        path = _path(claim, "status")
        reply = await self._api.send("PATCH", path, deallocating_patch(claim), content_type=MERGE_PATCH)
        if _is_done(reply, claim):
            self._freed(blocked, claim, DEALLOCATED)

    async def _delete_left_over(self, blocked: _Blocked) -> None:
        namespace, uid = blocked.pod.namespace, uid_text(blocked.pod.uid)
        claims = (orjson.loads(item.text) for item in self._storage.resource_claims(namespace, uid.encode()))
        for claim in [claim for claim in claims if is_for_extended_resources(claim, uid)]:
            path, patch = _path(claim), unprotecting_patch(claim)
            unprotected = patch is None or _is_done(
                await self._api.send("PATCH", path, patch, content_type=MERGE_PATCH), claim
            )
            if unprotected and self._waits(blocked):
                body = {"preconditions": {"uid": claim["metadata"]["uid"]}}
                if _is_done(await self._api.send("DELETE", path, body), claim):
                    self._freed(blocked, claim, DELETED)

    def _freed(self, blocked: _Blocked, claim: Object, words: str) -> None:
        self._counters["claims_deallocated"] += 1
        self._tell(blocked.row, f"{words}: {_name(claim)}")

    def _claims(self, namespace: str, names: Iterable[str]) -> list[Object]:
        found = (self._storage.get(ObjectKey("ResourceClaim", namespace, name)) for name in names)
        return [orjson.loads(item.text) for item in found if isinstance(item, DeviceManifest)]


def _name(claim: Object) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"


def _path(claim: Object, *rest: str) -> str:
    namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    return object_path("/apis/resource.k8s.io/v1/namespaces", namespace, "resourceclaims", name, *rest)


def _is_done(reply: Reply, claim: Object) -> bool:
    """False: the claim is gone, which wakes the pod. Raises _RefusedError otherwise; a claim that has changed
    is looked at again."""
    if not reply.done and reply.status != _GONE:
        raise _RefusedError(f"{_name(claim)}: {reply.message}")
    return reply.done
