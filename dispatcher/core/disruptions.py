"""How disruption budgets stand, and how many of their pods may be made to go.

Healthy is who is bound and not on its way off; Kubernetes' disruption controller counts pods that are Ready.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.registry import PodRegistry
from hoss.model.cluster_objects import ObjectKey, PodDisruptionBudget, key_of
from hoss.model.pod import PodSpec

NOBODY: Rows = np.empty(0, np.uint32)


class Standing(NamedTuple):
    """Numbers of a budget's pods."""

    expected: int  # accepted and not deleted
    healthy: int
    desired: int

    @property
    def allowed(self) -> int:
        """How many may go now."""
        return max(0, self.healthy - self.desired)


class PodCounts:
    """All pods by template, as of the moment it is made; `leaving` are bound pods on their way off."""

    def __init__(self, registry: PodRegistry, leaving: Rows = NOBODY) -> None:
        pods, count = registry.pods, len(registry.templates.priority)
        phase, template = pods.phase[: pods.size], pods.template[: pods.size]
        self._templates = registry.templates
        self._accepted = np.bincount(template[~np.isin(phase, (Phase.ABSENT, Phase.DELETED))], minlength=count)
        self._healthy = np.bincount(template[phase == Phase.BOUND], minlength=count)
        self._healthy -= np.bincount(template[leaving], minlength=count)

    def standing(self, budget: PodDisruptionBudget, selects: Callable[[PodSpec], bool]) -> Standing:
        """Of the budget, whose pods are those that `selects` takes."""
        templates = self._templates
        mine = [i for i in templates.live_ids() if selects(templates.pod_spec(int(templates.class_id[i])))]
        expected = int(self._accepted[mine].sum())
        return Standing(expected, int(self._healthy[mine].sum()), budget.desired(expected))


class Spare:
    """What budgets allow as of when it is first asked, less those that it has let go since."""

    def __init__(self, count: Callable[[], PodCounts], budgets: Callable[[], Iterable[PodDisruptionBudget]]) -> None:
        self._count = count
        self._budgets = budgets
        self._left: dict[ObjectKey, tuple[PodDisruptionBudget, int]] | None = None

    def take(self, spec: PodSpec, wanted: int) -> tuple[int, str]:
        """Of so many pods that are to go, how many may; and "namespace/name" of the budget that keeps the others."""
        if self._left is None:
            counts = self._count()
            self._left = {key_of(b): (b, counts.standing(b, b.covers).allowed) for b in self._budgets()}
        mine = {key: allowed for key, (budget, allowed) in self._left.items() if budget.covers(spec)}
        if not mine:
            return wanted, ""
        least = min(mine, key=mine.__getitem__)
        going = min(wanted, mine[least])
        for key in mine:
            budget, allowed = self._left[key]
            self._left[key] = budget, allowed - going
        return going, f"{least.namespace}/{least.name}"
