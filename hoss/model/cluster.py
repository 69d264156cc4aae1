"""A cluster as one looks at it from outside: nodes, pods, and the objects that say what belongs to which."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hoss.model.node import NodeSpec
from hoss.model.pod import Amounts, Pairs, PodSpec
from hoss.model.selectors import LabelSelector, Requirement


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod on a node, with what it takes there: a resize in place may make that differ from its spec."""

    name: str
    node: str
    spec: PodSpec
    requests: Amounts
    nonzero_cpu_milli: int
    nonzero_memory_bytes: int
    deleting: bool = False
    started_at: float = float("inf")  # seconds since the epoch; a pod that has not started is the latest of all


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """The controller of a pod, by kind and API group."""

    kind: str
    group: str
    name: str


@dataclass(frozen=True, slots=True)
class Service:
    """A service and the labels of its pods; None: it selects none."""

    namespace: str
    selector: Pairs | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Controller:
    """A ReplicationController, ReplicaSet or StatefulSet."""

    identity: OwnerReference
    namespace: str
    selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget: how many more of its pods may go."""

    namespace: str
    selector: LabelSelector | None
    allowed: int
    disrupted: frozenset[str] = frozenset()  # names of pods whose going is counted already

    def covers(self, pod: BoundPod) -> bool:
        """Whether the pod's going would be charged to it. A selector without requirements covers nothing here."""
        return pod.name not in self.disrupted and self.selects(pod.spec)

    def selects(self, spec: PodSpec) -> bool:
        """Whether pods of this spec are among its own."""
        if self.selector is None or self.selector.everything or not spec.labels:
            return False
        return spec.namespace == self.namespace and self.selector.matches(dict(spec.labels))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything that decides where one more pod may go."""

    nodes: Sequence[NodeSpec] = ()
    pods: Sequence[BoundPod] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # labels, of those that are known
    services: Sequence[Service] = ()
    controllers: Sequence[Controller] = ()
    budgets: Sequence[DisruptionBudget] = ()


def default_spread_selector(spec: PodSpec, owner: OwnerReference | None, cluster: Cluster) -> LabelSelector | None:
    """What default spreading counts for a pod: all that its services and its controller select; None if nothing does.

    After kube-scheduler's DefaultSelector.
    """
    selectors = [
        controller.selector
        for controller in cluster.controllers
        if controller.namespace == spec.namespace and controller.identity == owner and controller.selector is not None
    ]
    return merged_selector(spec, cluster.services, selectors)


def merged_selector(
    spec: PodSpec, services: Iterable[Service], of_owner: Iterable[LabelSelector]
) -> LabelSelector | None:
    """The pod's owner's selectors and those of the services that select it, ANDed; None where there is none."""
    labels = dict(spec.labels)
    merged: dict[str, str] = {}
    for service in services:
        selects = service.selector is not None and all(labels.get(key) == value for key, value in service.selector)
        if service.namespace == spec.namespace and selects:
            merged |= dict(service.selector or ())
    requirements = [requirement for selector in of_owner for requirement in selector.requirements]
    requirements += [Requirement(key, "In", (value,)) for key, value in merged.items()]
    if not requirements:
        return None
    return LabelSelector(tuple(sorted(set(requirements), key=lambda r: (r.key, r.operator, r.values))))
