"""Pods unlike any other, a glance each: the best of some hundred nodes, for several pods in one pass (docs/adr/0034).

A class that is met for the first time, with a single pod, would be ranked on all nodes for that one pod. It looks at a *window* of
neighbouring nodes instead. Pods that are placed together look at windows beside each other, so that none depends on another,
and the next ones look further on: every node has its turn.
"""

from collections.abc import Sequence
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import Demand, PodClass
from scheduler_worker.core.placement import Placed
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.rankings import Rankings
from scheduler_worker.core.ties import INFEASIBLE, SCORE_SHIFT, Keys, TieOrder
from scheduler_worker.core.view import Asked
from scheduler_worker.core.work import Run

# Pods placed in one pass: more save little, and their columns would not stay in the processor's cache.
_AT_ONCE = 16

# A window with fewer nodes that may take the pod is no choice; so says kube-scheduler's minFeasibleNodesToFind.
_ENOUGH = 100


class Glances:
    """`nodes` is the width of a window, 0 for none at all; `alternates` as in RunPlacer."""

    def __init__(
        self,
        cache: NodeInfoCache,
        profile: Profile,
        rankings: Rankings,
        ties: TieOrder,
        rng: np.random.Generator,
        *,
        nodes: int,
        alternates: int,
    ) -> None:
        self._cache = cache
        self._profile = profile
        self._rankings = rankings
        self._ties = ties
        self._rng = rng
        self._nodes = nodes
        self._alternates = alternates
        self._start = -1  # of the next window; not yet anywhere
        self._had: WeakSet[Demand] = WeakSet()  # those that come again get a ranking

    def suits(self, run: Run) -> bool:
        """Whether the run is a pod for a glance: alone, never met, with wishes that only its own node can meet."""
        if len(run.rows) != 1 or self._profile.side_by_side is None or self._profile.mixes:
            return False
        demand = run.pod_class.demand
        enough = 0 < 2 * self._nodes <= self._cache.size
        return enough and demand.plain and demand not in self._rankings and demand not in self._had

    @property
    def room(self) -> int:
        """How many pods can be placed at once."""
        return min(_AT_ONCE, self._cache.size // self._nodes)

    def place(self, classes: Sequence[PodClass]) -> list[Placed | None]:
        """Place a pod of each of these classes, no more than there is `room` for, and assume it; None for those that a glance finds no good node for.

        Raises PluginFailed before it has placed any.
        """
        self._had.update(pod_class.demand for pod_class in classes)
        statics = [self._rankings.static_of(pod_class.demand) for pod_class in classes]
        # What specs make of a score is normalised over all nodes; a window would not know the best.
        able = [i for i, static in enumerate(statics) if not static.varying]
        first = self._next_windows(len(able))
        placed: list[Placed | None] = [None] * len(classes)
        if not able:
            return placed
        shape = (len(able), self._nodes)
        windows = slice(first, first + len(able) * self._nodes)
        demands = [classes[i].demand for i in able]
        asked = Asked(
            np.stack([demand.request for demand in demands], axis=1)[:, :, None],
            np.stack([demand.nonzero for demand in demands], axis=1),
        )
        feasible, score = self._profile.evaluate_each(asked, self._cache.side_by_side(windows, shape))
        for row, i in enumerate(able):
            start = first + row * self._nodes
            feasible[row] &= statics[i].mask[start : start + self._nodes]
        self._ties.cover(self._cache.size)
        keys = score.astype(np.int64)
        keys += np.array([[statics[i].constant] for i in able])
        keys <<= SCORE_SHIFT
        keys += self._ties.bits[windows].reshape(shape)
        keys[~feasible] = INFEASIBLE
        good = np.flatnonzero(np.count_nonzero(feasible, axis=1) >= min(_ENOUGH, self._nodes))
        chosen = self._best(keys[good], first + good * self._nodes)
        nodes = chosen[:, 0]
        chosen_classes = [classes[able[row]] for row in good.tolist()]
        self._cache.assume_each(nodes, asked.request[:, good, 0], [pod_class.group for pod_class in chosen_classes])
        none = np.zeros(1, np.uint16)
        for at, row in enumerate(good.tolist()):
            placed[able[row]] = Placed(nodes[at : at + 1], chosen[at : at + 1, 1:], none)
        return placed

    def _next_windows(self, pods: int) -> int:
        """Where the windows of so many pods begin. Those at the end reach back to nodes that have had their turn."""
        size = self._cache.size
        if self._start < 0:
            self._start = int(self._rng.integers(size))  # workers should not look at the same nodes
        first = min(self._start if self._start < size else 0, size - pods * self._nodes)
        self._start = first + pods * self._nodes
        return first

    def _best(self, keys: Keys, starts: NDArray[np.intp]) -> NDArray[np.intp]:
        """Of each row the best node and, on its shard, the next best ones, -1 where there are no more; overwrites the keys."""
        rows = np.arange(len(keys))
        chosen = np.full((len(keys), 1 + self._alternates), -1, np.intp)
        for rank in range(1 + self._alternates):
            column = keys.argmax(axis=1)
            found = keys[rows, column] != INFEASIBLE
            chosen[found, rank] = (starts + column)[found]
            keys[rows, column] = INFEASIBLE
            if rank == 0 and self._cache.shards > 1:
                shards = (starts[:, None] + np.arange(keys.shape[1])) % self._cache.shards
                keys[shards != (chosen[:, :1] % self._cache.shards)] = INFEASIBLE
        return chosen
