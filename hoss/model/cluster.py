"""Objects of a cluster: namespaces, services, controllers, disruption budgets, priority classes, bound pods.

ClusterObject is what users apply to HOSS. Cluster is a whole cluster as the offline scheduler reads it; its
DisruptionBudget holds the state that the API server reports, a PodDisruptionBudget holds the spec."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hoss.model.devices import DeviceManifest, DeviceObject, ResourceClaim
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import Amounts, Pairs
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.volumes import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    StorageObject,
    VolumeAttachment,
)


@dataclass(frozen=True, slots=True)
class Service:
    """A service and the labels of its pods."""

    namespace: str
    selector: Pairs | None  # None: it selects no pods
    name: str = ""


NAME_LABEL = "kubernetes.io/metadata.name"  # implied on every namespace


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with its labels. NAME_LABEL is implied."""

    name: str
    labels: Pairs = ()

    @property
    def all_labels(self) -> Mapping[str, str]:
        """The labels that namespace selectors match."""
        return {**dict(self.labels), NAME_LABEL: self.name}


@dataclass(frozen=True, slots=True)
class NamespaceSnapshot:
    """The namespaces and services at one moment. `version` grows with every change."""

    version: int
    namespaces: tuple[Namespace, ...]
    services: tuple[Service, ...]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number or a percentage of pods."""

    value: int
    percent: bool = False

    def of(self, pods: int) -> int:
        """The threshold as a number of pods, rounded up (as in Kubernetes' disruption controller)."""
        return -(-self.value * pods // 100) if self.percent else self.value

    def __str__(self) -> str:
        return f"{self.value}%" if self.percent else str(self.value)


@dataclass(frozen=True, slots=True)
class PodDisruptionBudget:
    """How many of its pods must stay available, or may be unavailable. At most one of the two limits is set;
    without a limit all pods must stay (as in Kubernetes' disruption controller)."""

    namespace: str
    name: str
    selector: LabelSelector | None = None  # None: it covers no pods
    min_available: Threshold | None = None
    max_unavailable: Threshold | None = None

    def covers(self, spec: PodSpec) -> bool:
        """Whether pods of this spec count. An empty selector covers the whole namespace (as in policy/v1); in
        preemption, which uses DisruptionBudget, it covers nothing."""
        return (
            spec.namespace == self.namespace
            and self.selector is not None
            and self.selector.matches(dict(spec.labels))
        )

    def desired(self, pods: int) -> int:
        """How many of its `pods` must stay available."""
        if self.max_unavailable is not None:
            return max(0, pods - self.max_unavailable.of(pods))
        return pods if self.min_available is None else self.min_available.of(pods)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """The priority that a priorityClassName names."""

    name: str
    value: int
    never_preempts: bool = False  # preemptionPolicy: Never
    global_default: bool = False  # the class of pods that name none


ClusterObject = Namespace | Service | PodDisruptionBudget | PriorityClass


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """The identity of an object: applying an object replaces the one with the same key."""

    kind: str
    namespace: str  # empty for Namespace and PriorityClass
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def key_of(item: ClusterObject) -> ObjectKey:
    """The object's key."""
    namespace = "" if isinstance(item, (Namespace, PriorityClass)) else item.namespace
    return ObjectKey(type(item).__name__, namespace, item.name)


NOMINATED_POD = "NominatedPod"  # kind of the keys of such pods

_STORAGE_KINDS: dict[type, str] = {
    PersistentVolume: "PersistentVolume",
    PersistentVolumeClaim: "PersistentVolumeClaim",
    StorageClass: "StorageClass",
    CsiNode: "CSINode",
    CsiDriver: "CSIDriver",
    CsiStorageCapacity: "CSIStorageCapacity",
    VolumeAttachment: "VolumeAttachment",
}


@dataclass(frozen=True, slots=True)
class NominatedPod:
    """A pod of another scheduler that waits on a node for its victims to leave
    (status.nominatedNodeName)."""

    namespace: str
    name: str
    node: str
    priority: int
    requests: Amounts


# What the dispatcher follows on behalf of workers, which get all of it.
FollowedObject = StorageObject | DeviceManifest | NominatedPod


def storage_key_of(item: FollowedObject) -> ObjectKey:
    """The key of a storage object, a device object or a nominated pod."""
    if isinstance(item, DeviceManifest):
        return ObjectKey(item.kind, item.namespace, item.name)
    if isinstance(item, NominatedPod):
        return ObjectKey(NOMINATED_POD, item.namespace, item.name)
    namespace = item.namespace if isinstance(item, (PersistentVolumeClaim, CsiStorageCapacity)) else ""
    return ObjectKey(_STORAGE_KINDS[type(item)], namespace, item.name)


@dataclass(frozen=True, slots=True)
class StorageUpdate:
    """Changes of a cluster's storage objects, device objects and nominated pods. `complete`: there are no
    others than `objects`."""

    objects: tuple[FollowedObject, ...] = ()  # new or changed
    gone: tuple[ObjectKey, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class DeviceUpdate:
    """Changes of a cluster's device objects, read. `complete`: there are no others than `objects`."""

    objects: tuple[DeviceObject, ...] = ()  # new or changed
    gone: tuple[ObjectKey, ...] = ()
    complete: bool = False


def device_key_of(item: DeviceObject) -> ObjectKey:
    """The device object's key."""
    namespace = item.namespace if isinstance(item, ResourceClaim) else ""
    return ObjectKey(type(item).__name__, namespace, item.name)


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod on a node. Its `requests` may differ from its spec after an in-place resize."""

    name: str
    node: str
    spec: PodSpec
    requests: Amounts
    nonzero_cpu_milli: int
    nonzero_memory_bytes: int
    deleting: bool = False
    preempted: bool = False  # deleted for a more urgent pod
    started_at: float = float("inf")  # seconds since the epoch; infinite: not started


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """A pod's controller."""

    kind: str
    group: str
    name: str


@dataclass(frozen=True, slots=True)
class Controller:
    """A ReplicationController, ReplicaSet or StatefulSet."""

    identity: OwnerReference
    namespace: str
    selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """The state of a PodDisruptionBudget: how many more of its pods may be disrupted."""

    namespace: str
    selector: LabelSelector | None
    allowed: int
    disrupted: frozenset[str] = frozenset()  # names of pods that `allowed` already counts as disrupted

    def covers(self, pod: BoundPod) -> bool:
        """Whether an eviction of the pod would count against `allowed`."""
        return pod.name not in self.disrupted and self.selects(pod.spec)

    def selects(self, spec: PodSpec) -> bool:
        """Whether pods of this spec count. An empty selector covers nothing here (as in kube-scheduler)."""
        if self.selector is None or self.selector.everything or not spec.labels:
            return False
        return spec.namespace == self.namespace and self.selector.matches(dict(spec.labels))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything that decides where another pod may be placed."""

    nodes: Sequence[NodeSpec] = ()
    pods: Sequence[BoundPod] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # labels by name
    services: Sequence[Service] = ()
    controllers: Sequence[Controller] = ()
    budgets: Sequence[DisruptionBudget] = ()
    storage: Sequence[StorageObject] = ()
    devices: Sequence[DeviceObject] = ()
    read_at: float = float("inf")  # seconds since the epoch, for what devices may take to become ready


def default_spread_selector(
    spec: PodSpec, owner: OwnerReference | None, cluster: Cluster
) -> LabelSelector | None:
    """The selector of default spreading: those of the pod's services and of its controller, ANDed. None where
    there is none (kube-scheduler's DefaultSelector)."""
    of_owner = [
        c.selector
        for c in cluster.controllers
        if c.namespace == spec.namespace and c.identity == owner and c.selector is not None
    ]
    merged = merged_selector(spec, cluster.services, of_owner)
    if owner is None or owner.kind != "ReplicationController" or merged is None:
        return merged
    # kube-scheduler merges the labels of services and of this one kind of controller, so the controller's
    # value of a label replaces another one.
    own = [requirement for selector in of_owner for requirement in selector.requirements]
    replaced = {requirement.key for requirement in own}
    return LabelSelector.of([*own, *(r for r in merged.requirements if r.key not in replaced)])


def merged_selector(
    spec: PodSpec, services: Iterable[Service], of_owner: Iterable[LabelSelector]
) -> LabelSelector | None:
    """The selectors of the pod's owner and of the services that select it, ANDed. None: there are none."""
    labels = dict(spec.labels)
    merged: dict[str, str] = {}
    for service in services:
        pairs = service.selector or ()
        if service.namespace == spec.namespace and all(labels.get(key) == value for key, value in pairs):
            merged |= dict(pairs)
    requirements = [requirement for selector in of_owner for requirement in selector.requirements]
    requirements += [Requirement(key, "In", (value,)) for key, value in merged.items()]
    return LabelSelector.of(requirements) if requirements else None
