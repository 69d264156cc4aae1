"""PolicyNodes: the dispatcher's policy requires or prefers some of the nodes for the pods of a rule."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeSelectorTerm
from scheduler_worker.core.framework.extension_points import MAX_SCORE
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes


class PolicyNodes:
    """Obeys `PodSpec.scope`."""

    name = "PolicyNodes"
    reason = "node(s) were outside the nodes of the policy's rule"

    def reason_for(self, spec: PodSpec) -> str:
        """With the rule and its nodes, for readers who do not know the policy. See StaticFilter."""
        scope = spec.scope
        return (
            self.reason
            if scope is None
            else f"node(s) were outside the nodes of policy rule {scope.rule} ({scope})"
        )

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """See StaticFilter."""
        if spec.scope is None or not spec.scope.required:
            return None
        return catalogue.matches(NodeSelectorTerm(spec.scope.requirements), at)

    def raw_score(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> NDArray[np.int64] | None:
        """1 inside, 0 outside. See StaticScore."""
        if spec.scope is None or spec.scope.required:
            return None
        return catalogue.matches(NodeSelectorTerm(spec.scope.requirements), at).astype(np.int64)

    def normalize(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        """The more the better."""
        return MAX_SCORE * raw // max(highest, 1)
