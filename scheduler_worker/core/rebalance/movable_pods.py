"""Which placed pods may be moved, and how many of them: the budgets of a plan stand here and nowhere else.

Pods are fixed, or they count against three budgets: the moves of the plan, the moves of their workload, and
the disruption budgets that cover them. A policy of moves an hour is given as the first two, with what was
moved before."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodGroup, PodSpec
from scheduler_worker.core.nodes import Mask, NodeIndexes

MOVABLE = 0  # in PlacedPods.fixed
_BUDGET_USED_UP = "its disruption budget allows no more"
_MOST_REASONS = 3  # of pods that stay, in a sentence
_MANY = 10  # moves: a budget that allows so many seldom is what stands in the way


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPods:
    """m pods on nodes by row, all of which the cluster counts. They have k different specs."""

    names: Sequence[str]  # (m,), "namespace/name"
    specs: Sequence[PodSpec]  # (k,)
    classes: NDArray[np.intp]  # (m,): number of the spec
    nodes: NodeIndexes  # (m,)
    card_masks: NDArray[np.uint16]  # (m,): bit i set: the pod holds (a share of) card i
    workloads: NDArray[np.intp]  # (m,): pods with equal numbers belong together
    fixed: NDArray[np.intp]  # (m,): MOVABLE, or the number of the reason why the pod must not be moved
    reasons: Sequence[str]  # by that number; the first is empty
    # (k, b): the disruption budgets that pods of each spec are charged to
    covered: Mask
    allowed: NDArray[np.int64]  # (b,): how many more pods of each budget may be disrupted
    # (k,): what the cluster counts them as, where that tells of more than their spec: the volumes and devices
    # that they got where they are. Empty: nowhere. Two specs may be equal, with different groups.
    groups: Sequence[PodGroup] = ()

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How much a plan may move."""

    moves: int = 100  # in all
    per_workload: int = 1_000_000  # moves of pods of one workload, those of `moved_before` among them
    # By number of the workload: its moves before the plan that count.
    moved_before: Mapping[int, int] = field(default_factory=dict)


class MoveBudget:
    """What a plan may move still. `take` a pod when its move belongs to the plan."""

    def __init__(self, pods: PlacedPods, limits: PlanLimits) -> None:
        self.limits = limits
        self._pods = pods
        self._taken = np.zeros(len(pods), np.bool_)
        self._moves = 0
        self._of_workload = Counter(dict(limits.moved_before))
        self._disruptions = pods.allowed.copy()

    @property
    def moves_left(self) -> int:
        """How many more moves the plan may have."""
        return max(0, self.limits.moves - self._moves)

    @property
    def used_up(self) -> str:
        """That the plan has all its moves, in words; empty: it has not."""
        if self.moves_left:
            return ""
        return (
            f"the plan has its {self.limits.moves} moves"
            if self.limits.moves
            else "the plan may have no moves"
        )

    @property
    def disruptions_left(self) -> NDArray[np.int64]:
        """How many more pods of each disruption budget may be moved, (b,)."""
        left: NDArray[np.int64] = self._disruptions.copy()
        return left

    def why_fixed(self, row: int) -> str:
        """Why this pod may not be moved now; empty: it may."""
        pods = self._pods
        if pods.fixed[row] != MOVABLE:
            return pods.reasons[int(pods.fixed[row])]
        if self._taken[row]:
            return "it is moved already"
        if self.used_up:
            return self.used_up
        if self._of_workload[int(pods.workloads[row])] >= self.limits.per_workload:
            return self._workload_spent
        if (pods.covered[pods.classes[row]] & (self._disruptions <= 0)).any():
            return _BUDGET_USED_UP
        return ""

    def movable(self) -> Mask:
        """Which pods may be moved now, (m,)."""
        if not self.moves_left:
            return np.zeros(len(self._pods), np.bool_)
        exhausted = (self._pods.covered & (self._disruptions <= 0)).any(axis=1)
        found: Mask = (
            (self._pods.fixed == MOVABLE)
            & ~self._taken
            & ~exhausted[self._pods.classes]
            & ~self._of_spent_workloads()
        )
        return found

    def who_stays(self, priority: int | None = None) -> str:
        """How many pods are not moved, for a pod of this priority where one is given, or few of them,
        whatever the number of the plan's moves, and why; empty: none."""
        pods = self._pods
        counts = np.bincount(pods.fixed, minlength=len(pods.reasons)).tolist()
        why = Counter(dict(zip(pods.reasons, counts, strict=True)))
        left = np.where(pods.covered, np.maximum(self._disruptions, 0), _MANY).min(axis=1, initial=_MANY)
        more = [priority is not None and spec.priority > priority for spec in pods.specs]
        important = np.array(more, np.bool_)[pods.classes]
        others = (pods.fixed == MOVABLE) & ~self._taken
        why["its priority is higher"] = int((others & important).sum())
        others &= ~important
        spent = others & self._of_spent_workloads()
        why[self._workload_spent] = int(spent.sum())
        for few in np.unique(left[left < _MANY]).tolist():
            reason = f"its disruption budget allows {few} more" if few else _BUDGET_USED_UP
            why[reason] = int((others & ~spent & (left == few)[pods.classes]).sum())
        del why[pods.reasons[MOVABLE]]
        return ", ".join(f"{n} because {reason}" for reason, n in why.most_common(_MOST_REASONS) if n)

    def take(self, row: int) -> None:
        """The pod's move belongs to the plan."""
        self._count(row, 1)

    def give_back(self, row: int) -> None:
        """Undo `take`."""
        self._count(row, -1)

    def _count(self, row: int, moves: int) -> None:
        self._taken[row] = moves > 0
        self._moves += moves
        self._of_workload[int(self._pods.workloads[row])] += moves
        self._disruptions -= moves * self._pods.covered[self._pods.classes[row]]

    @property
    def _workload_spent(self) -> str:
        return f"{self.limits.per_workload} pods of its workload are moved already"

    def _of_spent_workloads(self) -> Mask:
        spent = [number for number, moves in self._of_workload.items() if moves >= self.limits.per_workload]
        if not spent:
            return np.zeros(len(self._pods), np.bool_)
        found: Mask = np.isin(self._pods.workloads, spent)
        return found
