"""GpuBestFit: packs pods where the least cpu, memory and GPU together are left over."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.resources import CPU, MEMORY, WHOLE_CARD_MILLI
from hoss.wire.columns import CARD_SLOTS
from scheduler_worker.core.cache.columns import NodeView, OneNode
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, ScoreFastPaths, ScorePlugin

# Amounts are fractions of the largest machine of the openb trace, so that a card counts alike on every node.
_CORES_MILLI, _MEMORY_BYTES, _GPU_MILLI = 128_000, 2**40, 8 * WHOLE_CARD_MILLI


class GpuBestFit(ScorePlugin):
    """The best fit that "Beware of Fragmentation" (USENIX ATC 2023) compares with: least weighted sum of
    leftovers.

    The score is 100 x (1 - weighted mean of leftovers as fractions of a large machine), rounded down, at
    least 0."""

    name = "GpuBestFit"
    reads_cards = True

    def __init__(self, cpu: int = 1, memory: int = 0, gpu: int = 1) -> None:
        """Weights, 0 to 100. Memory has weight 0 by default, as in the paper's simulator: the trace is never
        short of it."""
        given: dict[str, Any] = {"cpu": cpu, "memory": memory, "gpu": gpu}
        for name, weight in given.items():
            if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= MAX_SCORE:
                raise ConfigError(
                    f"is {weight!r}; it must be a whole number from 0 to {MAX_SCORE}", where=name
                )
        total = cpu + memory + gpu
        if not total:
            raise ConfigError("is 0, as are memory and gpu; one must weigh something", where="cpu")
        self._cpu = cpu / (total * _CORES_MILLI)
        self._memory = memory / (total * _MEMORY_BYTES)
        self._gpu = gpu / (total * _GPU_MILLI)
        self.fast_score = ScoreFastPaths(one_node=self._score_one)

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[np.float64] | None:
        """See ScorePlugin."""
        if nodes.cards_used is None:
            return None
        # Absent cards count as full.
        used = np.minimum(nodes.cards_used, WHOLE_CARD_MILLI).sum(axis=1, dtype=np.int64)
        requested = 0 if pod.devices is None else pod.devices.count * pod.devices.milli
        left = (CARD_SLOTS * WHOLE_CARD_MILLI - requested - used) * self._gpu
        for row, weight in ((CPU, self._cpu), (MEMORY, self._memory)):
            if weight:
                left += (nodes.allocatable[row] - nodes.requested[row] - pod.request[row]) * weight
        # np.clip takes three times as long for the few nodes that have changed since the last pod.
        score: NDArray[np.float64] = np.subtract(1.0, left, out=left)
        np.maximum(score, 0.0, out=score)
        np.minimum(score, 1.0, out=score)
        score *= MAX_SCORE
        return np.floor(score, out=score)

    def _score_one(self, pod: Demand, node: OneNode) -> int:
        """`score` of one node, by the same operations in the same order."""
        if node.cards_used is None:
            return 0
        used = sum([min(used, WHOLE_CARD_MILLI) for used in node.cards_used])
        requested = 0 if pod.devices is None else pod.devices.count * pod.devices.milli
        left = (CARD_SLOTS * WHOLE_CARD_MILLI - requested - used) * self._gpu
        for row, weight in ((CPU, self._cpu), (MEMORY, self._memory)):
            if weight:
                left += (node.allocatable[row] - node.requested[row] - int(pod.request[row])) * weight
        return int(min(max(1.0 - left, 0.0), 1.0) * MAX_SCORE)
