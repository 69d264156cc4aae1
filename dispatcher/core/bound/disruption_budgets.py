"""Disruption budgets: how many of their pods may be evicted, which worker may count on that, and which bound
pods a preempting worker may choose as victims.

Healthy are the bound pods that are not being evicted; Kubernetes' disruption controller counts pods that are
Ready. Counts are vectorised over all pods; label selectors are evaluated once per template.

Two workers that see the same allowed disruption would both use it. So the budget is reserved for the first
worker that asks about its pods, until that worker's eviction has been seen. For others the budget allows
nothing meanwhile, and they prefer other victims. The worker itself counts what it chose until it gets newer
answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase, Rows
from hoss.model.cluster import DisruptionBudget, ObjectKey, PodDisruptionBudget, key_of
from hoss.model.pod import PodSpec

NO_ROWS: Rows = np.empty(0, np.uint32)


class BudgetStatus(NamedTuple):
    """Pod counts of a budget."""

    expected: int  # accepted and not deleted
    healthy: int
    desired: int

    @property
    def allowed(self) -> int:
        return max(0, self.healthy - self.desired)


class PodCounts:
    """All pods by template, as of its construction. `leaving` are bound pods that are being evicted."""

    def __init__(self, registry: PodRegistry, leaving: Rows = NO_ROWS) -> None:
        pods, count = registry.pods, len(registry.templates.priority)
        phase, template = pods.phase[: pods.size], pods.template[: pods.size]
        self._templates = registry.templates
        accepted = ~np.isin(phase, (Phase.ABSENT, Phase.DELETED))
        self._accepted = np.bincount(template[accepted], minlength=count)
        self._healthy = np.bincount(template[phase == Phase.BOUND], minlength=count)
        self._healthy -= np.bincount(template[leaving], minlength=count)

    @property
    def templates(self) -> int:
        """How many `status` looks through."""
        return len(self._templates.live_ids())

    def status(self, budget: PodDisruptionBudget, selects: Callable[[PodSpec], bool]) -> BudgetStatus:
        """The status of a budget, whose pods are those that `selects` accepts."""
        templates = self._templates
        mine = [i for i in templates.live_ids() if selects(templates.pod_spec(int(templates.class_id[i])))]
        expected = int(self._accepted[mine].sum())
        return BudgetStatus(expected, int(self._healthy[mine].sum()), budget.desired(expected))


class RemainingDisruptions:
    """What budgets allow as of the first call, less what was taken since."""

    def __init__(
        self, count: Callable[[], PodCounts], budgets: Callable[[], Iterable[PodDisruptionBudget]]
    ) -> None:
        self._count = count
        self._budgets = budgets
        self._left: dict[ObjectKey, tuple[PodDisruptionBudget, int]] | None = None

    def take(self, spec: PodSpec, requested: int) -> tuple[int, str]:
        """How many of so many pods may be evicted, and "namespace/name" of the budget that protects the
        others."""
        if self._left is None:
            counts = self._count()
            self._left = {key_of(b): (b, counts.status(b, b.covers).allowed) for b in self._budgets()}
        mine = {key: allowed for key, (budget, allowed) in self._left.items() if budget.covers(spec)}
        if not mine:
            return requested, ""
        least = min(mine, key=mine.__getitem__)
        granted = min(requested, mine[least])
        for key in mine:
            budget, allowed = self._left[key]
            self._left[key] = budget, allowed - granted
        return granted, f"{least.namespace}/{least.name}"


# An eviction is seen within milliseconds. A worker in the middle of a long step may take its answer a tenth
# of a second later.
RESERVATION_SECONDS = 2.0


class BudgetReservations:
    """By budget, which worker has it reserved and until when (monotonic seconds)."""

    def __init__(self) -> None:
        self._reserved: dict[tuple[str, str], tuple[str, float]] = {}

    def reserve(self, budgets: Sequence[PodDisruptionBudget], worker: str, now: float) -> list[bool]:
        """Which of these budgets the worker has from now on: those that no other worker has."""
        self._reserved = {key: entry for key, entry in self._reserved.items() if entry[1] > now}
        granted = []
        for budget in budgets:
            key = budget.namespace, budget.name
            holder, _ = self._reserved.get(key, (worker, now))
            granted.append(holder == worker)
            if holder == worker:
                self._reserved[key] = worker, now + RESERVATION_SECONDS
        return granted


class EvictablePods(NamedTuple):
    """Bound pods of lower priority on the first `nodes_seen` of the given nodes."""

    rows: Rows
    nodes_seen: int


def victim_candidates(
    registry: PodRegistry, nodes: NDArray[np.uint32], priority: int, limit: int, *, assigned: bool = False
) -> EvictablePods:
    """Pods with less than `priority` bound to these nodes; in the order given, up to `limit` nodes that have
    any. `assigned`: only pods that the API server has there and that are not being evicted."""
    pods, templates = registry.pods, registry.templates
    lower = templates.priority < priority
    mask = (pods.phase[: pods.size] == Phase.BOUND) & lower[pods.template[: pods.size]]
    if assigned:
        evicted = pods.terminating[: pods.size] | pods.eviction_open[: pods.size]
        mask &= pods.assigned[: pods.size] & ~evicted
    rows = np.flatnonzero(mask).astype(np.uint32)
    # By node its position in `nodes`, or len(nodes). Node indexes come from the worker and may exceed those
    # of pods.
    place = np.full(int(pods.node[rows].max(initial=0)) + 1, len(nodes), np.intp)
    inside = np.flatnonzero(nodes < len(place))
    place[nodes[inside]] = inside
    places = place[pods.node[rows]]
    rows, places = rows[places < len(nodes)], places[places < len(nodes)]
    occupied = np.unique(places)
    seen = len(nodes) if len(occupied) <= limit else int(occupied[limit])
    return EvictablePods(rows[places < seen], seen)


def budgets_now(registry: PodRegistry, budgets: Iterable[PodDisruptionBudget]) -> list[DisruptionBudget]:
    """Each budget with how many more of its pods may be evicted."""
    listed = list(budgets)
    if not listed:
        return []
    counts = PodCounts(registry)
    found = []
    for budget in listed:
        now = DisruptionBudget(budget.namespace, budget.selector, 0)
        found.append(replace(now, allowed=counts.status(budget, now.selects).allowed))
    return found
