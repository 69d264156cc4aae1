"""Strategies of the descheduler (kubernetes-sigs/descheduler), re-created from what its README says, and
with its examples' thresholds: it evicts pods, and a scheduler places them anew, wherever it likes.

A node's use is what its pods request. `nvidia.com/gpu` may be among the thresholds there, so cards are among
them here. Evictions end with the limit of moves."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import CPU, MEMORY, PODS, WHOLE_CARD_MILLI
from scheduler_worker.core.rebalance.plan_state import Move, PlanState

_LOW, _TARGET = 0.2, 0.5  # of each resource: thresholds, and targetThresholds

Place = Callable[[int], int]  # the scheduler: a pod's node, -1 if none accepts it


class Strategy(NamedTuple):
    """`profile`: of the scheduler that the README wants beside the strategy."""

    name: str
    profile: str
    # Yields the pods to evict, one at a time; each is placed anew before the next one is asked for. A pod is
    # evicted once at most: which pods a node has is read at the beginning.
    victims: Callable[[PlanState], Iterator[int]]


@dataclass(slots=True)
class Descheduled:
    """What became of the evicted pods. A pod that came back to its node was evicted all the same."""

    evicted: int = 0
    unplaced: list[tuple[int, int, int]] = field(default_factory=list)  # pod, its node, its cards

    def undo(self, state: PlanState) -> None:
        """Everybody is back."""
        state.undo_to(0)
        for row, node, mask in self.unplaced:
            state.put_back(row, node, mask)


def run(strategy: Strategy, state: PlanState, place: Place) -> Descheduled:
    """Evict what the strategy names, and place it anew."""
    done = Descheduled()
    for row in strategy.victims(state):
        if done.evicted >= state.budget.limits.moves:
            break
        source, mask = int(state.nodes[row]), state.card_mask(row)
        state.take(row)
        done.evicted += 1
        node = place(row)
        if node < 0:
            done.unplaced.append((row, source, mask))
        else:
            state.put(row, node)
            state.record(Move(row, source, node, 0.0, strategy.name))
    return done


def _use(state: PlanState) -> NDArray[np.float64]:
    """The share of cpu, memory, pods and cards that is requested of each node: (4, size)."""
    cache, size = state.cache, state.cache.size
    rows = [CPU, MEMORY, PODS]
    amounts = cache.requested[rows, :size] / np.maximum(cache.accounts.allocatable[rows, :size], 1)
    used = cache.cards.used[:size]
    there = used <= WHOLE_CARD_MILLI
    cards = np.where(there, used, 0).sum(axis=1) / np.maximum(there.sum(axis=1) * WHOLE_CARD_MILLI, 1)
    found: NDArray[np.float64] = np.concatenate((amounts, cards[None]))
    return found


def low_node_utilization(state: PlanState) -> Iterator[int]:
    """While there are nodes that are used less than the low threshold in everything: pods of nodes that are
    used more than the target in anything, the fullest first."""
    use, present = _use(state), state.cache.present[: state.cache.size]
    over = np.flatnonzero((use > _TARGET).any(axis=0) & present)
    fullest = over[np.argsort(-use[:, over].sum(axis=0), kind="stable")].tolist()
    for node, rows in [(node, state.rows_on(node)) for node in fullest]:
        for row in rows:
            use = _use(state)
            if not ((use < _LOW).all(axis=0) & present).any() or not (use[:, node] > _TARGET).any():
                break
            yield row


def high_node_utilization(state: PlanState) -> Iterator[int]:
    """All pods of nodes that are used less than the low threshold in everything, the emptiest first."""
    use, present = _use(state), state.cache.present[: state.cache.size]
    under = np.flatnonzero((use < _LOW).all(axis=0) & present)
    emptiest = under[np.argsort(use[:, under].sum(axis=0), kind="stable")].tolist()
    yield from [row for node in emptiest for row in state.rows_on(node)]


def remove_duplicates(state: PlanState) -> Iterator[int]:
    """Pods of one owner beyond an even share of each node. The trace names no owners: equal pods are taken to
    be one's."""
    pods = state.pods
    nodes = int(state.cache.present.sum())
    total, victims = Counter(pods.workloads.tolist()), []
    for node in np.flatnonzero(state.cache.present).tolist():
        kept: Counter[int] = Counter()
        for row in state.rows_on(node):
            owner = int(pods.workloads[row])
            kept[owner] += 1
            if kept[owner] > max(1, -(-total[owner] // nodes)):
                victims.append(row)
    yield from victims


STRATEGIES = (
    Strategy("HighNodeUtilization", "binpack", high_node_utilization),
    Strategy("LowNodeUtilization", "spread", low_node_utilization),
    Strategy("RemoveDuplicates", "spread", remove_duplicates),
)
