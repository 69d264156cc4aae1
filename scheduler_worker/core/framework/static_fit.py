"""The static part of a class's fit: filters and scores by specs alone, on all nodes. Computed once, then
repaired for nodes whose spec changed."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import Rejection, StaticFilter, StaticScore
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import Mask, NodeIndexes


@dataclass(slots=True)
class RawScore:
    """One static score before normalisation."""

    plugin: StaticScore
    weight: int
    raw: NDArray[np.int64]  # (nodes,)


class StaticFit:
    """Mask and raw scores of all nodes below the cache's size. `version` grows whenever any of it may have
    changed."""

    def __init__(self, spec: PodSpec, profile: Profile, cache: NodeInfoCache) -> None:
        self._spec = spec
        self._profile = profile
        self._cache = cache
        self._position = -1
        self.version = 0
        self.mask: Mask = np.zeros(0, np.bool_)
        self.constant = 0  # weighted sum of the scores that are the same wherever the pod may go
        self.varying: list[RawScore] = []  # the others: normalised over the nodes that have room
        self.raws: list[RawScore] = []  # of all static scores that have an opinion
        gates = (plugin.pre_enqueue(spec) for plugin in profile.pre_enqueues)
        found = [pre.pre_filter(spec) for pre in profile.pre_filters]
        self.rejection = next((r for r in (*gates, *found) if isinstance(r, Rejection)), None)
        restrictions = [r for r in found if isinstance(r, frozenset)]
        self.only_named = frozenset.intersection(*restrictions) if restrictions else None

    def refresh(self) -> None:
        """Bring it up to date with the cache's specs."""
        log, size = self._cache.spec_changes, self._cache.size
        if self._position == log.position and len(self.mask) == size:
            return
        changed = log.since(self._position, size) if self._position >= 0 and len(self.mask) == size else None
        if changed is None:
            self._evaluate_all(np.arange(size))
        else:
            self._evaluate_some(changed)
        self._sort_scores()
        self._position = log.position  # last: if a plugin raised, the next call does everything again
        self.version += 1

    def first_refusals(self, at: NodeIndexes) -> list[tuple[StaticFilter | None, Mask]]:
        """Which of the nodes `at` each filter refuses; None is the restriction to named nodes, which comes
        first."""
        catalogue = self._cache.catalogue
        found: list[tuple[StaticFilter | None, Mask]] = []
        if self.only_named is not None:
            found.append((None, ~catalogue.named(self.only_named, at)))
        for plugin in self._profile.static_filters:
            admitted = plugin.admits(self._spec, catalogue, at)
            if admitted is not None:
                found.append((plugin, ~admitted))
        return found

    def _evaluate_all(self, at: NodeIndexes) -> None:
        self.mask = self._admitted(at)
        self.raws = [RawScore(p, w, raw) for p, w, raw in self._raw_scores(at)]

    def _evaluate_some(self, at: NodeIndexes) -> None:
        self.mask[at] = self._admitted(at)
        for stored, (plugin, _, raw) in zip(self.raws, self._raw_scores(at), strict=True):
            if getattr(plugin, "of_all_nodes", False):
                whole = plugin.raw_score(self._spec, self._cache.catalogue, np.arange(self._cache.size))
                stored.raw = stored.raw if whole is None else whole
            else:
                stored.raw[at] = raw

    def _admitted(self, at: NodeIndexes) -> Mask:
        mask = self._cache.present.take(at) if self.rejection is None else np.zeros(len(at), np.bool_)
        if self.only_named is not None:
            mask &= self._cache.catalogue.named(self.only_named, at)
        for plugin in self._profile.static_filters:
            admitted = plugin.admits(self._spec, self._cache.catalogue, at)
            if admitted is not None:
                mask &= admitted
        return mask

    def _raw_scores(self, at: NodeIndexes) -> list[tuple[StaticScore, int, NDArray[np.int64]]]:
        scores = (
            (p, w, p.raw_score(self._spec, self._cache.catalogue, at)) for p, w in self._profile.static_scores
        )
        return [(p, w, raw) for p, w, raw in scores if raw is not None]

    def _sort_scores(self) -> None:
        self.constant, self.varying = 0, []
        for score in self.raws:
            raw = score.raw[self.mask]
            if len(raw) and raw.min() != raw.max():
                self.varying.append(score)
            elif len(raw):
                self.constant += score.weight * int(score.plugin.normalize(raw[:1], int(raw[0]))[0])


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
        fit.refresh()
        return fit
