"""Pod classes for placing: the parts of a PodSpec that decide, compiled for arrays, by the dispatcher's
number.

A class that a policy narrows to some nodes is compiled once for each such scope, not once a pod, and has
masks and rankings of its own."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import Service, merged_selector
from hoss.model.devices import HeldClaim
from hoss.model.pod import DeviceRequest, PodGroup, PodSpec, SpreadConstraint, group_of
from hoss.model.resources import CPU, MEMORY, PODS, WHOLE_CARD_MILLI, ResourceSchema
from hoss.model.selectors import LabelSelector, NodeScope
from scheduler_worker.core.nodes import ImageIndex
from scheduler_worker.core.pod_index.index import PodIndex


@dataclass(frozen=True, eq=False)
class Demand:
    """The requests of pods that schedule alike. Classes that differ only in what no plugin reads share
    one."""

    spec: PodSpec
    request: NDArray[np.int64]  # (resources,), pods = 1 included
    rows: NDArray[np.intp]  # resources requested
    names: tuple[str, ...]  # of `rows`
    nonzero: NDArray[np.int64]  # (2, 1): cpu and memory, for scoring
    excess: NDArray[np.int64] | None  # (2, 1): what scores add to `request` of placed pods; None: nothing
    unknown: tuple[str, ...]  # resources requested that no node ever offered, sorted
    # Resources requested that a device class stands for: nodes that have none of them may have devices
    # instead. `delegated` are those among `rows`.
    claimed: frozenset[str]
    delegated: tuple[int, ...]
    static_key: Hashable  # equal for demands that differ only in amounts

    @cached_property
    def amounts(self) -> tuple[tuple[int, int], ...]:
        """`request` of the requested resources, as (row, amount)."""
        return tuple(zip(self.rows.tolist(), self.request[self.rows].tolist(), strict=True))

    @cached_property
    def cpu_and_memory(self) -> tuple[int, int]:
        """`request` of the two."""
        cpu, memory = self.request[[CPU, MEMORY]].tolist()
        return cpu, memory

    @cached_property
    def nonzero_amounts(self) -> tuple[int, int]:
        """`nonzero` as two numbers."""
        cpu, memory = self.nonzero[:, 0].tolist()
        return cpu, memory

    @property
    def devices(self) -> DeviceRequest | None:
        """Cards requested."""
        return self.spec.devices

    @property
    def about_pods(self) -> bool:
        """Whether it depends on other pods. Namespace and labels are kept only then."""
        return self.spec.namespace != ""

    @cached_property
    def prefers_by_pods(self) -> bool:
        """Whether it prefers nodes by which pods are there: to spread (also by default), or near or far from
        others."""
        spec = self.spec
        spreads = spec.default_spread is not None or any(
            not constraint.required for constraint in spec.spread
        )
        affinity = spec.pod_affinity
        return spreads or (affinity is not None and bool(affinity.preferred or affinity.anti_preferred))

    @cached_property
    def plain(self) -> bool:
        """Whether it requests cpu and memory, and nothing but amounts."""
        cpu, memory = self.cpu_and_memory
        return cpu > 0 and memory > 0 and self.devices is None and not self.unknown and not self.about_pods

    @property
    def foreseeable(self) -> bool:
        """Whether the room of a node tells how many pods of the demand it takes.

        Not for shares of several cards at once, and not if each pod changes where the next one may go."""
        if self.about_pods:
            return False
        return self.devices is None or self.devices.count == 1 or self.devices.milli == WHOLE_CARD_MILLI


@dataclass(frozen=True, slots=True)
class PodClass:
    """A class as the dispatcher numbers them."""

    demand: Demand
    spec: PodSpec
    group: PodGroup  # what the pod index counts its pods as
    basis: tuple[int, ...]  # what the demand was compiled against, see DemandTable
    number: int = 0
    written: PodSpec | None = None  # the spec without the profile's default constraints; None: `spec`

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.spec.priority

    def choosing(self, chosen: Mapping[str, str | None], held: tuple[HeldClaim, ...]) -> "PodClass":
        """The class of a placed pod whose claims get these volumes, None for one that is provisioned, and
        these devices."""
        volumes, group = self.spec.volumes, self.group
        if volumes is not None and chosen:
            group = replace(group, volumes=volumes.choosing(chosen))
        if held:
            group = replace(group, held_claims=held)
        return self if group is self.group else replace(self, group=group)

    def undecided(self) -> "PodClass":
        """The class of the same pod before it is placed."""
        group = self.group.undecided
        return self if group is self.group else replace(self, group=group)


@dataclass(slots=True)
class DemandTable:
    """Compiles specs against the present schema, images, pods and services. Equal specs give the same demand
    while it is referenced."""

    schema: ResourceSchema
    images: ImageIndex
    pod_index: PodIndex
    _services: dict[str, list[Service]] = field(default_factory=dict)  # by namespace
    _services_version: int = 0
    _device_resources: frozenset[str] = frozenset()
    _device_resources_version: int = 0
    _spread_by_default: tuple[SpreadConstraint, ...] = ()
    _demands: WeakValueDictionary[PodSpec, Demand] = field(default_factory=WeakValueDictionary)

    def set_services(self, services: Iterable[Service]) -> None:
        """Exactly these services exist from now on. Pods that they select are spread by default."""
        by_namespace: dict[str, list[Service]] = {}
        for service in services:
            if service.selector:
                by_namespace.setdefault(service.namespace, []).append(service)
        if by_namespace != self._services:
            self._services = by_namespace
            self._services_version += 1

    def set_device_resources(self, names: frozenset[str]) -> None:
        """Device classes stand for exactly these extended resources from now on."""
        if names != self._device_resources:
            self._device_resources = names
            self._device_resources_version += 1
            self._demands.clear()

    def set_spread_by_default(self, constraints: tuple[SpreadConstraint, ...]) -> None:
        """The profile's (`Profile.spread_by_default`). A pod that has no constraints of its own is as if
        these were written into it, with the selector of its services and controller. So the ledger, too, sees
        what its place relies on."""
        self._spread_by_default = constraints

    def __len__(self) -> int:
        return len(self._demands)

    def compile(self, written: PodSpec, number: int = 0) -> PodClass:
        """The class of a spec, by its number."""
        spec = self._spreading(written)
        deciding = self._deciding(spec)
        demand = self._demands.get(deciding)
        if demand is None or len(demand.request) != len(self.schema):
            demand = compile_demand(deciding, self.schema, self._device_resources)
            self._demands[deciding] = demand
        basis = self._basis()
        return PodClass(demand, spec, group_of(spec), basis, number, None if spec is written else written)

    def current(self, pod_class: PodClass) -> PodClass:
        """The class itself, or the same compiled anew if the basis has changed."""
        if pod_class.basis == self._basis():
            return pod_class
        return self.compile(pod_class.written or pod_class.spec, pod_class.number)

    def _spreading(self, spec: PodSpec) -> PodSpec:
        if not self._spread_by_default or spec.spread:
            return spec
        selector = self._default_selector(spec)
        if selector is None:
            return spec
        own = tuple(replace(constraint, selector=selector) for constraint in self._spread_by_default)
        return replace(spec, spread=own)

    def _default_selector(self, spec: PodSpec) -> LabelSelector | None:
        own = () if spec.default_spread is None else (spec.default_spread,)
        return merged_selector(spec, self._services.get(spec.namespace, ()), own)

    def _basis(self) -> tuple[int, ...]:
        # New resources get rows. Images count once a node has them, labels once a rule reads them, and
        # priorities once a pod is nominated.
        return (
            len(self.schema),
            self.images.version,
            self.pod_index.terms_version,
            self._services_version,
            self._device_resources_version,
            self.pod_index.nominated.version,
        )

    def _deciding(self, spec: PodSpec) -> PodSpec:
        """The spec without what no plugin reads at present: the less remains, the more classes share a
        ranking."""
        images = tuple(image for image in spec.images if image in self.images)
        plain: dict[str, Any] = {
            "priority": self.pod_index.nominated.threshold(spec.priority),
            "may_preempt": True,
            "images": images,
            "image_containers": spec.image_containers if images else 0,
        }
        if spec.namespace in self._services and not spec.spread:
            spec = replace(spec, default_spread=self._default_selector(spec))
        if not _about_pods(spec, self.pod_index):
            plain |= _NOTHING_ABOUT_PODS
        return replace(spec, **plain)


_NOTHING_ABOUT_PODS: dict[str, Any] = {
    "namespace": "",
    "labels": (),
    "host_ports": (),
    "pod_affinity": None,
    "spread": (),
    "default_spread": None,
    "volumes": None,
    "claims": None,
}


def _about_pods(spec: PodSpec, pod_index: PodIndex) -> bool:
    if spec.host_ports or spec.pod_affinity is not None or spec.spread or spec.default_spread is not None:
        return True
    if spec.volumes is not None or spec.claims is not None:
        return True
    if not all(not preferred.term.problems for preferred in spec.preferred_node_affinity):
        return True  # whether the class can be placed depends on how many nodes it has to choose from
    return bool(pod_index.terms_about(spec.namespace, spec.labels))


def compile_demand(
    spec: PodSpec, schema: ResourceSchema, device_resources: frozenset[str] = frozenset()
) -> Demand:
    """A demand for nodes whose resources are numbered by `schema`. Device classes stand for
    `device_resources`: what the pod claims of these may be devices."""
    containers = () if spec.claims is None else spec.claims.containers
    claimed = device_resources.intersection(name for c in containers for _, name, _ in c.requests)
    request = np.zeros(len(schema), np.int64)
    request[PODS] = 1
    unknown = []
    for name, amount in spec.requests:
        row = schema.get(name)
        if row is not None:
            request[row] = amount
        elif amount > 0 and name not in claimed:
            unknown.append(name)
    rows = np.flatnonzero(request)
    excess = spec.nonzero_excess
    request.flags.writeable = rows.flags.writeable = False  # plugins are shown them
    return Demand(
        spec=spec,
        request=request,
        rows=rows,
        names=tuple(schema.names[row] for row in rows),
        nonzero=np.array(
            spec.pending_nonzero or (spec.nonzero_cpu_milli, spec.nonzero_memory_bytes), np.int64
        )[:, None],
        excess=np.array(excess, np.int64)[:, None] if any(excess) else None,
        unknown=tuple(sorted(unknown)),
        claimed=claimed,
        delegated=tuple(row for row in rows.tolist() if claimed and schema.names[row] in claimed),
        static_key=(
            spec.node_name,
            spec.node_selector,
            spec.required_node_affinity,
            spec.preferred_node_affinity,
            spec.tolerations,
            spec.images,
            spec.image_containers,
            spec.scheduling_gates,
            spec.required_features,
            spec.scope,
        ),
    )


class ClassTable:
    """Classes by number. Narrowed classes are forgotten with the class that they were made of.

    A demand is *unused* once the last class that was seen with it is forgotten, or has another one: nobody
    needs its ranking any more."""

    def __init__(self, demands: DemandTable) -> None:
        self._demands = demands
        self._classes: dict[int, PodClass] = {}
        self._narrowed: dict[int, dict[NodeScope, PodClass]] = {}
        self._users: dict[Demand, int] = {}  # classes of each
        self._unused: list[Demand] = []
        self._groups: list[PodGroup] = []  # of forgotten classes

    def __len__(self) -> int:
        return len(self._classes) + sum(map(len, self._narrowed.values()))

    def define(self, number: int, spec: PodSpec) -> None:
        """Class `number` is `spec` from now on."""
        self.forget((number,))
        self._classes[number] = self._hold(self._demands.compile(spec, number))

    def forget(self, numbers: Iterable[int]) -> None:
        """No further work has these classes."""
        for number in numbers:
            if number in self._classes:
                pod_class = self._classes.pop(number)
                self._drop(pod_class)
                self._groups.append(pod_class.group)
            for narrowed in self._narrowed.pop(number, {}).values():
                self._drop(narrowed)

    def is_used(self, demand: Demand) -> bool:
        """Whether a class was seen with this demand last."""
        return demand in self._users

    def take_unused(self) -> list[Demand]:
        """Demands that are unused since the last call."""
        unused, self._unused = self._unused, []
        return [demand for demand in unused if demand not in self._users]

    def take_groups(self) -> list[PodGroup]:
        """The groups of classes that were forgotten since the last call. Others may be of the same groups."""
        groups, self._groups = self._groups, []
        return groups

    def _hold(self, pod_class: PodClass) -> PodClass:
        self._users[pod_class.demand] = self._users.get(pod_class.demand, 0) + 1
        return pod_class

    def _drop(self, pod_class: PodClass) -> None:
        self._users[pod_class.demand] -= 1
        if not self._users[pod_class.demand]:
            del self._users[pod_class.demand]
            self._unused.append(pod_class.demand)

    def _current(self, pod_class: PodClass) -> PodClass:
        current = self._demands.current(pod_class)
        if current is not pod_class:
            self._hold(current)
            self._drop(pod_class)
        return current

    def clear(self) -> None:
        """No class is defined any more."""
        self.forget(list(self._classes))

    def unknown(self, numbers: Iterable[int]) -> list[int]:
        """The numbers among these that were never defined."""
        return [number for number in numbers if number not in self._classes]

    def get(self, number: int, scope: NodeScope | None) -> PodClass:
        """A class that was defined, on these nodes."""
        pod_class = self._classes[number] = self._current(self._classes[number])
        if scope is None:
            return pod_class
        narrowed = self._narrowed.setdefault(number, {})
        found = narrowed.get(scope)
        if found is None:
            written = pod_class.written or pod_class.spec
            found = self._hold(self._demands.compile(replace(written, scope=scope), number))
        else:
            found = self._current(found)
        narrowed[scope] = found
        return found
