"""PodTopologySpread: pods of a kind are to be spread evenly over the domains of a topology key."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.model.pod_rules import SpreadConstraint
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.framework import MAX_SCORE, FilterStanding, Refusals, ScoreStanding
from scheduler_worker.core.plugins.spread_domains import SpreadDomains

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

_NO_KEY = "node(s) didn't match pod topology spread constraints (missing required label)"
_SKEWED = "node(s) didn't match pod topology spread constraints"


class PodTopologySpread:
    """DoNotSchedule constraints filter, ScheduleAnyway ones score; a pod without any scores by the system's defaults."""

    name = "PodTopologySpread"

    def filter_standing(self, spec: PodSpec, cache: NodeInfoCache) -> FilterStanding | None:
        """See PodFilter."""
        required = tuple(constraint for constraint in spec.spread if constraint.required)
        return _Skew(spec, required, cache) if required else None

    def score_standing(self, spec: PodSpec, cache: NodeInfoCache) -> ScoreStanding | None:
        """See PodScore."""
        if spec.spread:
            wished = tuple(constraint for constraint in spec.spread if not constraint.required)
            return _Evenness(spec, wished, cache, by_default=False) if wished else None
        if spec.default_spread is None:
            return None
        defaults = (
            SpreadConstraint(3, HOSTNAME, spec.default_spread, required=False),
            SpreadConstraint(5, ZONE, spec.default_spread, required=False),
        )
        return _Evenness(spec, defaults, cache, by_default=True)


class _Skew:
    def __init__(self, spec: PodSpec, constraints: tuple[SpreadConstraint, ...], cache: NodeInfoCache) -> None:
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
            passed &= ~self._over(index)
        self.passed = passed
        return True

    def refusals(self) -> Refusals:
        left = np.ones(self._cache.size, np.bool_)
        without_key, skewed = ~left, ~left
        for index in range(len(self._constraints)):
            missing = left & (self._domains.codes(index) < 0)
            without_key |= missing
            left &= ~missing
            over = left & self._over(index)
            skewed |= over
            left &= ~over
        return Refusals(((_NO_KEY, without_key), (_SKEWED, skewed)), unresolvable=without_key)

    def _over(self, index: int) -> Mask:
        """Which nodes lie in domains that one more pod would lift too far above the emptiest."""
        constraint = self._constraints[index]
        counts = self._domains.counts(index)
        found = counts[self._domains.found(index)]
        least = int(found.min()) if len(found) >= constraint.min_domains else 0
        over = counts + self._self[index] - least > constraint.max_skew
        over[-1] = False  # nodes without the key have a reason of their own
        refused: Mask = over[self._domains.codes(index)]
        return refused


class _Evenness:
    def __init__(
        self, spec: PodSpec, constraints: tuple[SpreadConstraint, ...], cache: NodeInfoCache, *, by_default: bool
    ) -> None:
        self._cache = cache
        self._constraints = constraints
        self._by_default = by_default
        # The defaults do not ask a node for all keys: clusters without zones are spread over hosts.
        self._domains = SpreadDomains(spec, constraints, cache, all_keys=not by_default)

    def refresh(self) -> bool:
        return self._domains.refresh()

    def scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        considered = feasible if self._by_default else feasible & self._domains.has_all_keys
        raw = np.zeros(len(feasible))
        for index, constraint in enumerate(self._constraints):
            codes = self._domains.codes(index)
            if constraint.topology_key == HOSTNAME:
                counts: NDArray[np.int32] = self._domains.counts_of_nodes(index)
                domains = int(np.count_nonzero(considered))
            else:
                counts = self._domains.counts(index)[codes]
                domains = self._domains.distinct(index, considered)
            points = counts * np.log(domains + 2) + (constraint.max_skew - 1)
            raw += np.where(codes >= 0, points, 0.0)
        rounded = np.floor(raw + 0.5).astype(np.int64)
        seen = rounded[considered]
        if not len(seen):
            return None
        lowest, highest = int(seen.min()), int(seen.max())
        scores = MAX_SCORE * (highest + lowest - rounded) // highest if highest else np.full(len(raw), MAX_SCORE)
        return np.where(considered, scores, 0)
