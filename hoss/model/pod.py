"""A pod as far as scheduling goes. Frozen and hashable: equal specs are one equivalence class."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hoss.model.during_execution import DuringExecution
from hoss.model.pod_rules import PodAffinity, SpreadConstraint
from hoss.model.selectors import LabelSelector, NodeScope, NodeSelector, PreferredTerm
from hoss.model.taints import Toleration

Pairs = tuple[tuple[str, str], ...]  # sorted by key
Amounts = tuple[tuple[str, int], ...]  # sorted by resource, schema units


class QosClass(str, Enum):
    """How the kubelet treats the pod when its node runs out."""

    BEST_EFFORT = "BestEffort"
    BURSTABLE = "Burstable"
    GUARANTEED = "Guaranteed"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node itself. Ports clash with the same protocol and port on the same address or on 0.0.0.0."""

    port: int
    protocol: str = "TCP"
    host_ip: str = "0.0.0.0"  # noqa: S104 - Kubernetes' word for every address


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """`count` cards of one node, `milli` thousandths of each. Whole cards: milli = 1000."""

    count: int
    milli: int


@dataclass(frozen=True, slots=True)
class PodSpec:
    """Everything that decides where a pod may and should go. Equal specs schedule alike."""

    namespace: str = "default"
    labels: Pairs = ()
    priority: int = 0
    requests: Amounts = ()  # the pod's total; "pods" is implied
    nonzero_cpu_milli: int = 0  # as `requests`, 100m for each container that names no cpu
    nonzero_memory_bytes: int = 0  # as `requests`, 200 MiB for each container that names no memory
    node_name: str = ""
    node_selector: Pairs = ()
    required_node_affinity: NodeSelector | None = None
    preferred_node_affinity: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    devices: DeviceRequest | None = None
    # (cpu milli, memory bytes) as the two nonzero amounts, but without what is asked for at pod level: the pod weighs this
    # much in scores while it is pending, and the two amounts once it is bound (so does kube-scheduler). None: the same.
    pending_nonzero: tuple[int, int] | None = None
    pod_affinity: PodAffinity | None = None
    spread: tuple[SpreadConstraint, ...] = ()
    # What the system's default spreading counts, as far as services and controllers say; None: nothing to count.
    default_spread: LabelSelector | None = None
    images: tuple[str, ...] = ()  # of containers, init containers and image volumes, with a tag, sorted
    image_containers: int = 0  # containers and init containers, which bound the score of images
    scheduling_gates: tuple[str, ...] = ()  # sorted; while there are any the pod is not to be scheduled
    may_preempt: bool = True  # preemptionPolicy is not Never
    # What the dispatcher's policy says of its nodes: in no manifest and no PodSpec message, but in work batches.
    scope: NodeScope | None = None

    def selects(self, labels: Mapping[str, str], node: str) -> bool:
        """Whether nodeSelector and required node affinity accept the node of this name with these labels."""
        required = self.required_node_affinity
        return all(labels.get(key) == value for key, value in self.node_selector) and (
            required is None or required.matches(labels, node)
        )

    @property
    def nonzero_excess(self) -> tuple[int, int]:
        """By how much the two nonzero amounts, of cpu and of memory, exceed `requests`."""
        named = dict(self.requests)
        return (self.nonzero_cpu_milli - named.get("cpu", 0), self.nonzero_memory_bytes - named.get("memory", 0))


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A spec and what policies match on besides."""

    spec: PodSpec
    scheduler_name: str = "hoss"
    priority_class_name: str = ""
    qos_class: QosClass = QosClass.BEST_EFFORT
    owner_kind: str = ""
    during_execution: DuringExecution = DuringExecution.IGNORE
    termination_grace_seconds: int = 0  # how long its pods may take to leave when they have to
    limits: tuple[
        tuple[str, int], ...
    ] = ()  # of resources of which every container has one; by these nothing is placed


@dataclass(frozen=True, slots=True)
class Gang:
    """Of the pods of all workloads that have it, at least `minimum` are bound together, or none."""

    namespace: str
    name: str
    minimum: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What one manifest asks for: `replicas` equal pods. A bare pod has owner kind "" and one replica.

    `uid` is the manifest's metadata.uid, for bare pods; empty if it has none.
    """

    name: str
    template: PodTemplate
    replicas: int = 1
    uid: str = ""
    gang: Gang | None = None
