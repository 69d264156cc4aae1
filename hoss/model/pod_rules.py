"""What a pod asks of the pods around it: affinity, anti-affinity and spreading over topology domains.

A domain is all nodes with one value of a label, the topology key.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hoss.model.selectors import LabelSelector


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Pods of some namespaces whose labels match, in the domains of one topology key.

    `namespaces` always names those meant, the pod's own where the manifest names none: equal terms mean the same in
    whichever namespace they stand.
    """

    topology_key: str
    selector: LabelSelector | None  # None: matches nothing
    namespaces: tuple[str, ...] = ()  # sorted
    namespace_selector: LabelSelector | None = None  # further namespaces, by their labels; None: no others

    def sees(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether it looks at pods of this namespace, whose labels are `labels` (none where it is unknown)."""
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
    selector: LabelSelector | None  # of pods of the own namespace; None: matches nothing
    required: bool = True  # whenUnsatisfiable: DoNotSchedule; else ScheduleAnyway
    min_domains: int = 1
    honor_node_affinity: bool = True  # nodeAffinityPolicy
    honor_taints: bool = False  # nodeTaintsPolicy
