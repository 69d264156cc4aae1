"""The state of a profile's pod filters and pod scores for one class (kube-scheduler: CycleState)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.devices import Allocation, HeldClaim
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    Bounds,
    DefaultSpreading,
    Failure,
    FilterState,
    PodFilter,
    PodScore,
    Rejection,
    ScoreState,
)
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import Mask, NodeIndexes


class PluginState:
    """Kept with a class's ranking; valid as of the last `refresh`."""

    def __init__(self, demand: Demand, profile: Profile, cache: NodeInfoCache) -> None:
        self.filters: list[tuple[PodFilter, FilterState]] = []  # in the profile's order
        self.scores: list[tuple[PodScore, int, ScoreState]] = []
        if not demand.about_pods:
            return
        for plugin in profile.pod_filters:
            state = plugin.filter_state(demand.spec, cache)
            if state is not None:
                self.filters.append((plugin, state))
        for scorer, weight in profile.pod_scores:
            score_state = scorer.score_state(demand.spec, cache)
            if score_state is not None:
                self.scores.append((scorer, weight, score_state))

    def refresh(self) -> bool:
        """Bring all states up to date with the cache; whether anything may have changed."""
        changed = [state.refresh() for _, state in self.filters]
        changed += [state.refresh() for _, _, state in self.scores]
        return any(changed)

    def default_spreading(self, feasible: NodeIndexes) -> DefaultSpreading | None:
        """How default spreading scores these nodes, which are all feasible ones. None if pods of the class
        change any other result. After `add_scores`."""
        moving = [scorer for scorer in self.scores if not getattr(scorer[2], "steady", False)]
        if len(moving) != 1 or not all(getattr(state, "steady", False) for _, state in self.filters):
            return None
        _, weight, state = moving[0]
        found: DefaultSpreading | None = (
            state.default_spreading(feasible, weight) if hasattr(state, "default_spreading") else None
        )
        return found

    def bounds(self) -> Bounds | None:
        """How pods of the class limit each other. None if they also change scores, or if it cannot be
        told."""
        if not all(getattr(state, "flat", False) for _, _, state in self.scores):
            return None
        found = [state.bounds() if hasattr(state, "bounds") else None for _, state in self.filters]
        known = [bounds for bounds in found if bounds is not None]
        skews = [bounds.skew for bounds in known if bounds.skew is not None]
        if len(known) < len(found) or not known or len(skews) > 1:
            return None
        passed = np.logical_and.reduce([bounds.passed for bounds in known])
        return Bounds(passed, tuple(domains for bounds in known for domains in bounds.once), *skews)

    def narrow(self, feasible: Mask) -> Mask:
        """Remove nodes that a pod filter refuses, in place: (size,)."""
        if self.rejection is not None:
            feasible[:] = False
        for _, state in self.filters:
            failure: Failure | None = getattr(state, "failure", None)
            if failure is not None and (feasible & failure.nodes).any():
                feasible[:] = False
            feasible &= state.passed
        return feasible

    @property
    def rejection(self) -> Rejection | None:
        """Why no node can take the class, known before nodes are looked at."""
        found = (getattr(state, "rejection", None) for _, state in self.filters)
        return next((rejection for rejection in found if rejection is not None), None)

    def bindings(self, node: int) -> dict[str, str | None]:
        """By claim that is to be bound if a pod of the class is placed there, the volume that it gets; None: one
        that is provisioned."""
        found: dict[str, str | None] = {}
        for _, state in self.filters:
            if hasattr(state, "bindings"):
                found |= state.bindings(node)
        return found

    def device_bindings(self, node: int) -> tuple[Mapping[str, Allocation], tuple[Any, ...]]:
        """By claim that is to be allocated if a pod of the class is placed there, its devices; and which
        requests stand for whose extended resources (RequestMapping)."""
        for _, state in self.filters:
            if hasattr(state, "device_bindings"):
                claims, mappings = state.device_bindings(node)
                return claims, mappings
        return {}, ()

    def held_claims(self, node: int) -> tuple[HeldClaim, ...]:
        """The claims that a pod of the class holds devices for if it is placed there."""
        holding = (state.held_claims for _, state in self.filters if hasattr(state, "held_claims"))
        return tuple(held for claims in holding for held in claims(node))

    def reserved_names(self, node: int) -> tuple[str, ...]:
        """Names of what a pod of the class takes if it is placed there, sorted."""
        taking = (state.reserved_names for _, state in self.filters if hasattr(state, "reserved_names"))
        return tuple(sorted({name for names in taking for name in names(node)}))

    def add_scores(self, total: NDArray[np.int64], feasible: Mask) -> None:
        """Add the weighted scores of feasible nodes, in place."""
        for _, weight, state in self.scores:
            scores = state.scores(feasible)
            if scores is not None:
                if weight != 1:
                    scores *= weight
                total += scores
