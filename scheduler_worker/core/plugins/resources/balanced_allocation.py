"""NodeResourcesBalancedAllocation: prefers nodes on which the pod balances the use of cpu and memory, or of
other resources that a profile names."""

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import ScoreFastPaths, ScorePlugin
from scheduler_worker.core.plugins.resources.scoring_strategies import (
    DEFAULT_RESOURCES,
    read_resources,
    scored_row,
)


class BalancedAllocation(ScorePlugin):
    """Balance is 100 less the spread of the used fractions; the score is 50 + (50 + balance gained) / 2.

    `resources` are balanced, all with weight 1; by default cpu and memory."""

    name = "NodeResourcesBalancedAllocation"

    def __init__(self, resources: Sequence[Mapping[str, Any]] | None = None) -> None:
        balanced = read_resources(resources)
        for i, (_, weight) in enumerate(balanced):
            if weight != 1:
                raise ConfigError(f"is {weight}; it must be 1", where=f"resources[{i}].weight")
        self._resources = tuple(name for name, _ in balanced)
        # The most common configuration has a faster implementation.
        self._plain = set(balanced) == set(DEFAULT_RESOURCES)
        if self._plain:
            self.fast_score = ScoreFastPaths(self._score_one, self._score_each)

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[np.float64] | None:
        """See ScorePlugin. None for pods that request none of the resources."""
        if not self._plain:
            rows = [row for name in self._resources if (row := scored_row(name, pod)) is not None]
            return _score_of(rows, pod, nodes) if pod.request[rows].any() else None
        request = pod.request[:2]
        if not (request[CPU] or request[MEMORY]):
            return None
        # If both are requested, a feasible node never uses more than it has, and other nodes do not count.
        return _score(request[:, None], nodes, clip=not (request[CPU] and request[MEMORY]))

    def _score_each(self, requested: RequestedResources, view: NodeView) -> NDArray[np.float64]:
        return _score(requested.request[:2], view, clip=False)

    def _score_one(self, demand: Demand, node: OneNode) -> int:
        """The same operations on the same doubles."""
        cpu, memory = demand.cpu_and_memory
        if not (cpu or memory) or not (node.allocatable[CPU] and node.allocatable[MEMORY]):
            return 75 if cpu or memory else 0  # with one of the two there is nothing to balance
        used_cpu, used_memory = node.requested[CPU], node.requested[MEMORY]
        before = _balance_of_one(used_cpu, used_memory, node)
        return floor((_balance_of_one(used_cpu + cpu, used_memory + memory, node) - before) * 0.5 + 75.0)


def _score(request: NDArray[np.int64], view: NodeView, *, clip: bool) -> NDArray[np.float64]:
    """Scores of the view's nodes for requests of cpu and memory, (2, 1) or (2, k, 1)."""
    used = view.requested[:2].astype(np.float64)  # exact: amounts stop at 2^53
    # A node that offers only one of the two has nothing to balance; otherwise half of the difference counts.
    halves = 1.0 - view.mean_factors
    before = _balance(used / view.divisors, halves, clip=clip)
    used += request.astype(np.float64)
    used /= view.divisors
    gain = _balance(used, halves, clip=clip)
    gain -= before
    gain *= 0.5
    gain += 75.0
    return np.floor(gain, out=gain)


def _score_of(rows: list[int], pod: Demand, nodes: NodeView) -> NDArray[np.float64]:
    """Scores of the view's nodes, of any resources."""
    allocatable, used = nodes.allocatable[rows], nodes.requested[rows]
    gain = _balance_of(used + pod.request[rows][:, None], allocatable) - _balance_of(used, allocatable)
    return np.floor(gain * 0.5 + 75.0)


def _balance_of(used: NDArray[np.int64], allocatable: NDArray[np.int64]) -> NDArray[np.float64]:
    """The balance of any number of resources, (resources, n) both; a node's are those that it offers. Two
    have half of their difference as spread, as in kube-scheduler, more the standard deviation."""
    offered = allocatable > 0
    fractions = np.minimum(used / np.where(offered, allocatable, 1), 1.0)
    count = offered.sum(axis=0)
    mean = fractions.sum(axis=0, where=offered) / np.maximum(count, 1)
    squares = np.square(fractions - mean).sum(axis=0, where=offered)
    spread = np.sqrt(squares / np.maximum(count, 1))
    highest = fractions.max(axis=0, where=offered, initial=0.0)
    lowest = fractions.min(axis=0, where=offered, initial=1.0)
    spread = np.where(count == 2, (highest - lowest) / 2, spread)
    balance: NDArray[np.float64] = np.floor((1.0 - spread) * 100.0)
    return balance


def _balance_of_one(cpu: int, memory: int, node: OneNode) -> int:
    spread = abs(min(cpu / node.allocatable[CPU], 1.0) - min(memory / node.allocatable[MEMORY], 1.0))
    return floor((1.0 - spread * 0.5) * 100.0)


def _balance(
    fractions: NDArray[np.float64], halves: NDArray[np.float64], *, clip: bool
) -> NDArray[np.float64]:
    """The balance of the used fractions (2, n), which are overwritten."""
    if clip:
        np.minimum(fractions, 1.0, out=fractions)
    spread: NDArray[np.float64] = fractions[CPU]
    spread -= fractions[MEMORY]
    np.abs(spread, out=spread)
    spread *= halves
    np.subtract(1.0, spread, out=spread)
    spread *= 100.0
    np.floor(spread, out=spread)
    return spread
