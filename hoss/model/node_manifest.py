"""From a Node object, as YAML or JSON gave it, to a NodeSpec; and what a node with only a capacity has for pods.

The kubelet's arithmetic (Reserve Compute Resources; nodestatus.MachineInfo):
allocatable = capacity - kube-reserved - system-reserved - hard eviction threshold, never below zero, and then memory
less what is set aside as hugepages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hoss.errors import InvalidInput
from hoss.model.fields import Object, boolean, integer, mapping, mappings, text, texts
from hoss.model.names import check_key, check_name, read_labels
from hoss.model.node import NodeSpec
from hoss.model.placement_manifest import read_taints
from hoss.model.pod_resources import HUGEPAGES_PREFIX, check_amount
from hoss.model.quantity import NANO, Quantity, parse_quantity, read_quantity
from hoss.model.resources import DEVICE_RESOURCE, MAX_AMOUNT, MAX_CARDS
from hoss.model.totals import Resources

# Eviction signals that withhold something from pods. The others (imagefs.available, pid.available ...) only
# say when the kubelet begins to evict.
_SIGNAL_RESOURCES = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}
_SIGNALS_WITHOUT_RESOURCE = (
    "imagefs.available", "containerfs.available", "nodefs.inodesFree", "imagefs.inodesFree", "containerfs.inodesFree",
    "pid.available", "allocatableMemory.available",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeReservations:
    """What nodes keep from pods, as the kubelet's configuration spells it: quantities by resource or eviction signal."""

    kube_reserved: Mapping[str, str] = field(default_factory=dict)
    system_reserved: Mapping[str, str] = field(default_factory=dict)
    eviction_hard: Mapping[str, str] = field(default_factory=dict)  # a quantity or a percentage of capacity


NO_RESERVATIONS = NodeReservations()


def read_node(node: Object, reservations: NodeReservations = NO_RESERVATIONS) -> NodeSpec:
    """The node of a Node object. `reservations` count only where it has no status.allocatable.

    Raises InvalidInput with the field's path, the value given and what would be right.
    """
    metadata, spec = mapping(node, "metadata", "node"), mapping(node, "spec", "node")
    status = mapping(node, "status", "node")
    name = text(metadata, "name", "metadata")
    if not name:
        raise InvalidInput("is missing; a node has a name", where="metadata.name")
    if status.get("allocatable") is not None:
        allocatable = _read_amounts(status, "allocatable")
    elif status.get("capacity") is not None:
        allocatable = allocatable_from_capacity(_read_amounts(status, "capacity"), reservations)
    else:
        raise InvalidInput(
            "is missing, and so is capacity; a node says what it has for pods", where="status.allocatable"
        )
    amounts = {resource: q.milli if resource == "cpu" else q.value for resource, q in allocatable.items()}
    cards = amounts.get(DEVICE_RESOURCE, 0)
    if cards > MAX_CARDS:
        raise InvalidInput(
            f"is {cards}; HOSS keeps account of {MAX_CARDS} cards of a node at most",
            where=f"status.allocatable.{DEVICE_RESOURCE}",
        )
    return NodeSpec(
        name=check_name(name, "metadata.name"),
        labels=read_labels(metadata, "labels", "metadata"),
        taints=read_taints(spec, "spec"),
        unschedulable=boolean(spec, "unschedulable", "spec"),
        allocatable=tuple(sorted(amounts.items())),
        cards=cards,
        images=_read_images(status),
    )


def allocatable_from_capacity(capacity: Resources, reservations: NodeReservations) -> Resources:
    """What a node of that capacity has for pods. Raises InvalidInput for an unusable reservation."""
    reserved: dict[str, int] = {}  # billionths
    for source, amounts in (
        ("kubeReserved", reservations.kube_reserved),
        ("systemReserved", reservations.system_reserved),
    ):
        for name, spelled in amounts.items():
            quantity = _parse(spelled, f"{source}.{name}")
            reserved[name] = reserved.get(name, 0) + quantity.nano
    for signal, spelled in reservations.eviction_hard.items():
        held = _SIGNAL_RESOURCES.get(signal)
        if held is not None:
            withheld = _eviction_threshold(spelled, capacity.get(held), f"evictionHard.{signal}")
            reserved[held] = reserved.get(held, 0) + withheld
        elif signal not in _SIGNALS_WITHOUT_RESOURCE:
            known = ", ".join((*_SIGNAL_RESOURCES, *_SIGNALS_WITHOUT_RESOURCE))
            raise InvalidInput(f"is no eviction signal; they are {known}", where=f"evictionHard.{signal}")
    left = {name: max(0, quantity.nano - reserved.get(name, 0)) for name, quantity in capacity.items()}
    if "memory" in left:
        hugepages = sum(quantity.nano for name, quantity in capacity.items() if name.startswith(HUGEPAGES_PREFIX))
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


def _eviction_threshold(spelled: str, capacity: Quantity | None, path: str) -> int:
    if not spelled.endswith("%"):
        return _parse(spelled, path).nano
    percent = _parse(spelled[:-1], path)
    if percent.nano > 100 * NANO:
        raise InvalidInput(f"is {spelled}; a percentage lies between 0% and 100%", where=path)
    # The kubelet truncates the part to whole units.
    return 0 if capacity is None else capacity.value * percent.nano // (100 * NANO) * NANO


def _parse(spelled: str, path: str) -> Quantity:
    try:
        quantity = parse_quantity(spelled)
    except InvalidInput as exc:
        raise exc.at(path) from None
    if quantity.nano < 0:
        raise InvalidInput(f"is {spelled}; a reservation cannot be negative", where=path)
    return quantity


def _read_amounts(status: Object, key: str) -> Resources:
    amounts: Resources = {}
    for name, given in mapping(status, key, "status").items():
        place = f"status.{key}.{name}"
        try:
            quantity = read_quantity(given)
        except InvalidInput as exc:
            raise exc.at(place) from None
        amounts[check_key(name, f"status.{key}")] = check_amount(name, quantity, place)
    return amounts
