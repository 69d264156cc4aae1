"""Fragmentation as FGD measures it: how much of a node's free GPU a workload cannot use.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023, section 3. The workload is a set of task classes m with popularity p_m, adding up
to 1. For a node n,

    F_n = sum over m of p_m x F_n(m)
    F_n(m) = all free GPU of the node           if a task of m asks for no GPU, or does not fit on the node
           = what is free on cards with less free than m asks of each card          otherwise

Rearranged for arrays: F_n = total free - sum over shapes k of W_nk x U_nk, where a *shape* is (cards, milli
of each), U_nk is what is free on cards large enough for k (0 if those are too few), and W_nk is the
popularity of the classes of shape k whose cpu and memory the node has free. Amounts of GPU are thousandths of
a card."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import DeviceRequest
from hoss.model.resources import CPU, MEMORY, WHOLE_CARD_MILLI


class TaskClass(NamedTuple):
    """A pod's requests: cpu in thousandths of a core, memory in bytes, cards, and milli of each card."""

    cpu: int
    memory: int
    cards: int
    milli: int

    @classmethod
    def of(cls, request: NDArray[np.int64], devices: DeviceRequest | None) -> "TaskClass":
        """Of pods with this request, (resources,), schema units, and these cards."""
        cards, milli = (0, 0) if devices is None else (devices.count, devices.milli)
        return cls(int(request[CPU]), int(request[MEMORY]), cards, milli)


# A sum over a node's cards has the number of large enough ones above this bit and what is free on them below.
_COUNT_SHIFT = 16
_FREE = (1 << _COUNT_SHIFT) - 1
# A table of weights has at most so many cells: classes x amounts of cpu x amounts of memory.
_MOST_CELLS = 1 << 20


@dataclass(frozen=True, slots=True)
class Popularity:
    """The c classes of the workload that request GPU, by shape; they have s shapes with t different amounts
    of each card. Weights are shares of all pods."""

    cpu: NDArray[np.int64]  # (c, 1)
    memory: NDArray[np.int64]  # (c, 1)
    weights: NDArray[np.float64]  # (c, 1)
    first: NDArray[np.intp]  # (s,): the first class of each shape
    cards: NDArray[np.int64]  # (s, 1)
    amounts: NDArray[np.intp]  # (s,): which of the t amounts
    # (t, 1001): of a card with so much free, that and one counted card if it is large enough, else 0
    large_enough: NDArray[np.int32]
    weights_table: "_WeightsTable | None"  # None: it would have more than _MOST_CELLS

    @classmethod
    def of(cls, counts: Mapping[TaskClass, int]) -> "Popularity":
        """From the number of pods of each class, those without GPU included."""
        total = max(sum(counts.values()), 1)
        classes = sorted((task for task in counts if task.cards), key=_shape)
        shapes = sorted({_shape(task) for task in classes})
        amounts, of_shape = np.unique(np.array([milli for _, milli in shapes], np.int32), return_inverse=True)
        free = np.arange(WHOLE_CARD_MILLI + 1, dtype=np.int32)
        cpu = np.array([[task.cpu] for task in classes], np.int64).reshape(-1, 1)
        memory = np.array([[task.memory] for task in classes], np.int64).reshape(-1, 1)
        weights = np.array([[counts[task] / total] for task in classes]).reshape(-1, 1)
        first = np.searchsorted([shapes.index(_shape(task)) for task in classes], np.arange(len(shapes)))
        return cls(
            cpu=cpu,
            memory=memory,
            weights=weights,
            first=first,
            cards=np.array([[cards] for cards, _ in shapes], np.int64).reshape(-1, 1),
            amounts=of_shape,
            large_enough=np.where(free >= amounts[:, None], free + (1 << _COUNT_SHIFT), 0).astype(np.int32),
            weights_table=_WeightsTable.of(cpu, memory, weights, first),
        )

    def weights_for(self, cpu: NDArray[np.int64], memory: NDArray[np.int64]) -> NDArray[np.float64]:
        """W of each shape on n nodes with these free amounts: (s, n)."""
        if self.weights_table is not None:
            return self.weights_table.look_up(cpu, memory)
        return _weights((self.cpu <= cpu) & (self.memory <= memory), self.weights, self.first)

    def usable(self, free: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """U of each shape on n nodes whose cards have so much free, (n, slots): (s, n)."""
        # A look-up for each card is quicker than comparing it with each amount.
        sums = self.large_enough.take(free.T, axis=1).sum(axis=1, dtype=np.int32)  # (t, n)
        sums = sums.take(self.amounts, axis=0)
        usable: NDArray[np.int32] = (sums & _FREE) * (sums >> _COUNT_SHIFT >= self.cards)
        return usable


@dataclass(frozen=True, slots=True)
class _WeightsTable:
    """W of each shape for all that can matter of a node: how many of the classes' amounts of cpu, and how
    many of their amounts of memory, it has free. A look-up takes a fraction of comparing with each class."""

    cpu: NDArray[np.int64]  # (i,), ascending
    memory: NDArray[np.int64]  # (j,), ascending
    cpus: list[int]  # the same two, quicker for one node
    memories: list[int]
    weights: NDArray[np.float64]  # (s, (i + 1) x (j + 1)), by how many amounts of cpu, then of memory

    @classmethod
    def of(
        cls,
        cpu: NDArray[np.int64],
        memory: NDArray[np.int64],
        weights: NDArray[np.float64],
        first: NDArray[np.intp],
    ) -> "_WeightsTable | None":
        """From columns as in Popularity. None for too many cells, or for none."""
        cpus, cpu_ranks = np.unique(cpu, return_inverse=True)
        memories, memory_ranks = np.unique(memory, return_inverse=True)
        rows, columns = len(cpus) + 1, len(memories) + 1
        if not len(first) or len(weights) * rows * columns > _MOST_CELLS:
            return None
        roomy = (cpu_ranks.reshape(-1, 1, 1) < np.arange(rows)[:, None]) & (
            memory_ranks.reshape(-1, 1, 1) < np.arange(columns)
        )
        of_cells = _weights(roomy.reshape(len(weights), -1), weights, first)
        return cls(cpus, memories, cpus.tolist(), memories.tolist(), of_cells)

    def look_up(self, cpu: NDArray[np.int64], memory: NDArray[np.int64]) -> NDArray[np.float64]:
        """As Popularity.weights_for."""
        cells = self.cpu.searchsorted(cpu, side="right")
        cells *= len(self.memory) + 1
        cells += self.memory.searchsorted(memory, side="right")
        found: NDArray[np.float64] = self.weights.take(cells, axis=1)
        return found

    def cell(self, cpu: int, memory: int) -> int:
        """The column of `weights` for a node with these free amounts."""
        return bisect_right(self.cpus, cpu) * (len(self.memories) + 1) + bisect_right(self.memories, memory)


def _weights(
    roomy: NDArray[np.bool_], weights: NDArray[np.float64], first: NDArray[np.intp]
) -> NDArray[np.float64]:
    """W of each shape from which of the c classes have cpu and memory, (c, n): (s, n).

    Sums, and no matrix product: its threads would keep other workers' cores busy."""
    found: NDArray[np.float64] = np.add.reduceat(roomy * weights, first, axis=0)
    return found


def _shape(task: TaskClass) -> tuple[int, int]:
    return task.cards, task.milli


def fragmentation(
    popularity: Popularity, cpu: NDArray[np.int64], memory: NDArray[np.int64], cards: NDArray[np.int64]
) -> NDArray[np.float64]:
    """F of n nodes with these free amounts: `cpu` and `memory` are (n,), `cards` is (n, slots), 0 for no
    card."""
    lost: NDArray[np.float64] = cards.sum(axis=1).astype(np.float64)
    if len(popularity.first):
        weights = popularity.weights_for(cpu, memory)
        weights *= popularity.usable(cards)
        lost -= weights.sum(axis=0)
    return lost


def free_on_cards(used: NDArray[np.uint16]) -> NDArray[np.int64]:
    """The free part of each card, 0 for absent ones: (n, slots), up to the last slot with something free."""
    free: NDArray[np.int64] = WHOLE_CARD_MILLI - np.minimum(used, WHOLE_CARD_MILLI).astype(np.int64)
    slots = int(free.any(axis=0).nonzero()[0].max(initial=-1)) + 1
    return free[:, :slots]


def free_after(free: NDArray[np.int64], count: int, milli: int) -> NDArray[np.int64]:
    """`free`, (n, slots), after a pod took `milli` of the `count` fullest cards that it fits on, first ones
    first.

    The ledger picks the same cards (hoss.model.resources.pick_cards). On a node with too few cards the pod
    takes all that fit."""
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
