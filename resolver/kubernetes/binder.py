"""Binds reserved pods at the API server: many at once, each by its UID. A pod is read if a reply leaves its
binding in doubt."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from hoss.client.backoff import Backoff
from hoss.errors import TransportError
from hoss.host import THIS_HOST
from hoss.kube.api import REQUEST_SECONDS, KubeApi, Object, Reply
from hoss.kube.paths import pod_path
from hoss.model.devices import BINDING_SECONDS, HeldClaim
from hoss.model.volumes import PodVolumes
from hoss.telemetry import logger
from resolver.core.kubernetes.binding_review import (
    BindResult,
    Bound,
    binding_of,
    read_binding_reply,
    read_bound_pod,
)
from resolver.core.kubernetes.claim_allocations import ClaimUser
from resolver.kubernetes.device_binder import ClaimsRequest, DeviceBinder, always
from resolver.kubernetes.volume_binder import VolumeBinder, VolumeRequest

# The caller tries again after this, so that a call ends. The API server gives a request up after a minute,
# and most requests take 10 ms.
_PATIENCE_SECONDS = 20.0

# After this many refusals that the pod itself does not explain, the refusal counts.
_REFUSALS = 3
_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 2.0


class BindingRequest(NamedTuple):
    """A pod, "namespace/name", and the node it is to be bound to."""

    pod: str
    uid: str
    node: str
    volumes: PodVolumes | None = None  # to be bound first; None: nothing is to be done for them
    undo: bool = False  # take back what was done for the volumes and the claims, and refuse
    written: bool = False  # all was done for the volumes before
    claims: tuple[str, ...] = ()  # resource claims, which get their devices first
    chosen: Mapping[str, HeldClaim] = MappingProxyType({})  # devices by claim; none: it had them before
    is_current: Callable[[], bool] = always  # whether the ledger that chose the devices is still the ledger
    ready_seconds: float = BINDING_SECONDS  # how long devices may take to become ready
    versions: Mapping[str, str] = MappingProxyType({})  # of volume claims that name no volume and no node


class Binder:
    """Binds any number of pods at a time. The client limits the requests under way."""

    def __init__(
        self,
        api: KubeApi,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        utc_now: Callable[[], datetime] = THIS_HOST.utc_now,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._api = api
        self._volumes = VolumeBinder(api)
        self._devices = DeviceBinder(api, utc_now)
        self._clock = clock
        self._rng = rng
        self._patience_seconds = patience_seconds
        self._request_seconds = request_seconds

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered here."""
        return {"claims_made_ready": len(self._devices)}

    async def bind(self, requests: Sequence[BindingRequest]) -> list[Bound]:
        """The outcome for each pod; UNKNOWN if the time was not enough to learn it, or what the API server
        has of the pod is not what we expect. The other pods of the call are told their outcome all the
        same."""
        outcomes = await asyncio.gather(*map(self._bind, requests), return_exceptions=True)
        found = [
            bound if isinstance(bound, Bound) else _surprise(request.pod, bound)
            for request, bound in zip(requests, outcomes, strict=True)
        ]
        for bound in found:
            self.counters[f"bindings_{bound.result.name.lower()}"] += 1
        return found

    async def end_claims(self, pods: Mapping[str, Sequence[HeldClaim]]) -> set[str]:
        """Before the devices of these pods, by UID, are given to others: see `DeviceBinder.end`. Returns the
        UIDs of those for which that is not done."""

        async def is_ended(uid: str) -> bool:
            try:
                await self._devices.end(uid, pods[uid])
            except TransportError:
                return False
            return True

        ended = await asyncio.gather(*map(is_ended, pods))
        return {uid for uid, done in zip(pods, ended, strict=True) if not done}

    async def _bind(self, request: BindingRequest) -> Bound:
        """First the volumes, then the devices, then the pod. Both may have to be waited for. A pod whose
        volumes are refused, or undone, may have its devices from an earlier request."""
        namespace, _, name = request.pod.partition("/")
        user = ClaimUser(name, request.uid)
        devices = ClaimsRequest(
            namespace,
            user,
            request.claims,
            request.chosen,
            request.is_current,
            request.node,
            request.ready_seconds,
        )
        if request.volumes is not None:
            not_yet = await self._volumes.bind(
                VolumeRequest(
                    namespace,
                    request.volumes,
                    request.node,
                    request.undo,
                    request.written,
                    request.versions,
                )
            )
            if not_yet is not None and not_yet.result is BindResult.REFUSED and request.claims:
                return await self._devices.release(devices) or not_yet
            if not_yet is not None:
                return not_yet
        if not request.claims:
            return await self._bind_pod(request)
        not_yet = await self._devices.bind(devices)
        if not_yet is not None:
            return not_yet
        bound = await self._bind_pod(request)
        if bound.result is BindResult.REFUSED and (unknown := await self._devices.release(devices)):
            return unknown
        return bound

    async def _bind_pod(self, request: BindingRequest) -> Bound:
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, rng=self._rng)
        deadline = self._clock() + self._patience_seconds
        refusals = 0
        doubtful = False  # an attempt without a reply may still succeed, so a later refusal proves nothing
        while True:
            problem, found = "", None
            try:
                reply = await self._send("POST", _path(request.pod, "binding"), binding_of(*request[:3]))
                if reply.done:
                    return Bound(BindResult.DONE)
                found, problem = read_binding_reply(reply.status, reply.message), reply.message
                if found is None and reply.status != 429:
                    doubtful |= reply.passing
                    refusals += reply.status == 409
                    found = read_bound_pod(await self._read(request.pod), request.uid, request.node)
            except TransportError as exc:
                doubtful, problem = True, str(exc)
            if found is None and refusals >= _REFUSALS:
                found = Bound(BindResult.REFUSED, f"the API server refuses the binding: {problem}")
            if found is not None and not (doubtful and found.result is BindResult.REFUSED):
                return found
            delay = backoff.failed(self._clock()) or 0
            if self._clock() + delay > deadline:
                return Bound(BindResult.UNKNOWN, problem)
            self.counters["bindings_repeated"] += 1
            await asyncio.sleep(delay)

    async def _read(self, pod: str) -> Object | None:
        """The pod; None: there is none. Raises TransportError if that is unknown."""
        reply = await self._send("GET", _path(pod))
        if reply.status == 404:
            return None
        if not reply.done:
            raise TransportError(f"pod {pod} cannot be read: {reply.status} {reply.message}")
        found: Object = reply.json()
        return found

    async def _send(self, method: str, path: str, body: Object | None = None) -> Reply:
        return await self._api.send(method, path, body, timeout_seconds=self._request_seconds)


def _surprise(pod: str, error: BaseException) -> Bound:
    """Of a pod whose binding met an error that nobody expected."""
    if not isinstance(error, Exception):
        raise error
    logger().error("binding_failed", pod=pod, exc_info=error)
    return Bound(BindResult.UNKNOWN, f"binding {pod} failed: {type(error).__name__}: {error}")


def _path(pod: str, *part: str) -> str:
    namespace, _, name = pod.partition("/")
    return pod_path(namespace, name, *part)
