"""Gives the resource claims of reserved pods their devices before the pods are bound, and takes them back
where a pod cannot be bound. Devices may have to become ready first. Nothing is waited for here: whoever asks,
asks again."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object
from hoss.kube.paths import object_path, pod_path
from hoss.model.devices import BINDING_SECONDS, HeldClaim, extended_claim_name
from resolver.core.kubernetes.binding_review import BindResult, Bound
from resolver.core.kubernetes.claim_allocations import (
    FINALIZER,
    ClaimUser,
    DevicesRefused,
    check_extended,
    classes_of,
    devices_ready,
    extended_claim,
    extended_status_patch,
    finalizer_patch,
    releasing_patch,
    reserving_patch,
    unprotecting_patch,
)
from resolver.kubernetes.object_writer import ObjectWriter

_GROUP = "/apis/resource.k8s.io/v1"
_CLASSES_AGE = timedelta(seconds=1)
# Claims whose devices are being made ready, as this resolver left them; the one that was asked for longest
# ago is forgotten first. Of what is forgotten everything is asked anew.
_MOST_WAITING = 10_000


def always() -> bool:
    """Of a choice that nothing takes back."""
    return True


class ClaimsRequest(NamedTuple):
    """The claims of a pod by name, and what was chosen for those that had no devices when it was placed on
    `node`. `is_current`: whether the ledger that has the choice is still the ledger. One that was rebuilt
    since may have given the devices to others."""

    namespace: str
    user: ClaimUser
    claims: tuple[str, ...]
    chosen: Mapping[str, HeldClaim]
    is_current: Callable[[], bool] = always
    node: str = ""
    ready_seconds: float = BINDING_SECONDS


class DeviceBinder:
    """Serves any number of pods at a time."""

    def __init__(self, api: KubeApi, utc_now: Callable[[], datetime]) -> None:
        self._utc_now = utc_now
        self._objects = ObjectWriter(api, DevicesRefused)
        # By name, asked for since then; forgotten _CLASSES_AGE after the first.
        self._classes: dict[str, asyncio.Task[Object]] = {}
        self._classes_since = datetime.min.replace(tzinfo=timezone.utc)
        # By UID of the pod and name of the claim, the claim's resourceVersion after all was written.
        self._waiting: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        """How many claims are remembered, whose devices are being made ready."""
        return len(self._waiting)

    async def bind(self, request: ClaimsRequest) -> Bound | None:
        """None: all claims have their devices, which are ready, and list the pod. Else WAITS while devices
        are made ready; REFUSED with the reason, after what was written is taken back; or UNKNOWN if the API
        server did not answer."""
        try:
            claims = [
                await self._unchanged(request, name) or await self._bind_claim(request, name)
                for name in request.claims
            ]
            now = self._utc_now()
            if not all(devices_ready(claim, now, request.ready_seconds) for claim in claims):
                self._remember(request, claims)
                text = f"waiting for binding conditions for device on node {request.node}"
                return Bound(BindResult.WAITS, text)
        except DevicesRefused as refused:
            problem = await self.release(request)
            return problem or Bound(BindResult.REFUSED, str(refused))
        except TransportError as exc:
            return Bound(BindResult.UNKNOWN, str(exc))
        return None

    async def _unchanged(self, request: ClaimsRequest, name: str) -> Object | None:
        """The claim, if nothing of it has changed since the pod had to wait: then nothing is to be
        written."""
        version = self._waiting.pop((request.user.uid, name), "")
        if not version or not request.is_current():
            return None
        with contextlib.suppress(DevicesRefused):  # it is gone
            claim = await self._objects.read(_path(request, name))
            return claim if claim["metadata"]["resourceVersion"] == version else None
        return None

    def _remember(self, request: ClaimsRequest, claims: Iterable[Object]) -> None:
        for claim in claims:
            metadata = claim["metadata"]
            self._waiting[request.user.uid, metadata["name"]] = metadata["resourceVersion"]
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    async def release(self, request: ClaimsRequest) -> Bound | None:
        """No claim lists the pod any more. None: done; else UNKNOWN."""
        try:
            for name in request.claims:
                self._waiting.pop((request.user.uid, name), None)
                await self._release_claim(request, name)
        except TransportError as exc:
            return Bound(BindResult.UNKNOWN, str(exc))
        return None

    async def _bind_claim(self, request: ClaimsRequest, name: str) -> Object:
        path, held = _path(request, name), request.chosen.get(name)
        chosen = None if held is None else held.allocation
        if held is None and _is_extended(request, name):
            # The ledger was rebuilt and knows no choice. What was begun is taken back, as after any refusal.
            raise DevicesRefused(f"claim {request.namespace}/{name} has no devices any more")
        claim = None
        if held is not None and held.mappings:
            claim = await self._objects.create(_claims(request), extended_claim(held, request.user), name)
            check_extended(claim, request.user)
        elif held is not None:
            claim = await self._objects.protect(path, FINALIZER)
        claim = await self._objects.write(path, lambda found: finalizer_patch(found, chosen), known=claim)
        classes = {of: await self._class(of) for of in classes_of(claim, chosen)}

        def reserving(found: Object) -> dict[str, Any] | None:
            if not request.is_current():
                raise TransportError("the ledger was lost since the devices were chosen; ask again")
            return reserving_patch(found, chosen, request.user, classes, self._utc_now())

        claim = await self._objects.write(path, reserving, part="/status", known=claim)
        if held is not None and held.mappings:
            pod = pod_path(request.namespace, request.user.name)
            await self._objects.write(
                pod, lambda found: extended_status_patch(found, held, request.user), part="/status"
            )
        return claim

    async def _class(self, name: str) -> Object:
        """A device class as it was at most a second before it was asked for. Pods of the same moment mostly
        name the same few, and one question serves them all."""
        now = self._utc_now()
        if not timedelta(0) <= now - self._classes_since < _CLASSES_AGE:
            self._classes, self._classes_since = {}, now
        classes = self._classes  # of this second: others may begin the next one while this one is answered
        asked = classes.get(name)
        if asked is None:

            def forget_failed(task: asyncio.Task[Object]) -> None:
                if task.cancelled() or task.exception() is not None:
                    del classes[name]

            path = object_path(f"{_GROUP}/deviceclasses", name)
            asked = classes[name] = asyncio.ensure_future(self._objects.read(path))
            asked.add_done_callback(forget_failed)
        return await asyncio.shield(asked)  # who is cancelled leaves the answer to the others

    async def _release_claim(self, request: ClaimsRequest, name: str) -> None:
        if _is_extended(request, name):
            await self._delete_claim(request, name)
            return
        held = request.chosen.get(name)
        chosen = None if held is None else held.allocation
        with contextlib.suppress(DevicesRefused):  # the claim is gone, or may not be changed
            await self._objects.write(
                _path(request, name),
                lambda claim: releasing_patch(claim, chosen, request.user),
                part="/status",
            )

    async def _delete_claim(self, request: ClaimsRequest, name: str) -> None:
        path = _path(request, name)
        with contextlib.suppress(DevicesRefused):  # the claim is gone, or not the pod's
            claim = await self._objects.write(path, lambda found: unprotecting_patch(found, request.user))
            await self._objects.delete(path, claim["metadata"]["uid"])


def _is_extended(request: ClaimsRequest, name: str) -> bool:
    """Whether the claim is the one for the pod's extended resources."""
    return name == extended_claim_name(request.user.name, request.user.uid)


def _claims(request: ClaimsRequest) -> str:
    return object_path(f"{_GROUP}/namespaces", request.namespace, "resourceclaims")


def _path(request: ClaimsRequest, claim: str) -> str:
    return object_path(_claims(request), claim)
