"""Reads Namespace, Service, PodDisruptionBudget and PriorityClass, checked as by the API server."""

import re
from collections.abc import Callable

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import (
    Object,
    boolean,
    check_namespace,
    integer,
    mapping,
    read_labels,
    read_name,
    wrong_type,
)
from hoss.manifests.pod import WELL_KNOWN_PRIORITIES, read_namespace, read_preemption_policy
from hoss.manifests.pod_rules import read_optional_selector
from hoss.model.cluster import (
    ClusterObject,
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    Service,
    Threshold,
)
from hoss.model.resources import Pairs

_PERCENTAGE = re.compile(r"[0-9]{1,3}%")
_MOST_PODS = 2**31 - 1
_HIGHEST_PRIORITY = 1_000_000_000  # the system's own classes have higher ones


def read_cluster_object(manifest: Object, kind: str, group: str) -> ClusterObject | None:
    """The object; None for another kind. Raises InvalidInput with the field's path, the value and a
    remedy."""
    reader = _READERS.get((kind, group))
    return None if reader is None else reader(manifest)


def read_service_selector(spec: Object) -> Pairs | None:
    """spec.selector of a Service. None: it selects no pods."""
    return None if spec.get("selector") is None else read_labels(spec, "selector", "spec")


def _read_namespace(manifest: Object) -> Namespace:
    metadata = mapping(manifest, "metadata", "Namespace")
    name = check_namespace(read_name(metadata, "Namespace"), "metadata.name")
    return Namespace(name, read_labels(metadata, "labels", "metadata"))


def _read_service(manifest: Object) -> Service:
    metadata, spec = mapping(manifest, "metadata", "Service"), mapping(manifest, "spec", "Service")
    name, namespace = read_name(metadata, "Service"), read_namespace(metadata, "metadata")
    # For spreading, an empty selector selects no pods either.
    return Service(namespace, read_service_selector(spec) or None, name)


def _read_budget(manifest: Object) -> PodDisruptionBudget:
    kind = "PodDisruptionBudget"
    metadata, spec = mapping(manifest, "metadata", kind), mapping(manifest, "spec", kind)
    if not spec:
        problem = f"is missing; a {kind} has a selector and minAvailable or maxUnavailable"
        raise InvalidInput(problem, where="spec")
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        raise InvalidInput("stands beside minAvailable; give one of the two", where="spec.maxUnavailable")
    return PodDisruptionBudget(
        namespace=read_namespace(metadata, "metadata"),
        name=read_name(metadata, kind),
        selector=read_optional_selector(spec, "selector", "spec"),
        min_available=_read_threshold(spec, "minAvailable"),
        max_unavailable=_read_threshold(spec, "maxUnavailable"),
    )


def _read_threshold(spec: Object, key: str) -> Threshold | None:
    value, where = spec.get(key), f"spec.{key}"
    if isinstance(value, str):
        if not _PERCENTAGE.fullmatch(value) or int(value[:-1]) > 100:
            problem = f"is {quoted(value)}; write a number of pods, or a percentage from 0% to 100%"
            raise InvalidInput(problem, where=where)
        return Threshold(int(value[:-1]), percent=True)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(value, 'a number of pods or a percentage such as "20%"', where)
    return Threshold(integer(spec, key, "spec", least=0, most=_MOST_PODS, default=0))


def _read_priority_class(manifest: Object) -> PriorityClass:
    metadata = mapping(manifest, "metadata", "PriorityClass")
    name = read_name(metadata, "PriorityClass")
    if name in WELL_KNOWN_PRIORITIES or name.startswith("system-"):
        problem = f"{quoted(name)} is the system's own; take a name without system-"
        raise InvalidInput(problem, where="metadata.name")
    if manifest.get("value") is None:
        raise InvalidInput("is missing; it is the priority of the pods that name the class", where="value")
    return PriorityClass(
        name,
        integer(manifest, "value", "PriorityClass", least=-(2**31), most=_HIGHEST_PRIORITY, default=0),
        never_preempts=not read_preemption_policy(manifest, "PriorityClass"),
        global_default=boolean(manifest, "globalDefault", "PriorityClass"),
    )


_READERS: dict[tuple[str, str], Callable[[Object], ClusterObject]] = {
    ("Namespace", ""): _read_namespace,
    ("Service", ""): _read_service,
    ("PodDisruptionBudget", "policy"): _read_budget,
    ("PriorityClass", "scheduling.k8s.io"): _read_priority_class,
}
