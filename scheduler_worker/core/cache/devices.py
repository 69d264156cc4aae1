"""Devices in a worker's view: the objects of the cluster, which devices are in use, and which nodes can
satisfy claims.

A device is in use by the API server's record, the status of a claim, or by the ledger's, the claims that pods
hold. Claims of one shape share an answer for all nodes. It is kept and repaired for the nodes where devices
came into use or became free, so the thousandth claim of a template costs a look-up."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hoss.model.cluster import DeviceUpdate, device_key_of
from hoss.model.devices import (
    CLASS_RESOURCE_PREFIX,
    Allocation,
    DeviceClass,
    DeviceObject,
    DeviceUsage,
    ResourceClaim,
    ResourceSlice,
)
from hoss.model.resources import Pairs
from scheduler_worker.core.devices.allocator import (
    MOST_TRIES,
    ClaimShape,
    Found,
    OneNodeOffer,
    allocate,
)
from scheduler_worker.core.devices.held import ClaimKey, HeldClaims, RecentChanges
from scheduler_worker.core.devices.pools import PoolId, PoolTable, SelectorTable
from scheduler_worker.core.nodes import ChangeLog, Mask, NodeCatalogue

_MOST_SHAPES = 32  # whose answers are kept; those used last
# For all nodes at once, see allocator.MOST_TRIES: claims that are hard to satisfy must not keep a worker from
# other pods. What is usual takes one try for each device.
_MOST_TRIES = 500_000
_LEAST_TRIES = 50  # for one node, whatever the nodes before it took
_SLICE_TRIES = 2_000  # after which a worker has other things to do; ten milliseconds


class DeviceCatalogue:
    """The device objects of the cluster, and what is in use as of the last `refresh`."""

    def __init__(self, held: HeldClaims, catalogue: NodeCatalogue, spec_changes: ChangeLog) -> None:
        self.version = 0  # grows with every change of the objects
        self.claim_version = 0  # grows when a claim gets devices or loses them
        self.now = float("inf")  # seconds since the epoch, as of the last change
        self.most_tries = MOST_TRIES  # for one node
        self.most_tries_together = _MOST_TRIES  # for all nodes
        self.claims: dict[ClaimKey, ResourceClaim] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.extended_resources: dict[str, str] = {}  # name of the resource -> name of the class
        self.usage = DeviceUsage()
        self.selectors = SelectorTable()
        self.pool_changes: RecentChanges[PoolId] = (
            RecentChanges()
        )  # where devices came into use or became free
        self.catalogue = catalogue
        self.spec_changes = spec_changes
        self._slices: dict[str, ResourceSlice] = {}
        self._pools = PoolTable()
        self._held = held
        self._position = 0  # in the changes of `held`
        self._counted: dict[ClaimKey, Allocation] = {}
        self._labels: dict[str, tuple[Pairs, dict[str, str]]] = {}  # by node, for its pools
        self._shapes: OrderedDict[tuple[ClaimShape, ...], DeviceFits] = OrderedDict()

    def replace(self, objects: Iterable[DeviceObject], now: float = float("inf")) -> None:
        """Exactly these objects exist from now on."""
        self.apply(DeviceUpdate(tuple(objects), complete=True), now)

    def apply(self, update: DeviceUpdate, now: float) -> None:
        """Take in changes of the objects. Changes of claims alone cost as much as there are of them."""
        self.now = now
        if update.complete:
            self.claims, self.classes, self._slices = {}, {}, {}
        for key in update.gone:
            self._table(key.kind).pop(
                (key.namespace, key.name) if key.kind == "ResourceClaim" else key.name, None
            )
        for item in update.objects:
            if isinstance(item, ResourceClaim):
                self.claims[item.namespace, item.name] = item
            else:
                self._table(type(item).__name__)[item.name] = item
        keys = dict.fromkeys((*update.gone, *map(device_key_of, update.objects)))
        if update.complete or any(key.kind != "ResourceClaim" for key in keys):
            self._offers_changed()
            return
        self.claim_version += bool(keys)
        for key in keys:
            self._count((key.namespace, key.name))

    def _table(self, kind: str) -> dict[Any, Any]:
        match kind:
            case "ResourceClaim":
                return self.claims
            case "DeviceClass":
                return self.classes
        return self._slices

    def _offers_changed(self) -> None:
        self._pools.replace(self._slices.values())
        self.extended_resources = _extended_resources(self.classes.values())
        self.selectors.forget_all_but(
            [s for c in self.classes.values() for s in c.selectors]
            + [s for claim in self.claims.values() for s in ClaimShape.of(claim).expressions]
        )
        self._count_all()

    def refresh(self) -> None:
        """Bring it up to date with the claims that pods hold."""
        changed = self._held.changes.since(self._position)
        if changed is None:
            self._count_all()
            return
        for key in dict.fromkeys(changed):
            self._count(key)
        self._position = self._held.changes.position

    def allocation(self, key: ClaimKey) -> Allocation | None:
        """The claim's devices, as the API server knows them or else the ledger; None: it has none yet."""
        claim = self.claims.get(key)
        if claim is not None and claim.allocation is not None:
            return claim.allocation
        return self._held.allocation(key)

    def fits(self, shapes: tuple[ClaimShape, ...]) -> "DeviceFits":
        """The nodes that can satisfy claims of these shapes together."""
        found = self._shapes.get(shapes)
        if found is None:
            found = self._shapes[shapes] = DeviceFits(shapes, self)
            if len(self._shapes) > _MOST_SHAPES:
                self._shapes.popitem(last=False)
        self._shapes.move_to_end(shapes)
        return found

    def offer(self, node: int) -> OneNodeOffer | None:
        """What the node is offered; None: no such node."""
        spec = self.catalogue.specs[node]
        if spec is None:
            return None
        known = self._labels.get(spec.name)
        if known is None or known[0] != spec.labels:
            known = self._labels[spec.name] = spec.labels, dict(spec.labels)
            self._pools.forget_node(spec.name)
        pools = self._pools.pools_of(spec.name, known[1])
        return OneNodeOffer(spec.name, known[1], pools, self.usage, self.classes, self.selectors)

    def node_of(self, pool: PoolId) -> str | None:
        """See PoolTable."""
        return self._pools.node_of(pool)

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "resource_claims": len(self.claims),
            "resource_slices": len(self._pools),
            "device_selectors": len(self.selectors),
            "device_shapes": len(self._shapes),
        }

    def _count_all(self) -> None:
        self.usage, self._counted, self._labels = DeviceUsage(), {}, {}
        for key in {*self.claims, *self._held}:
            self._count(key)
        self._position = self._held.changes.position
        self.version += 1

    def _count(self, key: ClaimKey) -> None:
        before, now = self._counted.pop(key, None), self.allocation(key)
        if now is not None:
            self._counted[key] = now
        if before == now:
            return
        self.claim_version += 1
        for allocation, change in ((before, self.usage.remove), (now, self.usage.add)):
            for result in () if allocation is None else allocation.results:
                if not result.admin_access:
                    change(result.id, result.consumed, shared=result.shared)
                    self.pool_changes.add((result.id.driver, result.id.pool))


def _extended_resources(classes: Iterable[DeviceClass]) -> dict[str, str]:
    found: dict[str, str] = {}
    # Of several classes for one resource the youngest counts, then the lower name.
    for device_class in sorted(classes, key=lambda c: (-c.created_at, c.name), reverse=True):
        if device_class.extended_resource:
            found[device_class.extended_resource] = device_class.name
        found[CLASS_RESOURCE_PREFIX + device_class.name] = device_class.name
    return found


class DeviceFits:
    """For claims of some shapes together: what each node would give them. Exact as of the last `refresh`."""

    def __init__(self, shapes: tuple[ClaimShape, ...], devices: DeviceCatalogue) -> None:
        self.shapes = shapes
        self.version = 0  # grows whenever anything may have changed
        self.passed: Mask = np.zeros(0, np.bool_)  # (size,)
        self.refused: dict[str, Mask] = {}  # by reason, (size,)
        self.failing: dict[int, Found] = {}  # nodes where the claims cannot be judged
        self._devices = devices
        self._found: list[Found | None] = []  # by node; None without one
        self._as_of = (-1, -1)  # version of the devices, size
        self._specs = self._pools = 0  # positions in the logs of changes
        self._pending: dict[int, None] = {}  # nodes to be judged, in order
        self._tries = 0  # left for them

    def refresh(self, size: int) -> None:
        """Bring it up to date with the objects, the nodes and what is in use."""
        self._note_changes(size)
        self._judge_some(size)

    def prepare(self, size: int) -> bool:
        """Do some milliseconds of what `refresh` has to do; whether nothing is left of it."""
        self._note_changes(size)
        self._judge_some(size, _SLICE_TRIES)
        return not self._pending

    def _note_changes(self, size: int) -> None:
        devices = self._devices
        as_of = (devices.version, size)
        positions = devices.spec_changes.position, devices.pool_changes.position
        if as_of == self._as_of and positions == (self._specs, self._pools):
            return
        nodes = self._changed(size) if as_of == self._as_of else None
        if nodes is None:
            self._found = [None] * size
            self.passed = np.zeros(size, np.bool_)
            self.refused, self.failing, self._pending = {}, {}, {}
            nodes = range(size)
        if not self._pending:
            self._tries = devices.most_tries_together
        self._pending |= dict.fromkeys(nodes)
        self._as_of, (self._specs, self._pools) = as_of, positions
        self.version += 1

    def _judge_some(self, size: int, tries: float = float("inf")) -> None:
        """Judge pending nodes until so many tries are made."""
        while self._pending and tries > 0:
            node = next(iter(self._pending))
            del self._pending[node]
            most = min(self._devices.most_tries, max(self._tries, _LEAST_TRIES))
            made = self._judge(node, size, most)
            self._tries -= made
            tries -= max(made, 1)

    def at(self, node: int) -> tuple[Allocation, ...]:
        """What the claims would get there, in their order; empty if the node refuses."""
        found = self._found[node]
        return () if found is None else found.allocations

    def _changed(self, size: int) -> Sequence[int] | None:
        """The nodes to be judged again; None: all."""
        specs = self._devices.spec_changes.since(self._specs, size)
        pools = self._devices.pool_changes.since(self._pools)
        if specs is None or pools is None:
            return None
        nodes = set(specs.tolist())
        for pool in dict.fromkeys(pools):
            name = self._devices.node_of(pool)
            node = None if name is None else self._devices.catalogue.index(name)
            if name is None:
                return None
            if node is not None and node < size:
                nodes.add(node)
        return sorted(nodes)

    def _judge(self, node: int, size: int, tries: int) -> int:
        """How many of the tries it took."""
        offer = self._devices.offer(node)
        found = None if offer is None else allocate(self.shapes, offer, tries)
        before, self._found[node] = self._found[node], found
        if before is not None and before.reason:
            self.refused[before.reason][node] = False
        self.failing.pop(node, None)
        self.passed[node] = False
        if found is None:
            return 0
        if found.error is not None:
            self.failing[node] = found
        elif found.reason:
            self.refused.setdefault(found.reason, np.zeros(size, np.bool_))[node] = True
        else:
            self.passed[node] = True
        return found.tries
