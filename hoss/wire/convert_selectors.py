"""Between the model and protobuf messages: labels, selectors of labels and of nodes, and fields that may be
unset."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from hoss.errors import InvalidInput, quoted
from hoss.model.selectors import LabelSelector, NodeSelectorTerm, Requirement
from hoss.v1 import common_pb2 as pb

ModelT = TypeVar("ModelT")


def optional(message: Any, field: str, read: Callable[[Any], ModelT]) -> ModelT | None:
    """A message field, read. None: it is not set."""
    return read(getattr(message, field)) if message.HasField(field) else None


def labels_to_proto(labels: Sequence[tuple[str, str]]) -> list[pb.Label]:
    return [pb.Label(key=k, value=v) for k, v in labels]


def labels_from_proto(labels: Iterable[pb.Label], where: str = "labels") -> tuple[tuple[str, str], ...]:
    """Labels, or what else is a map by key, in order. Raises InvalidInput for a key that is there twice: one
    reader would go by its first value, and another by its last."""
    found = tuple((label.key, label.value) for label in labels)
    if len(dict(found)) < len(found):
        ((key, _),) = Counter(key for key, _ in found).most_common(1)
        raise InvalidInput(f"the label {quoted(key)} is named twice", where=where)
    return found


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
