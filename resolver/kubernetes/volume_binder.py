"""Binds the volumes of reserved pods before the pods are bound: writes what the pod's worker chose, and says
whether the claims are bound. It does not wait: whoever asks, asks again when a claim has changed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hoss.errors import TransportError
from hoss.kube.api import KubeApi
from hoss.kube.paths import object_path
from hoss.model.volumes import ClaimMount, PodVolumes
from resolver.core.kubernetes.binding_review import BindResult, Bound
from resolver.core.kubernetes.volume_bindings import (
    VolumeRefused,
    is_bound,
    reserving_patch,
    selecting_patch,
    unselected,
    unselecting_patch,
)
from resolver.kubernetes.object_writer import ObjectWriter

WAITS = Bound(BindResult.WAITS, "volumes are being bound")


class VolumeRequest(NamedTuple):
    """A pod's claims with what was chosen for them. `undo`: take back what can be, and refuse. `written`: all
    was written before. `versions`: by name, claims that name no volume and no node as long as they have these
    resourceVersions."""

    namespace: str
    volumes: PodVolumes
    node: str
    undo: bool = False
    written: bool = False
    versions: Mapping[str, str] = MappingProxyType({})


class VolumeBinder:
    """Binds the claims of any number of pods at a time."""

    def __init__(self, api: KubeApi) -> None:
        self._objects = ObjectWriter(api, VolumeRefused)

    async def bind(self, request: VolumeRequest) -> Bound | None:
        """None: all claims are bound. Else WAITS, REFUSED with the reason, or UNKNOWN if the API server did
        not answer. What is refused is undone as far as claims name the node."""
        try:
            if request.undo:
                await self._undo(request)
                return Bound(BindResult.REFUSED)
            # As kube-scheduler: first volumes that exist, then those that are provisioned.
            mounts = sorted(request.volumes.claims, key=lambda mount: mount.provisioned)
            bound = [await self._bind_claim(request, mount) for mount in mounts]
        except VolumeRefused as refused:
            try:
                await self._undo(request)
            except TransportError as exc:
                return Bound(BindResult.UNKNOWN, str(exc))
            return Bound(BindResult.REFUSED, str(refused))
        except TransportError as exc:
            return Bound(BindResult.UNKNOWN, str(exc))
        return None if all(bound) else WAITS

    async def _bind_claim(self, request: VolumeRequest, mount: ClaimMount) -> bool:
        """Write what was chosen for the claim, unless it is written. Returns whether the claim is bound."""
        path, no_claim = _claim_path(request, mount), _missing(f'persistentvolumeclaim "{mount.claim}"')
        version = request.versions.get(mount.claim, "") if mount.provisioned else ""
        claim = unselected(mount.claim, version) if version else await self._objects.read(path, no_claim)
        if is_bound(claim):
            return True
        if mount.volume:
            await self._objects.write(
                object_path("/api/v1/persistentvolumes", mount.volume),
                lambda volume: reserving_patch(volume, claim, written=request.written),
                gone=_missing(f'persistentvolume "{mount.volume}"'),
            )
        elif mount.provisioned:
            await self._objects.write(
                path,
                lambda found: selecting_patch(found, request.node, written=request.written),
                gone=no_claim,
                known=claim,
            )
        else:
            # The ledger was rebuilt since, from what knows no choice.
            raise VolumeRefused(f'no pod volume found for node "{request.node}"')
        return False

    async def _undo(self, request: VolumeRequest) -> None:
        """No claim asks for a volume for the node any more. A claimRef stays, as with kube-scheduler: the
        controller manager may have bound the claim already, and the pod finds its volume reserved."""
        for mount in request.volumes.claims:
            if mount.provisioned:
                try:
                    await self._objects.write(
                        _claim_path(request, mount), lambda claim: unselecting_patch(claim, request.node)
                    )
                except VolumeRefused:
                    continue


def _missing(what: str) -> str:
    return f"binding volumes: failed to check binding: {what} not found"


def _claim_path(request: VolumeRequest, mount: ClaimMount) -> str:
    return object_path("/api/v1/namespaces", request.namespace, "persistentvolumeclaims", mount.claim)
