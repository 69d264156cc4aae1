"""Converts specs between the model's frozen types and hoss.v1 messages, without loss in either direction."""

from collections.abc import Iterable, Sequence

from hoss.errors import InvalidInput
from hoss.model.conflicts import ConflictRule, Criteria
from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.pod import DeviceRequest, DuringExecution, Movable, PodSpec, PodTemplate, QosClass
from hoss.model.selectors import NodeScope, NodeSelector, PreferredTerm
from hoss.v1 import common_pb2 as pb
from hoss.v1 import dispatcher_pb2
from hoss.wire import convert_rules as rules
from hoss.wire.convert_selectors import (
    labels_from_proto,
    labels_to_proto,
    node_term_from_proto,
    node_term_to_proto,
    optional,
    requirement_from_proto,
    requirement_to_proto,
)


def pod_spec_to_proto(spec: PodSpec) -> pb.PodSpec:
    """The message of a spec. Amounts stay in schema units (cpu in milli, memory in bytes)."""
    message = pb.PodSpec(
        namespace=spec.namespace,
        labels=labels_to_proto(spec.labels),
        priority=spec.priority,
        requests=amounts_to_proto(spec.requests),
        nonzero_cpu_milli=spec.nonzero_cpu_milli,
        nonzero_memory_bytes=spec.nonzero_memory_bytes,
        node_name=spec.node_name,
        node_selector=labels_to_proto(spec.node_selector),
        preferred_node_affinity=[
            pb.PreferredTerm(weight=p.weight, term=node_term_to_proto(p.term))
            for p in spec.preferred_node_affinity
        ],
        tolerations=[
            pb.Toleration(
                key=t.key, operator=t.operator, value=t.value, effect=t.effect, toleration_seconds=t.seconds
            )
            for t in spec.tolerations
        ],
        host_ports=rules.host_ports_to_proto(spec.host_ports),
    )
    if spec.required_node_affinity is not None:
        message.required_node_affinity.CopyFrom(
            pb.NodeSelector(terms=[node_term_to_proto(t) for t in spec.required_node_affinity.terms])
        )
    if spec.devices is not None:
        message.devices.CopyFrom(pb.DeviceRequest(count=spec.devices.count, milli=spec.devices.milli))
    rules.write_rules(spec, message)
    return message


def pod_spec_from_proto(message: pb.PodSpec) -> PodSpec:
    return PodSpec(
        namespace=message.namespace,
        labels=labels_from_proto(message.labels),
        priority=message.priority,
        requests=amounts_from_proto(message.requests),
        nonzero_cpu_milli=message.nonzero_cpu_milli,
        nonzero_memory_bytes=message.nonzero_memory_bytes,
        node_name=message.node_name,
        node_selector=labels_from_proto(message.node_selector, "node_selector"),
        required_node_affinity=optional(
            message,
            "required_node_affinity",
            lambda m: NodeSelector(tuple(map(node_term_from_proto, m.terms))),
        ),
        preferred_node_affinity=tuple(
            PreferredTerm(p.weight, node_term_from_proto(p.term)) for p in message.preferred_node_affinity
        ),
        tolerations=tuple(map(_toleration_from_proto, message.tolerations)),
        host_ports=rules.host_ports_from_proto(message.host_ports),
        devices=optional(message, "devices", lambda m: DeviceRequest(m.count, m.milli)),
        **rules.read_rules(message),
    )


def scope_to_proto(scope: NodeScope) -> pb.NodeScope:
    requirements = [requirement_to_proto(r) for r in scope.requirements]
    return pb.NodeScope(rule=scope.rule, requirements=requirements, required=scope.required)


def conflict_rule_to_proto(rule: ConflictRule) -> pb.ConflictRule:
    return pb.ConflictRule(
        criteria=pb.Criteria.Name(rule.criteria),
        all_or_nothing=rule.all_or_nothing,
        displace_gap=rule.displace_gap,
    )


def conflict_rule_from_proto(message: pb.ConflictRule) -> ConflictRule:
    """Raises InvalidInput for unknown criteria."""
    try:
        criteria = Criteria(message.criteria)
    except ValueError as exc:
        raise InvalidInput(f"{message.criteria} is none that is known here", where="criteria") from exc
    return ConflictRule(criteria, message.all_or_nothing, message.displace_gap)


def scope_from_proto(message: pb.NodeScope) -> NodeScope:
    requirements = tuple(requirement_from_proto(r) for r in message.requirements)
    return NodeScope(message.rule, requirements, message.required)


def template_to_proto(template: PodTemplate) -> dispatcher_pb2.PodTemplate:
    return dispatcher_pb2.PodTemplate(
        spec=pod_spec_to_proto(template.spec),
        scheduler_name=template.scheduler_name,
        priority_class_name=template.priority_class_name,
        qos_class=template.qos_class.value,
        owner_kind=template.owner_kind,
        required_during_execution=template.during_execution.value,
        termination_grace_seconds=template.termination_grace_seconds,
        limits=amounts_to_proto(template.limits),
        movable=template.movable.value,
    )


def template_from_proto(message: dispatcher_pb2.PodTemplate) -> PodTemplate:
    """Raises InvalidInput for an unknown `qos_class`, `required_during_execution` or `movable`."""
    try:
        qos = QosClass(message.qos_class or "BestEffort")
        during_execution = DuringExecution(message.required_during_execution)
        movable = Movable(message.movable)
    except ValueError as exc:
        raise InvalidInput(str(exc), where="template") from exc
    return PodTemplate(
        spec=pod_spec_from_proto(message.spec),
        scheduler_name=message.scheduler_name,
        priority_class_name=message.priority_class_name,
        qos_class=qos,
        owner_kind=message.owner_kind,
        during_execution=during_execution,
        termination_grace_seconds=message.termination_grace_seconds,
        limits=amounts_from_proto(message.limits),
        movable=movable,
    )


def node_to_proto(node: NodeSpec) -> pb.NodeSpec:
    """The message of a node. Amounts stay in schema units (cpu in milli, memory in bytes)."""
    return pb.NodeSpec(
        name=node.name,
        labels=labels_to_proto(node.labels),
        taints=[
            pb.Taint(key=t.key, value=t.value, effect=t.effect, time_added_unix_ms=t.added_ms)
            for t in node.taints
        ],
        unschedulable=node.unschedulable,
        allocatable=amounts_to_proto(node.allocatable),
        cards=node.cards,
        images=[pb.NodeImage(name=name, size_bytes=size) for name, size in node.images],
        declared_features=node.declared_features,
    )


def node_from_proto(message: pb.NodeSpec) -> NodeSpec:
    """The node of a message, as it was written: nothing is checked here."""
    return NodeSpec(
        name=message.name,
        labels=labels_from_proto(message.labels),
        taints=taints_from_proto(message.taints),
        unschedulable=message.unschedulable,
        allocatable=amounts_from_proto(message.allocatable),
        cards=message.cards,
        images=tuple((image.name, image.size_bytes) for image in message.images),
        declared_features=tuple(message.declared_features),
    )


def taints_from_proto(taints: Iterable[pb.Taint]) -> tuple[Taint, ...]:
    return tuple(Taint(t.key, t.value, t.effect, t.time_added_unix_ms) for t in taints)


def _toleration_from_proto(message: pb.Toleration) -> Toleration:
    seconds = optional(message, "toleration_seconds", int)
    return Toleration(message.key, message.operator or "Equal", message.value, message.effect, seconds)


def amounts_to_proto(amounts: Sequence[tuple[str, int]]) -> list[pb.Amount]:
    """Amounts by resource."""
    return [pb.Amount(resource=r, amount=a) for r, a in amounts]


def amounts_from_proto(amounts: Iterable[pb.Amount]) -> tuple[tuple[str, int], ...]:
    """Amounts by resource."""
    return tuple((a.resource, a.amount) for a in amounts)
