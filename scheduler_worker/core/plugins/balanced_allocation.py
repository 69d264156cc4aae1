"""NodeResourcesBalancedAllocation: prefers nodes on which the pod brings cpu and memory use closer together."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.view import NodeView


class BalancedAllocation:
    """Balance is 100 less the spread of the used fractions; the score is 50 + (50 + balance gained) / 2."""

    name = "NodeResourcesBalancedAllocation"

    def score(self, demand: Demand, view: NodeView) -> NDArray[np.float64] | None:
        """See DynamicScore. Of plain requests; nothing to say on pods that request neither."""
        request = demand.request[:2]
        if not (request[CPU] or request[MEMORY]):
            return None
        used = view.requested[:2].astype(np.float64)  # exact: amounts stop at 2^53
        # Where both are asked for, a node with room uses no more of them than it has, and the others do not count.
        overfull = not (request[CPU] and request[MEMORY])
        before = _balance(used, view, clip=overfull)
        used += request[:, None]
        gain = _balance(used, view, clip=overfull)
        gain -= before
        gain *= 0.5
        gain += 75.0
        return np.floor(gain, out=gain)


def _balance(used: NDArray[np.float64], view: NodeView, *, clip: bool) -> NDArray[np.float64]:
    fractions = used / view.divisors
    if clip:
        np.minimum(fractions, 1.0, out=fractions)
    spread: NDArray[np.float64] = fractions[CPU]
    spread -= fractions[MEMORY]
    np.abs(spread, out=spread)
    spread *= 1.0 - view.mean_factors  # half of it, or nothing where the node offers only one of the two
    np.subtract(1.0, spread, out=spread)
    spread *= 100.0
    np.floor(spread, out=spread)
    return spread
