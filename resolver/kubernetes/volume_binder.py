"""Binds the volumes of reserved pods before the pods are bound: writes what the pod's worker chose, and says
whether the claims are bound. It does not wait: whoever asks, asks again when a claim has changed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object, Reply
from hoss.model.volumes import ClaimMount, PodVolumes
from resolver.core.binding_review import BindResult, Bound
from resolver.core.volume_bindings import (
    VolumeRefused,
    is_bound,
    reserving_patch,
    selecting_patch,
    unselecting_patch,
)

MERGE_PATCH = "application/merge-patch+json"

_PATIENCE_SECONDS = 10.0
_ATTEMPTS = 5  # at an object that others change at the same time
_CONFLICT, _NOT_FOUND = 409, 404

WAITS = Bound(BindResult.WAITS, "volumes are being bound")


class VolumeRequest(NamedTuple):
    """A pod's claims with what was chosen for them. `undo`: take back what can be, and refuse. `written`: all was
    written before."""

    namespace: str
    volumes: PodVolumes
    node: str
    undo: bool = False
    written: bool = False


class VolumeBinder:
    """Binds the claims of any number of pods at a time. The client limits the requests under way."""

    def __init__(self, api: KubeApi, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._api = api
        self._patience_seconds = patience_seconds

    async def bind(self, request: VolumeRequest) -> Bound | None:
        """None: all claims are bound. Else WAITS, REFUSED with the reason, or UNKNOWN if the API server did not
        answer. What is refused is undone as far as claims name the node."""
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
        path = _claim_path(request, mount)
        claim = await self._read(path, f'persistentvolumeclaim "{mount.claim}" not found')
        if is_bound(claim):
            return True
        if mount.volume:
            gone = f'persistentvolume "{mount.volume}" not found'
            place = f"/api/v1/persistentvolumes/{mount.volume}"
            await self._write(
                place, gone, lambda volume: reserving_patch(volume, claim, written=request.written)
            )
        elif mount.provisioned:
            gone = f'persistentvolumeclaim "{mount.claim}" not found'
            await self._write(
                path, gone, lambda found: selecting_patch(found, request.node, written=request.written)
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
                    await self._write(
                        _claim_path(request, mount), "", lambda claim: unselecting_patch(claim, request.node)
                    )
                except VolumeRefused:
                    continue

    async def _write(self, path: str, gone: str, patch_of: Callable[[Object], dict[str, Any] | None]) -> None:
        """Patch the object as it is now, unless that is not needed. Raises VolumeRefused."""
        for _ in range(_ATTEMPTS):
            patch = patch_of(await self._read(path, gone))
            if patch is None:
                return
            reply = await self._ask("PATCH", path, patch)
            if reply.done:
                return
            if reply.status not in (_CONFLICT, _NOT_FOUND):
                break
        raise VolumeRefused(reply.message)

    async def _read(self, path: str, gone: str) -> Object:
        reply = await self._ask("GET", path)
        if reply.status == _NOT_FOUND:
            raise VolumeRefused(f"binding volumes: failed to check binding: {gone}")
        if not reply.done:
            raise TransportError(f"{path} cannot be read: {reply.status} {reply.message}")
        found: Object = reply.json()
        return found

    async def _ask(self, method: str, path: str, body: Object | None = None) -> Reply:
        # Repeating a patch is harmless: it is of one state of the object, and a second one gets 409.
        return await self._api.ask(
            method, path, body, content_type=MERGE_PATCH, patience_seconds=self._patience_seconds
        )


def _claim_path(request: VolumeRequest, mount: ClaimMount) -> str:
    return f"/api/v1/namespaces/{request.namespace}/persistentvolumeclaims/{mount.claim}"
