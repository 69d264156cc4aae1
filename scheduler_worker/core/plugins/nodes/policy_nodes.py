"""PolicyNodes: the dispatcher's policy requires or prefers some of the nodes for the pods of a rule."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeSelectorTerm
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import FilterPlugin, Reads, ScorePlugin
from scheduler_worker.core.nodes import Mask, NodeSpecs


class PolicyNodes(FilterPlugin, ScorePlugin):
    """Obeys `PodSpec.scope`."""

    name = "PolicyNodes"
    filter_reads = score_reads = Reads.SPECS
    reason = "node(s) were outside the nodes of the policy's rule"

    def reason_for(self, spec: PodSpec) -> str:
        """With the rule and its nodes, for readers who do not know the policy. See FilterPlugin."""
        scope = spec.scope
        return (
            self.reason
            if scope is None
            else f"node(s) were outside the nodes of policy rule {scope.rule} ({scope})"
        )

    def filter(self, pod: Demand, nodes: NodeSpecs) -> Mask | None:
        """See FilterPlugin."""
        scope = pod.spec.scope
        if scope is None or not scope.required:
            return None
        return nodes.matches(NodeSelectorTerm(scope.requirements))

    def score(self, pod: Demand, nodes: NodeSpecs) -> NDArray[np.int64] | None:
        """1 inside, 0 outside. See ScorePlugin."""
        scope = pod.spec.scope
        if scope is None or scope.required:
            return None
        return nodes.matches(NodeSelectorTerm(scope.requirements)).astype(np.int64)
