"""How one class stands with the pods around it: the standings of all pod filters and pod scores of a profile."""

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.bound_runs import Bounds
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.even_runs import Evenly
from scheduler_worker.core.framework import FilterStanding, PodFilter, PodScore, ScoreStanding
from scheduler_worker.core.profile import Profile


class PodStandings:
    """Kept with a class's ranking. Right as of the last `refresh`."""

    def __init__(self, demand: Demand, profile: Profile, cache: NodeInfoCache) -> None:
        self.filters: list[tuple[PodFilter, FilterStanding]] = []  # in the profile's order
        self.scores: list[tuple[PodScore, int, ScoreStanding]] = []
        if not demand.about_pods:
            return
        for plugin in profile.pod_filters:
            standing = plugin.filter_standing(demand.spec, cache)
            if standing is not None:
                self.filters.append((plugin, standing))
        for scorer, weight in profile.pod_scores:
            score_standing = scorer.score_standing(demand.spec, cache)
            if score_standing is not None:
                self.scores.append((scorer, weight, score_standing))

    def refresh(self) -> bool:
        """Take in what happened; whether anything may have changed."""
        changed = [standing.refresh() for _, standing in self.filters]
        changed += [standing.refresh() for _, _, standing in self.scores]
        return any(changed)

    def evenly(self, feasible: NodeIndexes) -> Evenly | None:
        """What spreading by default says of these nodes, which are all that pass; None where the class's pods change anything
        else that is said here. After `add_scores`."""
        moving = [scorer for scorer in self.scores if not getattr(scorer[2], "steady", False)]
        if len(moving) != 1 or not all(getattr(standing, "steady", False) for _, standing in self.filters):
            return None
        _, weight, standing = moving[0]
        found: Evenly | None = standing.evenly(feasible, weight) if hasattr(standing, "evenly") else None
        return found

    def bounds(self) -> Bounds | None:
        """How pods of the class limit each other; None where they also change what nodes are worth to them, or where it cannot
        be told."""
        if not all(getattr(standing, "flat", False) for _, _, standing in self.scores):
            return None
        found = [standing.bounds() if hasattr(standing, "bounds") else None for _, standing in self.filters]
        known = [bounds for bounds in found if bounds is not None]
        skews = [bounds.skew for bounds in known if bounds.skew is not None]
        if len(known) < len(found) or not known or len(skews) > 1:
            return None
        passed = np.logical_and.reduce([bounds.passed for bounds in known])
        return Bounds(passed, tuple(domains for bounds in known for domains in bounds.once), *skews)

    def narrow(self, feasible: Mask) -> Mask:
        """Those of the nodes that every pod filter lets pass, in place: (size,)."""
        for _, standing in self.filters:
            feasible &= standing.passed
        return feasible

    def add_scores(self, total: NDArray[np.int64], feasible: Mask) -> None:
        """Add the weighted scores of feasible nodes, in place."""
        for _, weight, standing in self.scores:
            scores = standing.scores(feasible)
            if scores is not None:
                if weight != 1:
                    scores *= weight
                total += scores
