"""Pods for scheduling: specs, templates, workloads, and rules about other pods.

Specs are frozen and hashable: pods with equal specs are one equivalence class. A topology domain is the set
of nodes with one value of a label, the topology key. A pod group holds the properties of a pod that matter to
other pods' rules and to the ledger's accounts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from operator import attrgetter

from hoss.model.devices import HeldClaim, PodClaims
from hoss.model.node import CORDON, Toleration
from hoss.model.resources import Amounts, Pairs
from hoss.model.selectors import LabelSelector, NodeScope, NodeSelector, PreferredTerm
from hoss.model.volumes import PodVolumes

ENDED_PHASES = ("Succeeded", "Failed")  # of a pod in a cluster: its containers run no more


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Pods of some namespaces whose labels match, in the domains of one topology key.

    Where the manifest names no namespace, `namespaces` holds the pod's own. So equal terms mean the same in
    every namespace."""

    topology_key: str
    selector: LabelSelector | None  # None: matches nothing
    namespaces: tuple[str, ...] = ()  # sorted
    namespace_selector: LabelSelector | None = None  # further namespaces by their labels; None: no others

    def sees(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether the term covers pods of this namespace. `labels`: the namespace's; empty where unknown."""
        return namespace in self.namespaces or (
            self.namespace_selector is not None and self.namespace_selector.matches(labels)
        )


@dataclass(frozen=True, slots=True)
class WeightedPodTerm:
    """A term worth `weight` (1 to 100) for each pod that matches it."""

    weight: int
    term: PodAffinityTerm


@dataclass(frozen=True, slots=True)
class PodAffinity:
    """spec.affinity.podAffinity and podAntiAffinity. Each list is sorted."""

    required: tuple[PodAffinityTerm, ...] = ()
    preferred: tuple[WeightedPodTerm, ...] = ()
    anti_required: tuple[PodAffinityTerm, ...] = ()
    anti_preferred: tuple[WeightedPodTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """One of spec.topologySpreadConstraints."""

    max_skew: int
    topology_key: str
    selector: LabelSelector | None  # of pods in the pod's namespace; None: matches nothing
    required: bool = True  # whenUnsatisfiable: DoNotSchedule; else ScheduleAnyway
    min_domains: int = 1
    honor_node_affinity: bool = True  # nodeAffinityPolicy
    honor_taints: bool = False  # nodeTaintsPolicy


class DuringExecution(str, Enum):
    """What happens to a bound pod whose node stops matching its nodeSelector or required node affinity."""

    IGNORE = ""  # as in Kubernetes
    REPORT = "report"
    EVICT = "evict"


class Movable(str, Enum):
    """Whether a plan of moves may move a bound pod to another node."""

    IF_REPLACED = ""  # if a controller makes such pods anew, and they are no gang
    YES = "true"
    NO = "false"


class QosClass(str, Enum):
    """The kubelet's eviction order when a node runs out of resources."""

    BEST_EFFORT = "BestEffort"
    BURSTABLE = "Burstable"
    GUARANTEED = "Guaranteed"


EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - in Kubernetes: all addresses of a node


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node. Two ports conflict where protocol and port are equal, and the addresses are equal
    or one is EVERY_ADDRESS."""

    port: int
    protocol: str = "TCP"
    host_ip: str = EVERY_ADDRESS


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
    nonzero_cpu_milli: int = 0  # as in `requests`, with 100m for each container without a cpu request
    nonzero_memory_bytes: int = 0  # likewise, with 200 MiB for each without a memory request
    node_name: str = ""
    node_selector: Pairs = ()
    required_node_affinity: NodeSelector | None = None
    preferred_node_affinity: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    devices: DeviceRequest | None = None
    # (cpu milli, memory bytes), like the two nonzero amounts but without pod-level requests: the weight of a
    # pending pod in scores. A bound pod weighs the two nonzero amounts (as in kube-scheduler). None: no
    # difference.
    pending_nonzero: tuple[int, int] | None = None
    pod_affinity: PodAffinity | None = None
    spread: tuple[SpreadConstraint, ...] = ()
    # The pods that the system's default spreading counts, by services and controllers. None: no pods.
    default_spread: LabelSelector | None = None
    images: tuple[str, ...] = ()  # of containers, init containers and image volumes, with a tag, sorted
    image_containers: int = 0  # containers and init containers, for the score of images
    scheduling_gates: tuple[str, ...] = ()  # sorted; the pod is not scheduled while it has gates
    required_features: tuple[str, ...] = ()  # that its node must declare, sorted
    may_preempt: bool = True  # preemptionPolicy is not Never
    volumes: PodVolumes | None = None  # those that restrict its nodes; None: it has none
    claims: PodClaims | None = None  # to devices (DRA); None: it has none
    # The nodes that the dispatcher's policy gives the pod. It comes with work batches, not with manifests.
    scope: NodeScope | None = None

    def selects(self, labels: Mapping[str, str], node: str) -> bool:
        """Whether nodeSelector and required node affinity accept the node of this name with these labels."""
        required = self.required_node_affinity
        return all(labels.get(key) == value for key, value in self.node_selector) and (
            required is None or required.matches(labels, node)
        )

    @property
    def pod_terms(self) -> int:
        """How many affinity terms and spread constraints about other pods it has."""
        found = self.pod_affinity
        if found is None:
            return len(self.spread)
        lists = (found.required, found.preferred, found.anti_required, found.anti_preferred)
        return len(self.spread) + sum(map(len, lists))

    @property
    def nonzero_excess(self) -> tuple[int, int]:
        """The two nonzero amounts (cpu, memory) less `requests`."""
        requests = dict(self.requests)
        cpu, memory = requests.get("cpu", 0), requests.get("memory", 0)
        return self.nonzero_cpu_milli - cpu, self.nonzero_memory_bytes - memory


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A spec, and the other properties that policies match on."""

    spec: PodSpec
    scheduler_name: str = "hoss"
    priority_class_name: str = ""
    qos_class: QosClass = QosClass.BEST_EFFORT
    owner_kind: str = ""
    during_execution: DuringExecution = DuringExecution.IGNORE
    termination_grace_seconds: int = 0  # how long an evicted pod may take to end
    # Only resources that every container limits. Placement does not use limits.
    limits: tuple[tuple[str, int], ...] = ()
    movable: Movable = Movable.IF_REPLACED


@dataclass(frozen=True, slots=True)
class GangSpec:
    """At least `minimum` pods of the workloads with this gang are bound together, or none."""

    namespace: str
    name: str
    minimum: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`replicas` equal pods of one manifest. A bare pod has owner kind "" and one replica."""

    name: str
    template: PodTemplate
    replicas: int = 1
    uid: str = ""  # metadata.uid of a bare pod; "": none
    gang: GangSpec | None = None


@dataclass(frozen=True)
class PodGroup:
    """The properties of a pod that other pods' rules match, and the non-numeric ones that decide its
    place. Its hash is made once: tables of groups are asked for each batch, and a group may have hundreds of
    terms."""

    namespace: str = "default"
    labels: Pairs = ()
    deleting: bool = False
    affinity: PodAffinity | None = None
    host_ports: tuple[HostPort, ...] = ()
    # Required constraints only, for the ledger's checks.
    spread: tuple[SpreadConstraint, ...] = ()
    tolerates_cordon: bool = False  # the ledger needs it
    excess: tuple[int, int] = (0, 0)  # PodSpec.nonzero_excess
    volumes: PodVolumes | None = None
    claims_devices: bool = False  # it may hold claims, once it is placed
    held_claims: tuple[HeldClaim, ...] = ()  # what it has on its node

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["PodGroup"], tuple[object, ...]]:
        return PodGroup, self._values  # without the hash: it is another one in each process

    @property
    def _values(self) -> tuple[object, ...]:
        values: tuple[object, ...] = _GROUP_VALUES(self)
        return values

    @cached_property
    def _hash(self) -> int:
        return hash(self._values)

    @cached_property
    def labels_by_key(self) -> Mapping[str, str]:
        return dict(self.labels)

    @property
    def undecided(self) -> "PodGroup":
        """The group of the same pods before they were placed, and got volumes and devices."""
        if not self.held_claims and (self.volumes is None or not self.volumes.to_be_bound):
            return self
        volumes = None if self.volumes is None else self.volumes.undecided
        return replace(self, volumes=volumes, held_claims=())


_GROUP_VALUES = attrgetter(*(field.name for field in fields(PodGroup)))


def group_of(spec: PodSpec, *, deleting: bool = False) -> PodGroup:
    """The group of the pods with this spec."""
    required = tuple(constraint for constraint in spec.spread if constraint.required)
    return PodGroup(
        namespace=spec.namespace,
        labels=spec.labels,
        deleting=deleting,
        affinity=spec.pod_affinity,
        host_ports=spec.host_ports,
        spread=required,
        tolerates_cordon=any(toleration.tolerates(CORDON) for toleration in spec.tolerations),
        excess=spec.nonzero_excess,
        volumes=spec.volumes,
        claims_devices=spec.claims is not None,
    )
