"""Reads a Node object into a NodeSpec. Computes what is allocatable where the object has only a capacity.

The arithmetic is the kubelet's (Reserve Compute Resources; nodestatus.MachineInfo): allocatable = capacity -
kube-reserved - system-reserved - hard eviction threshold, at least zero; then memory less the hugepages."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hoss.errors import InvalidInput
from hoss.manifests.fields import Object, boolean, integer, mapping, mappings, read_labels, read_name, texts
from hoss.manifests.placement import read_taints
from hoss.manifests.pod_resources import HUGEPAGES_PREFIX, Resources, amounts, read_amounts
from hoss.model.node import NodeSpec
from hoss.model.quantity import NANO, Quantity, parse_quantity
from hoss.model.resources import DEVICE_RESOURCE, MAX_AMOUNT, MAX_CARDS

# Eviction signals that reduce what is allocatable. The others only tell the kubelet when to evict.
_SIGNAL_RESOURCES = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}
_SIGNALS_WITHOUT_RESOURCE = (
    "imagefs.available", "containerfs.available", "nodefs.inodesFree", "imagefs.inodesFree",
    "containerfs.inodesFree", "pid.available", "allocatableMemory.available",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeReservations:
    """What nodes reserve, as in the kubelet's configuration: quantities by resource or eviction signal."""

    kube_reserved: Mapping[str, str] = field(default_factory=dict)
    system_reserved: Mapping[str, str] = field(default_factory=dict)
    eviction_hard: Mapping[str, str] = field(default_factory=dict)  # a quantity or a percentage of capacity


NO_RESERVATIONS = NodeReservations()


def read_node(node: Object, reservations: NodeReservations | None = NO_RESERVATIONS) -> NodeSpec:
    """The spec of a Node object. `reservations` count only where it has no status.allocatable; None: the API
    server has the object, so a node without amounts has just registered and offers nothing yet.

    Raises InvalidInput with the field's path, the value given and what would be right."""
    metadata, spec = mapping(node, "metadata", "node"), mapping(node, "spec", "node")
    status = mapping(node, "status", "node")
    name = read_name(metadata, "node")
    if status.get("allocatable") is not None:
        quantities = read_amounts(status, "allocatable", "status")
    elif status.get("capacity") is not None:
        capacity = read_amounts(status, "capacity", "status")
        quantities = allocatable_from_capacity(capacity, reservations or NO_RESERVATIONS)
    elif reservations is None:
        quantities = {}
    else:
        problem = "is missing, and so is capacity; a node says what it has for pods"
        raise InvalidInput(problem, where="status.allocatable")
    allocatable = amounts(quantities, "status.allocatable")
    cards = allocatable.get(DEVICE_RESOURCE, 0)
    if cards > MAX_CARDS:
        problem = f"is {cards}; HOSS keeps account of {MAX_CARDS} cards of a node at most"
        raise InvalidInput(problem, where=f"status.allocatable.{DEVICE_RESOURCE}")
    return NodeSpec(
        name=name,
        labels=read_labels(metadata, "labels", "metadata"),
        taints=read_taints(spec, "spec"),
        unschedulable=boolean(spec, "unschedulable", "spec"),
        allocatable=tuple(sorted(allocatable.items())),
        cards=cards,
        images=_read_images(status),
        declared_features=tuple(sorted(set(texts(status, "declaredFeatures", "status")))),
    )


def allocatable_from_capacity(capacity: Resources, reservations: NodeReservations) -> Resources:
    """What a node of that capacity has for pods. Raises InvalidInput for an unusable reservation."""
    reserved: Counter[str] = Counter()  # billionths by resource
    kubelet = (("kubeReserved", reservations.kube_reserved), ("systemReserved", reservations.system_reserved))
    for source, by_name in kubelet:
        for name, value in by_name.items():
            reserved[name] += _parse(value, f"{source}.{name}").nano
    for signal, value in reservations.eviction_hard.items():
        resource = _SIGNAL_RESOURCES.get(signal)
        if resource is not None:
            threshold = _eviction_threshold(value, capacity.get(resource), f"evictionHard.{signal}")
            reserved[resource] += threshold
        elif signal not in _SIGNALS_WITHOUT_RESOURCE:
            known = ", ".join((*_SIGNAL_RESOURCES, *_SIGNALS_WITHOUT_RESOURCE))
            raise InvalidInput(f"is no eviction signal; they are {known}", where=f"evictionHard.{signal}")
    left = {name: max(0, quantity.nano - reserved[name]) for name, quantity in capacity.items()}
    if "memory" in left:
        hugepages = sum(q.nano for name, q in capacity.items() if name.startswith(HUGEPAGES_PREFIX))
        left["memory"] = max(0, left["memory"] - hugepages)
    return {name: Quantity(nano, capacity[name].notation) for name, nano in left.items()}


def _read_images(status: Object) -> tuple[tuple[str, int], ...]:
    sizes: dict[str, int] = {}
    for i, image in enumerate(mappings(status, "images", "status")):
        place = f"status.images[{i}]"
        size = integer(image, "sizeBytes", place, least=0, most=MAX_AMOUNT, default=0)
        for name in texts(image, "names", place):
            sizes.setdefault(name, size)
    return tuple(sorted(sizes.items()))


def _eviction_threshold(value: str, capacity: Quantity | None, path: str) -> int:
    if not value.endswith("%"):
        return _parse(value, path).nano
    percent = _parse(value[:-1], path)
    if percent.nano > 100 * NANO:
        raise InvalidInput(f"is {value}; a percentage lies between 0% and 100%", where=path)
    # The kubelet truncates the result to whole units.
    return 0 if capacity is None else capacity.value * percent.nano // (100 * NANO) * NANO


def _parse(value: str, path: str) -> Quantity:
    try:
        quantity = parse_quantity(value)
    except InvalidInput as exc:
        raise exc.at(path) from None
    if quantity.nano < 0:
        raise InvalidInput(f"is {value}; a reservation cannot be negative", where=path)
    return quantity
