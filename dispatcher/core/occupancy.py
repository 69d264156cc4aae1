"""Which pods are bound where, as far as somebody may have to go: the answer to a worker that found no node.

Vectorised over all pods; what depends on labels is decided once a template.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.disruptions import PodCounts
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.registry import PodRegistry
from hoss.model.cluster import DisruptionBudget
from hoss.model.cluster_objects import PodDisruptionBudget


class Occupied(NamedTuple):
    """Bound pods of lower priority on the first `nodes_seen` of the nodes asked about."""

    rows: Rows
    nodes_seen: int


def lower_pods(
    registry: PodRegistry, nodes: NDArray[np.uint32], priority: int, limit: int, *, assigned: bool = False
) -> Occupied:
    """Pods of less than `priority` bound to these nodes, in whose order up to `limit` nodes that have any are taken. `assigned`:
    only those that the API server has there, and that are not on their way out."""
    pods, templates = registry.pods, registry.templates
    lower = templates.priority < priority
    wanted = (pods.phase[: pods.size] == Phase.BOUND) & lower[pods.template[: pods.size]]
    if assigned:
        wanted &= pods.assigned[: pods.size] & (pods.eviction[: pods.size] == NO_REASON)
    rows = np.flatnonzero(wanted).astype(np.uint32)
    # Of each node its place among those asked about, or behind them all. Only as far as there are pods: indexes are the worker's.
    place = np.full(int(pods.node[rows].max(initial=0)) + 1, len(nodes), np.intp)
    inside = np.flatnonzero(nodes < len(place))
    place[nodes[inside]] = inside
    places = place[pods.node[rows]]
    rows, places = rows[places < len(nodes)], places[places < len(nodes)]
    occupied = np.unique(places)
    seen = len(nodes) if len(occupied) <= limit else int(occupied[limit])
    return Occupied(rows[places < seen], seen)


def budgets_now(registry: PodRegistry, budgets: Iterable[PodDisruptionBudget]) -> list[DisruptionBudget]:
    """How many more pods of each budget may go: those bound, less those that are to stay of all that were accepted."""
    listed = list(budgets)
    if not listed:
        return []
    counts = PodCounts(registry)
    found = []
    for budget in listed:
        now = DisruptionBudget(budget.namespace, budget.selector, 0)
        found.append(replace(now, allowed=counts.standing(budget, now.selects).allowed))
    return found
