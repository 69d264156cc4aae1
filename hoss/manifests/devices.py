"""Reads what pods claim, and the objects of the API group resource.k8s.io/v1, as the API server stores them.

What HOSS does not use is not checked."""

from typing import NamedTuple

from hoss.errors import InvalidInput
from hoss.manifests.fields import Object, boolean, integer, mapping, mappings, moment, text, texts
from hoss.manifests.placement import read_node_selector
from hoss.manifests.pod_resources import read_pod_resources
from hoss.model.devices import (
    CLASS_RESOURCE_PREFIX,
    EXTENDED_CLAIM_ANNOTATION,
    Allocation,
    AttributeValue,
    BindingState,
    ClaimConstraint,
    ClaimRequest,
    ClaimUse,
    ContainerRequests,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceClass,
    DeviceId,
    DeviceObject,
    DeviceResult,
    ExactRequest,
    NodeReach,
    PodClaims,
    RequestPolicy,
    ResourceClaim,
    ResourceSlice,
    VersionText,
)
from hoss.model.node import Taint, Toleration
from hoss.model.quantity import Quantity, read_quantity

_MOST = 2**63 - 1
_NATIVE = ("cpu", "memory", "ephemeral-storage", "pods", "storage")


def read_pod_claims(metadata: Object, spec: Object, status: Object, path: str) -> PodClaims | None:
    """What a pod claims. None: it has neither claims nor extended resources. Raises InvalidInput."""
    created = {
        text(entry, "name", "status"): entry for entry in mappings(status, "resourceClaimStatuses", "status")
    }
    uses = []
    for i, entry in enumerate(mappings(spec, "resourceClaims", path)):
        place = f"{path}.resourceClaims[{i}]"
        named = text(entry, "resourceClaimName", place)
        if named:
            uses.append(ClaimUse(named))
            continue
        known = created.get(text(entry, "name", place))
        claim = text(known or {}, "resourceClaimName", "status.resourceClaimStatuses")
        uses.append(ClaimUse(claim or None, from_template=True, needed=known is None or bool(claim)))
    containers = _read_containers(spec, path)
    if not uses and not containers:
        return None
    return PodClaims(
        text(metadata, "name", "metadata"), text(metadata, "uid", "metadata"), tuple(uses), containers
    )


class ExtendedClaimStatus(NamedTuple):
    """What a pod's status says of the claim for its extended resources."""

    claim: str
    resources: frozenset[str]  # that the pod has as devices


def read_extended_claim_status(status: Object) -> ExtendedClaimStatus | None:
    """None: the pod has no such claim. Raises InvalidInput."""
    made, path = (
        mapping(status, "extendedResourceClaimStatus", "status"),
        "status.extendedResourceClaimStatus",
    )
    if not made:
        return None
    mapped = mappings(made, "requestMappings", path)
    resources = frozenset(
        text(m, "resourceName", f"{path}.requestMappings[{i}]") for i, m in enumerate(mapped)
    )
    return ExtendedClaimStatus(text(made, "resourceClaimName", path), resources)


def _read_containers(spec: Object, path: str) -> tuple[ContainerRequests, ...]:
    resources = read_pod_resources(spec, path)
    found = []
    initial = len(resources.init_containers)
    for position, container in enumerate((*resources.init_containers, *resources.containers)):
        names = sorted(container.requests)
        requests = tuple(
            (i, name, container.requests[name].value)
            for i, name in enumerate(names)
            if is_extended_resource(name) and container.requests[name].nano
        )
        if requests:
            ends = position < initial and not container.sidecar
            found.append(ContainerRequests(container.name, position, requests, ends))
    return tuple(found)


def is_extended_resource(name: str) -> bool:
    """Whether a device class may stand for the resource."""
    domain, slash, _ = name.partition("/")
    if not slash or name in _NATIVE:
        return False
    own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    return not own or name.startswith(CLASS_RESOURCE_PREFIX)


def read_device_object(item: Object, kind: str) -> DeviceObject | None:
    """The object; None for another kind. Raises InvalidInput with the field's path."""
    match kind:
        case "DeviceClass":
            return _read_class(item)
        case "ResourceSlice":
            return _read_slice(item)
        case "ResourceClaim":
            return _read_claim(item)
    return None


def _read_class(item: Object) -> DeviceClass:
    metadata, spec = mapping(item, "metadata", "DeviceClass"), mapping(item, "spec", "DeviceClass")
    return DeviceClass(
        name=text(metadata, "name", "metadata"),
        selectors=_read_selectors(spec, "spec"),
        extended_resource=text(spec, "extendedResourceName", "spec"),
        created_at=moment(metadata, "creationTimestamp", "metadata", default=0.0),
    )


def _read_selectors(parent: Object, path: str) -> tuple[str, ...]:
    return tuple(
        text(mapping(selector, "cel", f"{path}.selectors[{i}]"), "expression", f"{path}.selectors[{i}].cel")
        for i, selector in enumerate(mappings(parent, "selectors", path))
    )


def _read_slice(item: Object) -> ResourceSlice:
    metadata, spec = mapping(item, "metadata", "ResourceSlice"), mapping(item, "spec", "ResourceSlice")
    pool = mapping(spec, "pool", "spec")
    own_reach = boolean(spec, "perDeviceNodeSelection", "spec")
    return ResourceSlice(
        name=text(metadata, "name", "metadata"),
        driver=text(spec, "driver", "spec"),
        pool=text(pool, "name", "spec.pool"),
        generation=integer(pool, "generation", "spec.pool", least=0, most=_MOST, default=0),
        slices=integer(pool, "resourceSliceCount", "spec.pool", least=0, most=_MOST, default=0),
        reach=None if own_reach else _read_reach(spec, "spec"),
        devices=tuple(
            _read_device(device, f"spec.devices[{i}]", own_reach=own_reach)
            for i, device in enumerate(mappings(spec, "devices", "spec"))
        ),
        counter_sets=_read_counter_sets(spec, "sharedCounters", "name", "spec"),
    )


def _read_reach(parent: Object, path: str) -> NodeReach:
    selector = parent.get("nodeSelector")
    return NodeReach(
        node_name=text(parent, "nodeName", path),
        all_nodes=boolean(parent, "allNodes", path),
        selector=None
        if selector is None
        else read_node_selector(
            mapping(parent, "nodeSelector", path), f"{path}.nodeSelector", as_written=True
        ),
    )


def _read_device(device: Object, path: str, *, own_reach: bool) -> Device:
    attributes = mapping(device, "attributes", path)
    capacity = mapping(device, "capacity", path)
    return Device(
        name=text(device, "name", path),
        attributes=tuple(
            (
                name,
                _read_attribute(
                    mapping(attributes, name, f"{path}.attributes"), f"{path}.attributes[{name}]"
                ),
            )
            for name in sorted(attributes)
        ),
        capacity=tuple(
            (name, _read_capacity(mapping(capacity, name, f"{path}.capacity"), f"{path}.capacity[{name}]"))
            for name in sorted(capacity)
        ),
        taints=tuple(
            Taint(text(t, "key", path), text(t, "value", path), text(t, "effect", path))
            for t in mappings(device, "taints", path)
        ),
        consumes=_read_counter_sets(device, "consumesCounters", "counterSet", path),
        shareable=boolean(device, "allowMultipleAllocations", path),
        reach=_read_reach(device, path) if own_reach else None,
        binds_to_node=boolean(device, "bindsToNode", path),
        binding_conditions=texts(device, "bindingConditions", path),
        binding_failure_conditions=texts(device, "bindingFailureConditions", path),
    )


def _read_attribute(value: Object, path: str) -> AttributeValue:
    if value.get("version") is not None:
        return VersionText(text(value, "version", path))
    if value.get("string") is not None:
        return text(value, "string", path)
    if value.get("bool") is not None:
        return boolean(value, "bool", path)
    if value.get("int") is not None:
        return integer(value, "int", path, least=-(2**63), most=_MOST, default=0)
    raise InvalidInput("has no value; it has one of int, bool, string and version", where=path)


def _read_capacity(capacity: Object, path: str) -> DeviceCapacity:
    policy = mapping(capacity, "requestPolicy", path)
    place = f"{path}.requestPolicy"
    valid = mapping(policy, "validRange", place)
    values = policy.get("validValues") or []
    if not isinstance(values, list):
        raise InvalidInput("is no list", where=f"{place}.validValues")
    return DeviceCapacity(
        _quantity(capacity, "value", path) or Quantity(0),
        RequestPolicy(
            default=_quantity(policy, "default", place),
            values=tuple(sorted(map(read_quantity, values), key=lambda q: q.nano)),
            least=_quantity(valid, "min", f"{place}.validRange"),
            most=_quantity(valid, "max", f"{place}.validRange"),
            step=_quantity(valid, "step", f"{place}.validRange"),
        )
        if policy
        else None,
    )


def _quantity(parent: Object, key: str, path: str) -> Quantity | None:
    if parent.get(key) is None:
        return None
    try:
        return read_quantity(parent[key])
    except InvalidInput as exc:
        raise exc.at(f"{path}.{key}") from None


def _read_counter_sets(parent: Object, key: str, name: str, path: str) -> tuple[CounterSet, ...]:
    found = []
    for i, entry in enumerate(mappings(parent, key, path)):
        place = f"{path}.{key}[{i}]"
        counters = mapping(entry, "counters", place)
        amounts = (
            (c, _quantity(mapping(counters, c, place), "value", f"{place}.counters[{c}]") or Quantity(0))
            for c in sorted(counters)
        )
        found.append(CounterSet(text(entry, name, place), tuple(amounts)))
    return tuple(found)


def _read_claim(item: Object) -> ResourceClaim:
    metadata, spec = mapping(item, "metadata", "ResourceClaim"), mapping(item, "spec", "ResourceClaim")
    status = mapping(item, "status", "ResourceClaim")
    devices = mapping(spec, "devices", "spec")
    annotations = mapping(metadata, "annotations", "metadata")
    return ResourceClaim(
        namespace=text(metadata, "namespace", "metadata", default="default"),
        name=text(metadata, "name", "metadata"),
        requests=tuple(
            _read_request(request, f"spec.devices.requests[{i}]")
            for i, request in enumerate(mappings(devices, "requests", "spec.devices"))
        ),
        constraints=tuple(
            _read_constraint(constraint, f"spec.devices.constraints[{i}]")
            for i, constraint in enumerate(mappings(devices, "constraints", "spec.devices"))
        ),
        allocation=None if status.get("allocation") is None else _read_allocation(status),
        users=tuple(
            text(user, "uid", f"status.reservedFor[{i}]")
            for i, user in enumerate(mappings(status, "reservedFor", "status"))
        ),
        deleting=metadata.get("deletionTimestamp") is not None,
        controller_uid=next(
            (
                text(owner, "uid", "metadata.ownerReferences")
                for owner in mappings(metadata, "ownerReferences", "metadata")
                if boolean(owner, "controller", "metadata.ownerReferences")
            ),
            "",
        ),
        for_extended_resources=annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true",
    )


def _read_request(request: Object, path: str) -> ClaimRequest:
    name = text(request, "name", path)
    alternatives = mappings(request, "firstAvailable", path)
    if alternatives:
        read = (_read_exact(a, f"{path}.firstAvailable[{i}]") for i, a in enumerate(alternatives))
        return ClaimRequest(name, tuple(read), prioritized=True)
    exactly = mapping(request, "exactly", path)
    return ClaimRequest(name, (_read_exact({**exactly, "name": name}, f"{path}.exactly"),))


def _read_exact(request: Object, path: str) -> ExactRequest:
    return ExactRequest(
        name=text(request, "name", path),
        device_class=text(request, "deviceClassName", path),
        selectors=_read_selectors(request, path),
        count=integer(request, "count", path, least=0, most=_MOST, default=1) or 1,
        all_devices=text(request, "allocationMode", path) == "All",
        admin_access=boolean(request, "adminAccess", path),
        tolerations=tuple(
            Toleration(
                text(t, "key", path),
                text(t, "operator", path) or "Equal",
                text(t, "value", path),
                text(t, "effect", path),
            )
            for t in mappings(request, "tolerations", path)
        ),
        capacity=tuple(sorted(_amounts(mapping(request, "capacity", path), "requests", path).items())),
    )


def _amounts(parent: Object, key: str, path: str) -> dict[str, Quantity]:
    amounts = mapping(parent, key, path)
    return {name: _quantity(amounts, name, f"{path}.{key}") or Quantity(0) for name in amounts}


def _read_constraint(constraint: Object, path: str) -> ClaimConstraint:
    distinct = text(constraint, "distinctAttribute", path)
    return ClaimConstraint(
        attribute=distinct or text(constraint, "matchAttribute", path),
        requests=texts(constraint, "requests", path),
        distinct=bool(distinct),
    )


def _read_allocation(status: Object) -> Allocation:
    allocation = mapping(status, "allocation", "status")
    path = "status.allocation"
    devices = mapping(allocation, "devices", path)
    states: dict[DeviceId, set[str]] = {}
    for i, entry in enumerate(mappings(status, "devices", "status")):
        true = {
            text(c, "type", "status.devices")
            for c in mappings(entry, "conditions", "status.devices")
            if text(c, "status", "status.devices") == "True"
        }
        # As with kube-scheduler the first entry counts. Others are of other shares of the device.
        states.setdefault(_device_id(entry, f"status.devices[{i}]"), true)
    selector = allocation.get("nodeSelector")
    return Allocation(
        results=tuple(
            _read_result(result, states, f"{path}.devices.results[{i}]")
            for i, result in enumerate(mappings(devices, "results", f"{path}.devices"))
        ),
        nodes=None
        if selector is None
        else read_node_selector(mapping(allocation, "nodeSelector", path), f"{path}.nodeSelector"),
        allocated_at=moment(allocation, "allocationTimestamp", path, default=float("inf")),
    )


def _device_id(entry: Object, path: str) -> DeviceId:
    return DeviceId(text(entry, "driver", path), text(entry, "pool", path), text(entry, "device", path))


def _read_result(result: Object, states: dict[DeviceId, set[str]], path: str) -> DeviceResult:
    device = _device_id(result, path)
    conditions, true = texts(result, "bindingConditions", path), states.get(device, set())
    failures = texts(result, "bindingFailureConditions", path)
    binding = BindingState.READY
    if conditions:
        if true.intersection(failures):
            binding = BindingState.FAILED
        elif not true.issuperset(conditions):
            binding = BindingState.WAITING
    return DeviceResult(
        request=text(result, "request", path),
        id=device,
        shared=result.get("shareID") is not None,
        consumed=tuple(sorted(_amounts(result, "consumedCapacity", path).items())),
        admin_access=boolean(result, "adminAccess", path),
        binding_conditions=conditions,
        binding_failure_conditions=failures,
        binding=binding,
    )
