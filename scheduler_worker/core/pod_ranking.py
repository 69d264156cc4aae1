"""The ranking of a class that depends on which pods are where."""

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.bound_runs import BoundRun, Bounds, candidates
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.even_runs import EvenRun
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.ranking import FEW_NODES, Ranking
from scheduler_worker.core.static import StaticFit
from scheduler_worker.core.ties import INFEASIBLE, SCORE_SHIFT, TieOrder

_CELLS = 16_384  # (node, level) pairs that a run of evenly spread pods looks at, or twice all nodes


class PodRanking(Ranking):
    """A pod placed anywhere may change every node's standing, so keys are put together anew after each change.

    What needs only the node itself, room and the scores of room, is kept and repaired as in any ranking.
    """

    bytes_per_node = 64  # with its standings, about

    def __init__(
        self, demand: Demand, static: StaticFit, profile: Profile, cache: NodeInfoCache, ties: TieOrder
    ) -> None:
        super().__init__(demand, static, profile, cache, ties)
        self._room: Mask = np.zeros(0, np.bool_)  # (nodes,)
        self._scores: NDArray[np.int64] = np.zeros(0, np.int64)  # (nodes,)
        self._stale = True  # keys are older than what they are put together from

    def refresh(self) -> None:
        """Bring the keys up to date with the cache and the census."""
        cache = self._cache
        self.static.refresh()
        self._ties.cover(cache.size)
        versions = (self.static.version, self._ties.version, self._profile.version)
        fresh = versions == self._versions and len(self._room) == cache.size
        changed = cache.changes.since(self._position, cache.size) if fresh else None
        if changed is None:
            self._room, self._scores = self._evaluate(None)
        elif len(changed) <= FEW_NODES and self._profile.one_at_a_time:
            for node in changed.tolist():
                score = self._profile.evaluate_one(self.demand, cache.one(node, cards=self._cards))
                self._room[node], self._scores[node] = score is not None, score or 0
        elif len(changed):
            self._room[changed], self._scores[changed] = self._evaluate(changed)
        self._stale |= changed is None or len(changed) > 0
        self._stale |= self.standings.refresh()
        if self._stale:
            self._combine()
            self._stale = False  # not before: a plugin that raised leaves the keys to be put together again
        self._position, self._versions = cache.changes.position, versions

    def even_run(self, wanted: int) -> EvenRun | BoundRun | None:
        """The choices of a run of pods that are spread by default, or that limit each other by domains alone, to be told at
        once; None where that cannot be."""
        if self._profile.mixes or self.demand.devices is not None:
            return None
        bounds = None if self.static.varying else self.standings.bounds()
        if bounds is not None:
            return self._bound_run(wanted, bounds)
        at = np.flatnonzero(self.keys >= 0)
        evenly = self.standings.evenly(at) if len(at) else None
        if evenly is None:
            return None
        levels = min(self.levels_hint, wanted, max(1, _CELLS // len(at)))
        return EvenRun(at, self.keys_with_levels(at, levels + 1), evenly, fixed=not self.static.varying)

    def _bound_run(self, wanted: int, bounds: Bounds) -> BoundRun | None:
        keys = self._scores + self._static_total
        keys <<= SCORE_SHIFT
        keys += self._ties.bits[: len(keys)]
        at = np.flatnonzero(self._room & self.static.mask & bounds.passed)
        nodes = candidates(at, keys[at], wanted, bounds.skew)
        if nodes is None or not len(nodes):
            return None
        levels = 1 if bounds.once else min(self.levels_hint, wanted)
        return BoundRun(nodes, self.keys_with_levels(nodes, levels + 1), bounds)

    def _evaluate(self, nodes: NDArray[np.intp] | None) -> tuple[Mask, NDArray[np.int64]]:
        mask, score = self._profile.evaluate(self.demand, self._cache.view(nodes, cards=self._cards))
        room = np.ones(len(score), np.bool_) if mask is None else mask
        return room, score.astype(np.int64)

    def _combine(self) -> None:
        feasible = self.standings.narrow(self._room & self.static.mask)
        self._normalize(feasible)
        keys = self._scores + self._static_total
        self.standings.add_scores(keys, feasible)
        keys <<= SCORE_SHIFT
        keys += self._ties.bits[: len(keys)]
        np.copyto(keys, INFEASIBLE, where=~feasible)
        self.keys = keys
