"""Many seeds, one after the other or shared by several processes, and what came of them.

What a seed does depends on nothing that ran before it, so the parts are the same however they are shared."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tools.simulation.cluster_plan import draw_kubernetes, draw_kubernetes_moves
from tools.simulation.loop import discarding
from tools.simulation.plan import Plan, draw, draw_moves
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.run import run

SEEDS_PER_PART = 10  # of several processes: so many keep all of them busy until the end


class PlanKind(NamedTuple):
    """Which plans are drawn."""

    kubernetes: bool = False
    moves: bool = False


class SeedsDone(NamedTuple):
    """What came of some seeds."""

    problems: list[str]  # a line for each seed that broke a promise
    reached: Counter[str]  # faults and answers that happened
    cpu_seconds: float  # without that of Redis


_DRAWN: dict[PlanKind, Callable[[int], Plan]] = {
    PlanKind(): draw,
    PlanKind(moves=True): draw_moves,
    PlanKind(kubernetes=True): draw_kubernetes,
    PlanKind(kubernetes=True, moves=True): draw_kubernetes_moves,
}


def draw_of_kind(kind: PlanKind, seed: int) -> Plan:
    """The plan of a seed."""
    return _DRAWN[kind](seed)


def in_parts(kind: PlanKind, first: int, seeds: int, jobs: int) -> Iterator[SeedsDone]:
    """Run so many seeds in `jobs` processes. Yields what came of them, in the order of the seeds."""
    size = seeds if jobs == 1 else SEEDS_PER_PART
    firsts = range(first, first + seeds, size)
    sizes = [min(size, first + seeds - start) for start in firsts]
    if jobs == 1:
        yield from map(_run_part, [kind], firsts, sizes)
        return
    # New interpreters, as a fork of this one would share its connection and its garbage.
    with ProcessPoolExecutor(min(jobs, len(sizes)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_run_part, [kind] * len(sizes), firsts, sizes)


def _run_part(kind: PlanKind, first: int, seeds: int) -> SeedsDone:
    began, found, reached = time.process_time(), [], Counter[str]()
    server = DrivenRedis.start()
    try:
        with discarding():
            for plan in map(_DRAWN[kind], range(first, first + seeds)):
                result = run(plan, server)
                reached += result.reached
                if problems := result.problems():
                    number, text = len(problems), problems[0].splitlines()[0]
                    found.append(f"seed {plan.seed}: {number} problems, the first: {text}")
    finally:
        server.close()
    return SeedsDone(found, reached, time.process_time() - began)
