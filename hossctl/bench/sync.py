"""`hoss bench sync`: what staleness costs. The same load under workers whose views hear of the ledger in different ways.

Nodes are there before the workers: who hears of refusals alone learns of later ones only when pods find no room.

The JSON document: nodes, workers, seed, repeat; cases[] with fill (of all cpu, asked for by the load), mode, intervalMs (0: none),
podsPerSecond, conflicts, conflictPercent (of the pods), bound, unschedulable (medians over the runs), overcommittedNodes (the
most of any run), and runs[] with each run's placement (see hossctl.report.Placement).
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import report
from hossctl.console import Document
from hossctl.endpoints import Clients, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import median, share
from hossctl.load import filling
from hossctl.nodes import UNIFORM, register, simulated
from hossctl.platform import PlatformOptions, Starter, WorkerOptions, temporary
from hossctl.progress import placing
from hossctl.redis_database import borrowed
from hossctl.runner import pods_of

_FILL_SECONDS = 30.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """A mode of `--sync`, with the interval where it has one."""

    mode: str
    interval_ms: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the worker."""
        interval = ("--pull-interval-ms", str(self.interval_ms)) if self.interval_ms else ()
        return ("--sync", self.mode, *interval)


WAYS = (Way("push"), Way("pull", 10), Way("pull", 100), Way("pull", 1000), Way("refusal"))


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured: every way at every fill."""

    nodes: int
    workers: int
    fills: Sequence[float]
    seed: int
    repeat: int = 1
    redis_url: str = ""
    ways: Sequence[Way] = WAYS


@dataclass(slots=True)
class Case:
    """One way at one fill."""

    way: Way
    fill: float
    placements: list[report.Placement] = field(default_factory=list)
    overcommitted: int = 0

    def as_json(self) -> Document:
        """See the module's docstring."""
        placements = self.placements
        conflicts = median([p.conflicts for p in placements])
        return {
            "fill": self.fill,
            "mode": self.way.mode,
            "intervalMs": self.way.interval_ms,
            "podsPerSecond": round(median([p.pods_per_second for p in placements]), 1),
            "conflicts": conflicts,
            "conflictPercent": round(100 * share(conflicts, placements[0].pods), 2),
            "bound": median([p.bound for p in placements]),
            "unschedulable": median([p.unschedulable for p in placements]),
            "overcommittedNodes": self.overcommitted,
            "runs": [p.as_json() for p in placements],
        }


def measure(setting: Setting, *, quiet: bool) -> list[Case]:
    """Every case `repeat` times in turn, each on a fresh platform with the same nodes and load."""
    nodes = [node for node in simulated(setting.nodes, seed=setting.seed, shapes=UNIFORM) if not node.taints]
    cases = [Case(way, fill) for fill in setting.fills for way in setting.ways]
    for _ in range(setting.repeat):
        for case in cases:
            load = filling(nodes, case.fill, seed=setting.seed)
            options = PlatformOptions(workers=(), redis_url=setting.redis_url, seed=setting.seed)
            with borrowed(setting.redis_url), temporary(options) as starter:
                run_async(_run(case, setting, starter, nodes, load, quiet=quiet))
    return cases


def workers_of(setting: Setting, way: Way) -> Iterator[WorkerOptions]:
    """The workers of a case."""
    for number in range(1, setting.workers + 1):
        yield WorkerOptions(f"w{number}", flags=way.flags)


async def _run(
    case: Case,
    setting: Setting,
    starter: Starter,
    nodes: Sequence[NodeSpec],
    load: list[pb.SubmitRequest],
    *,
    quiet: bool,
) -> None:
    async with clients_of(of_state(starter.state)) as clients:
        await register(clients.resolver, nodes)
        for number, options in enumerate(workers_of(setting, case.way)):
            starter.start_worker(number, options)
        await until_filled(clients, setting.workers)
        interval = f" {case.way.interval_ms} ms" if case.way.interval_ms else ""
        with placing(f"{case.way.mode}{interval} at {case.fill:.0%}", pods_of(load), quiet=quiet) as progress:
            case.placements.append(await report.place(clients, load, progress))
        case.overcommitted = max(case.overcommitted, len((await report.usage(clients)).overcommitted))


async def until_filled(clients: Clients, workers: int) -> None:
    """Wait until `workers` workers have their caches filled. Raises HossError when they do not in time."""
    deadline = time.monotonic() + _FILL_SECONDS
    while sum(w.state == "Ready" and w.fill_seconds > 0 for w in await clients.dispatcher.list_workers()) < workers:
        if time.monotonic() > deadline:
            raise HossError(f"{workers} workers with filled caches were expected within {_FILL_SECONDS:.0f} s")
        await asyncio.sleep(_LOOK_SECONDS)
