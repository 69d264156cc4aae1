"""Preemption: which pods of lower priority would have to go for a pod that fits nowhere.

After kube-scheduler's DefaultPreemption of 1.36: candidates, reprieve, disruption budgets, and the order of choice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hoss.model.cluster import BoundPod
from hoss.model.pod import PodSpec
from scheduler_worker.core.diagnosis import verdicts
from scheduler_worker.core.framework import Code, Profile
from scheduler_worker.core.ground import Ground
from scheduler_worker.core.judge import Judgement, Refusal, Subject, refusal_at

_NEVER = "not eligible due to preemptionPolicy=Never."
_NO_VICTIMS = "No preemption victims found for incoming pod"
_NO_USE = "Preemption is not helpful for scheduling"

# kube-scheduler adds this to each priority before it sums them up: otherwise more victims of negative priority would
# look better than fewer.
_PRIORITY_SHIFT = 2**31


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that the pod would fit on without these pods."""

    victims: tuple[BoundPod, ...]  # most important first
    violations: int  # victims whose eviction violates a disruption budget


@dataclass(frozen=True, slots=True)
class Preemption:
    """The choice, and what it was made from, by node name. No node: preemption does not help, `message` says why."""

    node: str
    candidates: Mapping[str, Candidate]
    message: str

    @property
    def victims(self) -> tuple[BoundPod, ...]:
        """Pods to be evicted."""
        return self.candidates[self.node].victims if self.node else ()


def preempt(spec: PodSpec, subject: Subject, judgement: Judgement, ground: Ground, profile: Profile) -> Preemption:
    """Find the node to make room on, for a pod that the judgement finds no node for. Leaves the ground as it was."""
    if not spec.may_preempt:
        return Preemption("", {}, _NEVER)
    candidates: dict[str, Candidate] = {}
    reasons: Counter[str] = Counter()
    nodes = np.flatnonzero(ground.cache.present).tolist()
    for node in nodes:
        name = ground.cache.catalogue.name(node)
        refusal = judgement.refusals.get(name)
        if refusal is None or refusal.code is not Code.UNSCHEDULABLE:
            reasons[_NO_USE] += 1
            continue
        found = _DryRun(subject, ground, profile, node).run(spec.priority)
        if isinstance(found, Candidate):
            candidates[name] = found
        else:
            reasons.update(found.reasons)
    if candidates:
        return Preemption(min(sorted(candidates), key=lambda name: _cost(candidates[name])), candidates, "")
    entries = sorted(f"{count} {reason}" for reason, count in reasons.items())
    return Preemption("", {}, f"0/{len(nodes)} nodes are available: {', '.join(entries)}.")


class _DryRun:
    """Pods of one node taken away and put back, to see which of them have to go."""

    def __init__(self, subject: Subject, ground: Ground, profile: Profile, node: int) -> None:
        self._subject = subject
        self._ground = ground
        self._profile = profile
        self._node = node

    def run(self, priority: int) -> Candidate | Refusal:
        """The victims if the pod has `priority`; or why it does not fit even without all that are less important."""
        pods = self._ground.cluster.pods
        possible = [number for number in self._ground.pods_on(self._node) if pods[number].spec.priority < priority]
        if not possible:
            return Refusal("", Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (_NO_VICTIMS,))
        possible.sort(key=lambda number: _importance(pods[number]))
        for number in possible:
            self._ground.evict(number)
        refusal = self._refusal()
        victims = [] if refusal is not None else self._reprieve(possible)
        for number in possible if refusal is not None else victims:
            self._ground.restore(number)
        self._subject.refresh()
        if refusal is not None:
            return refusal
        violating = self._violating(possible)
        victims.sort(key=lambda number: _importance(pods[number]))
        return Candidate(tuple(pods[n] for n in victims), sum(n in violating for n in victims))

    def _reprieve(self, possible: Sequence[int]) -> list[int]:
        """Put back those that may stay, first those whose eviction would violate a budget; the others."""
        violating = self._violating(possible)
        victims = []
        for number in sorted(possible, key=lambda n: n not in violating):  # stable: else the most important first
            self._ground.restore(number)
            if self._refusal() is not None:
                self._ground.evict(number)
                victims.append(number)
        return victims

    def _refusal(self) -> Refusal | None:
        """Why the node refuses the pod as things are."""
        self._subject.refresh()
        at = np.array((self._node,))
        for verdict in verdicts(self._subject, self._profile, self._ground.cache, at):
            return refusal_at(verdict, 0)
        return None

    def _violating(self, possible: Sequence[int]) -> set[int]:
        """Those that would overdraw a budget if all were evicted, the most important first."""
        budgets = self._ground.cluster.budgets
        left = [budget.allowed for budget in budgets]
        violating = set()
        for number in possible:
            for i, budget in enumerate(budgets):
                if budget.covers(self._ground.cluster.pods[number]):
                    left[i] -= 1
                    if left[i] < 0:
                        violating.add(number)
        return violating


def _importance(pod: BoundPod) -> tuple[int, float]:
    """Sorts the most important first."""
    return (-pod.spec.priority, pod.started_at)


def _cost(candidate: Candidate) -> tuple[int, int, int, int, float]:
    """The least is chosen."""
    priorities = [victim.spec.priority for victim in candidate.victims]
    highest = max(priorities)
    earliest = min(victim.started_at for victim in candidate.victims if victim.spec.priority == highest)
    shifted = sum(priority + _PRIORITY_SHIFT for priority in priorities)
    return (candidate.violations, highest, shifted, len(priorities), -earliest)
