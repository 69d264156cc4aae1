"""The static part of a class's fit: filters and scores by specs alone, on all nodes. Computed once, then
repaired for nodes whose spec changed."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import FilterPlugin, Refusals, Rejection, ScorePlugin
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import Mask, NodeIndexes


@dataclass(slots=True)
class RawScore:
    """One static score before normalisation."""

    plugin: ScorePlugin
    weight: int
    raw: NDArray[np.int64]  # (nodes,)


class StaticFit:
    """Mask and raw scores of all nodes below the cache's size. `version` grows whenever any of it may have
    changed."""

    def __init__(self, spec: PodSpec, profile: Profile, cache: NodeInfoCache) -> None:
        self._profile = profile
        self._cache = cache
        self._position = -1
        self.version = 0
        self.mask: Mask = np.zeros(0, np.bool_)
        self.constant = 0  # weighted sum of the scores that are the same wherever the pod may go
        self.varying: list[RawScore] = []  # the others: normalised over the nodes that have room
        self.raws: list[RawScore] = []  # of all static scores that have an opinion
        found = [plugin.pre_filter(spec) for plugin in profile.pre_filters]
        self.rejection = next((r for r in found if isinstance(r, Rejection)), None)
        restrictions = [r for r in found if isinstance(r, frozenset)]
        self.only_named = frozenset.intersection(*restrictions) if restrictions else None

    def refresh(self, demand: Demand) -> None:
        """Bring it up to date with the cache's specs. `demand`: any of those that share it, of which plugins
        look at no amounts."""
        log, size = self._cache.spec_changes, self._cache.size
        if self._position == log.position and len(self.mask) == size:
            return
        changed = log.since(self._position, size) if self._position >= 0 and len(self.mask) == size else None
        if changed is None:
            self._evaluate_all(demand, np.arange(size))
        else:
            self._evaluate_some(demand, changed)
        self._sort_scores()
        self._position = log.position  # last: if a plugin raised, the next call does everything again
        self.version += 1

    def not_named(self, at: NodeIndexes) -> Mask | None:
        """Which of the nodes `at` are out because only others are named; None: no nodes are named."""
        return None if self.only_named is None else ~self._cache.catalogue.named(self.only_named, at)

    def refusals(self, plugin: FilterPlugin, demand: Demand, at: NodeIndexes) -> Refusals | None:
        """A static filter's refusals of the nodes `at`."""
        # By SPECS a plugin takes any nodes with specs: see FilterPlugin.filter.
        nodes: Any = self._cache.specs(at)
        return plugin.refusals(demand, nodes)

    def _evaluate_all(self, demand: Demand, at: NodeIndexes) -> None:
        nodes = self._cache.specs(at)
        self.mask = self._admitted(demand, nodes)
        self.raws = [RawScore(p, w, raw) for p, w, raw in self._raw_scores(demand, nodes)]

    def _evaluate_some(self, demand: Demand, at: NodeIndexes) -> None:
        nodes = self._cache.specs(at)
        self.mask[at] = self._admitted(demand, nodes)
        for stored, (plugin, _, raw) in zip(self.raws, self._raw_scores(demand, nodes), strict=True):
            if plugin.compares_nodes:
                every: Any = self._cache.specs(np.arange(self._cache.size))
                whole = plugin.score(demand, every)
                stored.raw = stored.raw if whole is None else whole
            else:
                stored.raw[at] = raw

    def _admitted(self, demand: Demand, nodes: Any) -> Mask:
        mask = (
            self._cache.present.take(nodes.at) if self.rejection is None else np.zeros(nodes.count, np.bool_)
        )
        if self.only_named is not None:
            mask &= nodes.named(self.only_named)
        for plugin in self._profile.static_filters:
            passed = plugin.filter(demand, nodes)
            if passed is not None:
                mask &= passed
        return mask

    def _raw_scores(self, demand: Demand, nodes: Any) -> list[tuple[ScorePlugin, int, NDArray[np.int64]]]:
        scores = ((p, w, p.score(demand, nodes)) for p, w in self._profile.static_scores)
        return [(p, w, raw) for p, w, raw in scores if raw is not None]

    def _sort_scores(self) -> None:
        self.constant, self.varying = 0, []
        for score in self.raws:
            raw = score.raw[self.mask]
            if len(raw) and raw.min() != raw.max():
                self.varying.append(score)
            elif len(raw):
                self.constant += score.weight * int(score.plugin.normalize_score(raw[:1], int(raw[0]))[0])


class StaticFits:
    """The most recently used static fits; demands that differ in amounts only share one."""

    def __init__(self, profile: Profile, cache: NodeInfoCache, *, limit: int = 256) -> None:
        self._profile = profile
        self._cache = cache
        self._limit = limit
        self._fits: OrderedDict[Hashable, StaticFit] = OrderedDict()

    def of(self, demand: Demand) -> StaticFit:
        """The demand's static fit, up to date."""
        fit = self._fits.get(demand.static_key)
        if fit is None:
            fit = StaticFit(demand.spec, self._profile, self._cache)
            self._fits[demand.static_key] = fit
            if len(self._fits) > self._limit:
                self._fits.popitem(last=False)
        else:
            self._fits.move_to_end(demand.static_key)
        fit.refresh(demand)
        return fit
