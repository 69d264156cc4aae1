"""NodeAffinity: spec.nodeSelector, required and preferred node affinity."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, PreferredTerm, Requirement
from scheduler_worker.core.framework.extension_points import MAX_SCORE, Code, Rejection
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes

_ENFORCED = "node(s) didn't match scheduler-enforced node affinity"


class NodeAffinity:
    """The selector and the required affinity must both match; preferred terms score.

    `added_required` and `added_preferred` hold for every pod of the profile, besides its own (kube-scheduler:
    NodeAffinityArgs.addedAffinity)."""

    name = "NodeAffinity"
    reason = "node(s) didn't match Pod's node affinity/selector"

    def __init__(
        self, added_required: NodeSelector | None = None, added_preferred: tuple[PreferredTerm, ...] = ()
    ) -> None:
        self._added_required = added_required
        self._added_preferred = added_preferred

    def reason_for(self, spec: PodSpec) -> str:
        """See StaticFilter. The profile's affinity is blamed for pods that have none of their own."""
        own = spec.node_selector or spec.required_node_affinity is not None
        return self.reason if own or self._added_required is None else _ENFORCED

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

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """See StaticFilter."""
        mask: Mask | None = None
        if spec.node_selector:
            requirements = tuple(Requirement(key, "In", (value,)) for key, value in spec.node_selector)
            mask = catalogue.matches(NodeSelectorTerm(requirements), at)
        for selector in (spec.required_node_affinity, self._added_required):
            if selector is None:
                continue
            terms = [catalogue.matches(term, at) for term in selector.terms]
            matched = (
                terms[0] if len(terms) == 1 else np.logical_or.reduce(terms or [np.zeros(len(at), np.bool_)])
            )
            mask = matched if mask is None else mask & matched
        return mask

    def raw_score(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> NDArray[np.int64] | None:
        """Weights of the preferred terms that match. See StaticScore."""
        preferred = (*spec.preferred_node_affinity, *self._added_preferred)
        if not preferred:
            return None
        points = [catalogue.matches(p.term, at) * np.int64(p.weight) for p in preferred]
        weights: NDArray[np.int64] = points[0] if len(points) == 1 else np.add.reduce(points)
        return weights

    def normalize(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        """The more the better."""
        return MAX_SCORE * raw // max(highest, 1)
