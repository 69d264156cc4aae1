"""Classes of pods as placing needs them: the parts of a PodSpec that decide, ready to be computed with."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import Service, merged_selector
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.pod_groups import PodGroup, group_of
from hoss.model.resources import CPU, MEMORY, PODS, ResourceSchema
from scheduler_worker.core.census import PodCensus
from scheduler_worker.core.images import ImageIndex


@dataclass(frozen=True, eq=False)
class Demand:
    """What pods that schedule alike ask for. Classes that differ only in what no plugin looks at share one."""

    spec: PodSpec
    request: NDArray[np.int64]  # (resources,), pods = 1 included
    rows: NDArray[np.intp]  # resources asked for
    names: tuple[str, ...]  # of those
    nonzero: NDArray[np.int64]  # (2, 1): cpu and memory, for scoring
    excess: (
        NDArray[np.int64] | None
    )  # (2, 1): what scores count it with beyond `request` once it is placed; None: nothing
    unknown: tuple[str, ...]  # resources asked for that no node ever offered, sorted
    static_key: Hashable  # equal for demands that differ only in amounts

    @cached_property
    def amounts(self) -> tuple[tuple[int, int], ...]:
        """`request` of the resources asked for, as (row, amount)."""
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
        """Cards asked for."""
        return self.spec.devices

    @property
    def about_pods(self) -> bool:
        """Whether it depends on which pods are where. Only then do namespace and labels matter and are kept."""
        return self.spec.namespace != ""

    @cached_property
    def plain(self) -> bool:
        """Whether it asks for cpu and memory, for nothing that is not an amount, and for nothing of other pods."""
        cpu, memory = self.cpu_and_memory
        return cpu > 0 and memory > 0 and self.devices is None and not self.unknown and not self.about_pods

    @property
    def foreseeable(self) -> bool:
        """Whether room for one pod tells how many more of them fit.

        Not so for shares of several cards at once, nor where each pod changes what the next one may do elsewhere.
        """
        if self.about_pods:
            return False
        return self.devices is None or self.devices.count == 1 or self.devices.milli == WHOLE_CARD_MILLI


@dataclass(frozen=True, slots=True)
class PodClass:
    """A class as the dispatcher numbers them."""

    demand: Demand
    spec: PodSpec
    group: PodGroup  # what the census counts its pods as
    basis: tuple[int, ...]  # what the demand was compiled against, see DemandTable
    number: int = 0

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.spec.priority


@dataclass(slots=True)
class DemandTable:
    """Compiles specs against what there is; equal ones give the same object as long as anyone holds it."""

    schema: ResourceSchema
    images: ImageIndex
    census: PodCensus
    _services: dict[str, list[Service]] = field(default_factory=dict)  # by namespace
    _services_version: int = 0
    _demands: WeakValueDictionary[PodSpec, Demand] = field(default_factory=WeakValueDictionary)

    def set_services(self, services: Iterable[Service]) -> None:
        """These are there from now on, and no others: pods that they select are spread by default."""
        by_namespace: dict[str, list[Service]] = {}
        for service in services:
            if service.selector:
                by_namespace.setdefault(service.namespace, []).append(service)
        if by_namespace != self._services:
            self._services = by_namespace
            self._services_version += 1

    def compile(self, spec: PodSpec, number: int = 0) -> PodClass:
        """The class of a spec, by its number."""
        deciding = self._deciding(spec)
        demand = self._demands.get(deciding)
        if demand is None or len(demand.request) != len(self.schema):
            demand = compile_demand(deciding, self.schema)
            self._demands[deciding] = demand
        return PodClass(demand, spec, group_of(spec), self._basis(), number)

    def current(self, pod_class: PodClass) -> PodClass:
        """The class itself, or the same compiled anew where what matters of a spec has changed since."""
        return pod_class if pod_class.basis == self._basis() else self.compile(pod_class.spec, pod_class.number)

    def _basis(self) -> tuple[int, ...]:
        # New resources get rows; images that appear on a node begin to count; so do labels that a new rule asks for.
        return (len(self.schema), self.images.version, self.census.bearings_version, self._services_version)

    def _deciding(self, spec: PodSpec) -> PodSpec:
        """The spec without what no plugin looks at here and now: the less remains, the more classes share a ranking."""
        images = tuple(image for image in spec.images if image in self.images)
        plain: dict[str, Any] = {
            "priority": 0,
            "may_preempt": True,
            "images": images,
            "image_containers": spec.image_containers if images else 0,
        }
        if spec.namespace in self._services and not spec.spread:
            own = () if spec.default_spread is None else (spec.default_spread,)
            spec = replace(spec, default_spread=merged_selector(spec, self._services[spec.namespace], own))
        if not _about_pods(spec, self.census):
            plain |= _NOTHING_ABOUT_PODS
        return replace(spec, **plain)


_NOTHING_ABOUT_PODS: dict[str, Any] = {
    "namespace": "",
    "labels": (),
    "host_ports": (),
    "pod_affinity": None,
    "spread": (),
    "default_spread": None,
}


def _about_pods(spec: PodSpec, census: PodCensus) -> bool:
    if spec.host_ports or spec.pod_affinity is not None or spec.spread or spec.default_spread is not None:
        return True
    return bool(census.bearings_about(spec.namespace, spec.labels))


def compile_demand(spec: PodSpec, schema: ResourceSchema) -> Demand:
    """A demand for nodes whose resources are numbered by `schema`."""
    request = np.zeros(len(schema), np.int64)
    request[PODS] = 1
    unknown = []
    for name, amount in spec.requests:
        row = schema.get(name)
        if row is not None:
            request[row] = amount
        elif amount > 0:
            unknown.append(name)
    rows = np.flatnonzero(request)
    excess = spec.nonzero_excess
    return Demand(
        spec=spec,
        request=request,
        rows=rows,
        names=tuple(schema.names[row] for row in rows),
        nonzero=np.array(spec.pending_nonzero or (spec.nonzero_cpu_milli, spec.nonzero_memory_bytes), np.int64)[
            :, None
        ],
        excess=np.array(excess, np.int64)[:, None] if any(excess) else None,
        unknown=tuple(sorted(unknown)),
        static_key=(
            spec.node_name,
            spec.node_selector,
            spec.required_node_affinity,
            spec.preferred_node_affinity,
            spec.tolerations,
            spec.images,
            spec.image_containers,
            spec.scheduling_gates,
            spec.scope,
        ),
    )
