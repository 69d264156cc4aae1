"""Volumes and devices in dictionaries, where the resolver's StorageSource is wanted: held to
tests/e2e/kubernetes/test_storage_source.py like the real one."""

from typing import Any

from hoss.manifests.devices import read_device_object
from hoss.manifests.volumes import read_storage_object
from hoss.model.devices import ResourceClaim, ResourceSlice
from resolver.core.kubernetes.shared_devices import SharedDevices


class StorageInMemory:
    """`put` takes objects as the API server stores them; an object of the same name is replaced."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Any] = {}
        self.shared_devices = SharedDevices()

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, kind: str, name: str, **parts: Any) -> None:
        """In namespace default, if it has one. `parts`: spec, status, and what else the object has."""
        item = {"metadata": {"name": name, "namespace": "default", **parts.pop("metadata", {})}, **parts}
        read = read_device_object(item, kind) or read_storage_object(item, kind)
        self._objects[kind, "default", name] = read
        if isinstance(read, ResourceClaim):
            self.shared_devices.put_claim(read)
        if isinstance(read, ResourceSlice):
            self.shared_devices.put_slice(read)

    def remove(self, kind: str, name: str) -> None:
        """Of a storage object."""
        del self._objects[kind, "default", name]

    def claim(self, namespace: str, name: str) -> Any:
        return self._objects.get(("PersistentVolumeClaim", namespace, name))

    def volume(self, name: str) -> Any:
        return self._objects.get(("PersistentVolume", "default", name))

    def csi_node(self, name: str) -> Any:
        return self._objects.get(("CSINode", "default", name))

    def attachments(self, node: str) -> Any:
        kinds = (item for (kind, _, _), item in self._objects.items() if kind == "VolumeAttachment")
        return [attachment for attachment in kinds if attachment.node == node]

    async def storage_for(self, namespace: str, volumes: Any) -> Any:
        return self

    async def device_claims(self, namespace: str, claims: Any) -> Any:
        found = (self._objects.get(("ResourceClaim", namespace, use.claim)) for use in claims.uses)
        return {claim.name: claim for claim in found if claim is not None}
