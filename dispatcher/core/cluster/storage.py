"""The cluster's storage objects: persistent volumes, claims, storage classes, CSI objects and attachments.
And what goes the same way: device objects (resource slices, device classes and resource claims), and pods
of other schedulers that wait on a node for their victims to leave. The API server is their journal, so they
are kept in memory only. Workers get all of them when they join, and every change after that."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from dispatcher.core import messages as m
from dispatcher.core.changes import Changes
from dispatcher.core.queue.queues import Queues
from dispatcher.core.workers.membership import Membership
from hoss.model.cluster import (
    NOMINATED_POD,
    FollowedObject,
    NominatedPod,
    ObjectKey,
    StorageUpdate,
    storage_key_of,
)
from hoss.model.devices import DEVICE_KINDS, DeviceManifest
from hoss.model.volumes import (
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
)

# An object of these kinds that goes may help a waiting pod. Others only ever help when they come or change.
_HELPS_BY_GOING = ("VolumeAttachment", NOMINATED_POD, *DEVICE_KINDS)


class StorageObjects:
    """All storage objects by key; a VolumeView."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, FollowedObject] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: ObjectKey) -> FollowedObject | None:
        """The object with this key."""
        return self._objects.get(key)

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        """The claim of this name."""
        found = self._objects.get(ObjectKey("PersistentVolumeClaim", namespace, name))
        return found if isinstance(found, PersistentVolumeClaim) else None

    def volume(self, name: str) -> PersistentVolume | None:
        """The volume of this name."""
        found = self._objects.get(ObjectKey("PersistentVolume", "", name))
        return found if isinstance(found, PersistentVolume) else None

    def csi_node(self, name: str) -> CsiNode | None:
        """The drivers of the node of this name."""
        found = self._objects.get(ObjectKey("CSINode", "", name))
        return found if isinstance(found, CsiNode) else None

    def resource_claims(self, namespace: str, mentioning: bytes) -> list[DeviceManifest]:
        """The resource claims of a namespace whose manifests have this text."""
        return [
            item
            for key, item in self._objects.items()
            if isinstance(item, DeviceManifest)
            and (key.kind, key.namespace) == ("ResourceClaim", namespace)
            and mentioning in item.text
        ]

    @property
    def everything(self) -> StorageUpdate:
        """All objects, for a worker that knows none."""
        return StorageUpdate(tuple(self._objects.values()), complete=True)

    def apply(self, update: StorageUpdate) -> StorageUpdate:
        """Take in changes. Returns those that change anything that HOSS reads."""
        gone = tuple(key for key in update.gone if self._objects.pop(key, None) is not None)
        changed = tuple(
            item for item in update.objects if not _same(self._objects.get(storage_key_of(item)), item)
        )
        self._objects.update((storage_key_of(item), item) for item in update.objects)
        return StorageUpdate(changed, gone)


def _same(known: FollowedObject | None, item: FollowedObject) -> bool:
    if isinstance(known, DeviceManifest) and isinstance(item, DeviceManifest):
        return known.says_the_same(item)
    return known == item


@dataclass(slots=True, eq=False)
class StorageUpdates:
    """`handlers` lists the handlers by event type. They send changes to workers and wake pods that the
    changes may help."""

    objects: StorageObjects
    members: Membership
    queues: Queues
    unix_ms: Callable[[float], int]
    # Called with the claims that changed or went.
    on_claims: Callable[[frozenset[tuple[str, str]]], None] = field(default=lambda _claims: None)

    @property
    def handlers(self) -> m.Handlers:
        return {m.StorageChanged: self._storage_changed}

    def _storage_changed(self, event: m.StorageChanged, now: float) -> list[m.Instruction]:
        before = {key: self.objects.get(key) for key in map(storage_key_of, event.update.objects)}
        update = self.objects.apply(event.update)
        if not (update.objects or update.gone):
            return []
        self.queues.cluster_changed(_changes(update, before), now, self.unix_ms(now))
        claims = _claims(chain(map(storage_key_of, update.objects), update.gone))
        if claims:
            self.on_claims(claims)
        return [m.SendStorage(worker.link, update) for worker in self.members.living()]


def _changes(update: StorageUpdate, before: Mapping[ObjectKey, FollowedObject | None]) -> Changes:
    """What waiting pods may benefit from."""
    keys = [storage_key_of(item) for item in update.objects if _may_help(item, before)]
    keys += [key for key in update.gone if key.kind in _HELPS_BY_GOING]
    kinds = frozenset(key.kind for key in keys if key.kind != "PersistentVolumeClaim")
    return Changes(claims=_claims(keys), storage=kinds)


def _may_help(item: FollowedObject, before: Mapping[ObjectKey, FollowedObject | None]) -> bool:
    """A pod that is nominated helps nobody until it has another node or requests less. A capacity helps only
    by growing (kube-scheduler's isSchedulableAfterCSIStorageCapacityChange)."""
    known = before[storage_key_of(item)]
    if isinstance(item, NominatedPod):
        return known is not None
    if not isinstance(item, CsiStorageCapacity) or not isinstance(known, CsiStorageCapacity):
        return True
    if known.nodes != item.nodes or known.storage_class != item.storage_class:
        return True
    return item.largest_bytes is not None and item.largest_bytes > (known.largest_bytes or 0)


def _claims(keys: Iterable[ObjectKey]) -> frozenset[tuple[str, str]]:
    return frozenset((key.namespace, key.name) for key in keys if key.kind == "PersistentVolumeClaim")
