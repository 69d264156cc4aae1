"""Many seeds, one after the other or shared by several processes, and what came of them.

What a seed does depends on nothing that ran before it, so the parts are the same however they are shared."""

import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from hossctl.local.process import end_with_parent
from tools.simulation.cluster_plan import draw_kubernetes, draw_kubernetes_moves
from tools.simulation.loop import discarding
from tools.simulation.plan import Plan
from tools.simulation.plan_drawing import draw, draw_moves, draw_short
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.run import run

SEEDS_PER_PART = 10  # of several processes: so many keep all of them busy until the end


class PlanKind(NamedTuple):
    """Which plans are drawn."""

    kubernetes: bool = False
    moves: bool = False
    short: bool = False


class SeedsDone(NamedTuple):
    """What came of some seeds."""

    problems: list[str]  # a line for each seed that broke a promise
    reached: Counter[str]  # faults and answers that happened
    cpu_seconds: float  # without that of Redis


_DRAWN: dict[PlanKind, Callable[[int], Plan]] = {
    PlanKind(): draw,
    PlanKind(short=True): draw_short,
    PlanKind(moves=True): draw_moves,
    PlanKind(kubernetes=True): draw_kubernetes,
    PlanKind(kubernetes=True, moves=True): draw_kubernetes_moves,
}


def draw_of_kind(kind: PlanKind, seed: int) -> Plan:
    """The plan of a seed."""
    return _DRAWN[kind](seed)


def in_parts(kind: PlanKind, first: int, seeds: int, jobs: int) -> Iterator[SeedsDone]:
    """Run so many seeds in `jobs` processes. Yields what came of them, in the order of the seeds; with one
    process, of each as soon as it is known."""
    if jobs == 1:
        yield from _one_by_one(kind, first, seeds)
        return
    firsts = range(first, first + seeds, SEEDS_PER_PART)
    sizes = [min(SEEDS_PER_PART, first + seeds - start) for start in firsts]
    # New interpreters, as a fork of this one would share its connection and its garbage.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(sizes)), context, initializer=_end_when_told) as pool:
        try:
            yield from pool.map(_run_part, [kind] * len(sizes), firsts, sizes)
        except BaseException:
            # Parts take a minute. Nobody wants the rest of them.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _run_part(kind: PlanKind, first: int, seeds: int) -> SeedsDone:
    found, reached, spent = [], Counter[str](), 0.0
    for done in _one_by_one(kind, first, seeds):
        found += done.problems
        reached += done.reached
        spent += done.cpu_seconds
    return SeedsDone(found, reached, spent)


_servers: list[DrivenRedis] = []  # of this process, each until it is closed


def _one_by_one(kind: PlanKind, first: int, seeds: int) -> Iterator[SeedsDone]:
    server = DrivenRedis.start()
    _servers.append(server)
    try:
        with discarding():
            for plan in map(_DRAWN[kind], range(first, first + seeds)):
                began = time.process_time()
                try:
                    result = run(plan, server)
                    problems = result.problems()
                except Exception:  # noqa: BLE001 - whatever it is
                    # As text: it may come from another process, and would lose its traceback.
                    raise RuntimeError(f"seed {plan.seed}: {traceback.format_exc()}") from None
                found = []
                if problems:
                    number, text = len(problems), problems[0].splitlines()[0]
                    found.append(f"seed {plan.seed}: {number} problems, the first: {text}")
                yield SeedsDone(found, result.reached, time.process_time() - began)
    finally:
        server.close()
        _servers.remove(server)


def _end_when_told() -> None:
    """For processes of a pool. An exception would not do: a simulated process may catch it, and the pool
    does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has begun them ends them
    signal.signal(signal.SIGTERM, _end)
    end_with_parent()


def _end(_signal: int, _frame: object) -> None:
    for server in _servers:
        server.close()
    os._exit(1)
