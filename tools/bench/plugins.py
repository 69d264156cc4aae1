"""`python -m tools.bench plugins`: the cost of each plugin for one pod, of a new class and of a known one.

In this process, on the worker's own core: a cache with its pod index, static fits, rankings. A class's
ranking of all nodes is timed alternately with a profile of the plugin alone and with a profile of no plugin;
the difference is the plugin's. Of a *new* class nothing is cached: its ranking is created and computed. Of a
*known* class one pod was placed on a feasible node since its ranking was computed. The row "no plugin" is the
cost without any.

The JSON document (camel case, microseconds, medians over the repetitions):

    nodes, pods, fewerPods, repeat, seed     fewerPods: a tenth of the bound pods
    plugins[]
        plugin
        newMicros, knownMicros               with `pods` bound pods
        newMicrosFewer, knownMicrosFewer     with `fewerPods`
        goalNewMicros, goalKnownMicros       null where there is no goal
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hoss.model.pod import group_of
from hossctl.console import Document
from hossctl.figures import median
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand, DemandTable
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.static_fit import StaticFits
from scheduler_worker.core.placement.ranking import PodRanking, Ranking
from scheduler_worker.core.placement.ties import INFEASIBLE, TieOrder
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from tools.bench.plugin_cases import Case, cases, filled_cache

_FEWER = 10
_NO_PLUGIN = REGISTRY.profile(())


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    nodes: int
    pods: int  # bound
    repeat: int  # classes, and placements of one class
    seed: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds for one pod, medians."""

    new: float
    known: float

    def less(self, other: "Cost") -> "Cost":
        """The difference, at least 0: timers are not exact."""
        return Cost(max(self.new - other.new, 0.0), max(self.known - other.known, 0.0))


@dataclass(frozen=True, slots=True)
class PluginCost:
    """One row."""

    title: str
    many: Cost
    few: Cost
    case: Case | None = None

    def as_json(self) -> Document:
        """See the module's docstring."""
        goal = None if self.case is None else self.case.goal
        return {
            "plugin": self.title,
            "newMicros": round(self.many.new, 1),
            "knownMicros": round(self.many.known, 1),
            "newMicrosFewer": round(self.few.new, 1),
            "knownMicrosFewer": round(self.few.known, 1),
            "goalNewMicros": None if goal is None else goal.new,
            "goalKnownMicros": None if goal is None else goal.known,
        }


def measure(setting: Setting) -> Document:
    """Every case with all bound pods and with a tenth of them."""
    fewer = setting.pods // _FEWER
    many, few = (dict(_costs(setting, pods)) for pods in (setting.pods, fewer))
    by_title = {case.title: case for case in cases(setting.seed)}
    rows = [PluginCost(title, many[title], few[title], by_title.get(title)) for title in many]
    return {
        "nodes": setting.nodes,
        "pods": setting.pods,
        "fewerPods": fewer,
        "repeat": setting.repeat,
        "seed": setting.seed,
        "plugins": [row.as_json() for row in rows],
    }


def _costs(setting: Setting, pods: int) -> Iterator[tuple[str, Cost]]:
    """Each case's cost, by title."""
    bench = _Bench(filled_cache(setting.nodes, pods, seed=setting.seed), setting)
    bases: list[tuple[bool, Cost]] = []
    for case in cases(setting.seed):
        profile = REGISTRY.profile(
            tuple(p for p in DEFAULT_PLUGINS if not case.plugins or p.name in case.plugins)
        )
        cost, base, about_pods = bench.cost(case, profile)
        bases.append((about_pods, base))
        yield case.title, cost.less(base) if case.plugins else cost
    for title, kind in (("no plugin", False), ("no plugin, pods of a kind with rules about pods", True)):
        found = [base for about_pods, base in bases if about_pods == kind]
        yield title, Cost(median([base.new for base in found]), median([base.known for base in found]))


class _Bench:
    """One filled cache. Each case adds some hundreds of pods by the measured placements."""

    def __init__(self, cache: NodeInfoCache, setting: Setting) -> None:
        self._cache = cache
        self._repeat = setting.repeat
        self._demands = DemandTable(cache.schema, cache.catalogue.images, cache.pod_index)
        self._chance = np.random.default_rng(setting.seed)
        self._ties = TieOrder(self._chance)

    def cost(self, case: Case, profile: Profile) -> tuple[Cost, Cost, bool]:
        """The cost under this profile, that of no plugin, and whether the pods have rules about pods."""
        profiles = (profile, _NO_PLUGIN)
        statics = tuple(StaticFits(p, self._cache) for p in profiles)
        new: tuple[list[float], list[float]] = ([], [])
        demand = self._demands.compile(case.spec(0)).demand
        for i in range(self._repeat):
            demand = self._demands.compile(case.spec(i)).demand
            for seconds, fits, each in zip(new, statics, profiles, strict=True):
                seconds.append(self._make(demand, fits, each)[0])
        known = self._known(case, demand, statics, profiles)
        both = [Cost(1e6 * median(n), 1e6 * median(k)) for n, k in zip(new, known, strict=True)]
        return both[0], both[1], demand.about_pods

    def _make(self, demand: Demand, fits: StaticFits, profile: Profile) -> tuple[float, Ranking]:
        started = time.perf_counter()
        kind = PodRanking if demand.about_pods else Ranking
        ranking = kind(demand, fits.of(demand), profile, self._cache, self._ties)
        ranking.refresh()
        return time.perf_counter() - started, ranking

    def _known(
        self, case: Case, demand: Demand, statics: tuple[StaticFits, ...], profiles: tuple[Profile, ...]
    ) -> tuple[list[float], ...]:
        """Seconds to update the class's rankings after each placement of one of its pods."""
        group = group_of(case.spec(self._repeat - 1))
        rankings = [self._make(demand, fits, p)[1] for fits, p in zip(statics, profiles, strict=True)]
        seconds: tuple[list[float], ...] = tuple([] for _ in rankings)
        for _ in range(self._repeat):
            feasible = np.flatnonzero(rankings[0].keys != INFEASIBLE)
            if not len(feasible):
                break
            self._cache.assume(self._chance.choice(feasible, size=1), demand, group)
            for spent, ranking in zip(seconds, rankings, strict=True):
                spent.append(_timed(ranking.refresh))
        return seconds


def _timed(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
