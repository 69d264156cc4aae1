"""What nodes are offered: pools of devices, from the slices that drivers publish.

A pool is all slices of one driver and pool name with the highest generation. A node sees those that concern
it (kube-scheduler's GatherPools)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hoss.model.devices import (
    AttributeValue,
    CounterAmounts,
    Device,
    DeviceId,
    NodeReach,
    ResourceSlice,
    VersionText,
    amounts_of,
)
from hoss.model.selectors import NodeSelector
from scheduler_worker.core.devices.cel import CelExpression
from scheduler_worker.core.devices.cel_syntax import CelSyntaxError
from scheduler_worker.core.devices.cel_values import CelError, no_truth, parse_version

PoolId = tuple[str, str]  # driver, pool


class SelectorTable:
    """Compiled expressions by their text. Each is compiled once, right or wrong."""

    def __init__(self) -> None:
        self._expressions: dict[str, CelExpression | str] = {}

    def evaluate(self, text: str, device: "OfferedDevice") -> bool:
        """Whether the device is selected. Raises CelError in kube-scheduler's words."""
        known = device.selected.get(text)
        if known is None:
            known = device.selected[text] = self._evaluate(text, device)
        if isinstance(known, str):
            raise CelError(known)
        return known

    def forget_all_but(self, texts: Iterable[str]) -> None:
        """Only these expressions are still used."""
        kept = set(texts)
        self._expressions = {text: e for text, e in self._expressions.items() if text in kept}

    def __len__(self) -> int:
        return len(self._expressions)

    def _evaluate(self, text: str, device: "OfferedDevice") -> bool | str:
        expression = self._expressions.get(text)
        if expression is None:
            try:
                expression = CelExpression(text, frozenset({"device"}))
            except CelSyntaxError as exc:
                expression = f"CEL compile error: {exc}"
            self._expressions[text] = expression
        if isinstance(expression, str):
            return expression
        try:
            selected = expression.evaluate({"device": device.variables})
        except CelError as exc:
            return f"CEL runtime error: {exc}"
        return selected if isinstance(selected, bool) else f"CEL runtime error: {no_truth(selected)}"


class _Domains(dict[str, dict[str, object]]):
    """Values by domain and name. A domain that is missing has no values."""

    def __missing__(self, domain: str) -> dict[str, object]:
        return {}


@dataclass(slots=True, eq=False)
class OfferedDevice:
    """A device of a slice, with what expressions found about it. `selected` has a text where one failed."""

    id: DeviceId
    device: Device
    reach: NodeReach  # of the slice, or its own
    own_reach: bool
    variables: dict[str, object]
    selected: dict[str, bool | str]
    use: CounterAmounts
    attributes: dict[str, AttributeValue]

    @classmethod
    def of(cls, device: Device, of: ResourceSlice) -> "OfferedDevice":
        """A device as this slice offers it. Where the slice says which nodes reach its devices, the device's
        own word does not count."""
        own = device.reach if of.reach is None else None
        return cls(
            id=DeviceId(of.driver, of.pool, device.name),
            device=device,
            reach=own or of.reach or NodeReach(),
            own_reach=of.reach is None,
            variables=_variables(device, of.driver),
            selected={},
            use=amounts_of(device.consumes),
            attributes=dict(device.attributes),
        )

    def attribute(self, name: str) -> AttributeValue | None:
        """The attribute of a full name; in the driver's own domain the device may leave the domain out."""
        if name in self.attributes:
            return self.attributes[name]
        domain, _, short = name.partition("/")
        return self.attributes.get(short) if domain == self.id.driver else None


def _variables(device: Device, driver: str) -> dict[str, object]:
    attributes, capacity = _Domains(), _Domains()
    for name, value in device.attributes:
        domain, slash, short = name.partition("/")
        known = parse_version(value.text) if isinstance(value, VersionText) else value
        attributes.setdefault(domain if slash else driver, {})[short if slash else name] = known
    for name, amount in device.capacity:
        domain, slash, short = name.partition("/")
        capacity.setdefault(domain if slash else driver, {})[short if slash else name] = amount.value
    return {
        "driver": driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": device.shareable,
    }


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A pool as one node sees it."""

    id: PoolId
    devices: tuple[OfferedDevice, ...] = ()  # that may be for the node, in the order of slices
    everywhere: tuple[OfferedDevice, ...] = ()  # those of other nodes as well: they use counters too
    counters: CounterAmounts | None = None
    incomplete: bool = False
    invalid: bool = False

    @property
    def text(self) -> str:
        """As kube-scheduler writes it."""
        return "/".join(self.id)


@dataclass(frozen=True, slots=True)
class _Slice:
    spec: ResourceSlice
    devices: tuple[OfferedDevice, ...]


class PoolTable:
    """The pools of all nodes. `replace` takes new slices; what expressions found is kept for equal
    devices."""

    def __init__(self) -> None:
        self._slices: dict[str, _Slice] = {}  # by name
        self._by_node: dict[str, list[list[_Slice]]] = {}  # node -> pools of that node alone
        self._general: list[list[_Slice]] = []  # pools that may concern any node
        self._node_of: dict[PoolId, str] = {}  # of pools of one node alone
        # Slices with counters concern all nodes. These pools of one node alone trouble the others.
        self._troubling: list[DevicePool] = []
        self._pools: dict[str, tuple[DevicePool, ...]] = {}  # by node, as far as asked for

    def __len__(self) -> int:
        return len(self._slices)

    def replace(self, slices: Iterable[ResourceSlice]) -> None:
        """Exactly these slices exist from now on."""
        before, self._slices = self._slices, {}
        for item in slices:
            kept = before.get(item.name)
            if kept is None or kept.spec != item:
                kept = _Slice(item, tuple(OfferedDevice.of(device, item) for device in item.devices))
            self._slices[item.name] = kept
        by_pool: dict[PoolId, list[_Slice]] = {}
        for name in sorted(self._slices):
            part = self._slices[name]
            by_pool.setdefault((part.spec.driver, part.spec.pool), []).append(part)
        self._by_node, self._general, self._node_of, self._pools = {}, [], {}, {}
        self._troubling = []
        for pool, parts in sorted(by_pool.items()):
            names = {part.spec.reach.node_name if part.spec.reach else "" for part in parts}
            if len(names) == 1 and "" not in names:
                [node] = names
                self._by_node.setdefault(node, []).append(parts)
                self._node_of[pool] = node
                elsewhere = _gather(parts, "", {}) if any(p.spec.counter_sets for p in parts) else None
                if elsewhere is not None and (elsewhere.incomplete or elsewhere.invalid):
                    self._troubling.append(elsewhere)
            else:
                self._general.append(parts)

    def node_of(self, pool: PoolId) -> str | None:
        """The only node that sees the pool; None: it may be others, or none."""
        return self._node_of.get(pool)

    def pools_of(self, node: str, labels: Mapping[str, str]) -> tuple[DevicePool, ...]:
        """The node's pools in the order in which devices are taken. Whoever changes `labels` calls
        `forget_node`."""
        found = self._pools.get(node)
        if found is None:
            gathered = (_gather(p, node, labels) for p in (*self._by_node.get(node, ()), *self._general))
            pools = [pool for pool in gathered if pool is not None]
            pools += [pool for pool in self._troubling if self._node_of[pool.id] != node]
            pools.sort(key=lambda p: (any(bool(d.device.binding_conditions) for d in p.devices), p.id))
            found = self._pools[node] = tuple(pools)
        return found

    def forget_node(self, node: str) -> None:
        """Labels of the node have changed."""
        self._pools.pop(node, None)


def _gather(parts: Sequence[_Slice], node: str, labels: Mapping[str, str]) -> DevicePool | None:
    """The pool of these slices, sorted by name, for the node; None: it offers nothing."""
    concerned = [part for part in parts if _concerns(part, node, labels)]
    if not concerned:
        return None
    generation = max(part.spec.generation for part in concerned)
    newest = [part for part in concerned if part.spec.generation == generation]
    members, incomplete = newest, False
    if len(newest) != newest[0].spec.slices:
        if any(part.spec.generation > generation for part in parts):
            return None
        members = [part for part in parts if part.spec.generation == generation]
        incomplete = len(members) != newest[0].spec.slices
    devices = tuple(device for part in newest for device in part.devices)
    pool_id = newest[0].spec.driver, newest[0].spec.pool
    if incomplete:
        return DevicePool(pool_id, incomplete=True)
    everywhere = tuple(device for part in members for device in part.devices)
    counter_sets = [counter_set for part in members for counter_set in part.spec.counter_sets]
    counters = amounts_of(counter_sets)
    unique = _distinct(device.id.device for device in devices) and _distinct(c.name for c in counter_sets)
    if not unique or any(key not in counters for device in everywhere for key in device.use):
        return DevicePool(pool_id, invalid=True)
    return DevicePool(pool_id, devices, everywhere, counters)


def _distinct(names: Iterable[str]) -> bool:
    known = list(names)
    return len(set(known)) == len(known)


def _concerns(part: _Slice, node: str, labels: Mapping[str, str]) -> bool:
    if part.spec.counter_sets:
        return True
    if part.spec.reach is not None:
        return reaches(part.spec.reach, node, labels)
    return any(reaches(device.reach, node, labels) for device in part.devices)


def reaches(reach: NodeReach, node: str, labels: Mapping[str, str]) -> bool:
    """Whether a slice or device is for this node."""
    if reach.node_name:
        return reach.node_name == node
    return reach.all_nodes or _selects(reach.selector, node, labels)


def _selects(selector: NodeSelector | None, node: str, labels: Mapping[str, str]) -> bool:
    return selector is not None and selector.matches(labels, node)
