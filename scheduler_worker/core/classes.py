"""Classes of pods as placing needs them: the parts of a PodSpec that decide, ready to be computed with."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.resources import PODS, ResourceSchema


@dataclass(frozen=True, eq=False)
class Demand:
    """What pods that schedule alike ask for. Classes that differ only in what no plugin looks at share one."""

    spec: PodSpec
    request: NDArray[np.int64]  # (resources,), pods = 1 included
    rows: NDArray[np.intp]  # resources asked for
    names: tuple[str, ...]  # of those
    nonzero: NDArray[np.int64]  # (2, 1): cpu and memory, for scoring
    unknown: tuple[str, ...]  # resources asked for that no node ever offered, sorted
    static_key: Hashable  # equal for demands that differ only in amounts

    @property
    def devices(self) -> DeviceRequest | None:
        """Cards asked for."""
        return self.spec.devices

    @property
    def foreseeable(self) -> bool:
        """Whether room for one pod tells how many more of them fit: not so for shares of several cards at once."""
        return self.devices is None or self.devices.count == 1 or self.devices.milli == WHOLE_CARD_MILLI


@dataclass(frozen=True, slots=True)
class PodClass:
    """A class as the dispatcher numbers them."""

    demand: Demand
    priority: int


@dataclass(slots=True)
class DemandTable:
    """Compiles specs against the schema; equal ones give the same object as long as anyone holds it."""

    schema: ResourceSchema
    _demands: WeakValueDictionary[PodSpec, Demand] = field(default_factory=WeakValueDictionary)

    def compile(self, spec: PodSpec) -> PodClass:
        """The class of a spec."""
        # Today's plugins look at neither of these; NodePorts and InterPodAffinity will.
        deciding = replace(spec, namespace="", labels=(), priority=0, host_ports=())
        demand = self._demands.get(deciding)
        if demand is None or len(demand.request) != len(self.schema):
            demand = compile_demand(deciding, self.schema)
            self._demands[deciding] = demand
        return PodClass(demand, spec.priority)

    def current(self, demand: Demand) -> Demand:
        """The demand itself, or the same compiled anew where the schema has grown since."""
        return demand if len(demand.request) == len(self.schema) else self.compile(demand.spec).demand


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
    return Demand(
        spec=spec,
        request=request,
        rows=rows,
        names=tuple(schema.names[row] for row in rows),
        nonzero=np.array([[spec.nonzero_cpu_milli], [spec.nonzero_memory_bytes]], np.int64),
        unknown=tuple(sorted(unknown)),
        static_key=(
            spec.node_name,
            spec.node_selector,
            spec.required_node_affinity,
            spec.preferred_node_affinity,
            spec.tolerations,
        ),
    )
