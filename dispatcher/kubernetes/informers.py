"""Kubernetes mode: informers for pods, nodes and the other objects that scheduling depends on.

They keep the machine's registry and the ledger in step with the API server, which is the journal of its pods:
a new leader lists them, and writes none of them down. Changes are processed in batches, never pod by pod."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np
import orjson

from dispatcher.api.intake import read_template
from dispatcher.config import ClusterSection
from dispatcher.core import messages as m
from dispatcher.core.kubernetes.conditions import Debounce
from dispatcher.core.kubernetes.mirror import (
    ForeignNominations,
    NodeMirror,
    PodMirror,
    PodPlan,
    closed,
    gangs_of,
)
from dispatcher.core.kubernetes.pod_groups import Member
from dispatcher.core.kubernetes.pod_objects import Controllers, GonePod, PodReader, SeenPod, problem_of
from dispatcher.core.pods.sets import NewPods, NewTemplate, Order, Submission
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.kubernetes.kubelet_rejections import KubeletRejectionAudit
from dispatcher.kubernetes.pod_groups import PodGroupInformers
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.kube.api import KubeApi, Object
from hoss.kube.reflector import Change, ObjectGone, Reflector
from hoss.manifests.cluster import read_controller
from hoss.manifests.cluster_objects import read_cluster_object
from hoss.manifests.devices import read_device_object
from hoss.manifests.node import read_node
from hoss.manifests.volumes import read_storage_object
from hoss.model.cluster import FollowedObject, ObjectKey, OwnerReference, StorageUpdate, storage_key_of
from hoss.model.devices import DeviceManifest
from hoss.model.node import NodeSpec
from hoss.model.pod import PodTemplate
from hoss.model.volumes import StorageObject
from hoss.tasks import background, end_tasks
from hoss.telemetry import logger
from hoss.v1.resolver_pb2 import UpsertNodesReply
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.convert import node_from_proto, template_to_proto
from hoss.wire.uids import uid_from_text

# Accepted in one step of the event loop. Pods no two of which are alike take 0.2 ms each, others 10 us.
_PODS_PER_SUBMISSION = 250
_NODES_PER_CALL = 500
_IDLE_SECONDS = 1.0  # how often problems are checked without changes
_MOST_TEMPLATES = 20_000

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

ReplyT = TypeVar("ReplyT")


class StorageInformers:
    """Follows storage objects and device objects. Its `reflectors` must be running. Nominations of pods go
    the same way, see `pod_changed`. Changes are collected until `take`."""

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        *,
        changed: Callable[[], object],
        on_device_resources: Callable[[frozenset[str]], object],
        rng: random.Random,
    ) -> None:
        """`changed` is called when there is something to take, and `on_device_resources` with the extended
        resources that device classes name."""
        self._runtime = runtime
        self._changed = changed
        self._on_device_resources = on_device_resources
        self._device_resources: dict[str, str] = {}  # by class
        self._nominations = ForeignNominations()
        self._changes: dict[ObjectKey, FollowedObject | None] = {}  # None: gone
        reflector = partial(Reflector, api, clock=runtime.now, rng=rng)
        # A cluster older than 1.34 has none of these.
        devices = {
            path: reflector(path, self._handler(kind, _device_manifest), optional=True)
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
        self._changes.update(self._nominations.update(change))

    def take(self) -> None:
        """Have the machine handle the changes since the last call."""
        changes, self._changes = self._changes, {}
        if changes:
            objects = tuple(item for item in changes.values() if item is not None)
            gone = tuple(key for key, item in changes.items() if item is None)
            self._runtime.handle(m.StorageChanged(StorageUpdate(objects, gone)))

    def _handler(
        self, kind: str, read: Callable[[Object, str], StorageObject | DeviceManifest | None]
    ) -> Callable[[list[Change]], None]:
        def handle(changes: list[Change]) -> None:
            for change in changes:
                if isinstance(change, ObjectGone):
                    self._changes[ObjectKey(kind, change.namespace, change.name)] = None
                    continue
                try:
                    item = read(change.object, kind)
                except InvalidInput as exc:
                    _warn(kind, change.object, exc)
                else:
                    if item is not None:
                        self._changes[storage_key_of(item)] = item
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


def _device_manifest(item: Object, kind: str) -> DeviceManifest:
    """Raises InvalidInput for an object that workers could not read."""
    read_device_object(item, kind)
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    text = orjson.dumps({**item, "metadata": metadata})
    return DeviceManifest(kind, metadata.get("namespace", ""), metadata["name"], text)


class ObjectInformers:
    """Follows what is neither pod nor node nor storage. Its `reflectors` must be running."""

    def __init__(self, runtime: Runtime, api: KubeApi, *, rng: random.Random) -> None:
        reflector = partial(Reflector, api, clock=runtime.now, rng=rng)
        self.controllers = Controllers()
        self._runtime = runtime
        self.reflectors = [
            *(reflector(path, self._object_handler(*kind)) for path, kind in _OBJECTS.items()),
            *(
                reflector(path, self._controller_handler(kind, group), params=params)
                for path, (kind, group, params) in _CONTROLLERS.items()
            ),
        ]

    def _object_handler(self, kind: str, group: str) -> Callable[[list[Change]], None]:
        def handle(changes: list[Change]) -> None:
            applied = []
            for change in changes:
                if isinstance(change, ObjectGone):
                    self._runtime.handle(m.ObjectsRemoved((ObjectKey(kind, change.namespace, change.name),)))
                    continue
                name = change.object["metadata"]["name"]
                if kind == "PriorityClass" and name.startswith("system-"):
                    # Every cluster has these, and pods get their priority from the API server.
                    continue
                try:
                    item = read_cluster_object(change.object, kind, group)
                except InvalidInput as exc:
                    _warn(kind, change.object, exc)
                else:
                    applied += [item] if item is not None else []
            if applied:
                self._runtime.handle(m.ObjectsApplied(tuple(applied)))

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


class Accepted(NamedTuple):
    """A submission of listed pods, the rows of it that are on nodes, and the pods that are on none."""

    submission: Submission
    rows: Rows
    nodes: Rows  # beside `rows`
    waiting: tuple[SeenPod, ...]


class Informers:
    """First `begin`, then `settle`, then `run`, all within `following`."""

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        resolver: ResolverClient,
        config: ClusterSection,
        term: int,
        *,
        nodes: ClusterNodes,
        max_pod_terms: int,
        rng: random.Random,
    ) -> None:
        reflector = partial(Reflector, api, clock=runtime.now, rng=rng)
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._resolver = resolver
        self._ledger_nodes = nodes
        self.reader = PodReader(config.scheduler_names, ignored=config.ignored, max_pod_terms=max_pod_terms)
        self.pods = PodMirror(self._registry)
        # Gives the places of moves to their successors among new pods: the nodes, by UID.
        self.place_successors: Callable[[Sequence[SeenPod]], Awaitable[Mapping[bytes, int]]] | None = None
        # Waits until the ledger has reservations for all pods that were assigned.
        self.counted: Callable[[], Awaitable[None]] | None = None
        self.over_reserved: set[int] = set()  # nodes with pods that had no reservations at the start
        # Nodes that the ledger did not have at the start, until their pods are counted.
        self.new_nodes: set[int] = set()
        self._nodes = NodeMirror(self._registry)
        self._objects = ObjectInformers(runtime, api, rng=rng)
        self._changed = asyncio.Event()
        self.pod_groups = PodGroupInformers(runtime, api, changed=self._changed.set, rng=rng)
        self._storage = StorageInformers(
            runtime,
            api,
            changed=self._changed.set,
            on_device_resources=self._device_resources_changed,
            rng=rng,
        )
        self._rejections = KubeletRejectionAudit(
            runtime,
            api,
            self._nodes,
            self.pods.nodes,
            schedulers=config.scheduler_names,
            clean_up=config.delete_rejected,
        )
        self._orders = (f"kubernetes {term}/{number}" for number in count())
        # By identity, with the template, which keeps it: to hash a template takes as long as the rest of a
        # pod, and the reader gives equal pods the same object.
        self._templates: dict[int, tuple[PodTemplate, NewTemplate]] = {}
        self._pod_changes: list[SeenPod | GonePod] = []
        self._under_way: Sequence[SeenPod] = ()  # of the changes that `run` has taken, those not handled yet
        # By each `catch_up` under way, the UIDs of pods that have changed since it listed them.
        self._changed_meanwhile: list[set[bytes]] = []
        self._node_changes: dict[str, NodeSpec | None] = {}  # by name; None: deleted
        self._pod_reflector = reflector(_PODS_PATH, self._on_pods)
        self.reflectors = [
            self._pod_reflector,
            reflector(_NODES_PATH, self._on_nodes),
            *self._objects.reflectors,
            *self._storage.reflectors,
            *self.pod_groups.reflectors,
        ]

    def node_deleted(self, node: str) -> bool:
        """Whether the node's object was deleted while pods are still on it."""
        return node in self._nodes.terminating

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Receive changes while the body runs."""
        others = (reflector.run() for reflector in self.reflectors if reflector is not self._pod_reflector)
        async with background(self._follow_pods(), *others):
            yield

    async def _follow_pods(self) -> None:
        """What pods claim depends on the device classes, so these are known first."""
        await self._storage.classes_known.wait()
        await self._pod_reflector.run()

    def _device_resources_changed(self, names: frozenset[str]) -> None:
        if self.reader.set_device_resources(names):
            self._pod_reflector.repeat()

    async def begin(self) -> list[Accepted]:
        """Give rows to all listed pods, and nodes to the ledger. Returns the submissions to `settle` once the
        reservations are known."""
        for reflector in self.reflectors:
            await reflector.complete.wait()
        self._storage.take()
        self.pod_groups.take()
        known = await self._runtime.until_answered(self._resolver.list_nodes)
        self.pods.nodes.update((info.spec.name, info.index) for info in known)
        self._nodes.restore(node_from_proto(info.spec) for info in known)
        # Pods may be on nodes whose objects are gone: only `run` knows, once the reservations are known.
        gone = [info.spec for info in known if self._node_changes.get(info.spec.name) is None]
        self._node_changes.update((spec.name, closed(node_from_proto(spec))) for spec in gone)
        await self._take_nodes()
        self._nodes.gone(spec.name for spec in gone)
        restored = {info.spec.name for info in known}
        self.new_nodes.update(index for name, index in self.pods.nodes.items() if name not in restored)
        accepted, pods = [], 0
        for number, plan in enumerate(self.pods.plans(self._take_pod_changes(), _PODS_PER_SUBMISSION)):
            self._rejections.skip(plan.rejected)
            if plan.new:
                accepted.append(self._accept(plan.new))
                pods += len(plan.new)
            if plan.new or number:
                await asyncio.sleep(0)  # so that the lease is renewed
        logger().info(
            "mirror_complete",
            pods=pods,
            nodes=len(self.pods.nodes),
            on_unknown_nodes=sum(self.pods.on_unknown_nodes.values()),
        )
        return accepted

    async def settle(self, accepted: Sequence[Accepted]) -> None:
        """The reservations are known: assign pods that are on nodes, and queue the others."""
        for part in accepted:
            unreserved = self._registry.pods.phase[part.rows] == Phase.ABSENT
            self.over_reserved.update(part.nodes[unreserved].tolist())
            self._runtime.machine.restore_mirrored(part.submission)
            await self._place_successors(part.waiting)
            self._settle(part)
            await asyncio.sleep(0)

    def _settle(self, part: Accepted) -> None:
        self._runtime.handle(m.Assigned(part.rows, part.nodes))
        self._runtime.handle(m.Admitted(part.submission))

    async def _place_successors(self, pods: Sequence[SeenPod]) -> None:
        """Of pods that came between two terms."""
        if self.place_successors is None or not pods:
            return
        unreserved = self._registry.pods.phase[self._rows_of(pods)] == Phase.ABSENT
        new = [pod for pod, waits in zip(pods, unreserved.tolist(), strict=True) if waits]
        self._inherit(await self.place_successors(new))

    def _inherit(self, placed: Mapping[bytes, int]) -> None:
        """These pods, which nobody has queued yet, hold the places that moves reserved for them."""
        if not placed:
            return
        uids = decode_uids(b"".join(placed))
        rows = self._registry.directory.rows_of_uids(uids)
        self._runtime.handle(m.Inherited(rows, np.array([*placed.values()], np.uint32)))
        self._runtime.on_confirmed(rows, uids)

    async def run(self) -> None:
        """Process changes until cancelled."""
        debounce = Debounce()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _IDLE_SECONDS)
                await asyncio.sleep(debounce.seconds)
            self._changed.clear()
            self._storage.take()
            self.pod_groups.take()
            await self._take_nodes()
            changes = [*self.pods.take_resolved(), *self._take_pod_changes()]
            debounce.observe(len(changes))
            await self._take(self.pods.plan(changes))
            await self.open_held()
            if self._nodes.terminating and any(isinstance(change, GonePod) for change in changes):
                self._changed.set()  # a deleted node may have become empty
            self._update_problems()

    async def catch_up(self) -> None:
        """Return once the registry has every pod that the API server had on a node when this was called, and
        the machine has what such pods claim, and no pod whose end it has told. Raises what the reflectors
        raise.

        `run` may be waiting for the ledger meanwhile. It handles the same changes in their order later, and
        an assignment or an end that comes twice changes nothing."""
        await _all_of(reflector.catch_up() for reflector in (self._pod_reflector, *self._storage.claims))
        self._storage.take()
        changed: set[bytes] = set()
        self._changed_meanwhile.append(changed)
        try:
            while pods := self._untold_on_nodes():
                changed.clear()
                for start in range(0, len(pods), _PODS_PER_SUBMISSION):
                    part = pods[start : start + _PODS_PER_SUBMISSION]
                    # `run` may have handled what came meanwhile, such as a deletion: the next pass looks
                    # again.
                    same = [pod for pod in part if pod.uid not in changed and pod.node in self.pods.nodes]
                    if untold := self._without_rows(same):
                        self._settle(self._accept(untold))
                    await asyncio.sleep(0)
        finally:
            self._changed_meanwhile = [each for each in self._changed_meanwhile if each is not changed]

    def _untold_on_nodes(self) -> list[SeenPod]:
        """The pods on nodes that have no rows yet. Rows of others are assigned, and pods that are over end:
        one of those without a row may have the name of such a pod."""
        changes = (*self.pods.resolved(), *self._under_way, *self._pod_changes)  # the latest last
        last = {change.uid: change for change in changes}
        rows = self._rows_of([each for each in last.values() if isinstance(each, GonePod) or each.over])
        self._end(rows[rows != NONE_U32])
        bound = [
            change
            for change in last.values()
            if isinstance(change, SeenPod) and change.node in self.pods.nodes and not change.ended
        ]
        if not bound:
            return []
        rows = self._rows_of(bound)
        nodes = np.array([self.pods.nodes[pod.node] for pod in bound], np.uint32)
        known = rows != NONE_U32
        self._runtime.handle(m.Assigned(rows[known], nodes[known]))
        return self._without_rows(bound)

    def _without_rows(self, pods: Sequence[SeenPod]) -> list[SeenPod]:
        known = (self._rows_of(pods) != NONE_U32).tolist()
        return [pod for pod, is_known in zip(pods, known, strict=True) if not is_known]

    def _rows_of(self, pods: Sequence[SeenPod | GonePod]) -> Rows:
        return self._registry.directory.rows_of_uids(decode_uids(b"".join(pod.uid for pod in pods)))

    # --- pods ---

    def _on_pods(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                gone = GonePod(uid_from_text(change.uid))
                self.pod_groups.groups.pod_gone(gone.uid)
                self._note_change(gone)
                continue
            try:
                pod = self.reader.read(change.object)
                self.pod_groups.groups.pod_seen(pod.uid, pod.group, Member(bool(pod.node), pod.phase))
                self._note_change(pod)
            except InvalidInput as exc:
                logger().warning("pod_unreadable", problem=problem_of(change.object, exc))
                self._runtime.machine.counters["pods_unreadable"] += 1
        self._changed.set()

    def _note_change(self, change: SeenPod | GonePod) -> None:
        self._pod_changes.append(change)
        self._storage.pod_changed(change)
        for changed in self._changed_meanwhile:
            changed.add(change.uid)

    def _take_pod_changes(self) -> list[SeenPod | GonePod]:
        taken, self._pod_changes = self._pod_changes, []
        return taken

    async def _take(self, plan: PodPlan) -> None:
        self._end(plan.gone)
        for start in range(0, len(plan.new), _PODS_PER_SUBMISSION):
            self._under_way = (*plan.new[start:], *plan.seen)
            part = plan.new[start : start + _PODS_PER_SUBMISSION]
            placed = await self.place_successors(part) if self.place_successors is not None else {}
            unknown = self._without_rows(part)  # `catch_up` may have accepted some meanwhile
            if unknown:
                accepted = self._accept(unknown)
                self._inherit({pod.uid: placed[pod.uid] for pod in unknown if pod.uid in placed})
                self._settle(accepted)
        self._under_way = ()
        if len(plan.assigned):
            self._runtime.handle(m.Assigned(plan.assigned, plan.nodes))
        self._take_changes([*zip(plan.assigned.tolist(), plan.seen, strict=True), *plan.waiting])
        self._rejections.audit(plan.rejected)
        for row, gates in plan.ungated:
            self._runtime.handle(m.GatesRemoved(np.array([row], np.uint32), gates))

    def _end(self, rows: Rows) -> None:
        if len(rows):
            self._runtime.handle(m.Deleted(rows))
            self._registry.release_names(rows)

    def _take_changes(self, seen: Iterable[tuple[int, SeenPod]]) -> None:
        """A known pod may be resized, or get other labels or tolerations. Most events of pods change none of
        these."""
        pods, templates = self._registry.pods, self._registry.templates
        read = ((row, self._template(self._objects.controllers.template_of(pod))) for row, pod in seen)
        changed = tuple(
            (row, new) for row, new in read if templates.differs(int(pods.template[row]), new.spec, new.kind)
        )
        if changed:
            self._runtime.handle(m.PodsChanged(changed))

    def _accept(self, pods: Sequence[SeenPod]) -> Accepted:
        """Give the pods rows."""
        templates: dict[int, int] = {}  # id of a template -> its number
        used: list[NewTemplate] = []
        numbers = []
        for pod in pods:
            template = self._objects.controllers.template_of(pod)
            number = templates.get(id(template))
            if number is None:
                number = templates[id(template)] = len(used)
                used.append(self._template(template))
            numbers.append(number)
        uids = decode_uids(b"".join(pod.uid for pod in pods))
        gangs, of_pods = gangs_of(pods, self.pod_groups.groups.rule)
        listed = NewPods(tuple(pod.name for pod in pods), np.array(numbers, np.uint32), uids, of_pods)
        order = Order(next(self._orders), tuple(used), (), listed, gangs)
        submission = self._registry.accept(order, self._runtime.now_ms())
        on_nodes = [(i, self.pods.nodes[pod.node]) for i, pod in enumerate(pods) if pod.node]
        rows = np.array([i for i, _ in on_nodes], np.uint32) + np.uint32(submission.sets[0].first)
        waiting = tuple(pod for pod in pods if not pod.node)
        return Accepted(submission, rows, np.array([node for _, node in on_nodes], np.uint32), waiting)

    def _template(self, template: PodTemplate) -> NewTemplate:
        found = self._templates.get(id(template))
        if found is None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            found = self._templates[id(template)] = template, read_template(template_to_proto(template))
        return found[1]

    # --- nodes ---

    def _on_nodes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                self._node_changes[change.name] = None
                continue
            try:
                node = read_node(change.object)
            except InvalidInput as exc:
                logger().warning("node_unreadable", node=change.object["metadata"]["name"], problem=str(exc))
                self._runtime.machine.counters["nodes_unreadable"] += 1
            else:
                self._node_changes[node.name] = node
        self._changed.set()

    async def _take_nodes(self) -> None:
        changes, self._node_changes = self._node_changes, {}
        seen = [node for node in changes.values() if node is not None]
        gone = [name for name, node in changes.items() if node is None]
        uncounted = self.pods.on_nodes(self._pod_changes) if seen else ()
        plan = self._nodes.plan(seen, gone, self.pods.nodes, uncounted)
        for start in range(0, len(plan.upserts), _NODES_PER_CALL):
            part = plan.upserts[start : start + _NODES_PER_CALL]
            reply = await self._runtime.until_answered(partial(self._upsert, part))
            self.pods.nodes.update(zip((node.name for node in part), reply.indexes, strict=True))
            if reply.overcommitted:
                logger().warning("nodes_overcommitted", nodes=list(reply.overcommitted)[:20])
        if plan.removals:
            await self._runtime.until_answered(partial(self._remove, plan.removals))
            for name in plan.removals:
                self.pods.nodes.pop(name, None)
        self._nodes.done(plan)

    async def open_held(self) -> None:
        """Open the nodes that were closed because pods on them were not counted."""
        if not self._nodes.holds_any:
            return
        if self.counted is not None:
            await self.counted()
        held: dict[str, NodeSpec | None] = {node.name: node for node in self._nodes.take_held()}
        self._node_changes = held | self._node_changes  # what has changed meanwhile is newer
        await self._take_nodes()

    async def _upsert(self, nodes: Sequence[NodeSpec]) -> UpsertNodesReply:
        reply = await self._written(partial(self._resolver.upsert_nodes, nodes))
        self._ledger_nodes.upserted(nodes, reply.indexes)
        return reply

    async def _remove(self, names: Sequence[str]) -> None:
        await self._written(partial(self._resolver.remove_nodes, names))
        self._ledger_nodes.removed(names)

    async def _written(self, call: Callable[[str], Awaitable[ReplyT]]) -> ReplyT:
        """The answer to a change of nodes in our ledger, whose epoch `call` gets. Raises LedgerUnavailable if
        another ledger has taken its place meanwhile, made without what this one has just acknowledged."""
        epoch = self._ledger_epoch()
        reply = await call(epoch)
        if self._ledger_epoch() != epoch:
            raise LedgerUnavailable("the ledger was rebuilt meanwhile")
        return reply

    def _ledger_epoch(self) -> str:
        """Of our ledger. Another one is rebuilt from what we know, which would undo what is written there
        now, and its indexes of nodes are not ours."""
        return self._runtime.ledger.known().ledger_epoch

    def _update_problems(self) -> None:
        problems = self._runtime.problems
        for reflector in self.reflectors:
            problems.pop(reflector.path, None)
            if reflector.problem:
                problems[reflector.path] = f"updates of {reflector.path} do not come: {reflector.problem}"
        self._rejections.expire()
        problems.pop("on_unknown_nodes", None)
        if self.pods.on_unknown_nodes:
            name, pods = next(iter(self.pods.on_unknown_nodes.items()))
            problems["on_unknown_nodes"] = (
                f"pods are on {len(self.pods.on_unknown_nodes)} nodes that the API server has not, "
                f"such as {pods} on {name}; they are counted once it has"
            )


async def _all_of(jobs: Iterable[Awaitable[None]]) -> None:
    """Return once all have ended. The first failure ends the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)
