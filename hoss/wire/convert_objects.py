"""Converts cluster objects between the model and hoss.v1."""

from hoss.errors import InvalidInput
from hoss.model.cluster import (
    ClusterObject,
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    Service,
    Threshold,
)
from hoss.v1 import objects_pb2 as pb
from hoss.wire.convert_selectors import (
    labels_from_proto,
    labels_to_proto,
    optional,
    optional_selector_to_proto,
    selector_from_proto,
)


def object_to_proto(item: ClusterObject) -> pb.ClusterObject:
    match item:
        case Namespace():
            return pb.ClusterObject(namespace=namespace_to_proto(item))
        case Service():
            return pb.ClusterObject(service=service_to_proto(item))
        case PodDisruptionBudget():
            return pb.ClusterObject(budget=_budget_to_proto(item))
        case PriorityClass():
            return pb.ClusterObject(
                priority_class=pb.PriorityClass(
                    name=item.name,
                    value=item.value,
                    never_preempts=item.never_preempts,
                    global_default=item.global_default,
                )
            )


def object_from_proto(message: pb.ClusterObject) -> ClusterObject:
    """Raises InvalidInput for a missing object and for an unknown kind."""
    match message.WhichOneof("kind"):
        case "namespace":
            return namespace_from_proto(message.namespace)
        case "service":
            return service_from_proto(message.service)
        case "budget":
            return _budget_from_proto(message.budget)
        case "priority_class":
            read = message.priority_class
            return PriorityClass(read.name, read.value, read.never_preempts, read.global_default)
        case _:
            problem = "is missing, or of a kind that this version does not know"
            raise InvalidInput(problem, where="object.kind")


def namespace_to_proto(namespace: Namespace) -> pb.Namespace:
    return pb.Namespace(name=namespace.name, labels=labels_to_proto(namespace.labels))


def namespace_from_proto(message: pb.Namespace) -> Namespace:
    return Namespace(message.name, labels_from_proto(message.labels))


def service_to_proto(service: Service) -> pb.Service:
    """An empty selector becomes None: such a service selects no pods."""
    return pb.Service(
        namespace=service.namespace, name=service.name, selector=labels_to_proto(service.selector or ())
    )


def service_from_proto(message: pb.Service) -> Service:
    return Service(message.namespace, labels_from_proto(message.selector) or None, message.name)


def _budget_to_proto(budget: PodDisruptionBudget) -> pb.PodDisruptionBudget:
    return pb.PodDisruptionBudget(
        namespace=budget.namespace,
        name=budget.name,
        selector=optional_selector_to_proto(budget.selector),
        min_available=_threshold_to_proto(budget.min_available),
        max_unavailable=_threshold_to_proto(budget.max_unavailable),
    )


def _budget_from_proto(message: pb.PodDisruptionBudget) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        namespace=message.namespace,
        name=message.name,
        selector=optional(message, "selector", selector_from_proto),
        min_available=optional(message, "min_available", _threshold_from_proto),
        max_unavailable=optional(message, "max_unavailable", _threshold_from_proto),
    )


def _threshold_to_proto(threshold: Threshold | None) -> pb.Threshold | None:
    return None if threshold is None else pb.Threshold(value=threshold.value, percent=threshold.percent)


def _threshold_from_proto(message: pb.Threshold) -> Threshold:
    return Threshold(message.value, message.percent)
