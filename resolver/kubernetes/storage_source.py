"""Where the binding webhook learns of volumes and devices: claims, volumes, CSINodes and VolumeAttachments
from watches, because the volumes of all pods of a node are counted; slices and resource claims from watches,
because what claims take of shared devices is added up; and the resource claims of a pod from the API server,
because a scheduler writes their devices right before it asks.

A claim may have been bound a moment ago, too. So a claim of the pod that the watch does not show as bound,
and its volume, are read again."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from hoss.errors import InvalidInput, TransportError
from hoss.kube.api import KubeApi, Object, Refused
from hoss.kube.paths import object_path
from hoss.kube.reflector import Change, ObjectGone, Reflector
from hoss.manifests.devices import read_device_object
from hoss.manifests.volumes import read_storage_object
from hoss.model.devices import PodClaims, ResourceClaim, ResourceSlice
from hoss.model.volume_topology import inline_volumes
from hoss.model.volumes import (
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    VolumeAttachment,
)
from hoss.telemetry import logger
from resolver.core.kubernetes.held_view import ClaimKey
from resolver.core.kubernetes.shared_devices import SharedDevices
from resolver.core.kubernetes.volumes_and_devices import StorageView

_VOLUMES = "/api/v1/persistentvolumes"
_KINDS = {
    "/api/v1/persistentvolumeclaims": "PersistentVolumeClaim",
    _VOLUMES: "PersistentVolume",
    "/apis/storage.k8s.io/v1/csinodes": "CSINode",
    "/apis/storage.k8s.io/v1/volumeattachments": "VolumeAttachment",
}
_NOTHING: Mapping[str, VolumeAttachment] = MappingProxyType({})
_DEVICE_GROUP = "/apis/resource.k8s.io/v1"
_DEVICE_KINDS = {
    f"{_DEVICE_GROUP}/resourceslices": "ResourceSlice",
    f"{_DEVICE_GROUP}/resourceclaims": "ResourceClaim",
}


class StorageSource(Protocol):
    """What the webhook needs to know of volumes and devices. All raise TransportError if that is unknown, and
    InvalidInput for an object that cannot be read."""

    @property
    def shared_devices(self) -> SharedDevices:
        """What is left of devices that claims share. It is complete after `device_claims`."""

    def __len__(self) -> int:
        """The number of objects that are remembered."""

    async def storage_for(self, namespace: str, volumes: PodVolumes) -> StorageView:
        """The storage objects, with the pod's claims and their volumes as they are now."""

    async def device_claims(self, namespace: str, claims: PodClaims) -> dict[str, ResourceClaim]:
        """The pod's resource claims by name, without those that do not exist."""


class _FreshStorage:
    """Storage objects, some of which were read later than the others."""

    def __init__(self, known: StorageView) -> None:
        self.claims: dict[ClaimKey, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self._known = known

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self.claims.get((namespace, name)) or self._known.claim(namespace, name)

    def volume(self, name: str) -> PersistentVolume | None:
        return self.volumes.get(name) or self._known.volume(name)

    def csi_node(self, name: str) -> CsiNode | None:
        return self._known.csi_node(name)

    def attachments(self, node: str) -> Iterable[VolumeAttachment]:
        return self._known.attachments(node)


class ClusterStorage:
    """The StorageSource of a cluster. Its `reflectors` must be running."""

    def __init__(
        self, api: KubeApi, *, patience_seconds: float, clock: Callable[[], float], rng: random.Random
    ) -> None:
        self._api = api
        self._patience_seconds = patience_seconds
        self._claims: dict[ClaimKey, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._csi_nodes: dict[str, CsiNode] = {}
        self._attachment_nodes: dict[str, str] = {}  # by name of a VolumeAttachment
        self._attachments: dict[str, dict[str, VolumeAttachment]] = {}  # by node and name
        self.shared_devices = SharedDevices()
        self._storage_reflectors = [
            Reflector(api, path, self._handler(kind), clock=clock, rng=rng) for path, kind in _KINDS.items()
        ]
        self._device_reflectors = [  # a cluster before Kubernetes 1.34 does not have these kinds
            Reflector(api, path, self._handler(kind), optional=True, clock=clock, rng=rng)
            for path, kind in _DEVICE_KINDS.items()
        ]

    @property
    def reflectors(self) -> list[Reflector]:
        """All that this follows the cluster with."""
        return [*self._storage_reflectors, *self._device_reflectors]

    def __len__(self) -> int:
        objects = len(self._claims) + len(self._volumes)
        objects += len(self._csi_nodes) + len(self._attachment_nodes)
        return objects + len(self.shared_devices)

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.get(name)

    def csi_node(self, name: str) -> CsiNode | None:
        return self._csi_nodes.get(name)

    def attachments(self, node: str) -> Iterable[VolumeAttachment]:
        return self._attachments.get(node, _NOTHING).values()

    async def storage_for(self, namespace: str, volumes: PodVolumes) -> StorageView:
        if not volumes.claims and not any(True for _ in inline_volumes(volumes)):
            return self
        _check_complete(self._storage_reflectors, "volumes")
        fresh = _FreshStorage(self)
        await asyncio.gather(*(self._read_claim(namespace, m.claim, fresh) for m in volumes.claims))
        return fresh

    async def _read_claim(self, namespace: str, name: str, fresh: "_FreshStorage") -> None:
        claim = self._claims.get((namespace, name))
        if claim is None or not claim.bound:
            path = object_path("/api/v1/namespaces", namespace, "persistentvolumeclaims", name)
            found = await self._read(path)
            read = None if found is None else read_storage_object(found, "PersistentVolumeClaim")
            if not isinstance(read, PersistentVolumeClaim):
                return
            claim = fresh.claims[namespace, name] = read
        if claim.bound and claim.volume_name not in self._volumes:
            found = await self._read(object_path(_VOLUMES, claim.volume_name))
            volume = None if found is None else read_storage_object(found, "PersistentVolume")
            if isinstance(volume, PersistentVolume):
                fresh.volumes[volume.name] = volume

    async def device_claims(self, namespace: str, claims: PodClaims) -> dict[str, ResourceClaim]:
        _check_complete(self._device_reflectors, "devices")
        names = list(dict.fromkeys(use.claim for use in claims.uses if use.claim))
        place = object_path(f"{_DEVICE_GROUP}/namespaces", namespace, "resourceclaims")
        found = await asyncio.gather(*(self._read(object_path(place, name)) for name in names))
        read = (read_device_object(item, "ResourceClaim") for item in found if item is not None)
        return {claim.name: claim for claim in read if isinstance(claim, ResourceClaim)}

    async def _read(self, path: str) -> Object | None:
        try:
            return await self._api.find(path, patience_seconds=self._patience_seconds)
        except Refused as refused:
            raise TransportError(str(refused)) from refused

    def _handler(self, kind: str) -> Callable[[list[Change]], None]:
        def handle(changes: Iterable[Change]) -> None:
            for change in changes:
                if isinstance(change, ObjectGone):
                    self._remove(kind, change.namespace, change.name)
                    continue
                try:
                    self._put(kind, change.object)
                except InvalidInput as exc:
                    name = change.object["metadata"]["name"]
                    logger().warning("object_unreadable", kind=kind, name=name, problem=str(exc))

        return handle

    def _put(self, kind: str, found: Any) -> None:
        match read_storage_object(found, kind) or read_device_object(found, kind):
            case ResourceSlice() as part:
                self.shared_devices.put_slice(part)
            case ResourceClaim() as device_claim:
                self.shared_devices.put_claim(device_claim)
            case PersistentVolumeClaim() as claim:
                self._claims[claim.namespace, claim.name] = claim
            case PersistentVolume() as volume:
                self._volumes[volume.name] = volume
            case CsiNode() as node:
                self._csi_nodes[node.name] = node
            case VolumeAttachment() as attachment:
                self._detach(attachment.name)
                self._attachment_nodes[attachment.name] = attachment.node
                self._attachments.setdefault(attachment.node, {})[attachment.name] = attachment

    def _remove(self, kind: str, namespace: str, name: str) -> None:
        match kind:
            case "ResourceSlice":
                self.shared_devices.remove_slice(name)
            case "ResourceClaim":
                self.shared_devices.remove_claim((namespace, name))
            case "PersistentVolumeClaim":
                self._claims.pop((namespace, name), None)
            case "PersistentVolume":
                self._volumes.pop(name, None)
            case "VolumeAttachment":
                self._detach(name)
            case _:
                self._csi_nodes.pop(name, None)

    def _detach(self, name: str) -> None:
        node = self._attachment_nodes.pop(name, None)
        if node is not None:
            del self._attachments[node][name]
            if not self._attachments[node]:
                del self._attachments[node]


def _check_complete(reflectors: Iterable[Reflector], of: str) -> None:
    """Raises TransportError until all of them have been listed."""
    if not all(reflector.complete.is_set() for reflector in reflectors):
        raise TransportError(f"the {of} of the cluster are being listed")
