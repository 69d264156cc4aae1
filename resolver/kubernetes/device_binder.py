"""Gives the resource claims of reserved pods their devices before the pods are bound, and takes them back
where a pod cannot be bound."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object, Reply
from hoss.model.devices import Allocation
from resolver.core.binding_review import BindResult, Bound
from resolver.core.claim_allocations import (
    ClaimUser,
    DevicesRefused,
    classes_of,
    finalizer_patch,
    releasing_patch,
    reserving_patch,
)
from resolver.kubernetes.volume_binder import MERGE_PATCH

_GROUP = "/apis/resource.k8s.io/v1"
_PATIENCE_SECONDS = 10.0
_ATTEMPTS = 5  # at a claim that others change at the same time
_CONFLICT, _NOT_FOUND = 409, 404


class DeviceRequest(NamedTuple):
    """The claims of a pod by name, and what was chosen for those that had no devices when it was placed."""

    namespace: str
    user: ClaimUser
    claims: tuple[str, ...]
    chosen: Mapping[str, Allocation]


class DeviceBinder:
    """Serves any number of pods at a time. The client limits the requests under way."""

    def __init__(self, api: KubeApi, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._api = api
        self._patience_seconds = patience_seconds

    async def bind(self, request: DeviceRequest) -> Bound | None:
        """None: all claims have their devices and list the pod. Else REFUSED with the reason, after what was
        written is taken back; or UNKNOWN if the API server did not answer."""
        try:
            for name in request.claims:
                await self._bind_claim(request, name)
        except DevicesRefused as refused:
            problem = await self.release(request)
            return problem or Bound(BindResult.REFUSED, str(refused))
        except TransportError as exc:
            return Bound(BindResult.UNKNOWN, str(exc))
        return None

    async def release(self, request: DeviceRequest) -> Bound | None:
        """No claim lists the pod any more. None: done; else UNKNOWN."""
        try:
            for name in request.claims:
                await self._release_claim(request, name)
        except TransportError as exc:
            return Bound(BindResult.UNKNOWN, str(exc))
        return None

    async def _bind_claim(self, request: DeviceRequest, name: str) -> None:
        path, chosen = _path(request, name), request.chosen.get(name)
        claim = await self._write(path, lambda found: finalizer_patch(found, chosen))
        classes = {of: await self._read(f"{_GROUP}/deviceclasses/{of}") for of in classes_of(claim, chosen)}
        await self._write(
            path, lambda found: reserving_patch(found, chosen, request.user, classes), "/status"
        )

    async def _release_claim(self, request: DeviceRequest, name: str) -> None:
        chosen = request.chosen.get(name)
        with contextlib.suppress(DevicesRefused):  # the claim is gone, or may not be changed
            await self._write(
                _path(request, name), lambda claim: releasing_patch(claim, chosen, request.user), "/status"
            )

    async def _write(
        self, path: str, patch_of: Callable[[Object], dict[str, Any] | None], part: str = ""
    ) -> Object:
        """Patch the claim, or this part of it, as it is now, unless that is not needed. Returns the claim.
        Raises DevicesRefused."""
        for _ in range(_ATTEMPTS):
            claim = await self._read(path)
            patch = patch_of(claim)
            if patch is None:
                return claim
            reply = await self._ask("PATCH", path + part, patch)
            if reply.done:
                written: Object = reply.json()
                return written
            if reply.status not in (_CONFLICT, _NOT_FOUND):
                break
        raise DevicesRefused(reply.message)

    async def _read(self, path: str) -> Object:
        reply = await self._ask("GET", path)
        if reply.status == _NOT_FOUND:
            raise DevicesRefused(reply.message)
        if not reply.done:
            raise TransportError(f"{path} cannot be read: {reply.status} {reply.message}")
        found: Object = reply.json()
        return found

    async def _ask(self, method: str, path: str, body: Object | None = None) -> Reply:
        # Repeating a patch is harmless: it is of one state of the object, and a second one gets 409.
        return await self._api.ask(
            method, path, body, content_type=MERGE_PATCH, patience_seconds=self._patience_seconds
        )


def _path(request: DeviceRequest, claim: str) -> str:
    return f"{_GROUP}/namespaces/{request.namespace}/resourceclaims/{claim}"
