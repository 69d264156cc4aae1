"""What would have a waiting pod tried again, in sentences: one or more for each plugin that refused it.

The dispatcher's hints (dispatcher/core/hints.py) say the same in code, change by change; here it is said of the cluster as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dispatcher.core.hints import untolerated
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import written_amount
from hoss.model.selectors import LabelSelector, NodeSelectorTerm, Requirement
from hoss.model.taints import Taint

_NAMED = 3  # nodes by name, or sorts of obstacle, in one answer


@dataclass(frozen=True, slots=True)
class NodeNow:
    """A node and what is requested on it, schema units."""

    spec: NodeSpec
    requested: dict[str, int]


def remedies(spec: PodSpec, refused_by: Sequence[str], nodes: Sequence[NodeNow]) -> list[str]:
    """What would help pods of this class that these plugins refused."""
    if not refused_by:
        return ["any change of the cluster"]
    return [sentence for plugin in refused_by for sentence in _REMEDIES.get(plugin, _unknown(plugin))(spec, nodes)]


def _unknown(plugin: str) -> Callable[[PodSpec, Sequence[NodeNow]], list[str]]:
    return lambda _spec, _nodes: [f"any change of the cluster, for what plugin {plugin} waits for is not known"]


def _resources(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    wanted = {resource: amount for resource, amount in spec.requests if amount}
    wanted_text = _amounts(wanted) or "nothing but a place"
    sentence = f"a node with room for it ({wanted_text}): pods leave one, one grows, or one is added"
    open_to_it = [node for node in nodes if not node.spec.unschedulable and not untolerated(spec, node.spec.taints)]
    selected = [node for node in open_to_it if spec.selects(dict(node.spec.labels), node.spec.name)]
    short = [(_lacks(node, {**wanted, "pods": 1}), node.spec.name) for node in selected]
    short = [(lacks, name) for lacks, name in short if lacks]
    if not short:
        return [sentence]
    lacks, name = min(short, key=lambda entry: (max(_share(entry[0], wanted)), entry[1]))
    return [f"{sentence}; {name} comes closest and lacks {_amounts(lacks)}"]


def _lacks(node: NodeNow, wanted: dict[str, int]) -> dict[str, int]:
    total = dict(node.spec.allocatable)
    free = {resource: total.get(resource, 0) - node.requested.get(resource, 0) for resource in wanted}
    return {resource: amount - free[resource] for resource, amount in wanted.items() if amount > free[resource]}


def _share(lacks: dict[str, int], wanted: dict[str, int]) -> list[float]:
    return [amount / wanted.get(resource, 1) for resource, amount in lacks.items()]


def _cards(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    devices = spec.devices
    if devices is None:
        return []
    return [f"a node with {devices.count} cards of which {devices.milli} thousandths each are free"]


def _taints(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    kept_off: dict[tuple[Taint, ...], list[str]] = {}
    for node in nodes:
        taints = tuple(untolerated(spec, node.spec.taints))
        if taints:
            kept_off.setdefault(taints, []).append(node.spec.name)
    most = sorted(kept_off.items(), key=lambda entry: -len(entry[1]))[:_NAMED]
    return [
        f"the removal of taint{'s' * (len(taints) > 1)} {' and '.join(map(str, taints))} from {_one_of(names)}"
        for taints, names in most
    ] or ["a node whose taints it tolerates"]


def _cordons(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    names = [node.spec.name for node in nodes if node.spec.unschedulable]
    return [f"the uncordoning of {_one_of(names)}" if names else "a node that is not cordoned"]


def _affinity(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    wishes = [f"{key}={value}" for key, value in spec.node_selector]
    terms = () if spec.required_node_affinity is None else spec.required_node_affinity.terms
    unusable = [requirement for term in terms for requirement in term.match_expressions if not requirement.usable]
    if terms:
        wishes.append(" or ".join(map(_term, terms)))
    return [
        f"a node, new or labelled anew, with {' and '.join(wishes)}",
        *(
            f"another value in {_requirement(r)}: {r.operator} compares whole numbers, and no node matches this"
            for r in unusable
        ),
    ]


def _name(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    return [f"that node {spec.node_name} is added"]


def _policy_nodes(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    return ["a node with the labels that the policy's rule gives its pods, or another policy (see hoss policy get)"]


def _ports(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:  # noqa: ARG001 - as all
    ports = ", ".join(f"{port.protocol} {port.port}" for port in spec.host_ports)
    return [f"the deletion of a pod that has host port {ports}, or another node"]


def _pods(spec: PodSpec, nodes: Sequence[NodeNow]) -> list[str]:
    rules = spec.pod_affinity
    wanted = rules.required if rules is not None else ()
    shunned = rules.anti_required if rules is not None else ()
    near = _missing_keys((term.topology_key for term in wanted), nodes)
    near += [f"a pod with {_selector(t.selector)} in a {t.topology_key} where this one fits" for t in wanted]
    far = [
        f"the deletion of pods with {_selector(t.selector)} from a {t.topology_key}, or another one" for t in shunned
    ]
    return near + far or ["the deletion of pods whose anti-affinity keeps this one away, or a node in another domain"]


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
}


def _amounts(amounts: dict[str, int]) -> str:
    return ", ".join(f"{written_amount(resource, amount)} {resource}" for resource, amount in amounts.items())


def _one_of(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    shown = ", ".join(names[:_NAMED])
    return f"one of {len(names)} nodes ({shown}{', ...' if len(names) > _NAMED else ''})"


def _term(term: NodeSelectorTerm) -> str:
    return " and ".join(map(_requirement, (*term.match_expressions, *term.match_fields))) or "nothing that exists"


def _selector(selector: LabelSelector | None) -> str:
    if selector is None:
        return "labels that nothing matches"
    return " and ".join(map(_requirement, selector.requirements)) or "any labels"


def _requirement(requirement: Requirement) -> str:
    if requirement.operator == "In" and len(requirement.values) == 1:
        return f"{requirement.key}={requirement.values[0]}"
    return f"{requirement.key} {requirement.operator} {', '.join(requirement.values)}".rstrip()
