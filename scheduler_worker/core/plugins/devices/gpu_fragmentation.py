"""GpuFragmentation: puts a pod where it makes the least free GPU useless to the usual workload (FGD)."""

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.cache.columns import NodeView, OneNode
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, ScoreFastPaths, ScorePlugin
from scheduler_worker.core.plugins.devices.fragmentation import TaskClass
from scheduler_worker.core.plugins.devices.fragmentation_gradient import FragmentationGradient


class GpuFragmentation(ScorePlugin):
    """Fragmentation gradient descent: see scheduler_worker.core.plugins.devices.fragmentation.

    If the pod, on the cards that the ledger would pick, changes fragmentation by D thousandths of a card, the
    score is 100 / (1 + e^(D / steepness)), rounded down. With whole numbers nodes that differ by a few
    thousandths are equal, which allocates more in the end (docs/benchmarks.md). Popularity is learnt from
    this worker's pods."""

    name = "GpuFragmentation"
    reads_cards = True

    def __init__(self, steepness: float = 2500.0) -> None:
        if (
            not isinstance(steepness, (int, float))
            or isinstance(steepness, bool)
            or not 1 <= steepness <= 1e6
        ):
            raise ConfigError(f"is {steepness!r}; it must be a number from 1 to 1,000,000", where="steepness")
        self._steepness = steepness
        self._gradient = FragmentationGradient()
        self.fast_score = ScoreFastPaths(one_node=self._score_one)

    def observe(self, pod: Demand, pods: int) -> None:
        """See ScorePlugin."""
        self._gradient.observe({TaskClass.of(pod.request, pod.devices): pods})
        self.version = self._gradient.version

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[np.float64] | None:
        """See ScorePlugin."""
        if nodes.cards_used is None:
            return None
        growth = self._gradient.growth(
            TaskClass.of(pod.request, pod.devices),
            nodes.cards_used,
            nodes.allocatable[CPU] - nodes.requested[CPU],
            nodes.allocatable[MEMORY] - nodes.requested[MEMORY],
        )
        growth /= self._steepness
        # Beyond, the score is 0 or 100 anyway, and e^x has its limits. np.clip takes three times as long for
        # the few nodes that have changed since the last pod.
        np.maximum(growth, -50.0, out=growth)
        np.minimum(growth, 50.0, out=growth)
        score: NDArray[np.float64] = np.exp(growth, out=growth)
        score += 1.0
        np.divide(MAX_SCORE, score, out=score)
        return np.floor(score, out=score)

    def _score_one(self, pod: Demand, node: OneNode) -> int:
        """`score` of one node, to the bit."""
        if node.cards_used is None:
            return 0
        growth = self._gradient.growth_of_one(
            TaskClass.of(pod.request, pod.devices),
            node.cards_used,
            node.allocatable[CPU] - node.requested[CPU],
            node.allocatable[MEMORY] - node.requested[MEMORY],
        )
        # NumPy's e^x, as above: that of `math` differs in the last bit.
        return int(MAX_SCORE / (float(np.exp(min(max(growth / self._steepness, -50.0), 50.0))) + 1.0))
