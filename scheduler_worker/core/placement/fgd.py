"""Fragmentation gradient descent as an algorithm: whole batches, by the measure alone.

The profile `fgd` scores by the same measure, in whole points and together with the worker's other plugins.
This is the paper's own order of nodes, to compare algorithms with."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from hoss.model.placing import NodeSnapshot, PlacementBatch, PlacementRun
from hoss.model.resources import CPU, MEMORY
from hoss.wire.columns import NO_CARD
from scheduler_worker.core.placement.run_by_run import RoomOfRun, RunByRun, room_left
from scheduler_worker.core.plugins.devices.fragmentation import (
    Popularity,
    TaskClass,
    fragmentation,
    free_after,
    free_on_cards,
)

_GROWTH = 1.5  # popularity is computed again when so many times as many pods were seen
_MEMORY_PODS = 200_000  # from this number on older pods count half
_EQUAL = 6  # decimals of a thousandth of a card: what differs by less is rounding


class FgdPlacement(RunByRun):
    """Each pod goes where it makes the least free GPU useless to the usual pods, and of equal nodes to the
    one with the least GPU free, then the least room. Usual are the pods that it was asked about
    (scheduler_worker.core.plugins.devices.fragmentation has the measure and its source)."""

    def __init__(self) -> None:
        self._counts: Counter[TaskClass] = Counter()
        self._learnt_pods = 0
        self._popularity = Popularity.of(self._counts)

    def place(self, batch: PlacementBatch, snapshot: NodeSnapshot, budget: float) -> NDArray[np.intp]:
        """See PlacementAlgorithm."""
        for run in batch.runs:
            self._counts[_task(run)] += run.count
        if self._counts.total() > _MEMORY_PODS:
            self._counts = Counter({task: pods // 2 for task, pods in self._counts.items() if pods > 1})
            self._learnt_pods = 0
        if self._counts.total() > _GROWTH * self._learnt_pods:
            self._learnt_pods, self._popularity = self._counts.total(), Popularity.of(self._counts)
        return super().place(batch, snapshot, budget)

    def choose(self, run: PlacementRun, room: RoomOfRun) -> NDArray[np.intp]:
        """See RunByRun. Only the node that got a pod is measured again for the next one."""
        nodes, task = np.flatnonzero(room.places), _task(run)
        places, cpu, memory = room.places[nodes], room.free[CPU, nodes], room.free[MEMORY, nodes]
        used = np.full((len(nodes), 1), NO_CARD, np.uint16) if room.cards is None else room.cards[nodes]
        cards = free_on_cards(used)
        left = cards.sum(axis=1) + room_left(run, room)[nodes] / len(run.request)
        growth = self._growth(task, cpu, memory, cards)
        chosen: list[int] = []
        while len(chosen) < run.count and places.any():
            least = growth == growth.min(where=places > 0, initial=np.inf)
            best = int(np.where(least & (places > 0), left, np.inf).argmin())
            chosen.append(best)
            places[best] -= 1
            left[best] = -1.0  # filled up first, where no other node is better
            cpu[best], memory[best] = cpu[best] - task.cpu, memory[best] - task.memory
            here = slice(best, best + 1)
            cards[here] = free_after(cards[here], task.cards, task.milli)
            growth[here] = self._growth(task, cpu[here], memory[here], cards[here])
        found: NDArray[np.intp] = nodes[chosen]
        return found

    def _growth(
        self, task: TaskClass, cpu: NDArray[np.int64], memory: NDArray[np.int64], cards: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """By how much one such pod changes the fragmentation of n nodes with these free amounts: (n,)."""
        before_and_after = fragmentation(
            self._popularity,
            np.concatenate((cpu, cpu - task.cpu)),
            np.concatenate((memory, memory - task.memory)),
            np.concatenate((cards, free_after(cards, task.cards, task.milli))),
        )
        return np.round(before_and_after[len(cpu) :] - before_and_after[: len(cpu)], _EQUAL)


def _task(run: PlacementRun) -> TaskClass:
    devices = run.spec.devices
    cards, milli = (0, 0) if devices is None else (devices.count, devices.milli)
    return TaskClass(int(run.request[CPU]), int(run.request[MEMORY]), cards, milli)
