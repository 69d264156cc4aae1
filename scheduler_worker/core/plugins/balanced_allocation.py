"""NodeResourcesBalancedAllocation: prefers nodes on which the pod balances the use of cpu and memory."""

from math import floor

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import ScoreFastPaths, ScorePlugin


class BalancedAllocation(ScorePlugin):
    """Balance is 100 less the spread of the used fractions; the score is 50 + (50 + balance gained) / 2."""

    name = "NodeResourcesBalancedAllocation"

    def __init__(self) -> None:
        self.fast_score = ScoreFastPaths(self._score_one, self._score_each)

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[np.float64] | None:
        """See ScorePlugin. None for pods that request neither cpu nor memory."""
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
