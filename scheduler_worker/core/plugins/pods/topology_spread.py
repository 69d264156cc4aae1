"""PodTopologySpread: spreads matching pods evenly over the domains of a topology key."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec, SpreadConstraint
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import (
    MAX_SCORE,
    Bounds,
    DefaultSpreading,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    ScorePlugin,
    ScoreState,
    Skew,
)
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.plugins.pods.spread_domains import SpreadDomains

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

_NO_KEY = "node(s) didn't match pod topology spread constraints (missing required label)"
_SKEWED = "node(s) didn't match pod topology spread constraints"


class PodTopologySpread(FilterPlugin, ScorePlugin):
    """DoNotSchedule constraints filter, ScheduleAnyway ones score; a pod without any scores by the system's
    defaults, or by `default_constraints`, whose selectors do not count (kube-scheduler:
    PodTopologySpreadArgs with defaultingType List). If one of these is DoNotSchedule, a pod's class has them
    all like its own."""

    name = "PodTopologySpread"
    filter_reads = score_reads = Reads.PODS

    def __init__(self, default_constraints: tuple[SpreadConstraint, ...] | None = None) -> None:
        self._defaults = default_constraints
        if any(constraint.required for constraint in default_constraints or ()):
            self.spread_by_default = default_constraints or ()

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin."""
        required = tuple(constraint for constraint in spec.spread if constraint.required)
        return _Skew(spec, required, cache) if required else None

    def score_state(self, spec: PodSpec, cache: NodeInfoCache) -> ScoreState | None:
        """See ScorePlugin."""
        if spec.spread:
            preferred = tuple(constraint for constraint in spec.spread if not constraint.required)
            return _Evenness(spec, preferred, cache, by_default=False) if preferred else None
        if spec.default_spread is None:
            return None
        if self._defaults is not None:
            own = tuple(replace(c, selector=spec.default_spread) for c in self._defaults)
            return _Evenness(spec, own, cache, by_default=False) if own else None
        defaults = (
            SpreadConstraint(3, HOSTNAME, spec.default_spread, required=False),
            SpreadConstraint(5, ZONE, spec.default_spread, required=False),
        )
        return _Evenness(spec, defaults, cache, by_default=True)


class _Skew(FilterState):
    def __init__(
        self, spec: PodSpec, constraints: tuple[SpreadConstraint, ...], cache: NodeInfoCache
    ) -> None:
        self.passed: Mask = np.zeros(0, np.bool_)
        self._cache = cache
        self._constraints = constraints
        self._domains = SpreadDomains(spec, constraints, cache, all_keys=True)
        labels = dict(spec.labels)
        self._self = [c.selector is not None and c.selector.matches(labels) for c in constraints]

    def refresh(self) -> bool:
        if not self._domains.refresh():
            return False
        passed = self._domains.has_all_keys.copy()
        for index in range(len(self._constraints)):
            passed &= self._within(index)
        self.passed = passed
        return True

    def refusals(self) -> Refusals:
        left = np.ones(self._cache.size, np.bool_)
        without_key, skewed = ~left, ~left
        for index in range(len(self._constraints)):
            missing = left & (self._domains.codes(index) < 0)
            without_key |= missing
            left &= ~missing
            over = left & ~self._within(index)
            skewed |= over
            left &= ~over
        return Refusals(((_NO_KEY, without_key), (_SKEWED, skewed)), unresolvable=without_key)

    def bounds(self) -> Bounds | None:
        """See FilterState. For one constraint whose matching pods count in their own domains."""
        if not any(self._self):
            return Bounds(self.passed)
        domains, (constraint, *more) = self._domains, self._constraints
        if more or not domains.counting(0)[: self._cache.size][domains.has_all_keys].all():
            return None
        found = domains.found(0).tolist()
        compared = found if len(found) >= constraint.min_domains else ()
        skew = Skew(
            domains.codes(0), domains.counts(0)[:-1].tolist(), compared, margin=constraint.max_skew - 1
        )
        return Bounds(domains.has_all_keys, skew=skew)

    def _within(self, index: int) -> Mask:
        """Which nodes are in domains where one more pod keeps the skew to the emptiest domain allowed."""
        constraint = self._constraints[index]
        counts = self._domains.counts(index)
        found = counts.take(self._domains.found(index))
        least = int(found.min()) if len(found) >= constraint.min_domains else 0
        within = counts <= constraint.max_skew + least - self._self[index]
        within[-1] = True  # nodes without the key have a reason of their own
        passed: Mask = within.take(self._domains.codes(index))
        return passed


class _Evenness(ScoreState):
    def __init__(
        self,
        spec: PodSpec,
        constraints: tuple[SpreadConstraint, ...],
        cache: NodeInfoCache,
        *,
        by_default: bool,
    ) -> None:
        self._cache = cache
        self._constraints = constraints
        self._by_default = by_default
        self._labels = dict(spec.labels)
        # The defaults do not require all keys of a node: clusters without zones are spread over hosts.
        self._domains = SpreadDomains(spec, constraints, cache, all_keys=not by_default)
        self._considered = b""  # which nodes the last `scores` considered, to be compared with
        self._at: NDArray[np.intp] = np.zeros(0, np.intp)  # these nodes
        self._sizes: list[int] = []  # of each constraint, how many domains these nodes lie in

    def refresh(self) -> bool:
        if self._domains.nodes_changed():
            self._considered = b""  # the same nodes may lie in other domains
        return self._domains.refresh()

    def scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        considered = feasible if self._by_default else feasible & self._domains.has_all_keys
        packed = considered.tobytes()
        if packed != self._considered:
            self._considered, self._at = packed, considered.nonzero()[0]
            self._sizes = [self._size(index, considered) for index in range(len(self._constraints))]
        if not len(self._at):
            return None
        raw = self._points(0, self._sizes[0])
        for index, size in enumerate(self._sizes[1:], start=1):
            raw += self._points(index, size)
        raw += 0.5
        scores = raw.astype(np.int64)  # rounded, for no points are below 0
        seen = scores.take(self._at)
        lowest, highest = int(seen.min()), int(seen.max())
        if highest:
            np.subtract(highest + lowest, scores, out=scores)
            scores *= MAX_SCORE
            scores //= highest
        else:
            scores[:] = MAX_SCORE
        if len(self._at) < len(scores) and considered is not feasible:
            scores *= considered
        return scores

    def default_spreading(self, feasible: NodeIndexes, weight: int) -> DefaultSpreading | None:
        """The same for a whole run on these feasible nodes, after `scores` of them. None if a pod does not
        count as one in its domains, and for other constraints than the defaults."""
        selector = self._constraints[0].selector
        itself = selector is not None and selector.matches(self._labels)
        if not (self._by_default and itself and self._domains.counting(1)[feasible].all()):
            return None
        host, zone = self._constraints
        return DefaultSpreading(
            hosts=self._domains.counts_of_nodes(0)[feasible],
            has_host=self._domains.codes(0)[feasible] >= 0,
            zones=self._domains.codes(1)[feasible],
            in_zones=self._domains.counts_with_unlabelled(1)[:-1].tolist(),
            host_least=host.max_skew - 1,
            zone_weight=float(np.log(self._sizes[1] + 2)),
            zone_least=zone.max_skew - 1,
            weight=weight,
        )

    def _size(self, index: int, considered: Mask) -> int:
        """How many domains the nodes are in."""
        if self._constraints[index].topology_key == HOSTNAME:
            return int(np.count_nonzero(considered))
        return self._domains.distinct(index, considered)

    def _points(self, index: int, size: int) -> NDArray[np.float64]:
        """The constraint's points for each node: more for a fuller domain, 0 without the key."""
        constraint, codes = self._constraints[index], self._domains.codes(index)
        weight, least = np.log(size + 2), constraint.max_skew - 1
        if constraint.topology_key == HOSTNAME:
            points: NDArray[np.float64] = self._domains.counts_of_nodes(index) * weight
            points += least
            if self._domains.keyless(index):
                points[codes < 0] = 0.0
            return points
        domains = self._domains
        counts = domains.counts_with_unlabelled(index) if self._by_default else domains.counts(index)
        of_domains: NDArray[np.float64] = counts * weight
        of_domains += least
        of_domains[-1] = 0.0
        return of_domains.take(codes)
