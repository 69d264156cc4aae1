"""The goal defragment-gpus: moves that make free cards usable again, by the measure that FGD places by.

A pod that leaves a node changes the fragments there, and a pod that comes to a node changes them there. The
gain of a move is the sum of both changes, so for each class the best pod to take away and the best node to
bring one to are found apart from each other. After a move only its two nodes are measured again."""

import numpy as np
from numpy.typing import NDArray

from hoss.errors import counted
from hoss.model.fit import cards_fit, each_fits
from hoss.model.resources import CPU, MEMORY, WHOLE_CARD_MILLI
from hoss.wire.columns import CARD_SLOTS
from scheduler_worker.core.nodes import NodeIndexes
from scheduler_worker.core.plugins.devices.fragmentation import (
    Popularity,
    fragmentation,
    free_after,
)
from scheduler_worker.core.rebalance.plan_state import Impossible, Move, MovePlan, PlanState

# Thousandths of a card. A move that gains less is not worth a restart.
LEAST_GAIN_MILLI = 50.0
_ROWS_AT_ONCE = 4096
_NEVER = -np.inf
_BITS = np.arange(CARD_SLOTS)


def defragment_gpus(state: PlanState, popularity: Popularity) -> MovePlan:
    """Plan the moves that lower the fragments of the workload with this popularity, the best one first. The
    gain is in thousandths of a card."""
    search = _GpuMoves(state, popularity)
    plan = MovePlan("fragments, thousandths of a card", before=search.total, after=0.0)
    refused = 0
    while state.budget.moves_left:
        best = search.best()
        if best is None:
            break
        row, target, gain = best
        if not search.make(row, target, gain):
            refused += 1
    plan.moves = state.moves
    plan.after = search.total
    if not search.nodes:
        plan.impossible.append(Impossible("cards", "no node has any"))
    if state.budget.used_up and search.best() is not None:
        plan.impossible.append(Impossible("further moves", f"would gain, but {state.budget.used_up}"))
    if refused:
        plan.impossible.append(
            Impossible(counted(refused, "further move"), "would gain, but a rule or a full node forbids them")
        )
    return plan


class _GpuMoves:
    """What each pod's leaving and each class's coming would change: g nodes with cards, c classes that have
    movable pods there, m' such pods."""

    def __init__(self, state: PlanState, popularity: Popularity) -> None:
        self._state = state
        self._popularity = popularity
        cache, pods = state.cache, state.pods
        used = cache.cards.used[: cache.size]
        carded = (used <= WHOLE_CARD_MILLI).any(axis=1) & cache.present
        self._nodes = np.flatnonzero(carded)
        self._position = np.full(cache.size, -1, np.intp)
        self._position[self._nodes] = np.arange(len(self._nodes))
        slots = np.flatnonzero((used[self._nodes] <= WHOLE_CARD_MILLI).any(axis=0))
        self._slots = int(slots.max(initial=-1)) + 1
        rows = np.flatnonzero(state.budget.movable() & carded[pods.nodes])
        self._rows = rows[np.argsort(pods.classes[rows], kind="stable")]
        self._classes, self._first = np.unique(pods.classes[self._rows], return_index=True)
        self._of_row = np.searchsorted(self._classes, pods.classes[self._rows])
        self._demands = [state.demand(number) for number in self._classes.tolist()]
        self._requests = np.array([demand.request for demand in self._demands], np.int64)
        self._requests = self._requests.reshape(len(self._demands), len(cache.schema)).T  # (R, c)
        self._milli = np.array([0 if d.devices is None else d.devices.milli for d in self._demands], np.int64)
        masks = [state.examined(number).static.mask for number in self._classes.tolist()]
        self._static = np.array(masks, np.bool_).reshape(len(masks), cache.size) & ~state.leaving
        # The different (count, milli) of cards; 0 in `_shape_of` stands for no card.
        shapes = [None if d.devices is None else (d.devices.count, d.devices.milli) for d in self._demands]
        self._shapes = sorted({shape for shape in shapes if shape is not None})
        self._shape_of = np.array([0 if x is None else self._shapes.index(x) + 1 for x in shapes], np.intp)
        self._fragments = self._measure(self._nodes)
        self._leaving = np.zeros(len(self._rows))
        self._update_leaving(np.arange(len(self._rows)))
        # The last column stands for all nodes without cards, where a pod that requests no card may go.
        self._coming = np.full((len(self._classes), len(self._nodes) + 1), _NEVER)
        for number, demand in enumerate(self._demands):
            if demand.devices is None:
                self._coming[number, -1] = 0.0
        self._update_coming(np.arange(len(self._nodes)))

    @property
    def nodes(self) -> int:
        """How many nodes have cards."""
        return len(self._nodes)

    @property
    def total(self) -> float:
        """The fragments of all nodes, in thousandths of a card."""
        return float(self._fragments.sum())

    def best(self) -> tuple[int, int, float] | None:
        """The move that promises most: position of the pod, position of the target, gain. None: none
        gains."""
        if not len(self._rows):
            return None
        top = np.maximum.reduceat(self._leaving, self._first)
        targets = self._coming.argmax(axis=1)
        gains = top + self._coming[np.arange(len(targets)), targets]
        for number in np.argsort(-gains, kind="stable").tolist():
            if gains[number] < LEAST_GAIN_MILLI:
                return None
            end = self._first[number + 1] if number + 1 < len(self._first) else len(self._rows)
            row = int(self._first[number] + self._leaving[self._first[number] : end].argmax())
            source = int(self._position[self._state.nodes[self._rows[row]]])
            coming = self._coming[number].copy()
            coming[source] = _NEVER
            target = int(coming.argmax())
            gain = float(self._leaving[row] + coming[target])
            # Only this class's own best pod is looked at: the next move finds the others.
            if gain >= LEAST_GAIN_MILLI:
                return row, target, gain
        return None

    def make(self, position: int, target: int, gain: float) -> bool:
        """Make the move, if the filters and the limits allow it. If they do not, it is not offered again."""
        state, row = self._state, int(self._rows[position])
        source, number = int(state.nodes[row]), int(self._of_row[position])
        if state.budget.why_fixed(row):
            self._leaving[position] = _NEVER
            return False
        mask = state.card_mask(row)
        state.take(row)
        node = self._accepting(number, source, target)
        if node < 0:
            state.put_back(row, source, mask)
            self._coming[number, target] = _NEVER
            return False
        state.put(row, node)
        state.record(Move(row, source, node, gain, "joins fragments of cards"))
        self._leaving[position] = _NEVER
        changed = np.array([at for at in {int(self._position[source]), int(self._position[node])} if at >= 0])
        self._fragments[changed] = self._measure(self._nodes[changed])
        self._update_coming(changed)
        of_nodes = np.isin(state.nodes[self._rows], self._nodes[changed])
        self._update_leaving(np.flatnonzero(of_nodes & (self._leaving > _NEVER)))
        return True

    def _accepting(self, number: int, source: int, target: int) -> int:
        """The node of this position, or the tightest one without cards; -1 if the filters refuse."""
        pod = self._state.examined(int(self._classes[number]))
        if target < len(self._nodes):
            node = int(self._nodes[target])
            return node if self._state.accepts(pod, node) else -1
        there = self._state.targets(pod, source)
        there[self._nodes] = False
        targets = np.flatnonzero(there)
        return self._state.tightest(pod.demand, targets) if len(targets) else -1

    # Measuring

    def _free(self, nodes: NodeIndexes) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Free cpu and memory, (n,), and the free part of each card, (n, slots)."""
        cache = self._state.cache
        free = cache.accounts.allocatable[:, nodes] - cache.requested[:, nodes]
        used = cache.cards.used[nodes, : self._slots]
        on_cards = np.where(used <= WHOLE_CARD_MILLI, WHOLE_CARD_MILLI - used.astype(np.int64), 0)
        return free[CPU], free[MEMORY], on_cards

    def _measure(self, nodes: NodeIndexes) -> NDArray[np.float64]:
        cpu, memory, on_cards = self._free(nodes)
        return fragmentation(self._popularity, cpu, memory, on_cards)

    def _update_leaving(self, positions: NDArray[np.intp]) -> None:
        """How far the fragments of its node fall when a pod leaves it, which is mostly a negative number."""
        pods = self._state.pods
        for first in range(0, len(positions), _ROWS_AT_ONCE):
            some = positions[first : first + _ROWS_AT_ONCE]
            rows = self._rows[some]
            nodes = self._state.nodes[rows]
            cpu, memory, on_cards = self._free(nodes)
            numbers = self._of_row[some]
            held = (pods.card_masks[rows, None] >> _BITS[: self._slots]) & 1
            after = fragmentation(
                self._popularity,
                cpu + self._requests[CPU, numbers],
                memory + self._requests[MEMORY, numbers],
                on_cards + held * self._milli[numbers][:, None],
            )
            self._leaving[some] = self._fragments[self._position[nodes]] - after

    def _update_coming(self, positions: NDArray[np.intp]) -> None:
        """How far the fragments of a node fall when a pod of a class comes to it; never, where it has no
        room."""
        cache, classes = self._state.cache, len(self._demands)
        nodes = self._nodes[positions]
        cpu, memory, on_cards = self._free(nodes)
        columns = (len(cache.schema), classes, len(nodes))
        room = each_fits(
            np.broadcast_to(cache.accounts.allocatable[:, None, nodes], columns),
            np.broadcast_to(cache.requested[:, None, nodes], columns),
            self._requests[:, :, None],
        )
        room &= self._static[:, nodes]
        later = [on_cards]
        for number, shape in enumerate(self._shapes, start=1):
            room[self._shape_of == number] &= cards_fit(cache.cards.used[nodes], *shape)
            later.append(free_after(on_cards, *shape))
        of_class, at = room.nonzero()
        cards_after = np.stack(later)
        self._coming[:, positions] = _NEVER
        for first in range(0, len(at), _ROWS_AT_ONCE):
            numbers, some = of_class[first : first + _ROWS_AT_ONCE], at[first : first + _ROWS_AT_ONCE]
            after = fragmentation(
                self._popularity,
                cpu[some] - self._requests[CPU, numbers],
                memory[some] - self._requests[MEMORY, numbers],
                cards_after[self._shape_of[numbers], some],
            )
            self._coming[numbers, positions[some]] = self._fragments[positions[some]] - after
