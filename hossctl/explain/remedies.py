"""Sentences about what would have a waiting pod tried again: one or more for each plugin that refused it.

The dispatcher's queueing hints (dispatcher/core/queue/hints.py) decide the same for one change of the
cluster; the sentences describe the cluster as it is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dispatcher.core.queue.hints import untolerated
from hoss.model.node import NodeSpec, Taint
from hoss.model.pod import PodSpec
from hoss.model.resources import written_amount
from hoss.model.selectors import LabelSelector, NodeSelectorTerm, Requirement

_NAMED = 3  # nodes, or sets of taints, that one sentence names


@dataclass(frozen=True, slots=True)
class NodeNow:
    """A node and the amounts requested on it, in schema units."""

    spec: NodeSpec
    requested: dict[str, int]


def remedies(spec: PodSpec, refused_by: Sequence[str], nodes: Sequence[NodeNow]) -> list[str]:
    """What would help pods of this spec that these plugins refused."""
    if not refused_by:
        return ["any change of the cluster"]
    return [
        sentence for plugin in refused_by for sentence in _REMEDIES.get(plugin, _unknown(plugin))(spec, nodes)
    ]


def _unknown(plugin: str) -> Callable[[PodSpec, Sequence[NodeNow]], list[str]]:
    return lambda _spec, _nodes: [
        f"any change of the cluster, for what plugin {plugin} waits for is not known"
    ]


def _resources(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    requests = {resource: amount for resource, amount in spec.requests if amount}
    written = _amounts(requests) or "nothing but a place"
    sentence = f"a node with room for it ({written}): pods leave one, one grows, or one is added"
    short = [
        (lacks, node.spec.name)
        for node in nodes
        if not node.spec.unschedulable
        and not untolerated(spec, node.spec.taints)
        and spec.selects(dict(node.spec.labels), node.spec.name)
        and (lacks := _lacks(node, {**requests, "pods": 1}))
    ]
    if not short:
        return [sentence]

    def distance(entry: tuple[dict[str, int], str]) -> tuple[float, str]:
        lacks, name = entry
        return max(amount / requests.get(resource, 1) for resource, amount in lacks.items()), name

    lacks, name = min(short, key=distance)
    return [f"{sentence}; {name} comes closest and lacks {_amounts(lacks)}"]


def _lacks(node: NodeNow, requests: dict[str, int]) -> dict[str, int]:
    """The amounts by which a node is too small."""
    total = dict(node.spec.allocatable)
    free = {resource: total.get(resource, 0) - node.requested.get(resource, 0) for resource in requests}
    return {
        resource: amount - free[resource] for resource, amount in requests.items() if amount > free[resource]
    }


def _has_room(spec: PodSpec, node: NodeNow) -> bool:
    """Whether the pod may be on the node by name and labels, and its amounts fit: else to take a taint or a
    cordon away does not help."""
    fits = not _lacks(node, {resource: amount for resource, amount in spec.requests if amount})
    return fits and spec.selects(dict(node.spec.labels), node.spec.name)


def _cards(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    devices = spec.devices
    if devices is None:
        return []
    return [f"a node with {devices.count} cards of which {devices.milli} thousandths each are free"]


def _taints(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    tainted: dict[tuple[Taint, ...], list[str]] = {}
    for node in nodes:
        taints = tuple(untolerated(spec, node.spec.taints))
        if taints and not node.spec.unschedulable and _has_room(spec, node):
            tainted.setdefault(taints, []).append(node.spec.name)
    most = sorted(tainted.items(), key=lambda entry: -len(entry[1]))[:_NAMED]
    return [
        f"the removal of taint{'s' * (len(taints) > 1)} {' and '.join(map(str, taints))} from "
        f"{_one_of(names)}"
        for taints, names in most
    ] or ["a node whose taints it tolerates"]


def _cordons(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    names = [
        node.spec.name
        for node in nodes
        if node.spec.unschedulable and not untolerated(spec, node.spec.taints) and _has_room(spec, node)
    ]
    return [f"the uncordoning of {_one_of(names)}" if names else "a node that is not cordoned"]


def _affinity(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    conditions = [f"{key}={value}" for key, value in spec.node_selector]
    terms = () if spec.required_node_affinity is None else spec.required_node_affinity.terms
    unusable = [
        requirement for term in terms for requirement in term.match_expressions if not requirement.usable
    ]
    if terms:
        conditions.append(" or ".join(map(_term, terms)))
    return [
        f"a node, new or labelled anew, with {' and '.join(conditions)}",
        *(
            f"another value in {_requirement(r)}: {r.operator} compares whole numbers, and no node matches "
            "this"
            for r in unusable
        ),
    ]


def _name(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    return [f"that node {spec.node_name} is added"]


def _policy_nodes(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    return [
        (
            "a node with the labels that the policy's rule gives its pods, or another policy "
            "(see hoss policy get)"
        )
    ]


def _ports(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    ports = ", ".join(f"{port.protocol} {port.port}" for port in spec.host_ports)
    return [f"the deletion of a pod that has host port {ports}, or another node"]


def _features(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    return [f"a node whose kubelet declares {', '.join(spec.required_features)} (status.declaredFeatures)"]


def _pods(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    rules = spec.pod_affinity
    required = rules.required if rules is not None else ()
    anti_required = rules.anti_required if rules is not None else ()
    near = _missing_keys((term.topology_key for term in required), nodes)
    near += [
        f"a pod with {_selector(t.selector)} in a {t.topology_key} where this one fits" for t in required
    ]
    far = [
        f"the deletion of pods with {_selector(t.selector)} from a {t.topology_key}, or another one"
        for t in anti_required
    ]
    return near + far or [
        "the deletion of pods whose anti-affinity keeps this one away, or a node in another domain"
    ]


def _spread(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    required = [rule for rule in spec.spread if rule.required]
    return _missing_keys((rule.topology_key for rule in required), nodes) + [
        f"pods with {_selector(rule.selector)} that come to or leave a {rule.topology_key}, or nodes that do"
        for rule in required
    ]


def _missing_keys(keys: Iterable[str], nodes: Sequence[NodeNow]) -> list[str]:
    if not nodes:
        return []
    known = {key for node in nodes for key, _ in node.spec.labels}
    return [
        f"nodes with the label {key}: none has it, so the pod fits nowhere"
        for key in dict.fromkeys(keys)
        if key not in known
    ]


def _gates(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    return [f"the removal of its gates {', '.join(spec.scheduling_gates)} (hoss ungate)"]


_REMEDIES: dict[str, Callable[[PodSpec, Sequence[NodeNow]], list[str]]] = {
    "NodeResourcesFit": _resources,
    "DeviceCards": _cards,
    "TaintToleration": _taints,
    "NodeUnschedulable": _cordons,
    "NodeAffinity": _affinity,
    "NodeName": _name,
    "PolicyNodes": _policy_nodes,
    "NodePorts": _ports,
    "InterPodAffinity": _pods,
    "PodTopologySpread": _spread,
    "SchedulingGates": _gates,
    "NodeDeclaredFeatures": _features,
}


def _amounts(amounts: dict[str, int]) -> str:
    return ", ".join(f"{written_amount(resource, amount)} {resource}" for resource, amount in amounts.items())


def _one_of(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    shown = ", ".join(names[:_NAMED])
    return f"one of {len(names)} nodes ({shown}{', ...' if len(names) > _NAMED else ''})"


def _term(term: NodeSelectorTerm) -> str:
    return (
        " and ".join(map(_requirement, (*term.match_expressions, *term.match_fields)))
        or "nothing that exists"
    )


def _selector(selector: LabelSelector | None) -> str:
    if selector is None:
        return "labels that nothing matches"
    return " and ".join(map(_requirement, selector.requirements)) or "any labels"


def _requirement(requirement: Requirement) -> str:
    if requirement.operator == "In" and len(requirement.values) == 1:
        return f"{requirement.key}={requirement.values[0]}"
    return f"{requirement.key} {requirement.operator} {', '.join(requirement.values)}".rstrip()
