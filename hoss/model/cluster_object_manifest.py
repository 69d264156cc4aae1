"""Manifests of Namespace, Service, PodDisruptionBudget and PriorityClass, checked as the API server does."""

import re
from collections.abc import Callable

from hoss.errors import InvalidInput
from hoss.model.cluster import Service
from hoss.model.cluster_objects import ClusterObject, Namespace, PodDisruptionBudget, PriorityClass, Threshold
from hoss.model.fields import Object, boolean, integer, mapping, text, wrong_type
from hoss.model.names import check_name, check_namespace, read_labels
from hoss.model.pod import Pairs
from hoss.model.pod_manifest import WELL_KNOWN_PRIORITIES, read_namespace, read_preemption_policy
from hoss.model.pod_rules_manifest import read_optional_selector

_PERCENTAGE = re.compile(r"[0-9]{1,3}%")
_MOST_PODS = 2**31 - 1
_HIGHEST_PRIORITY = 1_000_000_000  # above it are the system's own classes


def read_cluster_object(manifest: Object, kind: str, group: str) -> ClusterObject | None:
    """The object, or None for another kind. Raises InvalidInput with the field's path, the value and what would be right."""
    reader = _READERS.get((kind, group))
    return None if reader is None else reader(manifest)


def read_service_selector(spec: Object) -> Pairs | None:
    """spec.selector of a Service; None: it selects no pods."""
    return None if spec.get("selector") is None else read_labels(spec, "selector", "spec")


def _read_namespace(manifest: Object) -> Namespace:
    metadata = mapping(manifest, "metadata", "Namespace")
    name = check_namespace(_name(metadata, "Namespace"), "metadata.name")
    return Namespace(name, read_labels(metadata, "labels", "metadata"))


def _read_service(manifest: Object) -> Service:
    metadata, spec = mapping(manifest, "metadata", "Service"), mapping(manifest, "spec", "Service")
    name, namespace = _name(metadata, "Service"), read_namespace(metadata, "metadata")
    # Without requirements it selects no pods, either, as far as spreading goes.
    return Service(namespace, read_service_selector(spec) or None, name)


def _read_budget(manifest: Object) -> PodDisruptionBudget:
    kind = "PodDisruptionBudget"
    metadata, spec = mapping(manifest, "metadata", kind), mapping(manifest, "spec", kind)
    if not spec:
        raise InvalidInput(f"is missing; a {kind} has a selector and minAvailable or maxUnavailable", where="spec")
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        raise InvalidInput("stands beside minAvailable; give one of the two", where="spec.maxUnavailable")
    return PodDisruptionBudget(
        namespace=read_namespace(metadata, "metadata"),
        name=_name(metadata, kind),
        selector=read_optional_selector(spec, "selector", "spec"),
        min_available=_read_threshold(spec, "minAvailable"),
        max_unavailable=_read_threshold(spec, "maxUnavailable"),
    )


def _read_threshold(spec: Object, key: str) -> Threshold | None:
    value, where = spec.get(key), f"spec.{key}"
    if isinstance(value, str):
        if not _PERCENTAGE.fullmatch(value) or int(value[:-1]) > 100:
            raise InvalidInput(f"is {value!r}; write a number of pods, or a percentage from 0% to 100%", where=where)
        return Threshold(int(value[:-1]), percent=True)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(value, 'a number of pods or a percentage such as "20%"', where)
    return Threshold(integer(spec, key, "spec", least=0, most=_MOST_PODS, default=0))


def _read_priority_class(manifest: Object) -> PriorityClass:
    metadata = mapping(manifest, "metadata", "PriorityClass")
    name = _name(metadata, "PriorityClass")
    if name in WELL_KNOWN_PRIORITIES or name.startswith("system-"):
        raise InvalidInput(f"{name!r} is the system's own; take a name without system-", where="metadata.name")
    if manifest.get("value") is None:
        raise InvalidInput("is missing; it is the priority of the pods that name the class", where="value")
    return PriorityClass(
        name,
        integer(manifest, "value", "PriorityClass", least=-(2**31), most=_HIGHEST_PRIORITY, default=0),
        never_preempts=not read_preemption_policy(manifest, "PriorityClass"),
        global_default=boolean(manifest, "globalDefault", "PriorityClass"),
    )


def _name(metadata: Object, kind: str) -> str:
    name = text(metadata, "name", "metadata")
    if not name:
        raise InvalidInput(f"is missing; a {kind} has a name", where="metadata.name")
    return check_name(name, "metadata.name")


_READERS: dict[tuple[str, str], Callable[[Object], ClusterObject]] = {
    ("Namespace", ""): _read_namespace,
    ("Service", ""): _read_service,
    ("PodDisruptionBudget", "policy"): _read_budget,
    ("PriorityClass", "scheduling.k8s.io"): _read_priority_class,
}
