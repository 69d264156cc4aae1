"""How many workers, resolvers and shards a load needs: platforms of growing size on virtual time.

A plan begins with one of each and has more of whatever is the limit, until the load is met or the limit is something of which
there is only one. The document (camel case):

    podsPerSecond, nodes     what is asked for
    reached                  whether the last of the steps meets it
    workers, resolvers, shards, redisCores    of the last step; a shard is a Redis, and that uses one core
    firstLimit               what saturates first when there is one of each
    steps[]                  workers, resolvers, shards, podsPerSecond, limit, busyness of that limit
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from hossctl.console import Document
from hossctl.nodes import PODS_PER_NODE
from hossctl.simulate.cluster import Outcome, ServiceTimes, Setting, Simulation

MOST_WORKERS = 256
_MORE_AT_ONCE = 2.0  # times as many: beyond that another limit is more likely met
_SATURATED = 0.85  # less busy than this, it is the workers' windows that hold the load back
_FEWEST_PODS, _MOST_PODS = 20_000, 200_000
_FILL = 0.5


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be met."""

    pods_per_second: float
    nodes: int
    times: ServiceTimes
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """A platform that was tried. `limit`: dispatcher, worker, resolver or ledger."""

    workers: int
    resolvers: int
    shards: int
    pods_per_second: float
    limit: str
    busyness: float

    def as_json(self) -> Document:
        """All figures."""
        return {
            "workers": self.workers,
            "resolvers": self.resolvers,
            "shards": self.shards,
            "podsPerSecond": round(self.pods_per_second, 1),
            "limit": self.limit,
            "busyness": round(self.busyness, 4),
        }


def plan(wish: Wish) -> Iterator[Step]:
    """Platforms, each as it was tried; the last one meets the wish, or nothing that there can be more of would."""
    pods = int(min(max(wish.pods_per_second / 2, _FEWEST_PODS), _MOST_PODS, _FILL * PODS_PER_NODE * wish.nodes))
    # Clients are not what is planned: they take no time.
    setting = Setting(wish.nodes, max(1, pods), workers=1, times=replace(wish.times, client=0.0), seed=wish.seed)
    while True:
        step = _tried(setting)
        yield step
        if step.pods_per_second >= wish.pods_per_second:
            return
        larger = _larger(setting, step, wish.pods_per_second / step.pods_per_second)
        if larger is None:
            return
        setting = larger


def as_json(wish: Wish, steps: Sequence[Step]) -> Document:
    """See the module's docstring."""
    last = steps[-1]
    return {
        "podsPerSecond": wish.pods_per_second,
        "nodes": wish.nodes,
        "reached": last.pods_per_second >= wish.pods_per_second,
        "workers": last.workers,
        "resolvers": last.resolvers,
        "shards": last.shards,
        "redisCores": last.shards,
        "firstLimit": steps[0].limit,
        "steps": [step.as_json() for step in steps],
    }


def _tried(setting: Setting) -> Step:
    simulation = Simulation(setting)
    while simulation.advance(setting.pods):
        pass
    outcome = simulation.outcome()
    limit, busyness = _limit(outcome)
    return Step(setting.workers, setting.resolvers, setting.shards, outcome.pods_per_second, limit, busyness)


def _limit(outcome: Outcome) -> tuple[str, float]:
    busiest = max(outcome.busyness, key=lambda name: outcome.busyness[name])
    share = outcome.busyness[busiest]
    service = busiest.partition("-")[0]
    return ("worker" if share < _SATURATED else service), share


def _larger(setting: Setting, step: Step, missing: float) -> Setting | None:
    """More of what is the limit; None where there is but one of it, or there are too many workers."""
    factor = min(missing, _MORE_AT_ONCE)

    def more(count: int) -> int:
        return max(count + 1, ceil(count * factor))

    if step.limit == "resolver":
        return replace(setting, resolvers=more(setting.resolvers))
    if step.limit == "ledger":
        return replace(setting, shards=more(setting.shards))
    if step.limit == "worker" and setting.workers < MOST_WORKERS:
        return replace(setting, workers=min(MOST_WORKERS, more(setting.workers)))
    return None
