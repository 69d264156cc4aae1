"""Between the model and protobuf messages: selectors of labels and of nodes."""

from hoss.model.selectors import LabelSelector, NodeSelectorTerm, Requirement
from hoss.v1 import common_pb2 as pb


def requirement_to_proto(requirement: Requirement) -> pb.Requirement:
    return pb.Requirement(key=requirement.key, operator=requirement.operator, values=requirement.values)


def requirement_from_proto(requirement: pb.Requirement) -> Requirement:
    return Requirement(requirement.key, requirement.operator, tuple(requirement.values))


def node_term_to_proto(term: NodeSelectorTerm) -> pb.NodeSelectorTerm:
    return pb.NodeSelectorTerm(
        match_expressions=map(requirement_to_proto, term.match_expressions),
        match_fields=map(requirement_to_proto, term.match_fields),
    )


def node_term_from_proto(term: pb.NodeSelectorTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        tuple(map(requirement_from_proto, term.match_expressions)),
        tuple(map(requirement_from_proto, term.match_fields)),
    )


def selector_to_proto(selector: LabelSelector) -> pb.LabelSelector:
    return pb.LabelSelector(requirements=map(requirement_to_proto, selector.requirements))


def selector_from_proto(message: pb.LabelSelector) -> LabelSelector:
    return LabelSelector(tuple(map(requirement_from_proto, message.requirements)))


def optional_selector_to_proto(selector: LabelSelector | None) -> pb.LabelSelector | None:
    return None if selector is None else selector_to_proto(selector)
