"""NodeResourcesFit: room for every requested resource; scores by how empty or how full a node will be."""

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.fit import fits, insufficient
from hoss.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework import Refusals
from scheduler_worker.core.view import NodeView

_REPORTED_FIRST = (PODS, CPU, MEMORY, EPHEMERAL_STORAGE)


class ResourcesFit:
    """`strategy` is LeastAllocated (spread) or MostAllocated (pack); both weigh cpu and memory alike."""

    name = "NodeResourcesFit"

    def __init__(self, strategy: str = "LeastAllocated") -> None:
        if strategy not in ("LeastAllocated", "MostAllocated"):
            raise ConfigError(f"{strategy!r} is neither LeastAllocated nor MostAllocated", where="strategy")
        self._most = strategy == "MostAllocated"

    def passes(self, demand: Demand, view: NodeView) -> Mask | None:
        """See DynamicFilter."""
        if demand.unknown:
            return np.zeros(view.requested.shape[1], np.bool_)
        return fits(view.allocatable, view.requested, demand.request)

    def refusals(self, demand: Demand, view: NodeView) -> Refusals | None:
        """See DynamicFilter. Resources no node ever offered count as allocatable 0."""
        short = insufficient(view.allocatable, view.requested, demand.request)
        nodes = view.requested.shape[1]
        everywhere = np.ones(nodes, np.bool_)
        named = {f"Insufficient {resource}": everywhere for resource in demand.unknown}
        for row, resource in zip(demand.rows.tolist(), demand.names, strict=True):
            if row not in _REPORTED_FIRST:
                named[f"Insufficient {resource}"] = short[row]
        texts = ("Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage")
        first = tuple(zip(texts, (short[row] for row in _REPORTED_FIRST), strict=True))
        beyond = (demand.request[:, None] > view.allocatable) & short
        beyond[PODS] = False  # kube-scheduler calls too many pods resolvable, whatever the node's limit
        return Refusals(
            reasons=first + tuple(sorted(named.items())),
            unresolvable=everywhere if demand.unknown else np.logical_or.reduce(beyond, axis=0),
        )

    def score(self, demand: Demand, view: NodeView) -> NDArray[np.float64]:
        """Mean over cpu and memory, as far as the node offers them, of 100 x (free or used) / allocatable."""
        used = view.nonzero_requested + demand.nonzero
        allocatable = view.allocatable[:2]
        if self._most:
            parts = np.minimum(used, allocatable, out=used)
        else:
            parts = np.subtract(allocatable, used, out=used)
            np.maximum(parts, 0, out=parts)
        cpu_and_memory = view.hundredths(parts)
        total: NDArray[np.float64] = cpu_and_memory[0] + cpu_and_memory[1]
        total *= view.mean_factors
        np.floor(total, out=total)
        return total
