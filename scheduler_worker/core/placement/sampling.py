"""Sampled scoring: the best of some hundred nodes for a single pod of a new class, several such pods in one
pass (docs/adr/0034; kube-scheduler: percentageOfNodesToScore).

Without it, such a class would be ranked on all nodes for one pod. A *sample* is a range of neighbouring
nodes. Pods that are placed together use samples side by side, so that none depends on another. The next pods
use the following nodes: every node has its turn."""

from collections.abc import Sequence
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache.columns import RequestedResources
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand, PodClass
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.placement.ranking import Rankings
from scheduler_worker.core.placement.run_placer import Placed
from scheduler_worker.core.placement.ties import INFEASIBLE, SCORE_SHIFT, Keys, TieOrder
from scheduler_worker.core.work import Run

# Pods placed in one pass: more save little, and their columns would not stay in the processor's cache.
_AT_ONCE = 16

# A sample with fewer feasible nodes is too small (kube-scheduler: minFeasibleNodesToFind).
_ENOUGH = 100


class SampledScoring:
    """`nodes` is the size of a sample, 0 for no sampling; `alternates` as in RunPlacer."""

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
        self._start = -1  # of the next sample; -1: there was none yet
        self._had: WeakSet[Demand] = WeakSet()  # a demand that comes again gets a ranking

    def suits(self, run: Run) -> bool:
        """Whether the run is a single pod of a new demand that depends on its own node alone."""
        profile = self._profile
        if self._cache.pod_index.nominated:
            return False  # plugins are not asked side by side then
        if len(run.rows) != 1 or profile.side_by_side is None or profile.mixes or not profile.samples:
            return False
        demand = run.pod_class.demand
        enough = 0 < 2 * self._nodes <= self._cache.size
        return enough and demand.plain and demand not in self._rankings and demand not in self._had

    @property
    def room(self) -> int:
        """How many pods can be placed at once."""
        return min(_AT_ONCE, self._cache.size // self._nodes)

    def place(self, classes: Sequence[PodClass]) -> list[Placed | None]:
        """Place a pod of each of these classes, no more than `room`, and assume it; None for those without a
        good node in their sample. Raises PluginFailed before it has placed any."""
        self._had.update(pod_class.demand for pod_class in classes)
        statics = [self._rankings.static_of(pod_class.demand) for pod_class in classes]
        # Static scores are normalised over all nodes; a sample does not know the highest.
        able = [i for i, static in enumerate(statics) if not static.varying]
        first = self._next_samples(len(able))
        placed: list[Placed | None] = [None] * len(classes)
        if not able:
            return placed
        shape = (len(able), self._nodes)
        samples = slice(first, first + len(able) * self._nodes)
        demands = [classes[i].demand for i in able]
        requested = RequestedResources(
            np.stack([demand.request for demand in demands], axis=1)[:, :, None],
            np.stack([demand.nonzero for demand in demands], axis=1),
        )
        feasible, score = self._profile.evaluate_each(requested, self._cache.side_by_side(samples, shape))
        for row, i in enumerate(able):
            start = first + row * self._nodes
            feasible[row] &= statics[i].mask[start : start + self._nodes]
        self._ties.cover(self._cache.size)
        keys = score.astype(np.int64)
        keys += np.array([[statics[i].constant] for i in able])
        keys <<= SCORE_SHIFT
        keys += self._ties.bits[samples].reshape(shape)
        keys[~feasible] = INFEASIBLE
        good = np.flatnonzero(np.count_nonzero(feasible, axis=1) >= min(_ENOUGH, self._nodes))
        chosen = self._best(keys[good], first + good * self._nodes)
        nodes = chosen[:, 0]
        chosen_classes = [classes[able[row]] for row in good.tolist()]
        self._cache.assume_each(
            nodes, requested.request[:, good, 0], [pod_class.group for pod_class in chosen_classes]
        )
        none = np.zeros(1, np.uint16)
        for at, row in enumerate(good.tolist()):
            placed[able[row]] = Placed(nodes[at : at + 1], chosen[at : at + 1, 1:], none)
        return placed

    def _next_samples(self, pods: int) -> int:
        """Where the samples of so many pods begin. The last ones reach back to nodes that had their turn."""
        size = self._cache.size
        if self._start < 0:
            self._start = int(self._rng.integers(size))  # workers should not sample the same nodes
        first = min(self._start if self._start < size else 0, size - pods * self._nodes)
        self._start = first + pods * self._nodes
        return first

    def _best(self, keys: Keys, starts: NDArray[np.intp]) -> NDArray[np.intp]:
        """In each row the best node and the next best ones of its shard, -1 for none. Overwrites the keys."""
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
