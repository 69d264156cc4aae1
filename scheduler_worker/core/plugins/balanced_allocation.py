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
        used = view.requested[:2]
        gain = _balance(used + request[:, None], view)
        gain -= _balance(used, view)
        gain *= 0.5
        gain += 75.0
        return np.floor(gain, out=gain)


def _balance(used: NDArray[np.int64], view: NodeView) -> NDArray[np.float64]:
    fractions = used / view.divisors
    np.minimum(fractions, 1.0, out=fractions)
    spread: NDArray[np.float64] = np.abs(fractions[CPU] - fractions[MEMORY])
    spread *= 1.0 - view.mean_factors  # half of it, or nothing where the node offers only one of the two
    np.subtract(1.0, spread, out=spread)
    spread *= 100.0
    np.floor(spread, out=spread)
    return spread
