"""GpuBestFit: packs pods where the least cpu, memory and GPU together are left over."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.resources import CPU, MEMORY, WHOLE_CARD_MILLI
from scheduler_worker.core.cache.columns import NodeView
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, ScorePlugin
from scheduler_worker.core.plugins.devices.fragmentation import free_on_cards

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

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[np.float64] | None:
        """See ScorePlugin."""
        if nodes.cards_used is None:
            return None
        requested = 0 if pod.devices is None else pod.devices.count * pod.devices.milli
        left = (free_on_cards(nodes.cards_used).sum(axis=1) - requested) * self._gpu
        left += (nodes.allocatable[CPU] - nodes.requested[CPU] - pod.request[CPU]) * self._cpu
        left += (nodes.allocatable[MEMORY] - nodes.requested[MEMORY] - pod.request[MEMORY]) * self._memory
        score: NDArray[np.float64] = np.floor(MAX_SCORE * np.clip(1.0 - left, 0.0, 1.0))
        return score
