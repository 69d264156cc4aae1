"""Which of a worker's own pods, on their way to be bound, are in the way of others, for as long as it is not known that they stay."""

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.cards import pods_that_fit
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand


def room_under_way(
    cache: NodeInfoCache, demand: Demand, among: Mask, drafted: Assumption | None = None
) -> tuple[int, list[Assumption]]:
    """How many more pods of this demand those of the nodes `among`, (nodes,), that have room for none would take without what
    this worker has in the ledger's hands and what it has `drafted`, and the assumptions that are in the way.

    Some of them may be refused; and one that the feed has shown before its verdict came counts twice until then.
    """
    tracked = cache.under_way
    if drafted is not None:
        tracked.append(drafted)
    if not tracked or demand.unknown:
        return 0, []
    nodes = np.unique(np.concatenate([assumption.nodes[assumption.live] for assumption in tracked]))
    nodes = nodes[among[nodes]]
    under_way = np.zeros((len(cache.schema), cache.size), np.int64)
    for assumption in tracked:
        rows = np.flatnonzero(assumption.live)
        for resource in np.flatnonzero(assumption.requests.any(axis=0)):
            amounts = assumption.requests[assumption.slots[rows], resource]
            np.add.at(under_way[resource], assumption.nodes[rows], amounts)
    requested = cache.requested[:, nodes]
    now = _pods_that_fit(cache, demand, nodes, requested, cache.cards.used)
    without = _pods_that_fit(cache, demand, nodes, requested - under_way[:, nodes], cache.cards.committed)
    gain = np.where(now == 0, without, 0)
    gaining = nodes[gain > 0]
    in_the_way = [a for a in tracked if np.isin(a.nodes[a.live], gaining).any()]
    return int(gain.sum()), in_the_way


def _pods_that_fit(
    cache: NodeInfoCache,
    demand: Demand,
    nodes: NodeIndexes,
    requested: NDArray[np.int64],
    cards: NDArray[np.uint16],
) -> NDArray[np.int64]:
    """By amounts and cards: (n,)."""
    free = cache.accounts.allocatable[:, nodes] - requested
    each = [np.maximum(free[row], 0) // demand.request[row] for row in demand.rows]
    if demand.devices is not None:
        each.append(pods_that_fit(cards[nodes], demand.devices))
    fitting: NDArray[np.int64] = np.minimum.reduce(each)
    return fitting
