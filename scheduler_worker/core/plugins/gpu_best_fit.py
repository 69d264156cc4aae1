"""GpuBestFit: packs pods where the least is left over of cpu, memory and GPU together."""

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework import MAX_SCORE
from scheduler_worker.core.plugins.fragmentation import free_on_cards
from scheduler_worker.core.view import NodeView


class GpuBestFit:
    """Best fit as "Beware of Fragmentation" (USENIX ATC 2023) compares with: the weighted sum of what would be left.

    Each of cpu, memory and GPU is measured against a large machine, so that one card counts alike wherever it is; the
    score is 100 x (1 - mean of what is left), rounded down, at least 0.
    """

    name = "GpuBestFit"
    reads_cards = True

    def __init__(self, cores: int = 128, memory_gib: int = 1024, cards: int = 8) -> None:
        """What a large machine has. The defaults are the largest of the openb trace."""
        for name, amount in (("cores", cores), ("memory_gib", memory_gib), ("cards", cards)):
            if not isinstance(amount, int) or amount < 1:
                raise ConfigError(f"is {amount!r}; it must be a whole number, 1 or more", where=name)
        self._scales = (3.0 * 1000 * cores, 3.0 * 2**30 * memory_gib, 3.0 * WHOLE_CARD_MILLI * cards)

    def score(self, demand: Demand, view: NodeView) -> NDArray[np.float64] | None:
        """See DynamicScore."""
        if view.cards_used is None:
            return None
        asked = 0 if demand.devices is None else demand.devices.count * demand.devices.milli
        cpu, memory, gpu = self._scales
        left = (free_on_cards(view.cards_used).sum(axis=1) - asked) / gpu
        left += (view.allocatable[CPU] - view.requested[CPU] - demand.request[CPU]) / cpu
        left += (view.allocatable[MEMORY] - view.requested[MEMORY] - demand.request[MEMORY]) / memory
        score: NDArray[np.float64] = np.floor(MAX_SCORE * np.clip(1.0 - left, 0.0, 1.0))
        return score
