"""Whom a change of the cluster may help: queueing hints, after kube-scheduler's (KEP-4247).

A pod that no node took waits with the names of the plugins that refused nodes. A change is worth another attempt if for any of
these plugins its hint says so (as kube-scheduler's isPodWorthRequeuing: the first Queue wins). For a node to become
feasible, the plugin that refused it first must change its mind, and that plugin is among them: so nothing that
helps is passed over. A plugin without a hint here, and a pod of which it is not known who refused it, is woken by everything.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from dispatcher.core.changes import Aspect, Changes, NodeChange, Room
from hoss.model.fit import cards_fit, fits
from hoss.model.pod import HostPort, PodSpec
from hoss.model.pod_rules import PodAffinityTerm, SpreadConstraint
from hoss.model.selectors import LabelSelector
from hoss.model.taints import NO_EXECUTE, NO_SCHEDULE, Taint

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' word for every address

Labels = Mapping[str, str]


def worth_another_attempt(spec: PodSpec, refused_by: frozenset[str], changes: Changes) -> bool:
    """Whether pods of a class that these plugins refused may fit after these changes."""
    if changes.anything or not refused_by:
        return bool(changes)
    return any(HINTS.get(plugin, _always)(spec, changes) for plugin in refused_by)


def untolerated(spec: PodSpec, taints: Iterable[Taint]) -> list[Taint]:
    """The taints that keep pods of this class away."""
    hard = (taint for taint in taints if taint.effect in (NO_SCHEDULE, NO_EXECUTE))
    return [taint for taint in hard if not any(toleration.tolerates(taint) for toleration in spec.tolerations)]


def _always(spec: PodSpec, changes: Changes) -> bool:  # noqa: ARG001 - as all hints
    return bool(changes)


def _resources_fit(spec: PodSpec, changes: Changes) -> bool:
    """A node with more room than before, which now covers the request."""
    return any(_covers(room, spec) for room in changes.rooms)


def _covers(room: Room, spec: PodSpec) -> bool:
    wanted = {"pods": 1, **{resource: amount for resource, amount in spec.requests if amount}}
    # Among thousands of classes most are told apart by this alone.
    if any(amount > room.most_free.get(resource, 0) for resource, amount in wanted.items()):
        return False
    request = np.array([wanted.get(resource, 0) for resource in room.schema], np.int64)
    return bool(fits(room.allocatable, room.requested, request).any())


def _device_cards(spec: PodSpec, changes: Changes) -> bool:
    """A node with enough free cards among those that have more room than before."""
    devices = spec.devices
    return devices is not None and any(
        bool(cards_fit(room.cards_used, devices.count, devices.milli).any()) for room in changes.rooms
    )


def _taint_toleration(spec: PodSpec, changes: Changes) -> bool:
    """A new node or other taints on one, all of which the pod tolerates."""
    return any(not untolerated(spec, node.spec.taints) for node in _nodes(changes, Aspect.ADDED | Aspect.TAINTS))


def _node_unschedulable(spec: PodSpec, changes: Changes) -> bool:  # noqa: ARG001 - as all hints
    """A node that was uncordoned, or came open."""
    return any(not node.spec.unschedulable for node in _nodes(changes, Aspect.ADDED | Aspect.UNCORDONED))


def _node_affinity(spec: PodSpec, changes: Changes) -> bool:
    """A new node or other labels on one, that match."""
    for node in _nodes(changes, Aspect.ADDED | Aspect.LABELS):
        if spec.selects(dict(node.spec.labels), node.spec.name):
            return True
    return False


def _policy_nodes(spec: PodSpec, changes: Changes) -> bool:  # noqa: ARG001 - which nodes the rule gives is no part of the spec
    """A new node or other labels on one; another policy wakes pods by itself."""
    return any(True for _ in _nodes(changes, Aspect.ADDED | Aspect.LABELS))


def _node_name(spec: PodSpec, changes: Changes) -> bool:
    """The node that the pod names came."""
    return any(node.spec.name == spec.node_name for node in _nodes(changes, Aspect.ADDED))


def _node_ports(spec: PodSpec, changes: Changes) -> bool:
    """A new node, or a pod that left and had one of the ports."""
    if any(True for _ in _nodes(changes, Aspect.ADDED)):
        return True
    return any(_clash(mine, theirs) for pod in changes.left for theirs in pod.host_ports for mine in spec.host_ports)


def _clash(one: HostPort, other: HostPort) -> bool:
    same_address = one.host_ip == other.host_ip or ANY_ADDRESS in (one.host_ip, other.host_ip)
    return same_address and (one.protocol, one.port) == (other.protocol, other.port)


def _inter_pod_affinity(spec: PodSpec, changes: Changes) -> bool:
    """A pod that came and is wanted near, one that left and was shunned or shunned this one, a node in another domain, or
    other labels of a namespace that decide which of these are meant."""
    rules = spec.pod_affinity
    wanted = rules.required if rules is not None else ()
    shunned = rules.anti_required if rules is not None else ()
    if changes.relabelled and (
        spec.namespace in changes.relabelled  # others' terms may not mean this pod any more
        or any(term.namespace_selector is not None for term in (*wanted, *shunned))
    ):
        return True
    if any(_sees(term, pod) for term in wanted for pod in changes.came):
        return True
    for pod in changes.left:
        theirs = pod.pod_affinity.anti_required if pod.pod_affinity is not None else ()
        if any(_sees(term, pod) for term in shunned) or any(_sees(term, spec) for term in theirs):
            return True
    # Refused by others' terms alone: their keys are not known here, so every new domain may be the way out.
    keys = {term.topology_key for term in (*wanted, *shunned)}
    moved = list(_nodes(changes, Aspect.ADDED | Aspect.LABELS))
    return bool(moved) and (not keys or any(_domain_changed(node, key) for node in moved for key in keys))


def _sees(term: PodAffinityTerm, pod: PodSpec) -> bool:
    # The labels of namespaces are not looked at here: where a term selects by them, any namespace may be meant.
    there = pod.namespace in term.namespaces or term.namespace_selector is not None
    return there and _selects(term.selector, pod)


def _topology_spread(spec: PodSpec, changes: Changes) -> bool:
    """A counted pod came or left, or a node is in another domain than before."""
    required = [constraint for constraint in spec.spread if constraint.required]
    if any(_counts(rule, spec, pod) for rule in required for pod in (*changes.came, *changes.left)):
        return True
    moved = list(_nodes(changes, Aspect.ADDED | Aspect.LABELS | Aspect.REMOVED))
    # Other taints or other labels, too, change which nodes a constraint counts.
    if any(rule.honor_taints for rule in required):
        moved += _nodes(changes, Aspect.TAINTS)
    if any(rule.honor_node_affinity for rule in required) and (spec.node_selector or spec.required_node_affinity):
        return bool(moved)
    return any(_domain_changed(node, rule.topology_key) for node in moved for rule in required)


def _counts(rule: SpreadConstraint, spec: PodSpec, pod: PodSpec) -> bool:
    return pod.namespace == spec.namespace and _selects(rule.selector, pod)


def _selects(selector: LabelSelector | None, pod: PodSpec) -> bool:
    return selector is not None and selector.matches(dict(pod.labels))


def _domain_changed(node: NodeChange, key: str) -> bool:
    now = dict(node.spec.labels).get(key)
    if node.aspects & (Aspect.ADDED | Aspect.REMOVED):
        return now is not None
    return bool(node.aspects & Aspect.TAINTS) or now != dict(node.labels_before).get(key)


def _nodes(changes: Changes, aspects: Aspect) -> Iterable[NodeChange]:
    return (node for node in changes.nodes if node.aspects & aspects)


HINTS: dict[str, Callable[[PodSpec, Changes], bool]] = {
    "NodeResourcesFit": _resources_fit,
    "DeviceCards": _device_cards,
    "TaintToleration": _taint_toleration,
    "NodeUnschedulable": _node_unschedulable,
    "NodeAffinity": _node_affinity,
    "PolicyNodes": _policy_nodes,
    "NodeName": _node_name,
    "NodePorts": _node_ports,
    "InterPodAffinity": _inter_pod_affinity,
    "PodTopologySpread": _topology_spread,
}
