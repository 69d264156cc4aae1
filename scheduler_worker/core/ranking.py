"""The order in which one class wants the nodes, kept between its pods and repaired where nodes changed."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework import Profile
from scheduler_worker.core.standings import PodStandings
from scheduler_worker.core.static import RawScore, StaticFit
from scheduler_worker.core.ties import INFEASIBLE, SCORE_SHIFT, Keys, TieOrder
from scheduler_worker.core.view import NodeView

# Gathering the columns of changed nodes costs about as much as the rest of the pass, so beyond half of
# the nodes a pass over all, which gathers nothing, is as quick.
_FULL_PASS_FRACTION = 2


class Ranking:
    """`keys` of all nodes for one demand, exact as of the last `refresh`."""

    def __init__(
        self, demand: Demand, static: StaticFit, profile: Profile, cache: NodeInfoCache, ties: TieOrder
    ) -> None:
        self.demand = demand
        self.static = static
        self.standings = PodStandings(demand, profile, cache)
        self.keys: Keys = np.zeros(0, np.int64)  # (nodes,)
        self.highest: list[int] = []  # per varying static score: the largest raw score among feasible nodes
        self.levels_hint = 2  # how many pods of a run a chosen node took lately
        self._profile = profile
        self._cards = profile.wants_cards(demand)
        self.foreseeable = demand.foreseeable and not profile.mixes
        self.by_chance = profile.by_chance
        self.only_best = profile.mixes  # alternates are as good as the choice
        self._cache = cache
        self._ties = ties
        self._static_total: NDArray[np.int64] | int = 0  # normalised by `highest`
        self._position = -1
        self._fit_error = (-1, "")
        self._versions = (-1, -1, -1)

    def refresh(self) -> None:
        """Bring the keys up to date with the cache."""
        cache = self._cache
        self.static.refresh()
        self._ties.cover(cache.size)
        versions = (self.static.version, self._ties.version, self._profile.version)
        fresh = versions == self._versions and len(self.keys) == cache.size
        changed = cache.changes.since(self._position, cache.size) if fresh else None
        if changed is None or len(changed) * _FULL_PASS_FRACTION > cache.size:
            self._rank_all()
        elif len(changed):
            self._rank(changed)
            if self.static.varying and self._highest() != self.highest:
                self._rank_all()
        # Last: a plugin that raised leaves the ranking as old as it was.
        self._position, self._versions = cache.changes.position, versions

    def fit_error(self, explain: Callable[[], str]) -> str:
        """Why nothing fits, as of the last `refresh`: `explain`'s text, asked for again only after a change."""
        if self._fit_error[0] != self._position:
            self._fit_error = (self._position, explain())
        return self._fit_error[1]

    def keys_with_levels(self, nodes: NodeIndexes, levels: int) -> Keys:
        """Keys of nodes as they would be with 0 to levels - 1 more pods of this class: (levels, nodes)."""
        cells = np.concatenate([nodes] * levels)
        ahead = np.repeat(np.arange(levels), len(nodes))
        keys = self._keys(cells, self._cache.view_ahead(cells, self.demand, ahead, cards=self._cards))
        return keys.reshape(levels, len(nodes))

    def _rank_all(self) -> None:
        view = self._cache.view(None, cards=self._cards)
        mask, score = self._profile.evaluate(self.demand, view)
        feasible = self.static.mask if mask is None else np.logical_and(mask, self.static.mask, out=mask)
        self._normalize(feasible)
        keys = score.astype(np.int64)
        keys += self._static_total
        keys <<= SCORE_SHIFT
        keys |= self._ties.bits[: len(keys)]
        np.copyto(keys, INFEASIBLE, where=~feasible)
        self.keys = keys

    def _rank(self, nodes: NodeIndexes) -> None:
        self.keys[nodes] = self._keys(nodes, self._cache.view(nodes, cards=self._cards))

    def _keys(self, nodes: NodeIndexes, view: NodeView) -> Keys:
        """Keys of `nodes`, seen as `view`, by the present normalisation."""
        mask, score = self._profile.evaluate(self.demand, view)
        feasible = self.static.mask[nodes]
        if mask is not None:
            feasible &= mask
        static = self._static_total
        keys = score.astype(np.int64)
        keys += static if isinstance(static, int) else static[nodes]
        keys <<= SCORE_SHIFT
        keys |= self._ties.bits[nodes]
        keys[~feasible] = INFEASIBLE
        return keys

    def _normalize(self, feasible: Mask) -> None:
        self.highest = [_largest(score, feasible) for score in self.static.varying]
        total: NDArray[np.int64] | int = self.static.constant
        for score, highest in zip(self.static.varying, self.highest, strict=True):
            total = total + score.weight * score.plugin.normalize(score.raw, highest)
        # Nodes without room may lie below 0 here. Should one get room, it must not look infeasible until all are
        # normalised anew.
        self._static_total = np.maximum(total, 0) if isinstance(total, np.ndarray) else total

    def _highest(self) -> list[int]:
        feasible = self.keys >= 0
        return [_largest(score, feasible) for score in self.static.varying]


def _largest(score: RawScore, feasible: Mask) -> int:
    return int(score.raw.max(initial=0, where=feasible))
