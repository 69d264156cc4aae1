"""Devices by Dynamic Resource Allocation: what pods claim, the objects of a cluster that offer it, and which
devices and counters are in use.

The objects are those of the API group resource.k8s.io/v1. Only properties that decide an allocation are kept.
Cards (`DeviceRequest` in hoss/model/pod.py) are another thing: amounts of a node, counted by the ledger."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from hoss.model.node import Taint, Toleration
from hoss.model.quantity import Quantity
from hoss.model.selectors import NodeSelector

# Every class stands for the extended resource of this prefix and its name.
CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
# Of a claim that a scheduler made for a pod's extended resources: "true".
EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
# Why no node takes a pod whose claim for extended resources an earlier attempt left behind.
LEFT_OVER = "cannot schedule extended resource claim"
# kube-scheduler's words
NOT_ALLOCATABLE = "cannot allocate all claims"
CLAIM_UNREACHABLE = "resourceclaim not available on the node"

MOST_DEVICES = 32  # of one claim
MOST_ALTERNATIVES = 8  # of one request


@dataclass(frozen=True, slots=True)
class VersionText:
    """A version attribute (semver.org) as written."""

    text: str


AttributeValue = bool | int | str | VersionText


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """What part of a capacity one allocation may take. Amounts are rounded up to what is valid."""

    default: Quantity | None = None
    values: tuple[Quantity, ...] = ()  # validValues, ascending
    least: Quantity | None = None  # of validRange
    most: Quantity | None = None
    step: Quantity | None = None


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """One capacity of a device."""

    value: Quantity
    policy: RequestPolicy | None = None


@dataclass(frozen=True, slots=True)
class NodeReach:
    """The nodes of a slice or of a device: one by name, all, or those that a selector matches."""

    node_name: str = ""
    all_nodes: bool = False
    selector: NodeSelector | None = None


Counters = tuple[tuple[str, Quantity], ...]  # by name, sorted


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Amounts that devices of a pool share."""

    name: str
    counters: Counters


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a slice. Names of attributes and capacities are as written, with or without a domain."""

    name: str
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    capacity: tuple[tuple[str, DeviceCapacity], ...] = ()
    taints: tuple[Taint, ...] = ()
    consumes: tuple[CounterSet, ...] = ()
    shareable: bool = False  # allowMultipleAllocations
    reach: NodeReach | None = None  # with perDeviceNodeSelection
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()  # true of its status before a pod is bound
    binding_failure_conditions: tuple[str, ...] = ()  # with one of them true it never will be ready


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """The identity of a device."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A part of a pool."""

    name: str
    driver: str
    pool: str
    generation: int
    slices: int  # how many the pool has: resourceSliceCount
    reach: NodeReach | None = None  # None: each device has its own (perDeviceNodeSelection)
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()  # sharedCounters


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """What requests name. It stands for its `extended_resource` as well."""

    name: str
    selectors: tuple[str, ...] = ()  # CEL
    extended_resource: str = ""
    created_at: float = 0.0  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class ExactRequest:
    """Devices of one class: `count`, or all that match. An alternative of a request has the same form."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()  # CEL
    count: int = 1
    all_devices: bool = False
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: tuple[tuple[str, Quantity], ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A request of a claim: the first of the alternatives that can be had. A plain request has one,
    itself."""

    name: str
    alternatives: tuple[ExactRequest, ...]
    prioritized: bool = False  # given as firstAvailable

    def result_name(self, chosen: ExactRequest) -> str:
        """The name of the request in an allocation."""
        return f"{self.name}/{chosen.name}" if self.prioritized else self.name


@dataclass(frozen=True, slots=True)
class ClaimConstraint:
    """A condition on the devices of some requests together."""

    attribute: str
    requests: tuple[str, ...] = ()  # `request` or `request/alternative`; empty: all
    distinct: bool = False  # distinctAttribute; else matchAttribute

    def concerns(self, request: str, result_name: str) -> bool:
        """Whether devices of this request count."""
        return not self.requests or request in self.requests or result_name in self.requests


class BindingState(Enum):
    """Whether a device that has binding conditions is ready for a pod."""

    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"


BINDING_SECONDS = 600.0  # how long a device may take to become ready, where no profile says it


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """A device that a claim has. `consumed` is what it takes of a device that others share."""

    request: str
    id: DeviceId
    shared: bool = False
    consumed: tuple[tuple[str, Quantity], ...] = ()
    admin_access: bool = False
    binding_conditions: tuple[str, ...] = ()  # of the device, as the claim got it
    binding_failure_conditions: tuple[str, ...] = ()
    binding: BindingState = BindingState.READY


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of a claim, and the nodes that reach them. No selector: all nodes."""

    results: tuple[DeviceResult, ...]
    nodes: NodeSelector | None = None
    allocated_at: float = float("inf")  # seconds since the epoch

    def usable(self, now: float, within: float = BINDING_SECONDS) -> bool:
        """Whether no device failed to become ready or took longer than `within`, as far as they have
        conditions."""
        states = (r.binding for r in self.results if r.binding is not BindingState.READY)
        # The first device that is not ready decides: kube-scheduler looks no further.
        first = next(states, BindingState.READY)
        late = now - self.allocated_at > within
        return first is not BindingState.FAILED and not (late and first is BindingState.WAITING)


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim to devices."""

    namespace: str
    name: str
    requests: tuple[ClaimRequest, ...] = ()
    constraints: tuple[ClaimConstraint, ...] = ()
    allocation: Allocation | None = None
    users: tuple[str, ...] = ()  # UIDs of the pods that it is reserved for, and of whatever else it is
    deleting: bool = False
    controller_uid: str = ""
    for_extended_resources: bool = False  # made by a scheduler for a pod's extended resources

    @property
    def title(self) -> str:
        """NAMESPACE/NAME, as kube-scheduler's messages name claims."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """One of spec.resourceClaims."""

    claim: str | None  # None: no claim was created for its template
    from_template: bool = False
    needed: bool = True  # false: the template's controller found that no claim is needed


@dataclass(frozen=True, slots=True)
class ContainerRequests:
    """The extended resources that a container asks for, in byte order of all its requests."""

    name: str
    position: int  # among init containers, then containers
    requests: tuple[tuple[int, str, int], ...]  # (position among all requests, resource, count)
    initial: bool = False  # an init container that ends before the next one starts


@dataclass(frozen=True, slots=True)
class PodClaims:
    """What a pod claims, in the order of spec.resourceClaims, and its extended resources."""

    pod: str
    uid: str
    uses: tuple[ClaimUse, ...] = ()
    containers: tuple[ContainerRequests, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestMapping:
    """Which request of the claim for extended resources is whose, and the class that the request names."""

    container: str
    resource: str
    request: str
    device_class: str


def extended_claim_name(pod: str, uid: str) -> str:
    """The name of the claim that is made for the extended resources of a pod. It is the same whoever makes it
    and however often, so that a claim is never made twice."""
    return f"{pod[:_MOST_OF_POD_NAME].rstrip('-.')}-extended-resources-{uid[-12:]}"


_MOST_OF_POD_NAME = 220  # names have at most 253 characters


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that the ledger has devices reserved for, by one of its pods. With `mappings` it is the claim
    for the pod's extended resources, which is made when the pod is bound."""

    namespace: str
    name: str
    allocation: Allocation
    mappings: tuple[RequestMapping, ...] = ()


DeviceObject = DeviceClass | ResourceSlice | ResourceClaim
DEVICE_KINDS = ("DeviceClass", "ResourceSlice", "ResourceClaim")


@dataclass(frozen=True, slots=True)
class DeviceManifest:
    """A DeviceObject as the API server stores it, on its way to whoever looks into it."""

    kind: str
    namespace: str  # "" for what has none
    name: str
    text: bytes  # JSON
    # A hash of all that HOSS reads of it, the same within a process; 0: unknown.
    content: int = 0

    def says_the_same(self, other: "DeviceManifest") -> bool:
        """Whether HOSS reads the same from both, such as before and after a change of finalizers."""
        if self.content and other.content:
            return self.content == other.content
        return self.text == other.text


# What is in use: workers choose devices by it, and the binding webhook checks by it what other schedulers
# chose (docs/adr/0062-devices.md). Amounts are billionths, so that sums are exact.
CounterAmounts = dict[tuple[str, str], int]  # by counter set and counter
KeyT = TypeVar("KeyT")


def amounts_of(counter_sets: Iterable[CounterSet]) -> CounterAmounts:
    """The counters of these sets. What several of them say of one counter is added up."""
    found: CounterAmounts = {}
    for counter_set in counter_sets:
        for name, amount in counter_set.counters:
            key = counter_set.name, name
            found[key] = found.get(key, 0) + amount.nano
    return found


def first_lack(left: Mapping[KeyT, int], asked: Mapping[KeyT, int]) -> KeyT | None:
    """The first of what is asked for that is not left; None: all of it is there."""
    return next((key for key, nano in asked.items() if nano > left.get(key, 0)), None)


class DeviceUsage:
    """Which devices are in use: those of claims, by the API server or by the ledger. Nothing is counted twice
    if `add` and `remove` come in pairs."""

    def __init__(self) -> None:
        self.exclusive: dict[DeviceId, int] = {}  # how many claims have it
        self.consumed: dict[DeviceId, dict[str, int]] = {}  # of shared devices, billionths by capacity
        self._sharers: dict[DeviceId, int] = {}

    def __contains__(self, device: DeviceId) -> bool:
        """Whether any claim has it."""
        return device in self.exclusive or device in self._sharers

    def add(self, device: DeviceId, consumed: Iterable[tuple[str, Quantity]], *, shared: bool) -> None:
        """One more claim has the device."""
        if not shared:
            self.exclusive[device] = self.exclusive.get(device, 0) + 1
            return
        self._sharers[device] = self._sharers.get(device, 0) + 1
        amounts = self.consumed.setdefault(device, {})
        for name, quantity in consumed:
            amounts[name] = amounts.get(name, 0) + quantity.nano

    def remove(self, device: DeviceId, consumed: Iterable[tuple[str, Quantity]], *, shared: bool) -> None:
        """One claim less has the device."""
        if not shared:
            self.exclusive[device] -= 1
            if not self.exclusive[device]:
                del self.exclusive[device]
            return
        self._sharers[device] -= 1
        amounts = self.consumed[device]
        for name, quantity in consumed:
            amounts[name] -= quantity.nano
        if not self._sharers[device]:
            del self._sharers[device], self.consumed[device]

    def capacity_left(self, device: Device, identity: DeviceId) -> dict[str, int]:
        """What claims have left of a device that they share."""
        used = self.consumed.get(identity, {})
        return {name: capacity.value.nano - used.get(name, 0) for name, capacity in device.capacity}

    def counters_left(
        self, counters: CounterAmounts, devices: Iterable[tuple[DeviceId, CounterAmounts]]
    ) -> CounterAmounts:
        """What the devices in use leave of their pool's counters. `devices`: all that use counters of the
        pool, on any node. One that claims share uses its counters once."""
        left = dict(counters)
        for identity, use in devices:
            if use and identity in self:
                for key, nano in use.items():
                    left[key] = left.get(key, 0) - nano
        return left
