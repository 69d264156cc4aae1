"""Queueing hints: which waiting pods a cluster change may help, after kube-scheduler (KEP-4247).

A pod that fits no node waits with the names of the plugins that refused nodes. A change is worth another
attempt if the hint of any of these plugins says so (as in kube-scheduler's isPodWorthRequeuing, the first
Queue wins). For a node to become feasible, the plugin that refused it first must change its verdict, and that
plugin is among the recorded ones; so no helpful change is missed. A plugin without a hint here is woken by
every change, and so is a pod whose refusing plugins are unknown."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from dispatcher.core.changes import Aspect, Changes, NodeChange, Room
from hoss.model.cluster import NOMINATED_POD
from hoss.model.devices import DEVICE_KINDS
from hoss.model.fit import cards_fit, fits
from hoss.model.node import NO_EXECUTE, NO_SCHEDULE, Taint
from hoss.model.pod import HostPort, PodAffinityTerm, PodGroup, PodSpec, SpreadConstraint
from hoss.model.selectors import LabelSelector

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
    return [taint for taint in hard if not any(t.tolerates(taint) for t in spec.tolerations)]


def _always(_spec: PodSpec, changes: Changes) -> bool:
    return bool(changes)


def _resources_fit(spec: PodSpec, changes: Changes) -> bool:
    """A node with more room than before now covers the request; a device class may stand for an extended
    resource of the pod; or a pod of another scheduler no longer waits for the room of a node."""
    if NOMINATED_POD in changes.storage:
        return True
    if "DeviceClass" in changes.storage and spec.claims is not None and spec.claims.containers:
        return True
    return any(_covers(room, spec) for room in changes.rooms)


def _covers(room: Room, spec: PodSpec) -> bool:
    required = {"pods": 1, **{resource: amount for resource, amount in spec.requests if amount}}
    # This alone rules out most of thousands of classes.
    if any(amount > room.most_free.get(resource, 0) for resource, amount in required.items()):
        return False
    request = np.array([required.get(resource, 0) for resource in room.schema], np.int64)
    return bool(fits(room.allocatable, room.requested, request).any())


def _device_cards(spec: PodSpec, changes: Changes) -> bool:
    """A node with more room than before has enough free cards."""
    devices = spec.devices
    return devices is not None and any(
        bool(cards_fit(room.cards_used, devices.count, devices.milli).any()) for room in changes.rooms
    )


def _taint_toleration(spec: PodSpec, changes: Changes) -> bool:
    """A node is new or has other taints, and the pod tolerates all of its taints."""
    nodes = _nodes(changes, Aspect.ADDED | Aspect.TAINTS)
    return any(not untolerated(spec, node.spec.taints) for node in nodes)


def _node_unschedulable(_spec: PodSpec, changes: Changes) -> bool:
    """A node was uncordoned, or was added open."""
    return any(not node.spec.unschedulable for node in _nodes(changes, Aspect.ADDED | Aspect.UNCORDONED))


def _node_affinity(spec: PodSpec, changes: Changes) -> bool:
    """A node that matches is new or has other labels."""
    nodes = _nodes(changes, Aspect.ADDED | Aspect.LABELS)
    return any(spec.selects(dict(node.spec.labels), node.spec.name) for node in nodes)


def _policy_nodes(_spec: PodSpec, changes: Changes) -> bool:
    """A node is new or has other labels. A new policy wakes pods by itself."""
    return any(True for _ in _nodes(changes, Aspect.ADDED | Aspect.LABELS))


def _node_name(spec: PodSpec, changes: Changes) -> bool:
    """The node that the pod names was added."""
    return any(node.spec.name == spec.node_name for node in _nodes(changes, Aspect.ADDED))


def _node_declared_features(spec: PodSpec, changes: Changes) -> bool:
    """A node that declares what the pod needs is new or declares other features."""
    nodes = _nodes(changes, Aspect.ADDED | Aspect.FEATURES)
    return any(set(spec.required_features).issubset(node.spec.declared_features) for node in nodes)


def _node_ports(spec: PodSpec, changes: Changes) -> bool:
    """A node was added, or a deleted pod had one of the ports."""
    if any(True for _ in _nodes(changes, Aspect.ADDED)):
        return True
    return any(
        _clash(mine, theirs)
        for pod in changes.deleted_pods
        for theirs in pod.host_ports
        for mine in spec.host_ports
    )


def _clash(one: HostPort, other: HostPort) -> bool:
    same_address = one.host_ip == other.host_ip or ANY_ADDRESS in (one.host_ip, other.host_ip)
    return same_address and (one.protocol, one.port) == (other.protocol, other.port)


def _inter_pod_affinity(spec: PodSpec, changes: Changes) -> bool:
    """A pod that the terms require was bound, a pod that either side excludes was deleted, a node is in
    another topology domain, or a namespace was relabelled, so that terms select other pods."""
    rules = spec.pod_affinity
    required = rules.required if rules is not None else ()
    excluded = rules.anti_required if rules is not None else ()
    if changes.relabelled and (
        spec.namespace in changes.relabelled  # terms of others may no longer select this pod
        or any(term.namespace_selector is not None for term in (*required, *excluded))
    ):
        return True
    if any(_term_selects(term, pod) for term in required for pod in changes.bound_pods):
        return True
    for pod in changes.deleted_pods:
        theirs = pod.affinity.anti_required if pod.affinity is not None else ()
        if any(_term_selects(term, pod) for term in excluded) or any(
            _term_selects(term, spec) for term in theirs
        ):
            return True
    # If only terms of other pods refused it, their topology keys are unknown here, so every changed node may
    # help.
    keys = {term.topology_key for term in (*required, *excluded)}
    moved = list(_nodes(changes, Aspect.ADDED | Aspect.LABELS))
    return bool(moved) and (not keys or any(_domain_changed(node, key) for node in moved for key in keys))


def _term_selects(term: PodAffinityTerm, pod: PodGroup | PodSpec) -> bool:
    # Namespace labels are not available here: a term that selects by them may mean any namespace.
    there = pod.namespace in term.namespaces or term.namespace_selector is not None
    return there and _selects(term.selector, pod)


def _topology_spread(spec: PodSpec, changes: Changes) -> bool:
    """A counted pod was bound or deleted, or a node is in another topology domain. A pod without constraints
    was refused by defaults of its worker's profile, which are not known here."""
    required = [constraint for constraint in spec.spread if constraint.required]
    changed_pods = changes.bound_pods | changes.deleted_pods
    if not spec.spread:
        nodes = _nodes(changes, Aspect.ADDED | Aspect.LABELS | Aspect.REMOVED | Aspect.TAINTS)
        return any(pod.namespace == spec.namespace for pod in changed_pods) or any(True for _ in nodes)
    if any(_counts(rule, spec, pod) for rule in required for pod in changed_pods):
        return True
    moved = list(_nodes(changes, Aspect.ADDED | Aspect.LABELS | Aspect.REMOVED))
    # Changed taints or labels also change which nodes a constraint counts.
    if any(rule.honor_taints for rule in required):
        moved += _nodes(changes, Aspect.TAINTS)
    if any(rule.honor_node_affinity for rule in required) and (
        spec.node_selector or spec.required_node_affinity
    ):
        return bool(moved)
    return any(_domain_changed(node, rule.topology_key) for node in moved for rule in required)


def _counts(rule: SpreadConstraint, spec: PodSpec, pod: PodGroup) -> bool:
    return pod.namespace == spec.namespace and _selects(rule.selector, pod)


def _selects(selector: LabelSelector | None, pod: PodGroup | PodSpec) -> bool:
    return selector is not None and selector.matches(dict(pod.labels))


def _domain_changed(node: NodeChange, key: str) -> bool:
    now = dict(node.spec.labels).get(key)
    if node.aspects & (Aspect.ADDED | Aspect.REMOVED):
        return now is not None
    return bool(node.aspects & Aspect.TAINTS) or now != dict(node.labels_before).get(key)


def _volume_binding(spec: PodSpec, changes: Changes) -> bool:
    """A claim of the pod came or changed, or something by which claims get volumes; a node is new or has
    other labels; a pod that left may have had a volume that was never bound."""
    if _own_claims(spec, changes) or changes.storage & _ABOUT_BINDING:
        return True
    if any(True for _ in _nodes(changes, Aspect.ADDED | Aspect.LABELS)):
        return True
    return _volumes_left(changes)


_ABOUT_BINDING = frozenset(
    ("PersistentVolume", "StorageClass", "CSINode", "CSIDriver", "CSIStorageCapacity")
)  # "CSINode": as in kube-scheduler, whose translation of in-tree volumes reads it


def _volume_zone(spec: PodSpec, changes: Changes) -> bool:
    """A claim of the pod or a volume came or changed, or a node is new or has other labels."""
    if _own_claims(spec, changes) or changes.storage & {"PersistentVolume", "StorageClass"}:
        return True
    return any(True for _ in _nodes(changes, Aspect.ADDED | Aspect.LABELS))


def _volume_restrictions(spec: PodSpec, changes: Changes) -> bool:
    """A claim of the pod came or changed, a node was added, or a pod left that may have had a disk or a claim
    of the pod."""
    if _own_claims(spec, changes) or any(True for _ in _nodes(changes, Aspect.ADDED)):
        return True
    return _volumes_left(changes)


def _node_volume_limits(spec: PodSpec, changes: Changes) -> bool:
    """A claim of the pod, a node's limits or attachments changed, a node was added, or a pod left that may
    have had volumes."""
    if _own_claims(spec, changes) or changes.storage & {"CSINode", "VolumeAttachment", "PersistentVolume"}:
        return True
    if any(True for _ in _nodes(changes, Aspect.ADDED)):
        return True
    return _volumes_left(changes)


def _dynamic_resources(_spec: PodSpec, changes: Changes) -> bool:
    """A claim, class or slice came, changed or went; a node is new or has other labels; a pod that left may
    have had devices."""
    if not changes.storage.isdisjoint(DEVICE_KINDS):
        return True
    if any(True for _ in _nodes(changes, Aspect.ADDED | Aspect.LABELS)):
        return True
    return bool(changes.rooms) or any(pod.claims_devices for pod in changes.deleted_pods)


def _volumes_left(changes: Changes) -> bool:
    """Whether a pod that left may have had volumes. The feed tells only that its node has more room. That is
    enough, and tells the position of the change, so that a worker with an older view is asked again."""
    return bool(changes.rooms) or any(pod.volumes is not None for pod in changes.deleted_pods)


def _own_claims(spec: PodSpec, changes: Changes) -> bool:
    return bool(changes.claims) and not changes.claims.isdisjoint(_claims_of(spec))


def _claims_of(spec: PodSpec) -> set[tuple[str, str]]:
    claims = () if spec.volumes is None else spec.volumes.claims
    return {(spec.namespace, mount.claim) for mount in claims}


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
    "VolumeBinding": _volume_binding,
    "VolumeZone": _volume_zone,
    "VolumeRestrictions": _volume_restrictions,
    "NodeVolumeLimits": _node_volume_limits,
    "DynamicResources": _dynamic_resources,
    "NodeDeclaredFeatures": _node_declared_features,
}
