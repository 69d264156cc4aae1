"""What the scheduler says of one pod in a given cluster: which nodes may take it, why not the others, with which scores.

The same plugins on the same columns as in a worker; only the answer is spelled out node by node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand, DemandTable
from scheduler_worker.core.diagnosis import Verdict, fit_error, verdicts
from scheduler_worker.core.framework import Code, Rejection
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.standings import PodStandings
from scheduler_worker.core.static import StaticFit


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node is out: the first plugin that refuses it, with all its reasons."""

    plugin: str  # empty: left out by a restriction to named nodes
    code: Code
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Nodes by name."""

    rejection: Rejection | None  # before any node was looked at; then all else is empty
    feasible: tuple[str, ...]  # ascending
    refusals: Mapping[str, Refusal]
    scores: Mapping[str, Mapping[str, int]]  # of feasible nodes, by plugin, weighted
    message: str  # empty where a node is feasible

    @property
    def totals(self) -> dict[str, int]:
        """Sums of the scores."""
        return {node: sum(scores.values()) for node, scores in self.scores.items()}


class Subject(NamedTuple):
    """See diagnosis.Judged."""

    demand: Demand
    static: StaticFit
    standings: PodStandings

    def refresh(self) -> None:
        """Take in what happened to the ground."""
        self.static.refresh()
        self.standings.refresh()


class Footing(Protocol):
    """The nodes and pods that a judge looks at: those of a file (see ground.py), or of a running platform."""

    @property
    def cache(self) -> NodeInfoCache: ...
    @property
    def demands(self) -> DemandTable: ...


def subject_of(spec: PodSpec, ground: Footing, profile: Profile) -> Subject:
    """The pod, ready to be judged."""
    demand = ground.demands.compile(spec).demand
    subject = Subject(
        demand, StaticFit(demand.spec, profile, ground.cache), PodStandings(demand, profile, ground.cache)
    )
    subject.refresh()
    return subject


def judge(subject: Subject, ground: Footing, profile: Profile) -> Judgement:
    """Filter and score one pod on all nodes."""
    if subject.static.rejection is not None:
        return Judgement(subject.static.rejection, (), {}, {}, fit_error(subject, profile, ground.cache))
    name = ground.cache.catalogue.name
    nodes = np.flatnonzero(ground.cache.present)
    feasible = np.zeros(ground.cache.size, np.bool_)
    feasible[nodes] = True
    refusals: dict[str, Refusal] = {}
    for verdict in verdicts(subject, profile, ground.cache, nodes):
        for position in np.flatnonzero(verdict.refused).tolist():
            refusals[name(int(nodes[position]))] = refusal_at(verdict, position)
        feasible[nodes[verdict.refused]] = False
    at = np.flatnonzero(feasible)
    scores: dict[str, dict[str, int]] = {name(node): {} for node in at.tolist()}
    for plugin, values in _scores(subject, ground, profile, feasible, at).items():
        for node, value in zip(at.tolist(), values, strict=True):
            scores[name(node)][plugin] = value
    message = "" if len(at) else fit_error(subject, profile, ground.cache)
    return Judgement(None, tuple(sorted(scores)), refusals, scores, message)


def refusal_at(verdict: Verdict, position: int) -> Refusal:
    """What a verdict says of one of its nodes, which it refuses."""
    unresolvable = bool(verdict.refusals.unresolvable[position])
    return Refusal(
        verdict.plugin,
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE if unresolvable else Code.UNSCHEDULABLE,
        tuple(reason for reason, mask in verdict.refusals.reasons if mask[position]),
    )


def _scores(
    subject: Subject, ground: Footing, profile: Profile, feasible: Mask, at: NodeIndexes
) -> dict[str, list[int]]:
    """Per plugin the weighted scores of the nodes `at`, which are the feasible ones."""
    found: dict[str, list[int]] = {}
    if not len(at):
        return found
    for static in subject.static.raws:
        raw = static.raw[at]
        normalized = static.plugin.normalize(raw, int(raw.max()))
        found[static.plugin.name] = (static.weight * normalized).tolist()
    view = ground.cache.view(at, cards=profile.wants_cards(subject.demand))
    for scorer, weight in profile.dynamic_scores:
        score = scorer.score(subject.demand, view)
        if score is not None:
            found[scorer.name] = (weight * score.astype(np.int64)).tolist()
    for pod_scorer, weight, standing in subject.standings.scores:
        scores = standing.scores(feasible)
        if scores is not None:
            found[pod_scorer.name] = (weight * scores[at]).tolist()
    return found
