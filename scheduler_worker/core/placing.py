"""Putting runs into a draft, by their rankings or at a glance: measured by the clock, and whatever plugins from outside do.

Where pods find no node it is also said which of this worker's own pods under way are in their way.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import DemandTable, PodClass
from scheduler_worker.core.costs import CostMeter
from scheduler_worker.core.diagnosis import Diagnosis, diagnose
from scheduler_worker.core.failures import Failures
from scheduler_worker.core.glances import Glances
from scheduler_worker.core.guard import PluginFailed
from scheduler_worker.core.judge import Subject
from scheduler_worker.core.placement import RunPlacer
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.proposal import Draft
from scheduler_worker.core.rankings import Rankings
from scheduler_worker.core.reliance import begins_a_kind
from scheduler_worker.core.ties import TieOrder
from scheduler_worker.core.under_way import room_under_way
from scheduler_worker.core.work import Run

_ABOUT_ROOM = frozenset(
    {"NodeResourcesFit", "DeviceCards"}
)  # filters that own pods under way may make refuse for a moment


class Placing:
    """What it places it assumes in the cache. `clock` is read, in seconds."""

    def __init__(
        self,
        cache: NodeInfoCache,
        profile: Profile,
        demands: DemandTable,
        ties: TieOrder,
        *,
        rng: np.random.Generator,
        clock: Callable[[], float],
        alternates: int,
        glance_nodes: int,
        ranking_bytes: int,
    ) -> None:
        """See scheduler.Limits for the last three."""
        self.costs = CostMeter()
        self.failures = Failures()
        self._cache = cache
        self._profile = profile
        self._demands = demands
        self._clock = clock
        self._placer = RunPlacer(cache, ties, alternates=alternates)
        self._rankings = Rankings(profile, cache, ties, limit_bytes=ranking_bytes)
        self._glances = Glances(cache, profile, self._rankings, ties, rng, nodes=glance_nodes, alternates=alternates)

    def observe(self, classes: list[PodClass], counts: NDArray[np.uint32], attempts: NDArray[np.uint16]) -> None:
        """Work came in: runs of these classes, n of each."""
        for observer in self._profile.observers:
            try:
                for index in np.flatnonzero(attempts == 0).tolist():
                    observer.observe(classes[index].demand, int(counts[index]))
            except PluginFailed as failure:  # noqa: PERF203 - it scores by what it saw: its own loss, and no pod's
                self.failures.note(failure)

    def current(self, run: Run) -> Run:
        """The run, by what there is now."""
        pod_class = self._demands.current(run.pod_class)
        return run if pod_class is run.pod_class else replace(run, pod_class=pod_class)

    def subject(self, run: Run) -> Subject:
        """What nodes are judged for. Raises PluginFailed."""
        ranking = self._rankings.of(run.pod_class.demand)
        ranking.refresh()
        return Subject(ranking.demand, ranking.static, ranking.standings)

    def place(self, run: Run, draft: Draft) -> tuple[int, Diagnosis | None]:
        """Put into the draft what fits of a run: how many pods, and why not the others."""
        count, first, started = 0, run.pod_class.demand not in self._rankings, self._clock()
        try:
            ranking = self._rankings.of(run.pod_class.demand)
            begins = begins_a_kind(run.pod_class, self._cache)
            placed = self._placer.place(ranking, len(run.rows), run.pod_class.group)
            count = len(placed.nodes)
            if count:
                draft.add(run, placed, first=begins)
            if count == len(run.rows):
                return count, None
            ranking.refresh()
            return count, ranking.diagnosis(lambda: diagnose(ranking, self._profile, self._cache))
        except PluginFailed as failure:
            return count, self.failures.note(failure)
        finally:
            self.costs.placed(run.pod_class.number, len(run.rows), self._clock() - started, first=first)

    @property
    def pods_at_a_glance(self) -> int:
        """How many pods can be placed together at a glance."""
        return self._glances.room

    def suits_a_glance(self, run: Run) -> bool:
        """Whether a look at some nodes may do for it; see Glances."""
        return self._glances.suits(run)

    def glance(self, suitable: Iterable[Run], draft: Draft) -> tuple[int, list[Run]]:
        """Put into the draft those of the runs for which a glance finds a good node: how many pods, and the others."""
        started, runs = self._clock(), list(suitable)
        try:
            placed = self._glances.place([run.pod_class for run in runs])
        except PluginFailed:
            placed = [None] * len(runs)  # whoever it failed meets it again
        for run, place in zip(runs, placed, strict=True):
            if place is not None:
                draft.add(run, place)
        left = [run for run, place in zip(runs, placed, strict=True) if place is None]
        self.costs.glanced(len(runs) - len(left), self._clock() - started)
        return len(runs) - len(left), left

    def room_under_way(
        self, run: Run, why_not: Diagnosis, drafted: Assumption | None = None
    ) -> tuple[int, list[Assumption]]:
        """How many of these pods, that fit nowhere now, there may be room for once this worker's assumptions that are in the way
        have ended, those among them that are only `drafted`. To say of such pods that they are unschedulable would strand them: nothing that happens to the cluster
        would wake them."""
        if not why_not.refused_by & _ABOUT_ROOM:
            return 0, []
        try:
            admitted = self.subject(run).static.mask
        except PluginFailed as failure:
            self.failures.note(failure)
            return 0, []
        room, in_the_way = room_under_way(self._cache, run.pod_class.demand, admitted, drafted)
        return min(room, len(run.rows)), in_the_way
