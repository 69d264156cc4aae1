"""Gives the resource claims of reserved pods their devices before the pods are bound, and takes them back
where a pod cannot be bound."""

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

from hoss.errors import TransportError
from hoss.kube.api import KubeApi
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
from resolver.kubernetes.object_writer import ObjectWriter

_GROUP = "/apis/resource.k8s.io/v1"


class DeviceRequest(NamedTuple):
    """The claims of a pod by name, and what was chosen for those that had no devices when it was placed."""

    namespace: str
    user: ClaimUser
    claims: tuple[str, ...]
    chosen: Mapping[str, Allocation]


class DeviceBinder:
    """Serves any number of pods at a time."""

    def __init__(self, api: KubeApi) -> None:
        self._objects = ObjectWriter(api, DevicesRefused)

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
        claim = await self._objects.write(path, lambda found: finalizer_patch(found, chosen))
        classes = {
            of: await self._objects.read(f"{_GROUP}/deviceclasses/{of}") for of in classes_of(claim, chosen)
        }
        await self._objects.write(
            path, lambda found: reserving_patch(found, chosen, request.user, classes), part="/status"
        )

    async def _release_claim(self, request: DeviceRequest, name: str) -> None:
        chosen = request.chosen.get(name)
        with contextlib.suppress(DevicesRefused):  # the claim is gone, or may not be changed
            await self._objects.write(
                _path(request, name),
                lambda claim: releasing_patch(claim, chosen, request.user),
                part="/status",
            )


def _path(request: DeviceRequest, claim: str) -> str:
    return f"{_GROUP}/namespaces/{request.namespace}/resourceclaims/{claim}"
