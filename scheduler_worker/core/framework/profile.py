"""A worker's plugins by extension point, and their combined result for nodes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    DynamicFilter,
    DynamicScore,
    Filter,
    Observer,
    OneNodeFilter,
    OneNodeScore,
    PodFilter,
    PodScore,
    PreEnqueue,
    PreFilter,
    SideBySideFilter,
    SideBySideScore,
    StaticFilter,
    StaticScore,
)
from scheduler_worker.core.nodes import Mask


@dataclass(frozen=True, slots=True)
class Profile:
    """Plugins by extension point, each in the order given."""

    pre_filters: tuple[PreFilter, ...]
    static_filters: tuple[StaticFilter, ...]
    dynamic_filters: tuple[DynamicFilter, ...]
    static_scores: tuple[tuple[StaticScore, int], ...]
    dynamic_scores: tuple[tuple[DynamicScore, int], ...]
    observers: tuple[Observer, ...] = ()
    reads_cards: bool = False  # views hold cards for every pod, not only for those that request some
    pre_enqueues: tuple[PreEnqueue, ...] = ()
    pod_filters: tuple[PodFilter, ...] = ()
    pod_scores: tuple[tuple[PodScore, int], ...] = ()
    filters: tuple[Filter, ...] = ()  # of all sorts, in the order in which they are reported
    by_chance: bool = False  # each pod draws among the best nodes; else a worker's order of them is fixed
    samples: bool = True  # single pods of new classes may be scored on a sample of the nodes
    # The dynamic plugins, if all of them have an attribute `one_at_a_time` that is true.
    one_at_a_time: tuple[tuple[OneNodeFilter, ...], tuple[tuple[OneNodeScore, int], ...]] | None = None
    # The dynamic plugins, if all of them have an attribute `side_by_side` that is true.
    side_by_side: tuple[tuple[SideBySideFilter, ...], tuple[tuple[SideBySideScore, int], ...]] | None = None

    @property
    def version(self) -> int:
        """Grows whenever scores change though no node did."""
        return sum(observer.version for observer in self.observers)

    def wants_cards(self, demand: Demand) -> bool:
        """Whether views for this demand must hold cards."""
        return self.reads_cards or demand.devices is not None

    @property
    def mixes(self) -> bool:
        """Whether pods of a batch are placed in a random order, one by one, and not class after class.

        Packing cards depends on the order: pods of one shape in a row leave fragments that fit no other
        shape."""
        return self.reads_cards or self.by_chance

    def evaluate(self, demand: Demand, view: NodeView) -> tuple[Mask | None, NDArray[np.float64]]:
        """Dynamic filters and scores of n nodes: which pass (None: all), and their weighted sum."""
        mask: Mask | None = None
        for plugin in self.dynamic_filters:
            passed = plugin.passes(demand, view)
            if passed is not None:
                mask = passed if mask is None else mask & passed
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
        filters, scores = self.one_at_a_time or ((), ())
        for plugin in filters:
            if not plugin.passes_one(demand, node):
                return None
        total = 0
        for scorer, weight in scores:
            total += weight * scorer.score_one(demand, node)
        return total

    def evaluate_each(
        self, requested: RequestedResources, view: NodeView
    ) -> tuple[Mask, NDArray[np.float64]]:
        """The result of `evaluate` for k pods, each on m nodes of its own: (k, m) both. Only with
        `side_by_side`."""
        filters, scores = self.side_by_side or ((), ())
        mask, total = np.ones(view.mean_factors.shape, np.bool_), np.zeros(view.mean_factors.shape)
        for plugin in filters:
            passed = plugin.passes_each(requested, view)
            if passed is not None:
                mask &= passed
        for scorer, weight in scores:
            score = scorer.score_each(requested, view)
            if weight != 1:
                score *= weight
            total += score
        return mask, total
