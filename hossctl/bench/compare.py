"""`hoss bench compare`: the same load under one scheduler, several that nobody validates, and several with HOSS.

Uncoordinated means what several independent schedulers do on one cluster: each places by its own cache, and what it binds is
bound. Here the same workers run with `--unchecked`, so the ledger takes every proposal as it comes; all else is equal.

The JSON document: nodes, fill, workers, seed, repeat; modes[] with mode, podsPerSecond, conflicts, retries,
overcommittedNodes, bound, unschedulable (medians over the runs), and runs[] with each run's figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import report
from hossctl.console import Document
from hossctl.endpoints import clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import median
from hossctl.load import filling
from hossctl.nodes import UNIFORM, simulated
from hossctl.platform import PlatformOptions, PlatformState, WorkerOptions, temporary
from hossctl.progress import placing
from hossctl.redis_database import borrowed
from hossctl.runner import pods_of
from hossctl.usage import Usage


class Mode(str, Enum):
    """Who schedules."""

    SINGLE = "single"  # one worker with HOSS
    UNCOORDINATED = "multi-uncoordinated"  # N workers, nothing validated
    HOSS = "multi-hoss"  # N workers, every placement validated


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared. `fill` is the fraction of all cpu that the load asks for."""

    nodes: int
    workers: int
    fill: float
    seed: int
    repeat: int = 1
    redis_url: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One load under one mode."""

    placement: report.Placement
    used: Usage

    def as_json(self) -> Document:
        """All figures."""
        return {"placement": self.placement.as_json(), "usage": report.usage_json(self.used)}


@dataclass(slots=True)
class ModeResult:
    """A mode's runs."""

    mode: Mode
    runs: list[Run] = field(default_factory=list)

    def as_json(self) -> Document:
        """Medians, then each run."""
        placements = [run.placement for run in self.runs]
        return {
            "mode": self.mode.value,
            "podsPerSecond": round(median([p.pods_per_second for p in placements]), 1),
            "bound": median([p.bound for p in placements]),
            "unschedulable": median([p.unschedulable for p in placements]),
            "conflicts": median([p.conflicts for p in placements]),
            "retries": median([p.retries for p in placements]),
            "overcommittedNodes": median([len(run.used.overcommitted) for run in self.runs]),
            "runs": [run.as_json() for run in self.runs],
        }


def compare(setting: Setting, *, quiet: bool) -> list[ModeResult]:
    """Every mode `repeat` times in turn, each on a fresh platform with the same nodes and load."""
    nodes = [node for node in simulated(setting.nodes, seed=setting.seed, shapes=UNIFORM) if not node.taints]
    results = {mode: ModeResult(mode) for mode in Mode}
    for _ in range(setting.repeat):
        for mode, result in results.items():
            load = filling(nodes, setting.fill, seed=setting.seed)
            workers = 1 if mode is Mode.SINGLE else setting.workers
            options = PlatformOptions(
                workers=tuple(WorkerOptions(f"w{i + 1}") for i in range(workers)),
                redis_url=setting.redis_url,
                unchecked=mode is Mode.UNCOORDINATED,
                seed=setting.seed,
            )
            with borrowed(setting.redis_url), temporary(options) as starter:
                result.runs.append(run_async(_run(starter.state, nodes, load, workers, mode.value, quiet=quiet)))
    return list(results.values())


async def _run(
    state: PlatformState,
    nodes: Sequence[NodeSpec],
    load: list[pb.SubmitRequest],
    workers: int,
    title: str,
    *,
    quiet: bool,
) -> Run:
    async with clients_of(of_state(state)) as clients:
        await report.prepare(clients, nodes, workers)
        with placing(title, pods_of(load), quiet=quiet) as progress:
            placement = await report.place(clients, load, progress)
        return Run(placement, await report.usage(clients))
