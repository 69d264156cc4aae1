"""Preemption as kube-scheduler answers about it, for a cluster that stands still: all candidates, the choice, the message."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hoss.model.cluster import BoundPod
from hoss.model.pod import PodSpec
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.diagnosis import resolvable
from scheduler_worker.core.ground import Ground
from scheduler_worker.core.judge import Subject
from scheduler_worker.core.occupants import Occupants
from scheduler_worker.core.preemption_search import PreemptionSearch
from scheduler_worker.core.profile import Profile

NEVER = "not eligible due to preemptionPolicy=Never."
_NO_USE = "Preemption is not helpful for scheduling"


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


def preempt(spec: PodSpec, subject: Subject, ground: Ground, profile: Profile) -> Preemption:
    """Find the node to make room on, for a pod that fits on none. Leaves the ground as it was."""
    if not spec.may_preempt:
        return Preemption("", {}, NEVER)
    name = ground.cache.catalogue.name
    nodes = np.array(sorted(resolvable(subject, profile, ground.cache).tolist(), key=name), np.intp)
    pods = ground.cluster.pods
    numbers = [
        number
        for node in nodes.tolist()
        for number in ground.pods_on(node)
        if pods[number].spec.priority < spec.priority
    ]
    search = PreemptionSearch(subject, profile, _Chosen(ground, numbers), _occupants(ground, numbers), nodes)
    candidates = {
        name(found.node): Candidate(tuple(pods[numbers[row]] for row in found.victims.tolist()), found.violations)
        for found in search.candidates()
    }
    best = search.best()
    if best is not None:
        return Preemption(name(best.node), candidates, "")
    present = int(ground.cache.present.sum())
    return Preemption("", {}, unhelpful(search.why_not(), nodes=present, tried=len(nodes)))


def unhelpful(reasons: Counter[str], *, nodes: int, tried: int) -> str:
    """The message where no node helps: `tried` of all `nodes` might have, and do not for these reasons."""
    counted = reasons + Counter({_NO_USE: nodes - tried})
    entries = sorted(f"{count} {reason}" for reason, count in counted.items())
    return f"0/{nodes} nodes are available: {', '.join(entries)}."


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Some pods of a ground, numbered anew."""

    ground: Ground
    numbers: Sequence[int]

    @property
    def cache(self) -> NodeInfoCache:
        return self.ground.cache

    def evict(self, row: int) -> None:
        self.ground.evict(self.numbers[row])

    def restore(self, row: int) -> None:
        self.ground.restore(self.numbers[row])


def _occupants(ground: Ground, numbers: Sequence[int]) -> Occupants:
    pods = [ground.cluster.pods[number] for number in numbers]
    budgets = ground.cluster.budgets
    schema = ground.cache.schema
    requests = [compile_demand(replace(pod.spec, requests=pod.requests), schema).request for pod in pods]
    return Occupants(
        nodes=np.array([ground.node_of(pod) for pod in pods], np.intp),
        priorities=np.array([pod.spec.priority for pod in pods], np.int64),
        started_at=np.array([pod.started_at for pod in pods], np.float64),
        requests=np.array(requests, np.int64).reshape(len(pods), len(schema)),
        covered=np.array([[budget.covers(pod) for budget in budgets] for pod in pods], np.bool_).reshape(
            len(pods), len(budgets)
        ),
        allowed=np.array([budget.allowed for budget in budgets], np.int64),
    )
