"""The order in which one class wants the nodes, kept between its pods and repaired where nodes changed."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.bound_runs import BoundRun
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.diagnosis import Diagnosis
from scheduler_worker.core.even_runs import EvenRun
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.standings import PodStandings
from scheduler_worker.core.static import RawScore, StaticFit
from scheduler_worker.core.ties import INFEASIBLE, SCORE_SHIFT, Keys, TieOrder
from scheduler_worker.core.view import NodeView

# Gathering the columns of changed nodes costs about as much as the rest of the pass, so beyond half of
# the nodes a pass over all, which gathers nothing, is as quick.
_FULL_PASS_FRACTION = 2
# Up to so many nodes are looked at one at a time, which takes some microseconds each; NumPy's calls take as long
# for one as for many.
FEW_NODES = 4
_NEVER = (-1, -1, -1)  # versions that nothing has


class Ranking:
    """`keys` of all nodes for one demand, exact as of the last `refresh`."""

    bytes_per_node = 8

    def __init__(
        self, demand: Demand, static: StaticFit, profile: Profile, cache: NodeInfoCache, ties: TieOrder
    ) -> None:
        self.demand = demand
        self.static = static
        self.standings = PodStandings(demand, profile, cache)
        self.keys: Keys = np.zeros(0, np.int64)  # (nodes,)
        self.highest: list[int] = []  # per varying static score: the largest raw score among feasible nodes
        self.levels_hint = 2  # how many pods of a run a chosen node took lately
        self.singly = 0  # pods still to be placed singly, because runs ended early
        self._profile = profile
        self._cards = profile.wants_cards(demand)
        self.foreseeable = demand.foreseeable and not profile.mixes
        self.by_chance = profile.by_chance
        self.only_best = profile.mixes  # alternates are as good as the choice
        self._cache = cache
        self._ties = ties
        self._static_total: NDArray[np.int64] | int = 0  # normalised by `highest`
        self._position = -1
        self._diagnosis = (-1, Diagnosis("", frozenset()))
        self._versions = _NEVER

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
        elif len(changed) and self._rank(changed) and self.static.varying and self._highest() != self.highest:
            self._versions = _NEVER  # should a plugin raise now, all of it is to be done again
            self._rank_all()
        # Last: a plugin that raised leaves the ranking as old as it was.
        self._position, self._versions = cache.changes.position, versions

    def diagnosis(self, explain: Callable[[], Diagnosis]) -> Diagnosis:
        """Why nothing fits, as of the last `refresh`: `explain`'s answer, asked for again only after a change."""
        if self._diagnosis[0] != self._position:
            self._diagnosis = (self._position, explain())
        return self._diagnosis[1]

    def even_run(self, wanted: int) -> EvenRun | BoundRun | None:  # noqa: ARG002 - for rankings by which pods are where
        """See PodRanking."""
        return None

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
        keys += self._ties.bits[: len(keys)]
        np.copyto(keys, INFEASIBLE, where=~feasible)
        self.keys = keys

    def _rank(self, nodes: NodeIndexes) -> bool:
        """Rank these nodes anew; whether another set of nodes is feasible now."""
        if len(nodes) <= FEW_NODES and self._profile.one_at_a_time:
            turned = [self._rank_one(node) for node in nodes.tolist()]
            return any(turned)
        before = self.keys.take(nodes)
        keys = self._keys(nodes, self._cache.view(nodes, cards=self._cards))
        self.keys[nodes] = keys
        return bool(((before ^ keys) < 0).any())  # INFEASIBLE is the one key below 0

    def _rank_one(self, node: int) -> bool:
        """The same for one node."""
        before, key = self.keys[node], INFEASIBLE
        if self.static.mask[node]:
            score = self._profile.evaluate_one(self.demand, self._cache.one(node, cards=self._cards))
            if score is not None:
                static = self._static_total
                total = score + (static if isinstance(static, int) else int(static[node]))
                key = (total << SCORE_SHIFT) + int(self._ties.bits[node])
        self.keys[node] = key
        return bool((before < 0) != (key < 0))

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
        keys += self._ties.bits[nodes]
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
    return int((score.raw * feasible).max(initial=0))  # raw scores are never below 0
