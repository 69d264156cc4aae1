"""Objects that rules of scheduling look at, beside pods and nodes, as their owners write them."""

from collections.abc import Mapping
from dataclasses import dataclass

from hoss.model.cluster import Service
from hoss.model.pod import Pairs, PodSpec
from hoss.model.selectors import LabelSelector

NAME_LABEL = "kubernetes.io/metadata.name"  # every namespace has it, whatever else it is labelled


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with its own labels; that of its name is implied."""

    name: str
    labels: Pairs = ()

    @property
    def all_labels(self) -> Mapping[str, str]:
        """What selectors of namespaces look at."""
        return {**dict(self.labels), NAME_LABEL: self.name}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number of pods, or so many percent of them."""

    value: int
    percent: bool = False

    def of(self, pods: int) -> int:
        """As a number of `pods`; parts of a pod count as one (as in Kubernetes' disruption controller)."""
        return -(-self.value * pods // 100) if self.percent else self.value

    def __str__(self) -> str:
        return f"{self.value}%" if self.percent else str(self.value)


@dataclass(frozen=True, slots=True)
class PodDisruptionBudget:
    """How many pods of a kind are to stay, or may be gone. At most one of the two limits is given; without any, none
    may go (so has Kubernetes' disruption controller)."""

    namespace: str
    name: str
    selector: LabelSelector | None = None  # None: it covers no pods
    min_available: Threshold | None = None
    max_unavailable: Threshold | None = None

    def covers(self, spec: PodSpec) -> bool:
        """Whether pods of this spec are among its own; an empty selector takes all of the namespace (as in policy/v1; to preemption,
        which goes by hoss.model.cluster.DisruptionBudget, it says nothing)."""
        return (
            spec.namespace == self.namespace and self.selector is not None and self.selector.matches(dict(spec.labels))
        )

    def desired(self, pods: int) -> int:
        """How many of its `pods` are to stay."""
        if self.max_unavailable is not None:
            return max(0, pods - self.max_unavailable.of(pods))
        return pods if self.min_available is None else self.min_available.of(pods)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """What a priorityClassName stands for."""

    name: str
    value: int
    never_preempts: bool = False  # preemptionPolicy: Never
    global_default: bool = False  # for pods that name no class


ClusterObject = Namespace | Service | PodDisruptionBudget | PriorityClass


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """By what an object is known: applying another of the same key replaces it."""

    kind: str
    namespace: str  # empty for Namespace and PriorityClass
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def key_of(item: ClusterObject) -> ObjectKey:
    """The object's key."""
    return ObjectKey(
        type(item).__name__, "" if isinstance(item, (Namespace, PriorityClass)) else item.namespace, item.name
    )
