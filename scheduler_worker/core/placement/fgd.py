"""Fragmentation gradient descent as an algorithm: whole batches, by the measure alone.

The profile `fgd` scores by the same measure, in whole points and together with the worker's other plugins.
This is the paper's own order of nodes, to compare algorithms with."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import take_cards
from hoss.model.placing import NodeSnapshot, PlacementBatch, PlacementRun
from hoss.model.resources import CPU, MEMORY
from hoss.wire.columns import CARD_SLOTS, NO_CARD
from scheduler_worker.core.placement.run_by_run import RoomOfRun, RunByRun, room_left
from scheduler_worker.core.plugins.devices.fragmentation import TaskClass, free_on_cards
from scheduler_worker.core.plugins.devices.fragmentation_gradient import FragmentationGradient

_EQUAL = 6  # decimals of a thousandth of a card: what differs by less is rounding


class FgdPlacement(RunByRun):
    """Each pod goes where it makes the least free GPU useless to the usual pods, and of equal nodes to the
    one with the least GPU free, then the least room. Usual are the pods that it was asked about
    (scheduler_worker.core.plugins.devices.fragmentation has the measure and its source)."""

    def __init__(self) -> None:
        self._gradient = FragmentationGradient()

    def place(self, batch: PlacementBatch, snapshot: NodeSnapshot, budget: float) -> NDArray[np.intp]:
        """See PlacementAlgorithm."""
        counts: Counter[TaskClass] = Counter()
        for run in batch.runs:
            counts[_task(run)] += run.count
        self._gradient.observe(counts)
        return super().place(batch, snapshot, budget)

    def choose(self, run: PlacementRun, room: RoomOfRun) -> NDArray[np.intp]:
        """See RunByRun. Only the node that got a pod is measured again for the next one."""
        nodes, task = np.flatnonzero(room.places), _task(run)
        places, cpu, memory = room.places[nodes], room.free[CPU, nodes], room.free[MEMORY, nodes]
        none = np.full((len(nodes), CARD_SLOTS), NO_CARD, np.uint16)
        used = none if room.cards is None else room.cards[nodes]
        left = free_on_cards(used).sum(axis=1) + room_left(run, room)[nodes] / len(run.request)
        growth = self._growth(task, used, cpu, memory)
        chosen: list[int] = []
        while len(chosen) < run.count and places.any():
            least = growth == growth.min(where=places > 0, initial=np.inf)
            best = int(np.where(least & (places > 0), left, np.inf).argmin())
            chosen.append(best)
            places[best] -= 1
            left[best] = -1.0  # filled up first, where no other node is better
            cpu[best], memory[best] = cpu[best] - task.cpu, memory[best] - task.memory
            if task.cards:
                take_cards(used, (best,), task.cards, task.milli)
            here = slice(best, best + 1)
            growth[here] = self._growth(task, used[here], cpu[here], memory[here])
        found: NDArray[np.intp] = nodes[chosen]
        return found

    def _growth(
        self,
        task: TaskClass,
        cards_used: NDArray[np.uint16],
        cpu: NDArray[np.int64],
        memory: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        return np.round(self._gradient.growth(task, cards_used, cpu, memory), _EQUAL)


def _task(run: PlacementRun) -> TaskClass:
    return TaskClass.of(run.request, run.spec.devices)
