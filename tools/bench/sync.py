"""`python -m tools.bench sync`: what stale views cost. The same load is placed by workers that learn of the
ledger in different ways.

Nodes are registered before the workers start: a worker that learns only from refusals sees later nodes only
when its pods find no room.

The JSON document: nodes, workers, seed, repeat; cases[] with fill (of all cpu, requested by the load), mode,
intervalMs (0: none), podsPerSecond, conflicts, conflictPercent (of the pods), bound, unschedulable (medians
over the runs), overcommittedNodes (the most of any run), and runs[] with each run's placement (see
hossctl.load.report.Placement)."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import median, share
from hossctl.load import report
from hossctl.load.generated import filling
from hossctl.load.nodes import UNIFORM, register, simulated_nodes
from hossctl.load.progress import placing
from hossctl.load.runner import pods_of
from hossctl.local.platform import PlatformOptions, Starter

_FILL_SECONDS = 30.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class SyncMode:
    """A mode of `--sync`, with its interval where it has one."""

    mode: str
    interval_ms: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the worker."""
        interval = ("--pull-interval-ms", str(self.interval_ms)) if self.interval_ms else ()
        return ("--sync", self.mode, *interval)


MODES = (
    SyncMode("push"),
    SyncMode("pull", 10),
    SyncMode("pull", 100),
    SyncMode("pull", 1000),
    SyncMode("refusal"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """The sizes of a measurement: every mode at every fill."""

    nodes: int
    workers: int
    fills: Sequence[float]
    seed: int
    repeat: int = 1
    redis_url: str = ""
    modes: Sequence[SyncMode] = MODES


@dataclass(slots=True)
class Case:
    """One mode at one fill."""

    sync: SyncMode
    fill: float
    placements: list[report.Placement] = field(default_factory=list)
    overcommitted: int = 0

    def as_json(self) -> Document:
        """See the module's docstring."""
        placements = self.placements
        conflicts = median([p.conflicts for p in placements])
        return {
            "fill": self.fill,
            "mode": self.sync.mode,
            "intervalMs": self.sync.interval_ms,
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
    nodes = [
        node for node in simulated_nodes(setting.nodes, seed=setting.seed, shapes=UNIFORM) if not node.taints
    ]
    cases = [Case(sync, fill) for fill in setting.fills for sync in setting.modes]
    for _ in range(setting.repeat):
        for case in cases:
            options = PlatformOptions(workers=(), redis_url=setting.redis_url, seed=setting.seed)
            with report.platform(options) as starter:
                report.run_on(starter.state, partial(_run, case, setting, starter, nodes, quiet=quiet))
    return cases


async def _run(
    case: Case,
    setting: Setting,
    starter: Starter,
    nodes: Sequence[NodeSpec],
    clients: Clients,
    *,
    quiet: bool,
) -> None:
    load = filling(nodes, case.fill, seed=setting.seed)
    await register(clients.resolver, nodes)
    for number, options in enumerate(report.workers(setting.workers, flags=case.sync.flags)):
        starter.start_worker(number, options)
    await until_filled(clients, setting.workers)
    interval = f" {case.sync.interval_ms} ms" if case.sync.interval_ms else ""
    with placing(f"{case.sync.mode}{interval} at {case.fill:.0%}", pods_of(load), quiet=quiet) as progress:
        case.placements.append(await report.place(clients, load, progress))
    case.overcommitted = max(case.overcommitted, len((await report.usage(clients)).overcommitted))


async def until_filled(clients: Clients, workers: int) -> None:
    """Wait until `workers` workers have their caches filled. Raises HossError when they do not in time."""
    deadline = time.monotonic() + _FILL_SECONDS
    while (
        sum(w.state == "Ready" and w.fill_seconds > 0 for w in await clients.dispatcher.list_workers())
        < workers
    ):
        if time.monotonic() > deadline:
            raise HossError(
                f"{workers} workers with filled caches were expected within {_FILL_SECONDS:.0f} s"
            )
        await asyncio.sleep(_POLL_SECONDS)
