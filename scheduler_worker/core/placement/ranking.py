"""Rankings: the order in which a class prefers the nodes, kept between its pods and repaired where nodes
changed.

A ranking is exact as of its last `refresh`. A worker keeps as many rankings as their memory limit allows.

A profile that packs takes the nodes of the worker's own share first, in a soft partition (docs/adr/0120).
While a class has room there, only these nodes are kept exact, by `refresh_share`."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache.columns import NodeView
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import Bounds, Diagnosis
from scheduler_worker.core.framework.plugin_state import PluginState
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.static_fit import RawScore, StaticFit, StaticFits
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.placement.runs import BoundRun, EvenRun, candidates
from scheduler_worker.core.placement.ties import INFEASIBLE, SCORE_SHIFT, Keys, TieOrder

# Gathering the columns of changed nodes costs about as much as the rest of the pass, so beyond half of
# the nodes a pass over all, which gathers nothing, is as quick.
_FULL_PASS_FRACTION = 2
# Up to so many nodes are looked at one at a time, which takes some microseconds each; NumPy's calls take as
# long for one as for many.
FEW_NODES = 8
_MAYBE_FEW = 48  # entries of the log: a node that was filled by several pods has as many of them


class _AsOf(NamedTuple):
    """What keys were made from: versions, and positions in the cache's logs."""

    static: int = -1
    ties: int = -1
    scores: int = -1
    changes: int = -1
    freed: int = -1


_NEVER = _AsOf()


class Ranking:
    """`keys` of all nodes for one demand, exact as of the last `refresh`."""

    bytes_per_node = 8

    def __init__(
        self, demand: Demand, static: StaticFit, profile: Profile, cache: NodeInfoCache, ties: TieOrder
    ) -> None:
        self.demand = demand
        self.static = static
        self.plugin_state = PluginState(demand, profile, cache)
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
        self._as_of = _NEVER
        self._diagnosis: Diagnosis | None = None  # of what the keys were made from
        self._share_first = profile.mixes and not demand.about_pods
        self._share_as_of = _NEVER  # the keys of the share's nodes

    def refresh(self) -> None:
        """Bring the keys up to date with the cache."""
        now = self._now()
        if now != self._as_of:
            self._diagnosis = None
        changed = self._changed(self._as_of, now)
        if changed is None or len(changed) * _FULL_PASS_FRACTION > self._cache.size:
            self._rank_all()
        elif len(changed) and self._rank(changed) and self._highest() != self.highest:
            self._as_of = _NEVER  # if a plugin raises now, the next call does all of it again
            self._rank_all()
        # Last: if a plugin raised, the ranking stays stale.
        self._as_of = self._share_as_of = now

    def refresh_share(self) -> NodeIndexes | None:
        """Bring the keys of the worker's own share up to date. Returns its nodes, which come before all
        others. None: there is no share, or something that users can configure prefers nodes; all keys are up
        to date then."""
        now, own, size = self._now(), self._ties.own, self._cache.size
        if not self._share_first or own is None or self.static.varying:
            self.refresh()
            return None
        share: NodeIndexes = own[:size].nonzero()[0]
        changed = self._changed(self._share_as_of, now)
        if len(self.keys) != size:
            self.keys, self._as_of = np.full(size, INFEASIBLE, np.int64), _NEVER
        nodes = share if changed is None else changed[own.take(changed)]
        if len(nodes):
            self._static_total = self.static.constant
            self._rank(nodes)
        self._share_as_of = now
        return share

    @property
    def refreshed(self) -> bool:
        """Whether it was, ever."""
        return self._as_of != _NEVER or self._share_as_of != _NEVER

    def diagnosis(self, explain: Callable[[], Diagnosis]) -> Diagnosis:
        """Why nothing fits, as of the last `refresh`: the result of `explain`, which is called again only
        after a change of anything that the keys depend on. The dispatcher wakes the pods by the plugins
        named here, so they must be those that refuse now."""
        if self._diagnosis is None:
            self._diagnosis = explain()
        return self._diagnosis

    def even_run(self, pods: int) -> EvenRun | BoundRun | None:  # noqa: ARG002 - PodRanking uses it
        """See PodRanking."""
        return None

    def keys_with_levels(self, nodes: NodeIndexes, levels: int) -> Keys:
        """Keys of nodes with 0 to levels - 1 more pods of this class: (levels, nodes)."""
        cells = np.concatenate([nodes] * levels)
        ahead = np.repeat(np.arange(levels), len(nodes))
        keys = self._keys(cells, self._cache.view_ahead(cells, self.demand, ahead, cards=self._cards))
        return keys.reshape(levels, len(nodes))

    def _now(self) -> _AsOf:
        """What the keys are made from now, with the static fit and the ties up to date."""
        cache = self._cache
        self.static.refresh(self.demand)
        self._ties.cover(cache.size)
        versions = self.static.version, self._ties.version, self._profile.version
        return _AsOf(*versions, cache.changes.position, cache.freed.position)

    def _changed(self, since: _AsOf, now: _AsOf) -> NodeIndexes | None:
        """The nodes whose keys may be others now, perhaps with repetitions; None: all. A node that refused
        the class and only took pods refuses it still."""
        cache = self._cache
        if since.static != now.static or len(self.keys) != cache.size:
            return None
        changed = cache.changes.since(since.changes, cache.size)
        freed = cache.freed.since(since.freed, cache.size)
        if changed is None or freed is None:
            return None
        if (since.ties, since.scores) != (now.ties, now.scores):
            changed = (self.keys >= 0).nonzero()[0]
        else:
            changed = changed[self.keys.take(changed) >= 0]
        return np.concatenate((changed, freed)) if len(freed) else changed

    def _rank_all(self) -> None:
        view = self._cache.view(None, cards=self._cards)
        mask, score = self._profile.evaluate(self.demand, view)
        feasible = self.static.mask if mask is None else np.logical_and(mask, self.static.mask, out=mask)
        self._normalize(feasible)
        keys = score.astype(np.int64)
        keys += self._static_total
        keys <<= SCORE_SHIFT
        keys += self._ties.bits_for(self.demand)[: len(keys)]
        np.copyto(keys, INFEASIBLE, where=~feasible)
        self.keys = keys

    def _rank(self, nodes: NodeIndexes) -> bool:
        """Rank these nodes again; whether the highest raw scores may have changed, because a node became
        feasible or infeasible."""
        varying = bool(self.static.varying)
        if len(nodes) <= _MAYBE_FEW and self._one_at_a_time:
            different = set(nodes.tolist())
            if len(different) <= FEW_NODES:
                turned = [self._rank_one(node) for node in different]
                return varying and any(turned)
        keys = self._keys(nodes, self._cache.view(nodes, cards=self._cards))
        # INFEASIBLE is the one key below 0.
        changed = varying and bool(((self.keys.take(nodes) ^ keys) < 0).any())
        self.keys[nodes] = keys
        return changed

    @property
    def _one_at_a_time(self) -> bool:
        return self._profile.one_at_a_time is not None and not self._cache.pod_index.nominated

    def _rank_one(self, node: int) -> bool:
        """`_rank` for one node."""
        before, key = self.keys[node], INFEASIBLE
        if self.static.mask[node]:
            score = self._profile.evaluate_one(self.demand, self._cache.one(node, cards=self._cards))
            if score is not None:
                static = self._static_total
                total = score + (static if isinstance(static, int) else int(static[node]))
                key = (total << SCORE_SHIFT) + int(self._ties.bits_for(self.demand)[node])
        self.keys[node] = key
        return bool((before < 0) != (key < 0))

    def _keys(self, nodes: NodeIndexes, view: NodeView) -> Keys:
        """Keys of `nodes`, seen as `view`, by the present normalisation."""
        mask, score = self._profile.evaluate(self.demand, view)
        feasible = self.static.mask.take(nodes)
        if mask is not None:
            feasible &= mask
        static = self._static_total
        keys = score.astype(np.int64)
        if not isinstance(static, int):
            keys += static.take(nodes)
        elif static:
            keys += static
        keys <<= SCORE_SHIFT
        keys += self._ties.bits_for(self.demand).take(nodes)
        np.putmask(keys, ~feasible, INFEASIBLE)
        return keys

    def _normalize(self, feasible: Mask) -> None:
        self.highest = [_largest(score, feasible) for score in self.static.varying]
        total: NDArray[np.int64] | int = self.static.constant
        for score, highest in zip(self.static.varying, self.highest, strict=True):
            total = total + score.weight * score.plugin.normalize_score(score.raw, highest)
        # Nodes without room may be below 0 here. If one gets room, it must not look infeasible until all
        # nodes are normalised again.
        self._static_total = np.maximum(total, 0) if isinstance(total, np.ndarray) else total

    def _highest(self) -> list[int]:
        feasible = self.keys >= 0
        return [_largest(score, feasible) for score in self.static.varying]


def _largest(score: RawScore, feasible: Mask) -> int:
    return int((score.raw * feasible).max(initial=0))  # raw scores are never below 0


class Rankings:
    """One for each demand. Beyond `limit_bytes` for their columns the least recently used ones are
    dropped. Pods in hand may have the demand of a class that is forgotten already, or one that no class was
    seen with: its ranking goes with the next class that is forgotten."""

    def __init__(
        self,
        profile: Profile,
        cache: NodeInfoCache,
        ties: TieOrder,
        *,
        limit_bytes: int,
        is_used: Callable[[Demand], bool],
    ) -> None:
        """`is_used`: whether a class has this demand."""
        self._profile = profile
        self._cache = cache
        self._ties = ties
        self._statics = StaticFits(profile, cache)
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[Demand, Ranking] = OrderedDict()
        self._bytes_per_node = 0  # of all of them
        self._is_used = is_used
        self._passing: list[Demand] = []  # those of no class when their rankings were made

    def __contains__(self, demand: Demand) -> bool:
        return demand in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def forget(self, demands: Iterable[Demand]) -> None:
        """No class has these demands."""
        passing, self._passing = self._passing, []
        for demand in [*demands, *(demand for demand in passing if not self._is_used(demand))]:
            dropped = self._kept.pop(demand, None)
            if dropped is not None:
                self._bytes_per_node -= dropped.bytes_per_node

    def static_of(self, demand: Demand) -> StaticFit:
        """The demand's static fit, up to date; no ranking is made."""
        return self._statics.of(demand)

    def has_ranked(self, demand: Demand) -> bool:
        """Whether the demand's ranking has been refreshed, ever."""
        ranking = self._kept.get(demand)
        return ranking is not None and ranking.refreshed

    def prepare(self, demand: Demand) -> bool:
        """For the demand's ranking, see FilterState."""
        return self.of(demand).plugin_state.prepare()

    def of(self, demand: Demand) -> Ranking:
        """The demand's ranking, made if there is none; not refreshed."""
        ranking = self._kept.get(demand)
        if ranking is not None:
            self._kept.move_to_end(demand)
            return ranking
        kind = PodRanking if demand.about_pods else Ranking
        ranking = kind(demand, self._statics.of(demand), self._profile, self._cache, self._ties)
        self._kept[demand] = ranking
        if not self._is_used(demand):
            self._passing.append(demand)
        self._bytes_per_node += ranking.bytes_per_node
        while self._bytes_per_node * self._cache.size > self._limit_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes_per_node -= dropped.bytes_per_node
        return ranking


_CELLS = 16_384  # (node, level) pairs that a run of evenly spread pods computes, or twice all nodes


class PodRanking(Ranking):
    """The ranking of a class that depends on other pods: a pod placed anywhere may change every node's key.

    So the keys are combined again after each change. Room and the scores of room depend on the node alone;
    they are kept and repaired as in any ranking."""

    bytes_per_node = 64  # with its plugin state, about

    def __init__(
        self, demand: Demand, static: StaticFit, profile: Profile, cache: NodeInfoCache, ties: TieOrder
    ) -> None:
        super().__init__(demand, static, profile, cache, ties)
        self._room: Mask = np.zeros(0, np.bool_)  # (nodes,)
        self._scores: NDArray[np.int64] = np.zeros(0, np.int64)  # (nodes,)
        self._stale = True  # keys are older than what they are combined from

    def refresh(self) -> None:
        """Bring the keys up to date with the cache and the pod index."""
        cache, since, now = self._cache, self._as_of, self._now()
        versions = since.static, since.ties, since.scores
        fresh = versions == (now.static, now.ties, now.scores) and len(self._room) == cache.size
        changed = cache.changes.since(since.changes, cache.size) if fresh else None
        if changed is None:
            self._room, self._scores = self._evaluate(None)
        elif len(changed) <= FEW_NODES and self._one_at_a_time:
            for node in changed.tolist():
                score = self._profile.evaluate_one(self.demand, cache.one(node, cards=self._cards))
                self._room[node], self._scores[node] = score is not None, score or 0
        elif len(changed):
            self._room[changed], self._scores[changed] = self._evaluate(changed)
        self._stale |= changed is None or len(changed) > 0
        self._stale |= self.plugin_state.refresh()
        if self._stale:
            self._diagnosis = None
            self._combine()
            self._stale = False  # last: if a plugin raised, the next call combines the keys again
        self._as_of = now

    def even_run(self, pods: int) -> EvenRun | BoundRun | None:
        """A choice for a whole run of pods that are spread by default, or that limit each other by domains
        alone. None for other pods."""
        if self._profile.mixes or self.demand.devices is not None:
            return None
        bounds = None if self.static.varying else self.plugin_state.bounds()
        if bounds is not None:
            return self._bound_run(pods, bounds)
        at = np.flatnonzero(self.keys >= 0)
        spreading = self.plugin_state.default_spreading(at) if len(at) else None
        if spreading is None:
            return None
        levels = min(self.levels_hint, pods, max(1, _CELLS // len(at)))
        return EvenRun(at, self.keys_with_levels(at, levels + 1), spreading, fixed=not self.static.varying)

    def _bound_run(self, pods: int, bounds: Bounds) -> BoundRun | None:
        keys = self._scores + self._static_total
        keys <<= SCORE_SHIFT
        keys += self._ties.bits_for(self.demand)[: len(keys)]
        at = np.flatnonzero(self._room & self.static.mask & bounds.passed)
        nodes = candidates(at, keys[at], pods, bounds.skew)
        if nodes is None or not len(nodes):
            return None
        levels = 1 if bounds.once else min(self.levels_hint, pods)
        return BoundRun(nodes, self.keys_with_levels(nodes, levels + 1), bounds)

    def _evaluate(self, nodes: NDArray[np.intp] | None) -> tuple[Mask, NDArray[np.int64]]:
        mask, score = self._profile.evaluate(self.demand, self._cache.view(nodes, cards=self._cards))
        room = np.ones(len(score), np.bool_) if mask is None else mask
        return room, score.astype(np.int64)

    def _combine(self) -> None:
        feasible = self.plugin_state.narrow(self._room & self.static.mask)
        self._normalize(feasible)
        keys = self._scores + self._static_total
        self.plugin_state.add_scores(keys, feasible)
        keys <<= SCORE_SHIFT
        keys += self._ties.bits_for(self.demand)[: len(keys)]
        np.copyto(keys, INFEASIBLE, where=~feasible)
        self.keys = keys
