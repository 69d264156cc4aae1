"""A worker's plugins by extension point, and their combined result for nodes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import SpreadConstraint
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    FilterPlugin,
    PermitPlugin,
    PreBindPlugin,
    ScorePlugin,
)
from scheduler_worker.core.nodes import Mask


@dataclass(frozen=True, slots=True)
class OneNodePaths:
    """How filters and scores by REQUESTED are asked about a single node."""

    filters: tuple[Callable[[Demand, OneNode], bool], ...]
    scores: tuple[tuple[Callable[[Demand, OneNode], int], int], ...]  # with their weights


@dataclass(frozen=True, slots=True)
class SideBySidePaths:
    """How filters and scores by REQUESTED are asked about several pods at once."""

    filters: tuple[Callable[[RequestedResources, NodeView], Mask | None], ...]
    scores: tuple[tuple[Callable[[RequestedResources, NodeView], NDArray[np.float64]], int], ...]


_NO_ONE_NODE_PATHS, _NO_SIDE_BY_SIDE_PATHS = OneNodePaths((), ()), SideBySidePaths((), ())


@dataclass(frozen=True, slots=True)
class Profile:
    """Plugins by extension point and by what they read, each in the order given, scores with their
    weights."""

    filters: tuple[FilterPlugin, ...]  # all, in the order in which they are reported
    pre_filters: tuple[FilterPlugin, ...]
    static_filters: tuple[FilterPlugin, ...]  # by SPECS
    dynamic_filters: tuple[FilterPlugin, ...]  # by REQUESTED
    pod_filters: tuple[FilterPlugin, ...]  # by PODS
    static_scores: tuple[tuple[ScorePlugin, int], ...]
    dynamic_scores: tuple[tuple[ScorePlugin, int], ...]
    pod_scores: tuple[tuple[ScorePlugin, int], ...]
    observers: tuple[ScorePlugin, ...] = ()
    permits: tuple[PermitPlugin, ...] = ()
    pre_binds: tuple[PreBindPlugin, ...] = ()
    reads_cards: bool = False  # views hold cards for every pod, not only for those that request some
    by_chance: bool = False  # each pod draws among the best nodes; else a worker's order of them is fixed
    samples: bool = True  # single pods of new classes may be scored on a sample of the nodes
    one_at_a_time: OneNodePaths | None = None  # None: not all plugins by REQUESTED have it
    side_by_side: SideBySidePaths | None = None  # the same

    @property
    def version(self) -> int:
        """Grows whenever scores change though no node did."""
        return sum(observer.version for observer in self.observers)

    @property
    def spread_by_default(self) -> tuple[SpreadConstraint, ...]:
        """Constraints for pods that have none (FilterPlugin)."""
        return next((f.spread_by_default for f in self.filters if f.spread_by_default), ())

    @property
    def bind_seconds(self) -> dict[str, float]:
        """By filter, how long a placed pod may wait before it is bound, where the profile says it."""
        return {f.name: f.bind_seconds for f in self.filters if f.bind_seconds is not None}

    def wants_cards(self, demand: Demand) -> bool:
        """Whether views for this demand must hold cards."""
        return self.reads_cards or demand.devices is not None

    @property
    def mixes(self) -> bool:
        """Whether pods of a batch are placed in a random order, one by one, and not class after class.

        Packing cards depends on the order: pods of one shape in a row leave fragments that fit no other
        shape."""
        return self.reads_cards or self.by_chance

    def admits(self, demand: Demand, view: NodeView) -> Mask | None:
        """Which nodes pass the dynamic filters: (n,). None: all."""
        mask: Mask | None = None
        seen = view.for_filters(demand)
        for plugin in self.dynamic_filters:
            passed = plugin.filter(demand, seen)
            if passed is not None:
                mask = passed if mask is None else mask & passed
        return mask

    def evaluate(self, demand: Demand, view: NodeView) -> tuple[Mask | None, NDArray[np.float64]]:
        """Dynamic filters and scores of n nodes: which pass (None: all), and their weighted sum."""
        mask = self.admits(demand, view)
        total: NDArray[np.float64] | None = None
        for scorer, weight in self.dynamic_scores:
            score = scorer.score(demand, view)
            if score is None:
                continue
            if weight != 1:
                score *= weight
            total = score if total is None else np.add(total, score, out=total)
        return mask, np.zeros(view.requested.shape[1]) if total is None else total

    def evaluate_one(self, demand: Demand, node: OneNode) -> int | None:
        """The result of `evaluate` for one node; None: it does not pass. Only with `one_at_a_time`."""
        paths = self.one_at_a_time or _NO_ONE_NODE_PATHS
        for passes in paths.filters:
            if not passes(demand, node):
                return None
        total = 0
        for score, weight in paths.scores:
            total += weight * score(demand, node)
        return total

    def evaluate_each(
        self, requested: RequestedResources, view: NodeView
    ) -> tuple[Mask, NDArray[np.float64]]:
        """The result of `evaluate` for k pods, each on m nodes of its own: (k, m) both. Only with
        `side_by_side`."""
        paths = self.side_by_side or _NO_SIDE_BY_SIDE_PATHS
        mask, total = np.ones(view.mean_factors.shape, np.bool_), np.zeros(view.mean_factors.shape)
        for passes in paths.filters:
            passed = passes(requested, view)
            if passed is not None:
                mask &= passed
        for score_each, weight in paths.scores:
            score = score_each(requested, view)
            if weight != 1:
                score *= weight
            total += score
        return mask, total
