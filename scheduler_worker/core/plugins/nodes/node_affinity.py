"""NodeAffinity: spec.nodeSelector, required and preferred node affinity."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, PreferredTerm, Requirement
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    Code,
    FilterPlugin,
    Reads,
    Refusals,
    Rejection,
    ScorePlugin,
)
from scheduler_worker.core.nodes import Mask, NodeSpecs

_ENFORCED = "node(s) didn't match scheduler-enforced node affinity"


class NodeAffinity(FilterPlugin, ScorePlugin):
    """The selector and the required affinity must both match; preferred terms score.

    `added_required` and `added_preferred` hold for every pod of the profile, besides its own (kube-scheduler:
    NodeAffinityArgs.addedAffinity)."""

    name = "NodeAffinity"
    filter_reads = score_reads = Reads.SPECS
    reason = "node(s) didn't match Pod's node affinity/selector"

    def __init__(
        self, added_required: NodeSelector | None = None, added_preferred: tuple[PreferredTerm, ...] = ()
    ) -> None:
        self._added_required = added_required
        self._added_preferred = added_preferred

    def pre_filter(self, spec: PodSpec) -> frozenset[str] | Rejection | None:
        """If every term names nodes, only those: the intersection within a term, the union over terms."""
        if spec.required_node_affinity is None:
            return None
        names: set[str] = set()
        for term in spec.required_node_affinity.terms:
            listed = [frozenset(r.values) for r in term.match_fields if r.operator == "In"]
            if not listed:
                return None
            names |= frozenset.intersection(*listed)
        if not names:
            if not spec.required_node_affinity.terms:
                return None
            return Rejection(self.name, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "pod affinity terms conflict")
        return frozenset(names)

    def filter(self, pod: Demand, nodes: NodeSpecs) -> Mask | None:
        """See FilterPlugin."""
        own, added = matching_nodes(pod.spec, nodes), self._matching_added(nodes)
        return own if added is None else added if own is None else own & added

    def refusals(self, pod: Demand, nodes: NodeSpecs) -> Refusals | None:
        """See FilterPlugin. As in kube-scheduler the profile's affinity is looked at first."""
        own, added = matching_nodes(pod.spec, nodes), self._matching_added(nodes)
        none = np.zeros(nodes.count, np.bool_)
        enforced = none if added is None else ~added
        refused = none if own is None else ~own & ~enforced
        return Refusals(((_ENFORCED, enforced), (self.reason, refused)), enforced | refused)

    def _matching_added(self, nodes: NodeSpecs) -> Mask | None:
        return None if self._added_required is None else _matching_any(self._added_required, nodes)

    def pre_score(self, spec: PodSpec) -> str | None:
        """See ScorePlugin. A preferred term that cannot be read, as one that compares with no number, cannot
        be scored; a required one matches no node."""
        problems = [
            f"[{i}]{problem}"
            for i, preferred in enumerate(spec.preferred_node_affinity)
            for problem in preferred.term.problems
        ]
        if not problems:
            return None
        return problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"

    def score(self, pod: Demand, nodes: NodeSpecs) -> NDArray[np.int64] | None:
        """Weights of the preferred terms that match. See ScorePlugin."""
        preferred = (*pod.spec.preferred_node_affinity, *self._added_preferred)
        if not preferred:
            return None
        points = [nodes.matches(p.term) * np.int64(p.weight) for p in preferred]
        weights: NDArray[np.int64] = points[0] if len(points) == 1 else np.add.reduce(points)
        return weights


def matching_nodes(spec: PodSpec, nodes: NodeSpecs) -> Mask | None:
    """Which of the nodes the pod's selector and required affinity match; None: it has neither."""
    mask: Mask | None = None
    if spec.node_selector:
        requirements = tuple(Requirement(key, "In", (value,)) for key, value in spec.node_selector)
        mask = nodes.matches(NodeSelectorTerm(requirements))
    if spec.required_node_affinity is not None:
        matched = _matching_any(spec.required_node_affinity, nodes)
        mask = matched if mask is None else mask & matched
    return mask


def _matching_any(selector: NodeSelector, nodes: NodeSpecs) -> Mask:
    terms = [nodes.matches(term) for term in selector.terms]
    if len(terms) == 1:
        return terms[0]
    matched: Mask = np.logical_or.reduce(terms or [np.zeros(nodes.count, np.bool_)])
    return matched
