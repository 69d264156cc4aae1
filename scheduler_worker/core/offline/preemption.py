"""Preemption in a cluster snapshot as kube-scheduler reports it: all candidates, the choice, the message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hoss.model.cluster import BoundPod
from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.placement.diagnosis import ExaminedPod, resolvable
from scheduler_worker.core.preemption.search import (
    NEVER,
    VICTIMS_LEAVING,
    PreemptionSearch,
    VictimCandidates,
    unhelpful,
)


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node that the pod would fit on without these pods."""

    victims: tuple[BoundPod, ...]  # most important first
    violations: int  # victims whose eviction violates a disruption budget


@dataclass(frozen=True, slots=True)
class PreemptionResult:
    """The chosen node, and all candidates by node name. No node: preemption does not help, see `message`, or
    `failure` where that is unknown, because filters could not judge nodes."""

    node: str
    candidates: Mapping[str, PreemptionCandidate]
    message: str
    failure: str = ""

    @property
    def victims(self) -> tuple[BoundPod, ...]:
        """Pods to be evicted."""
        return self.candidates[self.node].victims if self.node else ()


def preempt(
    spec: PodSpec,
    pod: ExaminedPod,
    snapshot: ClusterSnapshot,
    profile: Profile,
    nominated_node: str = "",
) -> PreemptionResult:
    """Find the node to make room on, for a pod that fits on none. Leaves the snapshot as it was.
    `nominated_node`: where room was made for the pod before."""
    if not spec.may_preempt:
        return PreemptionResult("", {}, NEVER)
    name = snapshot.cache.catalogue.name
    nodes = np.array(sorted(resolvable(pod, profile, snapshot.cache).tolist(), key=name), np.intp)
    pods = snapshot.cluster.pods
    # Where no eviction helps on the nominated node any more, another one is found.
    nominated = [node for node in nodes.tolist() if name(node) == nominated_node]
    if any(
        pods[number].preempted and pods[number].spec.priority < spec.priority
        for node in nominated
        for number in snapshot.pods_on(node)
    ):
        return PreemptionResult("", {}, VICTIMS_LEAVING)
    numbers = [
        number
        for node in nodes.tolist()
        for number in snapshot.pods_on(node)
        if pods[number].spec.priority < spec.priority
    ]
    search = PreemptionSearch(
        pod, profile, _CandidatePods(snapshot, numbers), _candidates(snapshot, numbers), nodes
    )
    candidates = {
        name(found.node): PreemptionCandidate(
            tuple(pods[numbers[row]] for row in found.victims.tolist()), found.violations
        )
        for found in search.candidates()
    }
    best = search.best()
    if best is not None:
        return PreemptionResult(name(best.node), candidates, "")
    if search.failures:
        failures = search.failures
        return PreemptionResult("", {}, "", failures[0] if len(failures) == 1 else f"[{', '.join(failures)}]")
    present = int(snapshot.cache.present.sum())
    return PreemptionResult("", {}, unhelpful(search.why_not(), nodes=present, tried=len(nodes)))


@dataclass(frozen=True, slots=True)
class _CandidatePods:
    """Some pods of a snapshot, by row."""

    snapshot: ClusterSnapshot
    numbers: Sequence[int]

    @property
    def cache(self) -> NodeInfoCache:
        return self.snapshot.cache

    def evict(self, row: int) -> None:
        self.snapshot.evict(self.numbers[row])

    def restore(self, row: int) -> None:
        self.snapshot.restore(self.numbers[row])


def _candidates(snapshot: ClusterSnapshot, numbers: Sequence[int]) -> VictimCandidates:
    pods = [snapshot.cluster.pods[number] for number in numbers]
    budgets = snapshot.cluster.budgets
    schema = snapshot.cache.schema
    requests = [compile_demand(replace(pod.spec, requests=pod.requests), schema).request for pod in pods]
    return VictimCandidates(
        nodes=np.array([snapshot.node_of(pod) for pod in pods], np.intp),
        priorities=np.array([pod.spec.priority for pod in pods], np.int64),
        started_at=np.array([pod.started_at for pod in pods], np.float64),
        requests=np.array(requests, np.int64).reshape(len(pods), len(schema)),
        covered=np.array([[budget.covers(pod) for budget in budgets] for pod in pods], np.bool_).reshape(
            len(pods), len(budgets)
        ),
        allowed=np.array([budget.allowed for budget in budgets], np.int64),
    )
