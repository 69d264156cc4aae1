"""Selector queries about pods, and how to find quickly the groups of pods that a query includes.

A group of pods has *tokens*: its labels, its affinity terms, its host ports. A query has an *anchor*: tokens
of which every included group has at least one. So a new query need not check all groups, nor a new group all
queries."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hoss.model.pod import HostPort, PodAffinity, PodAffinityTerm, PodGroup
from hoss.model.selectors import LabelSelector
from hoss.model.volumes import InlineDisk, PodVolumes

NamespaceLabels = Mapping[str, Mapping[str, str]]  # of the namespaces that are known
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' notation, nothing is bound here


@dataclass(frozen=True, slots=True)
class CarriedTerm:
    """Pods that carry a term about other pods: required anti-affinity, or one that adds to their node's
    score."""

    term: PodAffinityTerm
    points: int | None  # added to the domain's score for a pod that the term matches; None: anti-affinity
    required: bool = False  # required affinity, whose points are times hardPodAffinityWeight

    def includes(self, group: PodGroup, _namespaces: NamespaceLabels) -> bool:
        """Whether the group carries the term."""
        return self in carried_terms(group.affinity)


@dataclass(frozen=True, slots=True)
class Matching:
    """Pods that all of these terms match, as terms of a pending pod. Their topology does not matter."""

    terms: tuple[PodAffinityTerm, ...]

    def includes(self, group: PodGroup, namespaces: NamespaceLabels) -> bool:
        """Whether the group matches them all."""
        return all(
            term.selector is not None
            and term.selector.matches(group.labels_by_key)
            and _covers_namespace(term, group.namespace, namespaces)
            for term in self.terms
        )


@dataclass(frozen=True, slots=True)
class Peers:
    """Pods of a namespace that topology spreading counts: those that match and are not being deleted.

    No selector, or one without requirements, counts none (as in kube-scheduler)."""

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
        return any(_clash(port, held) for port in self.ports for held in group.host_ports)


@dataclass(frozen=True, slots=True)
class DiskHolders:
    """Pods with a disk that excludes one of these."""

    disks: tuple[InlineDisk, ...]

    def includes(self, group: PodGroup, _namespaces: NamespaceLabels) -> bool:
        """Whether the group has such a disk."""
        held = () if group.volumes is None else group.volumes.disks
        return any(disk.excludes(other) for disk in self.disks for other in held)


@dataclass(frozen=True, slots=True)
class ClaimUsers:
    """Pods of a namespace that mount one of these claims by persistentVolumeClaim volumes."""

    namespace: str
    claims: tuple[str, ...]

    def includes(self, group: PodGroup, _namespaces: NamespaceLabels) -> bool:
        """Whether the group mounts one."""
        if group.volumes is None or group.namespace != self.namespace:
            return False
        return not set(self.claims).isdisjoint(group.volumes.mounted_claims)


PodQuery = CarriedTerm | Matching | Peers | PortHolders | DiskHolders | ClaimUsers
# A label; a rule; a port and its protocol; a disk or claim.
Token = tuple[str, str] | CarriedTerm | tuple[int, str] | InlineDisk | ClaimUsers


def carried_terms(affinity: PodAffinity | None) -> tuple[CarriedTerm, ...]:
    """The terms of one pod that concern later pods. A required one has a point for each time that it is
    given."""
    return () if affinity is None else _carried_terms(affinity)


@lru_cache(maxsize=4096)
def _carried_terms(affinity: PodAffinity) -> tuple[CarriedTerm, ...]:
    points: dict[PodAffinityTerm, int] = {}
    for weighted in affinity.preferred:
        points[weighted.term] = points.get(weighted.term, 0) + weighted.weight
    for weighted in affinity.anti_preferred:
        points[weighted.term] = points.get(weighted.term, 0) - weighted.weight
    keeping_away = dict.fromkeys(affinity.anti_required)
    return (
        *(CarriedTerm(term, None) for term in keeping_away),
        *(CarriedTerm(term, count, required=True) for term, count in Counter(affinity.required).items()),
        *(CarriedTerm(term, count) for term, count in points.items() if count),
    )


def about_namespace_labels(query: PodQuery) -> bool:
    """Whether the result depends on the labels of namespaces."""
    return isinstance(query, Matching) and any(
        term.namespace_selector is not None and not term.namespace_selector.everything for term in query.terms
    )


def anchor_of(query: PodQuery | PodAffinityTerm) -> tuple[Token, ...] | None:
    """Tokens of which every included group has at least one; None if there are none.

    For a term: the labels of which every matching pod has at least one."""
    match query:
        case CarriedTerm():
            return (query,)
        case PortHolders() | DiskHolders() | ClaimUsers():
            return _held_by(query)
        case Peers():
            return _labels_of(query.selector)
        case Matching():
            found = [labels for term in query.terms if (labels := _labels_of(term.selector)) is not None]
            return min(found, key=len) if found else None
        case PodAffinityTerm():
            return _labels_of(query.selector)


def _held_by(query: PortHolders | DiskHolders | ClaimUsers) -> tuple[Token, ...]:
    found: Iterable[Token]
    match query:
        case PortHolders():
            found = map(port_token, query.ports)
        case DiskHolders():
            found = map(_disk_token, query.disks)
        case ClaimUsers():
            found = (ClaimUsers(query.namespace, (claim,)) for claim in query.claims)
    return tuple(dict.fromkeys(found))


def port_token(port: HostPort) -> tuple[int, str]:
    """Ports clash only if they have this in common."""
    return (port.port, port.protocol)


def volume_tokens(namespace: str, volumes: PodVolumes | None) -> tuple[Token, ...]:
    """The tokens of a pod's volumes."""
    if volumes is None:
        return ()
    disks = dict.fromkeys(map(_disk_token, volumes.disks))
    return *disks, *(ClaimUsers(namespace, (claim,)) for claim in dict.fromkeys(volumes.mounted_claims))


def _disk_token(disk: InlineDisk) -> InlineDisk:
    # Disks exclude each other only if they have this in common.
    return InlineDisk(disk.kind, disk.names)


def _labels_of(selector: LabelSelector | None) -> tuple[Token, ...] | None:
    if selector is None:
        return ()
    listed = [
        tuple((requirement.key, value) for value in requirement.values)
        for requirement in selector.requirements
        if requirement.operator == "In"
    ]
    return min(listed, key=len) if listed else None


def _covers_namespace(term: PodAffinityTerm, namespace: str, namespaces: NamespaceLabels) -> bool:
    # A pending pod's namespace selector selects among the known namespaces. kube-scheduler also compares it
    # with a namespace without labels, whatever the pod's namespace is. So NotIn and DoesNotExist, which match
    # that one, select all namespaces, as a selector without requirements does.
    if namespace in term.namespaces:
        return True
    selector = term.namespace_selector
    if selector is None:
        return False
    return selector.matches({}) or (namespace in namespaces and selector.matches(namespaces[namespace]))


def _clash(one: HostPort, other: HostPort) -> bool:
    return port_token(one) == port_token(other) and (
        one.host_ip == other.host_ip or _EVERY_ADDRESS in (one.host_ip, other.host_ip)
    )
