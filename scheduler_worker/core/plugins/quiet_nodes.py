"""QuietNodes: prefers nodes whose pods do not use far more than they requested.

Whoever measures use labels the noisy nodes, as `hoss rebalance noisy` finds them. The plugin is in no preset
profile."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeSelectorTerm, Requirement
from scheduler_worker.core.framework.extension_points import MAX_SCORE
from scheduler_worker.core.nodes import NodeCatalogue, NodeIndexes

NOISY_LABEL = "hoss.dev/noisy"
_NOISY = NodeSelectorTerm((Requirement(NOISY_LABEL, "In", ("true",)),))


class QuietNodes:
    """A node with the label hoss.dev/noisy=true scores 0, and any other node 100."""

    name = "QuietNodes"

    def raw_score(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> NDArray[np.int64] | None:  # noqa: ARG002
        """The score itself. See StaticScore."""
        scores: NDArray[np.int64] = np.where(catalogue.matches(_NOISY, at), 0, MAX_SCORE).astype(np.int64)
        return scores

    def normalize(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:  # noqa: ARG002
        """As it is."""
        return raw
