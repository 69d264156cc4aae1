"""Placing a run of equal pods so that each sees those before it (docs/adr/0003-placing-runs.md).

The result is the same as one pod at a time: take the best node, assume a pod there, score again."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodGroup
from scheduler_worker.core.cache.assumptions import CardMasks
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.sandbox import PluginFailed
from scheduler_worker.core.nodes import NodeIndexes
from scheduler_worker.core.placement.ranking import Ranking
from scheduler_worker.core.placement.ties import INFEASIBLE, SCORE_SHIFT, Keys, TieOrder, levels_of, slack

# Runs up to here go pod by pod: a selection over levels costs about as much as three repairs of one node.
_POD_BY_POD = 3
# A selection looks at about this many (node, level) cells, more for runs that need more nodes than that.
_CELLS = 1024
_LARGEST_STEP = 256  # levels looked at in one selection
_LEAST_EVEN_RUN = 16  # a run's pass over all nodes costs about as much as placing so many pods singly
_SINGLY = 64  # pods placed singly after a run ended early, before the next one is tried
# Nodes per shard besides those a run takes, for each alternate that a pod names: its pods name different
# ones.
_SPARE_NODES = 2


class Placed(NamedTuple):
    """The first k pods of a run, in order, and the alternates of each."""

    nodes: NodeIndexes  # (k,)
    alternates: NodeIndexes  # (k, alternates), -1: none
    card_masks: CardMasks  # (k,)


class RunPlacer:
    """Places runs in the cache. `alternates` is how many further nodes each pod of the next run names."""

    def __init__(self, cache: NodeInfoCache, ties: TieOrder, *, alternates: int = 2) -> None:
        self._cache = cache
        self._ties = ties
        self.alternates = alternates

    def place(self, ranking: Ranking, count: int, group: PodGroup) -> Placed:
        """Place up to `count` pods of the group and assume them. Returns fewer if nothing fits any more or a
        plugin failed. Raises PluginFailed only if it places none."""
        parts: list[Placed] = []
        left = count
        while left:
            try:
                nodes, spare = self._next(ranking, left)
            except PluginFailed:
                if not parts:
                    raise
                break  # assumed pods must be returned; the plugin fails again for the others
            if not len(nodes):
                break
            masks = self._cache.assume(nodes, ranking.demand, group)
            parts.append(Placed(nodes, self._assign(nodes, spare), masks))
            left -= len(nodes)
        if len(parts) == 1:
            return parts[0]
        return Placed(
            np.concatenate([p.nodes for p in parts]) if parts else np.empty(0, np.intp),
            np.concatenate([p.alternates for p in parts])
            if parts
            else np.empty((0, self.alternates), np.intp),
            np.concatenate([p.card_masks for p in parts]) if parts else np.empty(0, np.uint16),
        )

    def _next(self, ranking: Ranking, left: int) -> tuple[NodeIndexes, NodeIndexes]:
        """The nodes of the next pods, one at least if any fits, and further nodes for alternates."""
        share = ranking.refresh_share()
        if share is not None:
            found = self._best(ranking, share)
            if len(found[0]):
                return found
            ranking.refresh()
        singly = left <= _POD_BY_POD or not ranking.foreseeable
        return self._whole_run(ranking, left) or (
            self._best(ranking) if singly else self._select(ranking, left)
        )

    def _best(self, ranking: Ranking, among: NodeIndexes | None = None) -> tuple[NodeIndexes, NodeIndexes]:
        """The best node and, on its shard, the next best ones, best first. `among`: of these nodes."""
        keys = ranking.keys if among is None else ranking.keys.take(among)
        if not len(keys):
            return np.empty(0, np.intp), np.empty(0, np.intp)
        pick = self._ties.draw if ranking.by_chance else np.ndarray.argmax
        best = int(pick(keys))
        key = int(keys[best])
        if key == INFEASIBLE:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        shards = max(self._cache.shards, 1)
        if among is not None and shards > 1:
            keys[among % shards != among[best] % shards] = INFEASIBLE
            shards = 1
        shard = best % shards
        of_shard = keys[shard::shards]
        # A packed pod takes no second best node: once refused, it is placed again with the ledger's numbers.
        least = key >> SCORE_SHIFT << SCORE_SHIFT if ranking.only_best else 0
        taken, hidden = [best], [key]
        for _ in range(self.alternates):
            keys[taken[-1]] = INFEASIBLE
            following = int(pick(of_shard)) * shards + shard
            key = int(keys[following])
            if key < least:
                break
            taken.append(following)
            hidden.append(key)
        if among is None:
            keys[taken] = hidden
        nodes = np.array(taken, np.intp) if among is None else among.take(taken)
        return nodes[:1], nodes[1:]

    def _whole_run(self, ranking: Ranking, pods: int) -> tuple[NodeIndexes, NodeIndexes] | None:
        """As `_select`, for pods that affect each other. None for other pods, and if too few choices are
        certain."""
        if ranking.foreseeable or pods < _LEAST_EVEN_RUN:
            return None
        if ranking.singly > 0:
            ranking.singly -= 1
            return None
        run = ranking.even_run(pods)
        if run is None:
            return None
        chosen = run.choices(pods)
        if run.deepest > run.levels:
            ranking.levels_hint = min(2 * ranking.levels_hint, _LARGEST_STEP)
        elif len(chosen) < _LEAST_EVEN_RUN:
            ranking.singly = _SINGLY
        elif run.deepest < run.levels // 2:
            ranking.levels_hint = run.levels // 2
        return None if not chosen else (run.nodes[chosen], run.spare(_SPARE_NODES * self.alternates))

    def _select(self, ranking: Ranking, pods: int) -> tuple[NodeIndexes, NodeIndexes]:
        """As many of the next `pods` choices as are certain, in order, and further nodes with room."""
        levels = min(ranking.levels_hint, pods)
        heads, bound = self._heads(ranking, pods, levels)
        nodes = self._ties.nodes_of(heads)
        cells = ranking.keys_with_levels(nodes, levels)
        feasible = cells >= 0
        # A node is taken down to a level only after the levels above, hence the running minimum.
        np.minimum.accumulate(cells, axis=0, out=cells)
        cells += slack(levels)
        order = np.sort(cells[feasible & (cells > bound)])[::-1][:pods]
        order = order[: self._cut(ranking, order, nodes, feasible, pods)]
        chosen = self._ties.nodes_of(order)
        untouched = np.ones(self._cache.size, np.bool_)
        untouched[chosen] = False
        return chosen, nodes[untouched[nodes]][::-1]

    def _heads(self, ranking: Ranking, pods: int, levels: int) -> tuple[Keys, int]:
        """Keys of the nodes that may be chosen, ascending, and a bound: no node left out has a key above it.

        No run takes more nodes than it has pods, and these are the best ones at present."""
        count = min(pods, max(_CELLS // levels, 1)) + _SPARE_NODES * self.alternates * max(
            self._cache.shards, 1
        )
        keys = ranking.keys
        bound = INFEASIBLE
        if count < len(keys):
            split = len(keys) - count - 1
            keys = np.partition(keys, split)
            bound = int(keys[split])
            keys = keys[split + 1 :]
        return np.sort(keys[keys > INFEASIBLE]), bound

    def _cut(
        self, ranking: Ranking, order: Keys, nodes: NodeIndexes, feasible: NDArray[np.bool_], pods: int
    ) -> int:
        """How many of the choices in `order` stand. Adapts how many levels the next selection looks at."""
        levels = len(feasible)
        depth = levels_of(order)
        # Beyond the last level a node's next key is not known.
        unknown = np.flatnonzero(depth == levels - 1)
        cut = int(unknown[0]) + 1 if len(unknown) else len(order)
        if cut < pods and len(unknown):
            ranking.levels_hint = min(2 * levels, _LARGEST_STEP)
        elif levels > 2 and len(order) and int(depth.max()) < levels // 2:
            ranking.levels_hint = levels // 2
        if ranking.static.varying:
            cut = min(cut, self._until_normalization_changes(ranking, order, nodes, feasible))
        return cut

    def _until_normalization_changes(
        self, ranking: Ranking, order: Keys, nodes: NodeIndexes, feasible: NDArray[np.bool_]
    ) -> int:
        """How many choices stand before the last feasible node with some highest raw score is full."""
        room = np.zeros(self._cache.size, np.int64)
        room[nodes] = feasible.sum(axis=0)
        chosen = self._ties.nodes_of(order)
        fills = levels_of(order) == room[chosen] - 1
        cut = len(order)
        for score, highest in zip(ranking.static.varying, ranking.highest, strict=True):
            holders = int(((score.raw == highest) & (ranking.keys >= 0)).sum())
            filled = np.flatnonzero(fills & (score.raw[chosen] == highest))
            if len(filled) >= holders > 0:
                cut = min(cut, int(filled[holders - 1]) + 1)
        return cut

    def _assign(self, nodes: NodeIndexes, spare: NodeIndexes) -> NodeIndexes:
        """Alternates from `spare` for each chosen node, on its shard, different ones for neighbouring
        pods."""
        assigned = np.full((len(nodes), self.alternates), -1, np.intp)
        if len(nodes) == 1 and len(spare) <= self.alternates:
            assigned[0, : len(spare)] = spare  # of one shard already, see _best
            return assigned
        shards = max(self._cache.shards, 1)
        for shard in range(shards):
            of_shard = spare[spare % shards == shard] if shards > 1 else spare
            rows = np.flatnonzero(nodes % shards == shard) if shards > 1 else np.arange(len(nodes))
            for rank in range(min(self.alternates, len(of_shard))):
                assigned[rows, rank] = of_shard[(np.arange(len(rows)) + rank) % len(of_shard)]
        return assigned
