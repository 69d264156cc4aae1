"""QuietNodes: prefers nodes whose pods do not use far more than they requested.

Whoever measures use labels the noisy nodes, as `hoss rebalance noisy` finds them. The plugin is in no preset
profile."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NOISY_LABEL
from hoss.model.selectors import NodeSelectorTerm, Requirement
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, Reads, ScorePlugin
from scheduler_worker.core.nodes import NodeSpecs

_NOISY = NodeSelectorTerm((Requirement(NOISY_LABEL, "In", ("true",)),))


class QuietNodes(ScorePlugin):
    """A node with the label hoss.dev/noisy=true scores 0, and any other node 100."""

    name = "QuietNodes"
    score_reads = Reads.SPECS

    def score(self, pod: Demand, nodes: NodeSpecs) -> NDArray[np.int64]:  # noqa: ARG002
        """The score itself. See ScorePlugin."""
        noisy = nodes.catalogue.matches(_NOISY, nodes.at)
        scores: NDArray[np.int64] = np.where(noisy, 0, MAX_SCORE).astype(np.int64)
        return scores

    def normalize_score(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:  # noqa: ARG002
        """As it is."""
        return raw
