"""How much of a node's free GPU a workload cannot use: the measure of fragmentation that FGD descends.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 3. The workload is a set of task classes m with popularity p_m, adding up to 1. For a node n,

    F_n = sum over m of p_m x F_n(m)
    F_n(m) = all free GPU of the node           if a task of m asks for no GPU, or does not fit on the node
           = what is free on cards with less free than m asks of each card          otherwise

Rearranged for arrays: F_n = total free - sum over shapes k of W_nk x U_nk, where a *shape* is (cards, milli of each),
U_nk is what is free on cards large enough for k (0 if those are too few), and W_nk is the popularity of
the classes of shape k whose cpu and memory the node has free. Amounts of GPU are thousandths of a card.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import WHOLE_CARD_MILLI


class TaskClass(NamedTuple):
    """What fragmentation knows of a pod: cpu in thousandths of a core, memory in bytes, cards and milli of each."""

    cpu: int
    memory: int
    cards: int
    milli: int


@dataclass(frozen=True, slots=True)
class Popularity:
    """The workload's classes that ask for GPU, c of them, of s shapes. Weights are shares of all pods."""

    cpu: NDArray[np.int64]  # (c,)
    memory: NDArray[np.int64]  # (c,)
    weights: NDArray[np.float64]  # (c, s): the class's popularity in its shape's column
    cards: NDArray[np.int64]  # (s,)
    milli: NDArray[np.int64]  # (s,)

    @classmethod
    def of(cls, counts: Mapping[TaskClass, int]) -> "Popularity":
        """From how many pods of each class there were, those without GPU included."""
        total = max(sum(counts.values()), 1)
        classes = [task for task in counts if task.cards]
        shapes = sorted({(task.cards, task.milli) for task in classes})
        weights = np.zeros((len(classes), len(shapes)))
        for row, task in enumerate(classes):
            weights[row, shapes.index((task.cards, task.milli))] = counts[task] / total
        return cls(
            cpu=np.array([task.cpu for task in classes], np.int64),
            memory=np.array([task.memory for task in classes], np.int64),
            weights=weights,
            cards=np.array([cards for cards, _ in shapes], np.int64),
            milli=np.array([milli for _, milli in shapes], np.int64),
        )


def fragmentation(
    popularity: Popularity, cpu: NDArray[np.int64], memory: NDArray[np.int64], cards: NDArray[np.int64]
) -> NDArray[np.float64]:
    """F of n nodes with this much free: `cpu` and `memory` are (n,), `cards` is (n, slots), 0 where there is no card."""
    roomy = (popularity.cpu <= cpu[:, None]) & (popularity.memory <= memory[:, None])  # (n, c)
    weights = roomy @ popularity.weights  # (n, s)
    large_enough = cards[:, :, None] >= popularity.milli  # (n, slots, s)
    usable = (large_enough * cards[:, :, None]).sum(axis=1)
    usable[large_enough.sum(axis=1) < popularity.cards] = 0
    lost: NDArray[np.float64] = cards.sum(axis=1) - (weights * usable).sum(axis=1)
    return lost


def free_on_cards(used: NDArray[np.uint16]) -> NDArray[np.int64]:
    """What is free of each card, 0 for absent ones: (n, slots), slots being as many as any of the nodes has."""
    present = used <= WHOLE_CARD_MILLI
    slots = int(present.any(axis=0).nonzero()[0].max(initial=-1)) + 1
    free: NDArray[np.int64] = np.where(present[:, :slots], WHOLE_CARD_MILLI - used[:, :slots].astype(np.int64), 0)
    return free


def free_after(free: NDArray[np.int64], count: int, milli: int) -> NDArray[np.int64]:
    """`free` (n, slots) once a pod has taken `milli` of the `count` fullest cards it fits on, of equal ones the first.

    These are the cards the ledger picks (hoss.model.fit.pick_cards). Of a node where they are too few, what there is.
    """
    never = 2 * WHOLE_CARD_MILLI
    order = np.where(free >= milli, free, never)
    after: NDArray[np.int64] = free.copy()
    rows = np.arange(len(free))
    for _ in range(min(count, free.shape[1])):
        slot = order.argmin(axis=1)
        taken = order[rows, slot] < never
        after[rows[taken], slot[taken]] -= milli
        order[rows, slot] = never
    return after
