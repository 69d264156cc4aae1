"""NodeResourcesFit: room for every requested resource; scores by how empty or how full a node will be."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.fit import each_fits, fits, insufficient
from hoss.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    FilterFastPaths,
    FilterPlugin,
    Refusals,
    ScoreFastPaths,
    ScorePlugin,
)
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.plugins.resources.scoring_strategies import (
    DEFAULT_RESOURCES,
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    REQUESTED_TO_CAPACITY_RATIO,
    STRATEGIES,
    Amounts,
    read_resources,
    read_shape,
    scored_row,
    weighted_score,
)

_REPORTED_FIRST = (PODS, CPU, MEMORY, EPHEMERAL_STORAGE)


class ResourcesFit(FilterPlugin, ScorePlugin):
    """`strategy` is LeastAllocated (spread), MostAllocated (pack) or RequestedToCapacityRatio (by `shape`).

    `resources` are scored, with weights; by default cpu and memory alike."""

    name = "NodeResourcesFit"

    def __init__(
        self,
        strategy: str = LEAST_ALLOCATED,
        resources: Sequence[Mapping[str, Any]] | None = None,
        shape: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ConfigError(f"is {strategy!r}; it is one of {', '.join(STRATEGIES)}", where="strategy")
        if (strategy == REQUESTED_TO_CAPACITY_RATIO) != (shape is not None):
            problem = "is missing" if shape is None else "was given"
            raise ConfigError(
                f"{problem}; it belongs to {REQUESTED_TO_CAPACITY_RATIO}, always", where="shape"
            )
        self._strategy = strategy
        self._resources = read_resources(resources)
        self._shape = None if shape is None else read_shape(shape)
        # The most common configuration has a faster implementation.
        self._plain = self._shape is None and dict(self._resources) == dict(DEFAULT_RESOURCES)
        self.fast_filter = FilterFastPaths(self._passes_one, self._passes_each)
        if self._plain:
            self.fast_score = ScoreFastPaths(self._score_one, self._score_each)

    def filter(self, pod: Demand, nodes: NodeView) -> Mask | None:
        """See FilterPlugin."""
        if pod.unknown:
            return np.zeros(nodes.count, np.bool_)
        if not pod.delegated:
            return fits(nodes.allocatable, nodes.requested, pod.request)
        request = pod.request.copy()
        request[list(pod.delegated)] = 0
        passed = fits(nodes.allocatable, nodes.requested, request)
        for row in pod.delegated:
            passed &= ~_short_of(pod, nodes, row)
        return passed

    def _passes_one(self, demand: Demand, node: OneNode) -> bool:
        if demand.unknown:
            return False
        return all(
            node.allocatable[row] - node.requested[row] >= amount
            or (row in demand.delegated and not node.allocatable[row])
            for row, amount in demand.amounts
        )

    def _passes_each(self, requested: RequestedResources, view: NodeView) -> Mask:
        return each_fits(view.allocatable, view.requested, requested.request)

    def _score_each(self, requested: RequestedResources, view: NodeView) -> NDArray[np.float64]:
        """Of the mean of cpu and memory."""
        return self._mean_of_cpu_and_memory(requested.nonzero, view)

    def refusals(self, pod: Demand, nodes: NodeView) -> Refusals | None:
        """See FilterPlugin. Resources no node ever offered count as allocatable 0."""
        short = insufficient(nodes.allocatable, nodes.requested, pod.request)
        for row in pod.delegated:
            short[row] = _short_of(pod, nodes, row)
        everywhere = np.ones(nodes.count, np.bool_)
        named = {f"Insufficient {resource}": everywhere for resource in pod.unknown}
        for row, resource in zip(pod.rows.tolist(), pod.names, strict=True):
            if row not in _REPORTED_FIRST:
                named[f"Insufficient {resource}"] = short[row]
        texts = ("Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage")
        first = tuple(zip(texts, (short[row] for row in _REPORTED_FIRST), strict=True))
        beyond = (pod.request[:, None] > nodes.allocatable) & short
        beyond[PODS] = False  # kube-scheduler calls too many pods resolvable, whatever the node's limit
        return Refusals(
            reasons=first + tuple(sorted(named.items())),
            unresolvable=everywhere if pod.unknown else np.logical_or.reduce(beyond, axis=0),
        )

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[np.float64]:
        """See ScorePlugin and scoring_strategies."""
        if self._plain:
            return self._mean_of_cpu_and_memory(pod.nonzero, nodes)
        scored = [self._amounts(name, weight, pod, nodes) for name, weight in self._resources]
        amounts = [a for a in scored if a is not None]
        return weighted_score(self._strategy, amounts, nodes.count, self._shape)

    def _score_one(self, demand: Demand, node: OneNode) -> int:
        """Of the mean of cpu and memory."""
        total = offered = 0
        for row, amount in enumerate(demand.nonzero_amounts):
            allocatable, used = node.allocatable[row], node.nonzero_requested[row] + amount
            if allocatable:
                part = (
                    min(used, allocatable) if self._strategy == MOST_ALLOCATED else max(allocatable - used, 0)
                )
                total += part * 100 // allocatable
                offered += 1
        return total // max(offered, 1)

    def _amounts(self, name: str, weight: int, demand: Demand, view: NodeView) -> Amounts | None:
        """The resource's columns; None for one that is not scored."""
        row = scored_row(name, demand)
        if row is None:
            return None
        if row in (CPU, MEMORY):
            used = view.nonzero_requested[row] + demand.nonzero[row]
        else:
            used = view.requested[row] + demand.request[row]
        return Amounts(used, view.allocatable[row], weight)

    def _mean_of_cpu_and_memory(self, nonzero: NDArray[np.int64], view: NodeView) -> NDArray[np.float64]:
        """The mean of 100 x (free or used) / allocatable over cpu and memory, as far as the node offers them.
        `nonzero` is (2, 1) or (2, k, 1)."""
        used = view.nonzero_requested + nonzero
        allocatable = view.allocatable[:2]
        if self._strategy == MOST_ALLOCATED:
            parts = np.minimum(used, allocatable, out=used)
        else:
            parts = np.subtract(allocatable, used, out=used)
            np.maximum(parts, 0, out=parts)
        cpu_and_memory = view.hundredths(parts)
        total: NDArray[np.float64] = cpu_and_memory[0] + cpu_and_memory[1]
        total *= view.mean_factors
        np.floor(total, out=total)
        return total


def _short_of(demand: Demand, view: NodeView, row: int) -> Mask:
    """Nodes that offer some of a resource that devices stand for, but not enough. A node without any may have
    devices, which DynamicResources allocates."""
    offered = view.allocatable[row]
    short: Mask = (offered > 0) & (offered - view.requested[row] < demand.request[row])
    return short
