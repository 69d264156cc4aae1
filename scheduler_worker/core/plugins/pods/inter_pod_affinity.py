"""InterPodAffinity: affinity and anti-affinity between pods, in both directions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec, group_of
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import (
    MAX_SCORE,
    Bounds,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    ScorePlugin,
    ScoreState,
)
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.pod_index.counter import DomainSums
from scheduler_worker.core.pod_index.selector_query import CarriedTerm, Matching

_NOT_NEAR = "node(s) didn't match pod affinity rules"
_TOO_NEAR = "node(s) didn't match pod anti-affinity rules"
_KEPT_AWAY = "node(s) didn't satisfy existing pods anti-affinity rules"


class InterPodAffinity(FilterPlugin, ScorePlugin):
    """Required terms filter; preferred terms and required affinity of others score.

    `hard_pod_affinity_weight` is what a required affinity term of another pod counts. With
    `ignore_preferred_terms_of_existing_pods`, terms of other pods score only pods that have preferred terms
    themselves. kube-scheduler: InterPodAffinityArgs."""

    name = "InterPodAffinity"
    filter_reads = score_reads = Reads.PODS

    def __init__(
        self, hard_pod_affinity_weight: int = 1, *, ignore_preferred_terms_of_existing_pods: bool = False
    ) -> None:
        self._hard_weight = hard_pod_affinity_weight
        self._only_preferring = ignore_preferred_terms_of_existing_pods

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin. There always is one: pods that come later may carry terms that match this one."""
        return _AffinityFilter(spec, cache)

    def score_state(self, spec: PodSpec, cache: NodeInfoCache) -> ScoreState | None:
        """See ScorePlugin."""
        affinity = spec.pod_affinity
        prefers = affinity is not None and (affinity.preferred or affinity.anti_preferred)
        if self._only_preferring and not prefers:
            return None
        return _AffinityScore(spec, cache, self._hard_weight)


class _Sums:
    """The counts that a state reads: for the class's own terms, and for terms of other pods that match it."""

    def __init__(self, spec: PodSpec, cache: NodeInfoCache) -> None:
        self.terms: list[CarriedTerm] = []  # of other pods
        self._spec = spec
        self._pod_index = cache.pod_index
        self._terms_version = -1  # grows with the known namespaces too
        self._held: list[DomainSums] = []
        self._versions: list[int] = []

    def of(self, query: Matching | CarriedTerm, key: str) -> DomainSums:
        """The sums of one query, kept up to date from now on."""
        sums = self._pod_index.counter(query).by_domain(key)
        self._held.append(sums)
        return sums

    def refresh(self, connect: Callable[[], None]) -> bool:
        """Whether any sum has changed since the last call. `connect` looks up all of them if terms
        changed."""
        reconnected = self._terms_version != self._pod_index.terms_version
        if reconnected:
            self._terms_version = self._pod_index.terms_version
            self.terms = self._pod_index.terms_about(self._spec.namespace, self._spec.labels)
            self._held, self._versions = [], []
            connect()
        versions = [sums.refresh() for sums in self._held]
        changed = versions != self._versions
        self._versions = versions
        return changed or reconnected


class _AffinityFilter(FilterState):
    def __init__(self, spec: PodSpec, cache: NodeInfoCache) -> None:
        self.passed: Mask = np.zeros(0, np.bool_)
        self._cache = cache
        self._affinity = spec.pod_affinity or PodAffinity()
        self._sums = _Sums(spec, cache)
        self._near: list[DomainSums] = []
        self._avoided: list[DomainSums] = []
        self._avoiding: list[DomainSums] = []
        self._self = group_of(spec)
        self._may_be_first = False
        self._connect()

    def refresh(self) -> bool:
        size = self._cache.size
        if not self._sums.refresh(self._connect) and len(self.passed) == size:
            return False
        passed = self._is_near(size)
        for sums in (*self._avoided, *self._avoiding):
            passed &= (sums.sums == 0).take(sums.column.codes[:size])
        self.passed = passed
        return True

    @property
    def steady(self) -> bool:
        """Whether no pod of the class changes it."""
        return not (self._near or self._avoided or self._avoiding)

    def bounds(self) -> Bounds | None:
        """See FilterState. None for pods with affinity to their own kind."""
        if self._near and self._may_be_first:
            return None
        size = self._cache.size
        avoided = zip(self._affinity.anti_required, self._avoided, strict=True)
        return Bounds(
            self.passed, tuple(sums.column.codes[:size] for term, sums in avoided if self._itself(term))
        )

    def refusals(self) -> Refusals:
        size = self._cache.size
        far = ~self._is_near(size)
        too_near = _any_pod(self._avoided, size) & ~far
        kept_away = _any_pod(self._avoiding, size) & ~far & ~too_near
        return Refusals(((_NOT_NEAR, far), (_TOO_NEAR, too_near), (_KEPT_AWAY, kept_away)), unresolvable=far)

    def _connect(self) -> None:
        required = self._affinity.required
        # A pod that matches all its own terms may be the first of its kind.
        self._may_be_first = Matching(required).includes(self._self, self._cache.pod_index.namespaces)
        self._near = [self._sums.of(Matching(required), term.topology_key) for term in required]
        self._avoided = [self._sums.of(Matching((t,)), t.topology_key) for t in self._affinity.anti_required]
        self._avoiding = [
            self._sums.of(carried, carried.term.topology_key)
            for carried in self._sums.terms
            if carried.points is None
        ]

    def _itself(self, term: PodAffinityTerm) -> bool:
        return Matching((term,)).includes(self._self, self._cache.pod_index.namespaces)

    def _is_near(self, size: int) -> Mask:
        near = np.ones(size, np.bool_)
        first = self._may_be_first and not any(sums.sums.any() for sums in self._near)
        for sums in self._near:
            codes = sums.column.codes[:size]
            near &= codes >= 0 if first else (sums.sums > 0).take(codes)
        return near


class _AffinityScore(ScoreState):
    def __init__(self, spec: PodSpec, cache: NodeInfoCache, hard_weight: int) -> None:
        affinity = spec.pod_affinity or PodAffinity()
        self._cache = cache
        self._hard_weight = hard_weight
        self._own: list[tuple[PodAffinityTerm, int]] = [(p.term, p.weight) for p in affinity.preferred]
        self._own += [(p.term, -p.weight) for p in affinity.anti_preferred]
        own, namespaces = group_of(spec), cache.pod_index.namespaces
        self._matches_itself = bool(hard_weight) and any(
            Matching((term,)).includes(own, namespaces) for term in affinity.required
        )
        self._sums = _Sums(spec, cache)
        self._weighted: list[tuple[DomainSums, int]] = []
        self._raw: NDArray[np.float64] = np.zeros(0)  # (size,), whole numbers
        self._feasible = b""  # which nodes were feasible at the last `scores`, to be compared with
        self._at: NDArray[np.intp] = np.zeros(0, np.intp)  # these nodes
        self._connect()

    def refresh(self) -> bool:
        size = self._cache.size
        if not self._sums.refresh(self._connect) and len(self._raw) == size:
            return False
        points: list[NDArray[np.float64]] = [
            np.multiply(sums.sums, weight, dtype=np.float64).take(sums.column.codes[:size])
            for sums, weight in self._weighted
            if sums.sums.any()
        ]
        raw: NDArray[np.float64] = points[0] if points else np.zeros(size)
        for more in points[1:]:
            raw += more
        self._raw = raw
        return True

    @property
    def steady(self) -> bool:
        """Whether no pod of the class changes it."""
        return not self._weighted

    @property
    def flat(self) -> bool:
        """Whether all nodes score alike, and no pod of the class changes that."""
        return not (self._own or self._matches_itself or self._raw.any())

    def scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        packed = feasible.tobytes()
        if packed != self._feasible:
            self._feasible, self._at = packed, feasible.nonzero()[0]
        if not len(self._at):
            return None
        raw = self._raw.take(self._at)
        lowest, highest = float(raw.min()), float(raw.max())
        if lowest == highest:
            return None
        normalized = self._raw - lowest
        normalized /= highest - lowest
        normalized *= MAX_SCORE
        return normalized.astype(np.int64)

    def _connect(self) -> None:
        self._weighted = [(self._sums.of(Matching((t,)), t.topology_key), weight) for t, weight in self._own]
        self._weighted += [
            (self._sums.of(carried, carried.term.topology_key), points)
            for carried in self._sums.terms
            if (points := self._points(carried))
        ]

    def _points(self, carried: CarriedTerm) -> int:
        """What a term of other pods adds to its domain; 0 for anti-affinity, which filters."""
        return (carried.points or 0) * (self._hard_weight if carried.required else 1)


def _any_pod(domains: list[DomainSums], size: int) -> Mask:
    found = np.zeros(size, np.bool_)
    for sums in domains:
        found |= (sums.sums > 0).take(sums.column.codes[:size])
    return found
