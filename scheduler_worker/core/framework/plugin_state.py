"""The state of a profile's pod filters and pod scores for one class (kube-scheduler: CycleState)."""

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    NOTHING_RESERVED,
    Bounds,
    DefaultSpreading,
    FilterPlugin,
    FilterState,
    Rejection,
    Reserved,
    ScorePlugin,
    ScoreState,
)
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import Mask, NodeIndexes


class PluginState:
    """Kept with a class's ranking; valid as of the last `refresh`."""

    def __init__(self, demand: Demand, profile: Profile, cache: NodeInfoCache) -> None:
        self.filters: list[tuple[FilterPlugin, FilterState]] = []  # in the profile's order
        self.scores: list[tuple[ScorePlugin, int, ScoreState]] = []
        self.unscorable: tuple[str, str] | None = None  # the plugin that cannot score the class, and why
        if not demand.about_pods:
            return
        self.unscorable = next(
            (
                (scorer.name, why)
                for scorer, _ in (*profile.static_scores, *profile.dynamic_scores, *profile.pod_scores)
                if (why := scorer.pre_score(demand.spec)) is not None
            ),
            None,
        )
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

    def prepare(self) -> bool:
        """See FilterState."""
        return all(state.prepare() for _, state in self.filters)

    def default_spreading(self, feasible: NodeIndexes) -> DefaultSpreading | None:
        """How default spreading scores these nodes, which are all feasible ones. None if pods of the class
        change any other result. After `add_scores`."""
        moving = [scorer for scorer in self.scores if not scorer[2].steady]
        if (
            self.unscorable is not None
            or len(moving) != 1
            or not all(state.steady for _, state in self.filters)
        ):
            return None
        _, weight, state = moving[0]
        return state.default_spreading(feasible, weight)

    def bounds(self) -> Bounds | None:
        """How pods of the class limit each other. None if they also change scores, or if it cannot be
        told."""
        if self.unscorable is not None or not all(state.flat for _, _, state in self.scores):
            return None
        found = [state.bounds() for _, state in self.filters]
        known = [bounds for bounds in found if bounds is not None]
        skews = [bounds.skew for bounds in known if bounds.skew is not None]
        if len(known) < len(found) or not known or len(skews) > 1:
            return None
        passed = np.logical_and.reduce([bounds.passed for bounds in known])
        return Bounds(passed, tuple(domains for bounds in known for domains in bounds.once), *skews)

    def narrow(self, feasible: Mask) -> Mask:
        """Remove nodes that a pod filter refuses, in place: (size,). A class that cannot be scored has no
        choice of nodes."""
        if self.rejection is not None:
            feasible[:] = False
        for _, state in self.filters:
            if state.failure is not None and state.failure.among(feasible) is not None:
                feasible[:] = False
            feasible &= state.passed
        if self.unscorable is not None and np.count_nonzero(feasible) > 1:
            feasible[:] = False
        return feasible

    @property
    def rejection(self) -> Rejection | None:
        """Why no node can take the class, known before nodes are looked at."""
        found = (state.rejection for _, state in self.filters)
        return next((rejection for rejection in found if rejection is not None), None)

    def reserve(self, node: int) -> Reserved:
        """What a pod of the class takes if it is placed on the node; the names are sorted."""
        found = [state.reserve(node) for _, state in self.filters]
        found = [reservation for reservation in found if reservation is not NOTHING_RESERVED]
        if not found:
            return NOTHING_RESERVED
        return Reserved(
            names=tuple(sorted({name for reservation in found for name in reservation.names})),
            volumes={claim: volume for r in found for claim, volume in r.volumes.items()},
            devices={claim: allocation for r in found for claim, allocation in r.devices.items()},
            mappings=tuple(mapping for reservation in found for mapping in reservation.mappings),
            held=tuple(held for reservation in found for held in reservation.held),
        )

    def add_scores(self, total: NDArray[np.int64], feasible: Mask) -> None:
        """Add the weighted scores of feasible nodes, in place."""
        for _, weight, state in self.scores:
            scores = state.scores(feasible)
            if scores is not None:
                if weight != 1:
                    scores *= weight
                total += scores
