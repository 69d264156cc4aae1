"""How many workers, resolvers and shards a load needs, by simulating platforms of growing size.

A plan begins with one of each. It adds more of the limit until the load is met, or until there can be only
one of the limit. The document (camel case):

    podsPerSecond, nodes     as requested
    reached                  whether the last step meets the request
    workers, resolvers, shards, redisCores    of the last step; a shard is a Redis, which uses one core
    firstLimit               what saturates first with one of each
    steps[]                  workers, resolvers, shards, podsPerSecond, limit, busyness of that limit
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from hossctl.console import Document
from hossctl.figures import camel
from hossctl.load.nodes import PODS_PER_NODE
from hossctl.simulate.cluster import Simulation, SimulationResult, SimulationSetting
from hossctl.simulate.measured import ServiceTimes

MOST_WORKERS = 256
_MORE_AT_ONCE = 2.0  # times as many: with more, another limit is likely
_SATURATED = 0.85  # below this busyness the workers' windows are the limit
_FEWEST_PODS, _MOST_PODS = 20_000, 200_000
_FILL = 0.5


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The load for which a platform is looked for."""

    pods_per_second: float
    nodes: int
    times: ServiceTimes
    seed: int = 1


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A simulated platform. `limit`: dispatcher, worker, resolver or ledger."""

    workers: int
    resolvers: int
    shards: int
    pods_per_second: float
    limit: str
    busyness: float

    def as_json(self) -> Document:
        return {
            **camel(self, "workers", "resolvers", "shards"),
            **camel(self, "pods_per_second", digits=1),
            **camel(self, "limit"),
            **camel(self, "busyness", digits=4),
        }


def plan(request: PlanRequest) -> Iterator[PlanStep]:
    """Each simulated platform. The last one meets the request, or its limit cannot be raised."""
    pods = int(
        min(max(request.pods_per_second / 2, _FEWEST_PODS), _MOST_PODS, _FILL * PODS_PER_NODE * request.nodes)
    )
    # Clients are not planned, so they take no time.
    setting = SimulationSetting(
        request.nodes, max(1, pods), workers=1, times=replace(request.times, client=0.0), seed=request.seed
    )
    while True:
        step = _tried(setting)
        yield step
        if step.pods_per_second >= request.pods_per_second:
            return
        larger = _larger(setting, step, request.pods_per_second / step.pods_per_second)
        if larger is None:
            return
        setting = larger


def as_json(request: PlanRequest, steps: Sequence[PlanStep]) -> Document:
    last = steps[-1]
    return {
        **camel(request, "pods_per_second", "nodes"),
        "reached": last.pods_per_second >= request.pods_per_second,
        **camel(last, "workers", "resolvers", "shards"),
        "redisCores": last.shards,
        "firstLimit": steps[0].limit,
        "steps": [step.as_json() for step in steps],
    }


def _tried(setting: SimulationSetting) -> PlanStep:
    simulation = Simulation(setting)
    while simulation.advance(setting.pods):
        pass
    outcome = simulation.outcome()
    limit, busyness = _limit(outcome)
    return PlanStep(
        setting.workers, setting.resolvers, setting.shards, outcome.pods_per_second, limit, busyness
    )


def _limit(outcome: SimulationResult) -> tuple[str, float]:
    busiest = max(outcome.busyness, key=lambda name: outcome.busyness[name])
    share = outcome.busyness[busiest]
    service = busiest.partition("-")[0]
    return ("worker" if share < _SATURATED else service), share


def _larger(setting: SimulationSetting, step: PlanStep, missing: float) -> SimulationSetting | None:
    """More of the limit; None where there can be only one of it, or there are too many workers."""
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
