"""The offline scheduler: explains one pod's placement in a cluster, with the feasible nodes, their scores,
and why the others are out.

It runs the same plugins on the same columns as a worker, and reports the result node by node."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from hoss.model.devices import Allocation, RequestMapping
from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.framework.extension_points import Code, Failure, PlacedBatch, Rejection
from scheduler_worker.core.framework.plugin_state import PluginState
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.static_fit import StaticFit
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.placement.diagnosis import (
    ExaminedPod,
    FilterVerdict,
    failure_of,
    fit_error,
    rejection_of,
    verdicts,
)


@dataclass(frozen=True, slots=True)
class NodeRejection:
    """Why one node is out: the first plugin that refuses it, with all its reasons."""

    plugin: str  # empty: left out by a restriction to named nodes
    code: Code
    reasons: tuple[str, ...]


class DeviceBinding(NamedTuple):
    """What is allocated with a pod on one node."""

    claims: Mapping[str, Allocation]  # by claim
    mappings: tuple[RequestMapping, ...]


class PermitAnswer(NamedTuple):
    """What a permit plugin says of the pod, alone, on the best node."""

    plugin: str
    node: str
    answer: str  # goes, waits or denied
    reason: str  # empty where it goes


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """Nodes by name."""

    rejection: Rejection | None  # before any node was looked at; then all else is empty
    feasible: tuple[str, ...]  # ascending
    refusals: Mapping[str, NodeRejection]
    scores: Mapping[str, Mapping[str, int]]  # of feasible nodes, by plugin, weighted
    message: str  # empty where a node is feasible
    failure: Failure | None = None  # of a filter; then the pod is not placed and nodes are not judged
    # Of feasible nodes where claims are still to be bound: by claim, the volume that it would get; None: one
    # that is provisioned.
    bindings: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    # Of feasible nodes where claims are still to be allocated: their devices, and the requests that stand for
    # extended resources.
    devices: Mapping[str, DeviceBinding] = field(default_factory=dict)
    permits: tuple[PermitAnswer, ...] = ()
    pre_binds: tuple[
        str, ...
    ] = ()  # plugins that prepare reserved pods: not asked, for they would prepare it

    @property
    def totals(self) -> dict[str, int]:
        """Sums of the scores."""
        return {node: sum(scores.values()) for node, scores in self.scores.items()}


class ClusterView(Protocol):
    """Nodes and pods of a file (see cluster_snapshot.py) or of a running platform."""

    @property
    def cache(self) -> NodeInfoCache: ...
    @property
    def demands(self) -> DemandTable: ...


def examine(spec: PodSpec, cluster: ClusterView, profile: Profile) -> ExaminedPod:
    """The pod with its static fit and plugin state in this cluster."""
    cluster.demands.set_spread_by_default(profile.spread_by_default)
    demand = cluster.demands.compile(spec).demand
    pod = ExaminedPod(
        demand, StaticFit(demand.spec, profile, cluster.cache), PluginState(demand, profile, cluster.cache)
    )
    pod.refresh()
    return pod


def explain_placement(pod: ExaminedPod, cluster: ClusterView, profile: Profile) -> PlacementExplanation:
    """Filter and score one pod on all nodes."""
    rejection, failure = rejection_of(pod), None
    if rejection is None:
        failure = failure_of(pod, profile, cluster.cache)
    if rejection is not None or failure is not None:
        message = fit_error(pod, profile, cluster.cache)
        return PlacementExplanation(rejection, (), {}, {}, message, failure)
    name = cluster.cache.catalogue.name
    nodes = np.flatnonzero(cluster.cache.present)
    feasible = np.zeros(cluster.cache.size, np.bool_)
    feasible[nodes] = True
    refusals: dict[str, NodeRejection] = {}
    for verdict in verdicts(pod, profile, cluster.cache, nodes):
        for position in np.flatnonzero(verdict.refused).tolist():
            refusals[name(int(nodes[position]))] = refusal_at(verdict, position)
        feasible[nodes[verdict.refused]] = False
    at = np.flatnonzero(feasible)
    scores: dict[str, dict[str, int]] = {name(node): {} for node in at.tolist()}
    for plugin, values in _scores(pod, cluster, profile, feasible, at).items():
        for node, value in zip(at.tolist(), values, strict=True):
            scores[name(node)][plugin] = value
    message = "" if len(at) else fit_error(pod, profile, cluster.cache)
    reserved = {name(node): pod.plugin_state.reserve(node) for node in at.tolist()}
    bindings = {node: reservation.volumes for node, reservation in reserved.items() if reservation.volumes}
    devices = {
        node: DeviceBinding(reservation.devices, reservation.mappings)
        for node, reservation in reserved.items()
        if reservation.devices
    }
    explanation = PlacementExplanation(
        None, tuple(sorted(scores)), refusals, scores, message, bindings=bindings, devices=devices
    )
    if not len(at):
        return explanation
    totals = explanation.totals
    best = min(at.tolist(), key=lambda node: (-totals[name(node)], name(node)))
    return replace(
        explanation,
        permits=tuple(_permits(pod, cluster, profile, best)),
        pre_binds=tuple(plugin.name for plugin in profile.pre_binds),
    )


def _permits(pod: ExaminedPod, cluster: ClusterView, profile: Profile, node: int) -> Iterator[PermitAnswer]:
    nodes = cluster.cache.specs(np.array((node,), np.intp))
    pods = PlacedBatch((pod.demand.spec,), np.zeros(1, np.intp), nodes)
    for plugin in profile.permits:
        answer, permission = "goes", plugin.permit(pods)
        if permission is not None and permission.denied[0]:
            answer = "denied"
        elif permission is not None and permission.wait is not None and permission.wait[0]:
            answer = "waits"
        reason = "" if permission is None or answer == "goes" else permission.reason
        yield PermitAnswer(plugin.name, cluster.cache.catalogue.name(node), answer, reason)


def refusal_at(verdict: FilterVerdict, position: int) -> NodeRejection:
    """A verdict's rejection of one node that it refuses."""
    unresolvable = bool(verdict.refusals.unresolvable[position])
    return NodeRejection(
        verdict.plugin,
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE if unresolvable else Code.UNSCHEDULABLE,
        tuple(reason for reason, mask in verdict.refusals.reasons if mask[position]),
    )


def _scores(
    pod: ExaminedPod, cluster: ClusterView, profile: Profile, feasible: Mask, at: NodeIndexes
) -> dict[str, list[int]]:
    """Per plugin the weighted scores of the feasible nodes `at`."""
    found: dict[str, list[int]] = {}
    if not len(at):
        return found
    for static in pod.static.raws:
        raw = static.raw[at]
        normalized = static.plugin.normalize_score(raw, int(raw.max()))
        found[static.plugin.name] = (static.weight * normalized).tolist()
    view = cluster.cache.view(at, cards=profile.wants_cards(pod.demand))
    for scorer, weight in profile.dynamic_scores:
        score = scorer.score(pod.demand, view)
        if score is not None:
            found[scorer.name] = (weight * score.astype(np.int64)).tolist()
    for pod_scorer, weight, state in pod.plugin_state.scores:
        scores = state.scores(feasible)
        if scores is not None:
            found[pod_scorer.name] = (weight * scores[at]).tolist()
    return found
