"""Selectors of pods and the rules about other pods, between the model and hoss.v1; what most pods have none of."""

from typing import Any

from hoss.model.pod import PodSpec
from hoss.model.pod_rules import PodAffinity, PodAffinityTerm, SpreadConstraint, WeightedPodTerm
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import common_pb2 as pb


def write_rules(spec: PodSpec, message: pb.PodSpec) -> None:
    """Put into the message what the spec says beyond its own node and resources. Nothing is written for a default."""
    if spec.pending_nonzero is not None:
        cpu_milli, memory_bytes = spec.pending_nonzero
        message.pending_nonzero.CopyFrom(pb.CpuAndMemory(cpu_milli=cpu_milli, memory_bytes=memory_bytes))
    if spec.pod_affinity is not None:
        message.pod_affinity.CopyFrom(affinity_to_proto(spec.pod_affinity))
    if spec.spread:
        message.spread.extend(map(constraint_to_proto, spec.spread))
    if spec.default_spread is not None:
        message.default_spread.CopyFrom(selector_to_proto(spec.default_spread))
    message.images.extend(spec.images)
    message.image_containers = spec.image_containers
    message.scheduling_gates.extend(spec.scheduling_gates)
    message.never_preempts = not spec.may_preempt


def read_rules(message: pb.PodSpec) -> dict[str, Any]:
    """The fields of PodSpec that `write_rules` writes."""
    pending, default = message.pending_nonzero, message.default_spread
    return {
        "pending_nonzero": (pending.cpu_milli, pending.memory_bytes) if message.HasField("pending_nonzero") else None,
        "pod_affinity": affinity_from_proto(message.pod_affinity) if message.HasField("pod_affinity") else None,
        "spread": tuple(map(constraint_from_proto, message.spread)),
        "default_spread": selector_from_proto(default) if message.HasField("default_spread") else None,
        "images": tuple(message.images),
        "image_containers": message.image_containers,
        "scheduling_gates": tuple(message.scheduling_gates),
        "may_preempt": not message.never_preempts,
    }


def requirement_to_proto(requirement: Requirement) -> pb.Requirement:
    """One requirement of any selector."""
    return pb.Requirement(key=requirement.key, operator=requirement.operator, values=requirement.values)


def requirement_from_proto(requirement: pb.Requirement) -> Requirement:
    """One requirement of any selector."""
    return Requirement(requirement.key, requirement.operator, tuple(requirement.values))


def selector_to_proto(selector: LabelSelector) -> pb.LabelSelector:
    """A selector of pods or namespaces."""
    return pb.LabelSelector(requirements=map(requirement_to_proto, selector.requirements))


def selector_from_proto(message: pb.LabelSelector) -> LabelSelector:
    """A selector of pods or namespaces."""
    return LabelSelector(tuple(map(requirement_from_proto, message.requirements)))


def affinity_to_proto(affinity: PodAffinity) -> pb.PodAffinity:
    """What a pod asks of the pods near it."""
    return pb.PodAffinity(
        required=map(_term_to_proto, affinity.required),
        preferred=map(_weighted_to_proto, affinity.preferred),
        anti_required=map(_term_to_proto, affinity.anti_required),
        anti_preferred=map(_weighted_to_proto, affinity.anti_preferred),
    )


def affinity_from_proto(message: pb.PodAffinity) -> PodAffinity:
    """What a pod asks of the pods near it."""
    return PodAffinity(
        required=tuple(map(_term_from_proto, message.required)),
        preferred=tuple(map(_weighted_from_proto, message.preferred)),
        anti_required=tuple(map(_term_from_proto, message.anti_required)),
        anti_preferred=tuple(map(_weighted_from_proto, message.anti_preferred)),
    )


def _weighted_to_proto(weighted: WeightedPodTerm) -> pb.WeightedPodTerm:
    return pb.WeightedPodTerm(weight=weighted.weight, term=_term_to_proto(weighted.term))


def _weighted_from_proto(message: pb.WeightedPodTerm) -> WeightedPodTerm:
    return WeightedPodTerm(message.weight, _term_from_proto(message.term))


def _term_to_proto(term: PodAffinityTerm) -> pb.PodAffinityTerm:
    return pb.PodAffinityTerm(
        topology_key=term.topology_key,
        selector=None if term.selector is None else selector_to_proto(term.selector),
        namespaces=term.namespaces,
        namespace_selector=None if term.namespace_selector is None else selector_to_proto(term.namespace_selector),
    )


def _term_from_proto(message: pb.PodAffinityTerm) -> PodAffinityTerm:
    further = message.namespace_selector
    return PodAffinityTerm(
        topology_key=message.topology_key,
        selector=selector_from_proto(message.selector) if message.HasField("selector") else None,
        namespaces=tuple(message.namespaces),
        namespace_selector=selector_from_proto(further) if message.HasField("namespace_selector") else None,
    )


def constraint_to_proto(constraint: SpreadConstraint) -> pb.SpreadConstraint:
    """One constraint on spreading."""
    return pb.SpreadConstraint(
        max_skew=constraint.max_skew,
        topology_key=constraint.topology_key,
        selector=None if constraint.selector is None else selector_to_proto(constraint.selector),
        schedule_anyway=not constraint.required,
        min_domains=constraint.min_domains,
        ignore_node_affinity=not constraint.honor_node_affinity,
        honor_taints=constraint.honor_taints,
    )


def constraint_from_proto(message: pb.SpreadConstraint) -> SpreadConstraint:
    """One constraint on spreading."""
    return SpreadConstraint(
        max_skew=message.max_skew,
        topology_key=message.topology_key,
        selector=selector_from_proto(message.selector) if message.HasField("selector") else None,
        required=not message.schedule_anyway,
        min_domains=message.min_domains,
        honor_node_affinity=not message.ignore_node_affinity,
        honor_taints=message.honor_taints,
    )
