"""Reads a cluster's objects, as the API server stores them, into the model of a cluster."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hoss.errors import InvalidInput
from hoss.manifests.cluster_objects import read_service_selector
from hoss.manifests.devices import read_device_object, read_pod_claims
from hoss.manifests.fields import (
    Object,
    api_group,
    boolean,
    integer,
    mapping,
    mappings,
    moment,
    read_labels,
    text,
)
from hoss.manifests.node import NO_RESERVATIONS, read_node
from hoss.manifests.pod import read_namespace, read_pod_template
from hoss.manifests.pod_resources import (
    amounts,
    as_bound,
    nonzero_requests,
    read_pod_resources,
    total_requests,
)
from hoss.manifests.pod_rules import read_optional_selector
from hoss.manifests.volumes import read_pod_volumes, read_storage_object
from hoss.model.cluster import (
    BoundPod,
    Cluster,
    Controller,
    DisruptionBudget,
    OwnerReference,
    Service,
    default_spread_selector,
)
from hoss.model.pod import ENDED_PHASES, PodSpec
from hoss.model.selectors import LabelSelector, Requirement

_Read = TypeVar("_Read")
_CONTROLLER_GROUPS = {"ReplicationController": "", "ReplicaSet": "apps", "StatefulSet": "apps"}
_CONTROLLER_LISTS = {
    "replicationControllers": "ReplicationController",
    "replicaSets": "ReplicaSet",
    "statefulSets": "StatefulSet",
}
STORAGE_LISTS = {
    "persistentVolumes": "PersistentVolume",
    "persistentVolumeClaims": "PersistentVolumeClaim",
    "storageClasses": "StorageClass",
    "csiNodes": "CSINode",
    "csiDrivers": "CSIDriver",
    "csiStorageCapacities": "CSIStorageCapacity",
    "volumeAttachments": "VolumeAttachment",
}

DEVICE_LISTS = {
    "deviceClasses": "DeviceClass",
    "resourceSlices": "ResourceSlice",
    "resourceClaims": "ResourceClaim",
}


def read_cluster(objects: Object, *, read_at: float = float("inf"), stored: bool = False) -> Cluster:
    """A cluster given as lists of objects by kind: nodes, pods, namespaces, services, replicaSets and so on.

    Pods without a node and finished pods are left out. `read_at`: now, in seconds since the epoch. `stored`:
    nodes are as an API server has them. Raises InvalidInput with the place."""
    reservations = None if stored else NO_RESERVATIONS
    return Cluster(
        nodes=[
            _at(f"nodes[{i}]", partial(read_node, reservations=reservations), node)
            for i, node in enumerate(mappings(objects, "nodes", "cluster"))
        ],
        pods=read_bound_pods(mappings(objects, "pods", "cluster")),
        namespaces={
            text(mapping(n, "metadata", "namespace"), "name", "metadata"): dict(
                read_labels(mapping(n, "metadata", "namespace"), "labels", "metadata")
            )
            for n in mappings(objects, "namespaces", "cluster")
        },
        services=[_read_service(service) for service in mappings(objects, "services", "cluster")],
        controllers=[
            read_controller(controller, kind)
            for key, kind in _CONTROLLER_LISTS.items()
            for controller in mappings(objects, key, "cluster")
        ],
        budgets=[_read_budget(budget) for budget in mappings(objects, "podDisruptionBudgets", "cluster")],
        storage=[
            item
            for key, kind in STORAGE_LISTS.items()
            for i, manifest in enumerate(mappings(objects, key, "cluster"))
            if (item := _at(f"{key}[{i}]", partial(read_storage_object, kind=kind), manifest)) is not None
        ],
        devices=[
            offered
            for key, kind in DEVICE_LISTS.items()
            for i, manifest in enumerate(mappings(objects, key, "cluster"))
            if (offered := _at(f"{key}[{i}]", partial(read_device_object, kind=kind), manifest)) is not None
        ],
        read_at=read_at,
    )


def read_bound_pods(pods: Iterable[Object]) -> list[BoundPod]:
    """The pods that are bound to a node and have not finished."""
    read = (_at(f"pods[{i}]", _read_bound_pod, pod) for i, pod in enumerate(pods))
    return [pod for pod in read if pod is not None]


def read_pending_pod(pod: Object, cluster: Cluster) -> PodSpec:
    """A pod that is to be placed in the cluster."""
    metadata, spec = mapping(pod, "metadata", "pod"), mapping(pod, "spec", "pod")
    read = _read_spec(metadata, spec, mapping(pod, "status", "pod"))
    owner = next(
        (
            OwnerReference(
                text(o, "kind", "owner"), api_group(text(o, "apiVersion", "owner")), text(o, "name", "owner")
            )
            for o in mappings(metadata, "ownerReferences", "metadata")
            if boolean(o, "controller", "metadata.ownerReferences")
        ),
        None,
    )
    return replace(read, default_spread=default_spread_selector(read, owner, cluster))


def _read_bound_pod(pod: Object) -> BoundPod | None:
    metadata, spec = mapping(pod, "metadata", "pod"), mapping(pod, "spec", "pod")
    status = mapping(pod, "status", "pod")
    node = text(spec, "nodeName", "spec")
    if not node or text(status, "phase", "status") in ENDED_PHASES:
        return None
    resources = as_bound(read_pod_resources(spec, "spec"), status)
    cpu_milli, memory_bytes = nonzero_requests(resources)
    return BoundPod(
        name=text(metadata, "name", "metadata"),
        node=node,
        spec=_read_spec(metadata, spec, status),
        requests=tuple(sorted(amounts(total_requests(resources), "spec").items())),
        nonzero_cpu_milli=cpu_milli,
        nonzero_memory_bytes=memory_bytes,
        deleting=(deleting := metadata.get("deletionTimestamp") is not None),
        preempted=deleting and _is_preempted(status),
        started_at=moment(status, "startTime", "status", default=float("inf")),
    )


def _is_preempted(status: Object) -> bool:
    conditions = mappings(status, "conditions", "status")
    found = next((c for c in conditions if c.get("type") == "DisruptionTarget"), {})
    return (found.get("status"), found.get("reason")) == ("True", "PreemptionByScheduler")


def _read_spec(metadata: Object, spec: Object, status: Object) -> PodSpec:
    read = read_pod_template(metadata, spec, "", namespace=read_namespace(metadata, "metadata")).spec
    return replace(
        read,
        volumes=read_pod_volumes(metadata, spec, "spec"),
        claims=read_pod_claims(metadata, spec, status, "spec"),
    )


def _read_service(service: Object) -> Service:
    metadata, spec = mapping(service, "metadata", "service"), mapping(service, "spec", "service")
    return Service(
        read_namespace(metadata, "metadata"), read_service_selector(spec), text(metadata, "name", "metadata")
    )


def read_controller(controller: Object, kind: str) -> Controller:
    """A ReplicationController, ReplicaSet or StatefulSet. Raises InvalidInput with the field's path."""
    metadata, spec = mapping(controller, "metadata", kind), mapping(controller, "spec", kind)
    identity = OwnerReference(kind, _CONTROLLER_GROUPS[kind], text(metadata, "name", "metadata"))
    namespace = read_namespace(metadata, "metadata")
    if kind == "ReplicationController":
        pairs = read_labels(spec, "selector", "spec")
        selector = LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in pairs))
        return Controller(identity, namespace, selector)
    return Controller(identity, namespace, read_optional_selector(spec, "selector", "spec"))


def _read_budget(budget: Object) -> DisruptionBudget:
    metadata, spec = mapping(budget, "metadata", "budget"), mapping(budget, "spec", "budget")
    status = mapping(budget, "status", "budget")
    return DisruptionBudget(
        namespace=read_namespace(metadata, "metadata"),
        selector=read_optional_selector(spec, "selector", "spec"),
        allowed=integer(status, "disruptionsAllowed", "status", least=0, most=2**31 - 1, default=0),
        disrupted=frozenset(mapping(status, "disruptedPods", "status")),
    )


def _at(place: str, read: Callable[[Object], _Read], value: Object) -> _Read:
    try:
        return read(value)
    except InvalidInput as exc:
        raise exc.at(place) from None
