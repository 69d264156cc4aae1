"""GpuFragmentation: puts a pod where it makes the least free GPU useless to the usual workload (FGD)."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.cache.columns import NodeView
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, ScorePlugin
from scheduler_worker.core.plugins.devices.card_states import CardStates
from scheduler_worker.core.plugins.devices.fragmentation import Popularity, TaskClass

# Popularity is computed again when the number of pods has grown by half: all scores change with it.
_GROWTH = 1.5
# From this number on older pods count half, so that popularity follows the workload.
_MEMORY_PODS = 200_000


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
        self.version = 0
        self._steepness = steepness
        self._counts: Counter[TaskClass] = Counter()
        self._seen = 0
        self._next = 1.0
        self._states = CardStates(Popularity.of(self._counts))

    def observe(self, pod: Demand, pods: int) -> None:
        """See ScorePlugin."""
        devices = pod.devices
        cards, milli = (devices.count, devices.milli) if devices is not None else (0, 0)
        self._counts[TaskClass(int(pod.request[CPU]), int(pod.request[MEMORY]), cards, milli)] += pods
        self._seen += pods
        if self._seen >= self._next:
            self._learn()

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[np.float64] | None:
        """See ScorePlugin."""
        if nodes.cards_used is None:
            return None
        devices = pod.devices
        growth = self._states.growth(
            nodes.cards_used,
            nodes.allocatable[CPU] - nodes.requested[CPU],
            nodes.allocatable[MEMORY] - nodes.requested[MEMORY],
            request=(int(pod.request[CPU]), int(pod.request[MEMORY])),
            devices=None if devices is None else (devices.count, devices.milli),
        )
        growth /= self._steepness
        # Beyond, the score is 0 or 100 anyway, and e^x has its limits. np.clip takes three times as long for
        # the few nodes that have changed since the last pod.
        np.maximum(growth, -50.0, out=growth)
        np.minimum(growth, 50.0, out=growth)
        return np.floor(MAX_SCORE / (1.0 + np.exp(growth)))

    def _learn(self) -> None:
        if self._seen > _MEMORY_PODS:
            self._counts = Counter({task: pods // 2 for task, pods in self._counts.items() if pods > 1})
            self._seen = self._counts.total()
        self._next = self._seen * _GROWTH
        self._states.set_popularity(Popularity.of(self._counts))
        self.version += 1
