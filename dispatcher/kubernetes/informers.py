"""Kubernetes mode: informers for pods, nodes and the other objects that scheduling depends on.

They read what the API server has, and collect what changes until a term takes it
(dispatcher/kubernetes/cluster_mirror.py). So they can list and watch before their dispatcher leads
(docs/adr/0112-standby-with-the-list.md)."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Generic, TypeVar

import orjson

from dispatcher.config import ClusterSection
from dispatcher.core import messages as m
from dispatcher.core.kubernetes.mirror import ForeignNominations
from dispatcher.core.kubernetes.pod_groups import Member
from dispatcher.core.kubernetes.pod_objects import Controllers, GonePod, PodReader, SeenPod, problem_of
from dispatcher.kubernetes.pod_groups import PodGroupInformers
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput
from hoss.kube.api import KubeApi, Object
from hoss.kube.reflector import Change, ObjectGone, Reflector
from hoss.manifests.cluster import read_controller
from hoss.manifests.cluster_objects import read_cluster_object
from hoss.manifests.devices import read_device_object
from hoss.manifests.node import read_node
from hoss.manifests.volumes import read_storage_object
from hoss.model.cluster import (
    ClusterObject,
    FollowedObject,
    ObjectKey,
    OwnerReference,
    StorageUpdate,
    storage_key_of,
)
from hoss.model.devices import DeviceManifest
from hoss.model.node import NodeSpec
from hoss.model.volumes import StorageObject
from hoss.tasks import background, end_tasks
from hoss.telemetry import logger
from hoss.wire.uids import uid_from_text

_PODS_PATH, _NODES_PATH = "/api/v1/pods", "/api/v1/nodes"

_OBJECTS = {
    "/api/v1/namespaces": ("Namespace", ""),
    "/api/v1/services": ("Service", ""),
    "/apis/policy/v1/poddisruptionbudgets": ("PodDisruptionBudget", "policy"),
    "/apis/scheduling.k8s.io/v1/priorityclasses": ("PriorityClass", "scheduling.k8s.io"),
}
_CONTROLLERS = {
    "/api/v1/replicationcontrollers": ("ReplicationController", "", {}),
    # ReplicaSets of Deployments have this label, and are not needed.
    "/apis/apps/v1/replicasets": ("ReplicaSet", "apps", {"labelSelector": "!pod-template-hash"}),
    "/apis/apps/v1/statefulsets": ("StatefulSet", "apps", {}),
}


_STORAGE = {
    "/api/v1/persistentvolumes": "PersistentVolume",
    "/api/v1/persistentvolumeclaims": "PersistentVolumeClaim",
    "/apis/storage.k8s.io/v1/storageclasses": "StorageClass",
    "/apis/storage.k8s.io/v1/csinodes": "CSINode",
    "/apis/storage.k8s.io/v1/csidrivers": "CSIDriver",
    "/apis/storage.k8s.io/v1/csistoragecapacities": "CSIStorageCapacity",
    "/apis/storage.k8s.io/v1/volumeattachments": "VolumeAttachment",
}
_CLASSES_PATH = "/apis/resource.k8s.io/v1/deviceclasses"
_DEVICES = {
    _CLASSES_PATH: "DeviceClass",
    "/apis/resource.k8s.io/v1/resourceslices": "ResourceSlice",
    "/apis/resource.k8s.io/v1/resourceclaims": "ResourceClaim",
}
_CLAIM_PATHS = (
    "/api/v1/persistentvolumes",
    "/api/v1/persistentvolumeclaims",
    "/apis/resource.k8s.io/v1/resourceclaims",
)

KeyT = TypeVar("KeyT")
ChangeT = TypeVar("ChangeT")


class Collected(Generic[KeyT, ChangeT]):
    """The last change of each object since they were taken. Before that is done for the first time nothing is
    kept of an object that is gone: nobody has been told of it."""

    def __init__(self) -> None:
        self._changes: dict[KeyT, ChangeT] = {}
        self._taken = False

    def put(self, key: KeyT, change: ChangeT) -> None:
        """The object exists, and is as `change` says."""
        self._changes[key] = change

    def put_gone(self, key: KeyT, change: ChangeT) -> None:
        """The object is gone, which `change` says."""
        if self._taken:
            self._changes[key] = change
        else:
            self._changes.pop(key, None)

    def take(self) -> dict[KeyT, ChangeT]:
        """The changes since the last call, in the order in which the objects changed first."""
        changes, self._changes, self._taken = self._changes, {}, True
        return changes

    def __iter__(self) -> Iterator[ChangeT]:
        return iter(self._changes.values())

    def __len__(self) -> int:
        return len(self._changes)


class StorageInformers:
    """Follows storage objects and device objects. Its `reflectors` must be running. Nominations of pods go
    the same way, see `pod_changed`. Changes are collected until `take`."""

    def __init__(
        self,
        api: KubeApi,
        *,
        clock: Callable[[], float],
        changed: Callable[[], object],
        on_device_resources: Callable[[frozenset[str]], object],
        rng: random.Random,
    ) -> None:
        """`changed` is called when there is something to take, and `on_device_resources` with the extended
        resources that device classes name."""
        self._changed = changed
        self._on_device_resources = on_device_resources
        self._device_resources: dict[str, str] = {}  # by class
        self._nominations = ForeignNominations()
        self._changes: Collected[ObjectKey, FollowedObject | None] = Collected()  # None: gone
        reflector = partial(Reflector, api, clock=clock, rng=rng)
        # A cluster older than 1.34 has none of these.
        devices = {
            path: reflector(path, self._handler(kind, device_manifest), optional=True)
            for path, kind in _DEVICES.items()
        }
        self.classes_known = devices[_CLASSES_PATH].complete
        self.reflectors = [
            *(reflector(path, self._handler(kind, read_storage_object)) for path, kind in _STORAGE.items()),
            *devices.values(),
        ]
        # Volumes and devices that others have taken are in these objects.
        self.claims = [reflector for reflector in self.reflectors if reflector.path in _CLAIM_PATHS]

    def pod_changed(self, change: SeenPod | GonePod) -> None:
        """A pod of another scheduler may have been nominated for a node, or is no longer."""
        for key, item in self._nominations.update(change).items():
            self._note(key, item)

    def take(self, runtime: Runtime) -> None:
        """Have the machine handle the changes since the last call."""
        changes = self._changes.take()
        if changes:
            objects = tuple(item for item in changes.values() if item is not None)
            gone = tuple(key for key, item in changes.items() if item is None)
            runtime.handle(m.StorageChanged(StorageUpdate(objects, gone)))

    def _note(self, key: ObjectKey, item: FollowedObject | None) -> None:
        (self._changes.put_gone if item is None else self._changes.put)(key, item)

    def _handler(
        self, kind: str, read: Callable[[Object, str], StorageObject | DeviceManifest | None]
    ) -> Callable[[list[Change]], None]:
        def handle(changes: list[Change]) -> None:
            for change in changes:
                if isinstance(change, ObjectGone):
                    self._note(ObjectKey(kind, change.namespace, change.name), None)
                    continue
                try:
                    item = read(change.object, kind)
                except InvalidInput as exc:
                    _warn(kind, change.object, exc)
                else:
                    if item is not None:
                        self._note(storage_key_of(item), item)
            if kind == "DeviceClass":
                self._classes_changed(changes)
            self._changed()

        return handle

    def _classes_changed(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                self._device_resources.pop(change.name, None)
            else:
                name = change.object["metadata"]["name"]
                self._device_resources[name] = change.object["spec"].get("extendedResourceName") or ""
        self._on_device_resources(frozenset(filter(None, self._device_resources.values())))


def device_manifest(item: Object, kind: str) -> DeviceManifest:
    """The object, for workers. Raises InvalidInput for one that they could not read."""
    content = hash(read_device_object(item, kind)) or 1
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    text = orjson.dumps({**item, "metadata": metadata})
    return DeviceManifest(kind, metadata.get("namespace", ""), metadata["name"], text, content)


class ObjectInformers:
    """Follows what is neither pod nor node nor storage. Its `reflectors` must be running. Changes are
    collected until `take`, but those of controllers."""

    def __init__(
        self,
        api: KubeApi,
        *,
        clock: Callable[[], float],
        changed: Callable[[], object],
        rng: random.Random,
    ) -> None:
        """`changed` is called when there is something to take."""
        reflector = partial(Reflector, api, clock=clock, rng=rng)
        self.controllers = Controllers()
        self._changed = changed
        self._changes: Collected[ObjectKey, ClusterObject | None] = Collected()  # None: gone
        self.reflectors = [
            *(reflector(path, self._object_handler(*kind)) for path, kind in _OBJECTS.items()),
            *(
                reflector(path, self._controller_handler(kind, group), params=params)
                for path, (kind, group, params) in _CONTROLLERS.items()
            ),
        ]

    def take(self, runtime: Runtime) -> None:
        """Have the machine handle the changes since the last call."""
        changes = self._changes.take()
        applied = tuple(item for item in changes.values() if item is not None)
        gone = tuple(key for key, item in changes.items() if item is None)
        if applied:
            runtime.handle(m.ObjectsApplied(applied))
        if gone:
            runtime.handle(m.ObjectsRemoved(gone))

    def _object_handler(self, kind: str, group: str) -> Callable[[list[Change]], None]:
        def handle(changes: list[Change]) -> None:
            for change in changes:
                if isinstance(change, ObjectGone):
                    self._changes.put_gone(ObjectKey(kind, change.namespace, change.name), None)
                    continue
                metadata = change.object["metadata"]
                if kind == "PriorityClass" and metadata["name"].startswith("system-"):
                    # Every cluster has these, and pods get their priority from the API server.
                    continue
                try:
                    item = read_cluster_object(change.object, kind, group)
                except InvalidInput as exc:
                    _warn(kind, change.object, exc)
                else:
                    if item is not None:
                        key = ObjectKey(kind, metadata.get("namespace", ""), metadata["name"])
                        self._changes.put(key, item)
            self._changed()

        return handle

    def _controller_handler(self, kind: str, group: str) -> Callable[[list[Change]], None]:
        def handle(changes: list[Change]) -> None:
            for change in changes:
                if isinstance(change, ObjectGone):
                    self.controllers.remove(OwnerReference(kind, group, change.name), change.namespace)
                    continue
                try:
                    self.controllers.apply(read_controller(change.object, kind))
                except InvalidInput as exc:
                    _warn(kind, change.object, exc)

        return handle


def _warn(kind: str, item: Object, error: InvalidInput) -> None:
    logger().warning("object_unreadable", kind=kind, name=item["metadata"]["name"], problem=str(error))


class Informers:
    """All objects of the cluster that HOSS follows. `run` must be running until `over` is set."""

    def __init__(
        self,
        api: KubeApi,
        config: ClusterSection,
        *,
        max_pod_terms: int,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        reflector = partial(Reflector, api, clock=clock, rng=rng)
        self.over = asyncio.Event()
        self.known = asyncio.Event()  # all that there was when the term began is collected
        self.changed = asyncio.Event()  # there is something to take
        self.reader = PodReader(config.scheduler_names, ignored=config.ignored, max_pod_terms=max_pod_terms)
        self.pods: Collected[bytes, SeenPod | GonePod] = Collected()  # by UID
        self.nodes: Collected[str, NodeSpec | None] = Collected()  # by name; None: deleted
        # The UID of each pod that changes is added to each of these.
        self.pods_noted: list[set[bytes]] = []
        self.objects = ObjectInformers(api, clock=clock, changed=self.changed.set, rng=rng)
        self.pod_groups = PodGroupInformers(api, clock=clock, changed=self.changed.set, rng=rng)
        self.storage = StorageInformers(
            api,
            clock=clock,
            changed=self.changed.set,
            on_device_resources=self._device_resources_changed,
            rng=rng,
        )
        self._unreadable: Counter[str] = Counter()
        self._pod_reflector = reflector(_PODS_PATH, self._on_pods)
        self.reflectors = [
            self._pod_reflector,
            reflector(_NODES_PATH, self._on_nodes),
            *self.objects.reflectors,
            *self.storage.reflectors,
            *self.pod_groups.reflectors,
        ]

    async def run(self) -> None:
        """List and watch until `over` is set."""
        others = (reflector.run() for reflector in self.reflectors if reflector is not self._pod_reflector)
        async with background(self._follow_pods(), *others):
            await self.over.wait()

    async def begin_term(self, *, stood_by: bool) -> None:
        """Set `known` once everything is collected that the API server has now. `stood_by`: the lists and
        watches may be older than that."""
        for reflector in self.reflectors:
            await reflector.complete.wait()
        if stood_by:
            await _all_of(reflector.refresh() for reflector in self.reflectors)
        self.known.set()

    async def catch_up(self) -> None:
        """Return once the pods are collected that the API server has now, and what pods claim. Raises what
        the reflectors raise."""
        await _all_of(reflector.catch_up() for reflector in (self._pod_reflector, *self.storage.claims))

    def take_unreadable(self) -> Counter[str]:
        """How many objects could not be read since the last call, by the counter to show it in."""
        counted, self._unreadable = self._unreadable, Counter()
        return counted

    async def _follow_pods(self) -> None:
        """What pods claim depends on the device classes, so these are known first."""
        await self.storage.classes_known.wait()
        await self._pod_reflector.run()

    def _device_resources_changed(self, names: frozenset[str]) -> None:
        if self.reader.set_device_resources(names):
            self._pod_reflector.repeat()

    def _on_pods(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                gone = GonePod(uid_from_text(change.uid))
                self.pod_groups.groups.pod_gone(gone.uid)
                self.pods.put_gone(gone.uid, gone)
                self._note_pod(gone)
                continue
            try:
                pod = self.reader.read(change.object)
                self.pod_groups.groups.pod_seen(pod.uid, pod.group, Member(bool(pod.node), pod.phase))
                self.pods.put(pod.uid, pod)
                self._note_pod(pod)
            except InvalidInput as exc:
                logger().warning("pod_unreadable", problem=problem_of(change.object, exc))
                self._unreadable["pods_unreadable"] += 1
        self.changed.set()

    def _note_pod(self, change: SeenPod | GonePod) -> None:
        self.storage.pod_changed(change)
        for noted in self.pods_noted:
            noted.add(change.uid)

    def _on_nodes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                self.nodes.put_gone(change.name, None)
                continue
            try:
                node = read_node(change.object)
            except InvalidInput as exc:
                logger().warning("node_unreadable", node=change.object["metadata"]["name"], problem=str(exc))
                self._unreadable["nodes_unreadable"] += 1
            else:
                self.nodes.put(node.name, node)
        self.changed.set()


class StandbyInformers:
    """The informers of the term that this dispatcher has, or of its next one. `run` must be running."""

    def __init__(self, make: Callable[[], Informers]) -> None:
        self._make = make
        self._next: Informers | None = None
        self._begun: asyncio.Queue[Informers] = asyncio.Queue()

    async def run(self) -> None:
        """Run the informers until cancelled."""
        while True:
            await (await self._begun.get()).run()

    def stand_by(self) -> None:
        """A term may come: list and watch, if that is not done yet."""
        if self._next is None:
            self._next = self._begin()

    @contextlib.asynccontextmanager
    async def of_term(self) -> AsyncIterator[Informers]:
        """The informers for a term that begins now. They end with the body."""
        stood_by, self._next = self._next, None
        informers = self._begin() if stood_by is None else stood_by
        try:
            async with background(informers.begin_term(stood_by=stood_by is not None)):
                yield informers
        finally:
            informers.over.set()

    def _begin(self) -> Informers:
        informers = self._make()
        self._begun.put_nowait(informers)
        return informers


async def _all_of(jobs: Iterable[Awaitable[None]]) -> None:
    """Return once all have ended. The first failure ends the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)
