"""What can be asked about the pods that are somewhere, and how to find quickly whom a question is about.

A group of pods has *tokens*: its labels, the rules it bears, the ports it holds. A question has an *anchor*: tokens of
which every group it includes has one. So neither a new question nor a new group looks at all of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hoss.model.pod import HostPort
from hoss.model.pod_groups import PodGroup
from hoss.model.pod_rules import PodAffinity, PodAffinityTerm
from hoss.model.selectors import LabelSelector

NamespaceLabels = Mapping[str, Mapping[str, str]]  # of the namespaces that are known
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' word, nothing is bound here


@dataclass(frozen=True, slots=True)
class Bearing:
    """Pods that bear a rule which other pods fall under: required anti-affinity, or what makes their node attractive."""

    term: PodAffinityTerm
    # What one such pod adds to its domain's score for a pod that the term matches; None: it keeps such pods away.
    points: int | None

    def includes(self, group: PodGroup, _namespaces: NamespaceLabels) -> bool:
        """Whether the group bears it."""
        return self in bearings_of(group.affinity)


@dataclass(frozen=True, slots=True)
class Matching:
    """Pods that all of these terms match, as terms of a pod that is to be placed. Their topology does not matter."""

    terms: tuple[PodAffinityTerm, ...]

    def includes(self, group: PodGroup, namespaces: NamespaceLabels) -> bool:
        """Whether the group matches them all."""
        return all(
            term.selector is not None
            and term.selector.matches(group.labels_by_key)
            and _looks_at(term, group.namespace, namespaces)
            for term in self.terms
        )


@dataclass(frozen=True, slots=True)
class Peers:
    """Pods of a namespace that topology spreading counts: those that match and are not being deleted.

    A selector without requirements counts none (as kube-scheduler has it), nor does none at all.
    """

    namespace: str
    selector: LabelSelector | None

    def includes(self, group: PodGroup, _namespaces: NamespaceLabels) -> bool:
        """Whether the group counts."""
        if self.selector is None or self.selector.everything or group.deleting:
            return False
        return group.namespace == self.namespace and self.selector.matches(group.labels_by_key)


@dataclass(frozen=True, slots=True)
class PortHolders:
    """Pods that hold a port of their node which clashes with one of these."""

    ports: tuple[HostPort, ...]

    def includes(self, group: PodGroup, _namespaces: NamespaceLabels) -> bool:
        """Whether the group's ports clash."""
        return any(_clash(wanted, held) for wanted in self.ports for held in group.host_ports)


Question = Bearing | Matching | Peers | PortHolders
Token = tuple[str, str] | Bearing | tuple[int, str]  # a label; a rule; a port and its protocol


def bearings_of(affinity: PodAffinity | None) -> tuple[Bearing, ...]:
    """The rules of one pod that concern pods which come after it.

    A required term counts one point besides (kube-scheduler's hardPodAffinityWeight).
    """
    return () if affinity is None else _bearings_of(affinity)


@lru_cache(maxsize=4096)
def _bearings_of(affinity: PodAffinity) -> tuple[Bearing, ...]:
    points: dict[PodAffinityTerm, int] = {}
    for term in affinity.required:
        points[term] = points.get(term, 0) + 1
    for weighted in affinity.preferred:
        points[weighted.term] = points.get(weighted.term, 0) + weighted.weight
    for weighted in affinity.anti_preferred:
        points[weighted.term] = points.get(weighted.term, 0) - weighted.weight
    keeping_away = dict.fromkeys(affinity.anti_required)
    return (
        *(Bearing(term, None) for term in keeping_away),
        *(Bearing(term, count) for term, count in points.items() if count),
    )


def about_namespace_labels(question: Question) -> bool:
    """Whether the answer depends on which labels namespaces have."""
    return isinstance(question, Matching) and any(
        term.namespace_selector is not None and not term.namespace_selector.everything for term in question.terms
    )


def anchor_of(question: Question | PodAffinityTerm) -> tuple[Token, ...] | None:
    """Tokens of which every included group has at least one; None where there is no telling.

    Of a term: the labels of which every pod that it matches has at least one.
    """
    match question:
        case Bearing():
            return (question,)
        case PortHolders():
            return tuple(set(map(port_token, question.ports)))
        case Peers():
            return _labels_of(question.selector)
        case Matching():
            found = [labels for term in question.terms if (labels := _labels_of(term.selector)) is not None]
            return min(found, key=len) if found else None
        case PodAffinityTerm():
            return _labels_of(question.selector)


def port_token(port: HostPort) -> tuple[int, str]:
    """Ports clash only if they have this in common."""
    return (port.port, port.protocol)


def _labels_of(selector: LabelSelector | None) -> tuple[Token, ...] | None:
    if selector is None:
        return ()
    listed = [
        tuple((requirement.key, value) for value in requirement.values)
        for requirement in selector.requirements
        if requirement.operator == "In"
    ]
    return min(listed, key=len) if listed else None


def _looks_at(term: PodAffinityTerm, namespace: str, namespaces: NamespaceLabels) -> bool:
    # A pending pod's namespace selector is resolved among the namespaces that are known, unless it selects all.
    if namespace in term.namespaces:
        return True
    selector = term.namespace_selector
    if selector is None:
        return False
    return selector.everything or (namespace in namespaces and selector.matches(namespaces[namespace]))


def _clash(one: HostPort, other: HostPort) -> bool:
    return port_token(one) == port_token(other) and (
        one.host_ip == other.host_ip or _EVERY_ADDRESS in (one.host_ip, other.host_ip)
    )
