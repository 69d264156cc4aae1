"""Cluster objects between the model and hoss.v1."""

from hoss.errors import InvalidInput
from hoss.model.cluster import Service
from hoss.model.cluster_objects import ClusterObject, Namespace, PodDisruptionBudget, PriorityClass, Threshold
from hoss.v1 import objects_pb2 as pb
from hoss.wire.convert import labels_from_proto, labels_to_proto
from hoss.wire.convert_rules import selector_from_proto, selector_to_proto


def object_to_proto(item: ClusterObject) -> pb.ClusterObject:
    """An object of any kind."""
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
    """An object of any kind. Raises InvalidInput for none, or one of a kind that is not known here."""
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
            raise InvalidInput("is missing, or of a kind that this version does not know", where="object.kind")


def namespace_to_proto(namespace: Namespace) -> pb.Namespace:
    """A namespace."""
    return pb.Namespace(name=namespace.name, labels=labels_to_proto(namespace.labels))


def namespace_from_proto(message: pb.Namespace) -> Namespace:
    """A namespace."""
    return Namespace(message.name, labels_from_proto(message.labels))


def service_to_proto(service: Service) -> pb.Service:
    """A service; one without requirements selects no pods."""
    return pb.Service(namespace=service.namespace, name=service.name, selector=labels_to_proto(service.selector or ()))


def service_from_proto(message: pb.Service) -> Service:
    """A service."""
    return Service(message.namespace, labels_from_proto(message.selector) or None, message.name)


def _budget_to_proto(budget: PodDisruptionBudget) -> pb.PodDisruptionBudget:
    return pb.PodDisruptionBudget(
        namespace=budget.namespace,
        name=budget.name,
        selector=None if budget.selector is None else selector_to_proto(budget.selector),
        min_available=_threshold_to_proto(budget.min_available),
        max_unavailable=_threshold_to_proto(budget.max_unavailable),
    )


def _budget_from_proto(message: pb.PodDisruptionBudget) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        namespace=message.namespace,
        name=message.name,
        selector=selector_from_proto(message.selector) if message.HasField("selector") else None,
        min_available=_threshold_from_proto(message.min_available) if message.HasField("min_available") else None,
        max_unavailable=_threshold_from_proto(message.max_unavailable) if message.HasField("max_unavailable") else None,
    )


def _threshold_to_proto(threshold: Threshold | None) -> pb.Threshold | None:
    return None if threshold is None else pb.Threshold(value=threshold.value, percent=threshold.percent)


def _threshold_from_proto(message: pb.Threshold) -> Threshold:
    return Threshold(message.value, message.percent)
