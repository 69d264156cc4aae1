"""GpuBestFit: packs pods where the least is left over of cpu, memory and GPU together."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework import MAX_SCORE
from scheduler_worker.core.plugins.fragmentation import free_on_cards
from scheduler_worker.core.view import NodeView

# What counts as much: the largest machine of the openb trace. A card then counts alike wherever it is.
_CORES_MILLI, _MEMORY_BYTES, _GPU_MILLI = 128_000, 2**40, 8 * WHOLE_CARD_MILLI


class GpuBestFit:
    """Best fit as "Beware of Fragmentation" (USENIX ATC 2023) compares with: least weighted sum of what would be left.

    The score is 100 x (1 - weighted mean of what is left, as fractions of a large machine), rounded down, at least 0.
    """

    name = "GpuBestFit"
    reads_cards = True

    def __init__(self, cpu: int = 1, memory: int = 0, gpu: int = 1) -> None:
        """Weights, 0 to 100. Memory has none by default, as in the paper's simulator: in the trace it is never short."""
        given: dict[str, Any] = {"cpu": cpu, "memory": memory, "gpu": gpu}
        for name, weight in given.items():
            if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= MAX_SCORE:
                raise ConfigError(f"is {weight!r}; it must be a whole number from 0 to {MAX_SCORE}", where=name)
        total = cpu + memory + gpu
        if not total:
            raise ConfigError("is 0, as are memory and gpu; one must weigh something", where="cpu")
        self._cpu = cpu / (total * _CORES_MILLI)
        self._memory = memory / (total * _MEMORY_BYTES)
        self._gpu = gpu / (total * _GPU_MILLI)

    def score(self, demand: Demand, view: NodeView) -> NDArray[np.float64] | None:
        """See DynamicScore."""
        if view.cards_used is None:
            return None
        asked = 0 if demand.devices is None else demand.devices.count * demand.devices.milli
        left = (free_on_cards(view.cards_used).sum(axis=1) - asked) * self._gpu
        left += (view.allocatable[CPU] - view.requested[CPU] - demand.request[CPU]) * self._cpu
        left += (view.allocatable[MEMORY] - view.requested[MEMORY] - demand.request[MEMORY]) * self._memory
        score: NDArray[np.float64] = np.floor(MAX_SCORE * np.clip(1.0 - left, 0.0, 1.0))
        return score
