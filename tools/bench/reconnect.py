"""`python -m tools.bench reconnect`: how soon a worker that comes back is up to date, and what the other
workers place in that time.

A worker is killed, and its pods go to the others. With `pods` pods in the ledger the other workers place one
load by themselves, and then a second load while the worker comes back as a new process with an empty cache:
it has to learn the whole state again.

The JSON document:

    nodes, pods, workers, seed, repeat
    fillSeconds          from the worker's connection until its cache holds the state of every shard; median,
                         as all that follow
    startSeconds         from the start of its process until the dispatcher gives it work
    podsPerSecond        of the others alone
    podsPerSecondMeanwhile   of the others, from the start of the process until it is given work
    ratio                of the two
    runs[]               the same of each run
    violations           of any audit after a run
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import auditing
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import median, per_second, share
from hossctl.load import report, runner
from hossctl.load.progress import placing
from hossctl.load.runner import Tracker
from hossctl.local.platform import PlatformOptions, Starter
from hossctl.local.platform_state import WorkerOptions
from tools.bench.losses import Setting, finding_lines
from tools.bench.sync import until_filled

GOAL_SECONDS = 1.0

_RETURNING = WorkerOptions("returning")
_BEGUN = 0.1  # of the load is bound when the worker comes back
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Run:
    """One return of the worker."""

    fill_seconds: float
    start_seconds: float
    pods_per_second: float
    pods_per_second_meanwhile: float


@dataclass(slots=True)
class Reconnect:
    """The whole measurement. The setting's workers are the other workers."""

    setting: Setting
    runs: list[Run] = field(default_factory=list)
    findings: list[auditing.Finding] = field(default_factory=list)

    def as_json(self) -> Document:
        """See the module's docstring."""
        alone, meanwhile = self._median("pods_per_second"), self._median("pods_per_second_meanwhile")
        return {
            **self.setting.as_json(),
            "fillSeconds": round(self._median("fill_seconds"), 4),
            "startSeconds": round(self._median("start_seconds"), 4),
            "podsPerSecond": round(alone, 1),
            "podsPerSecondMeanwhile": round(meanwhile, 1),
            "ratio": round(share(meanwhile, alone), 4),
            "runs": [asdict(run) for run in self.runs],
            "violations": [finding.as_json() for finding in self.findings],
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        found = self.as_json()
        return [
            ("up to date", f"{found['fillSeconds']:.2f} s after it connected (goal {GOAL_SECONDS:g})"),
            ("at work", f"{found['startSeconds']:.2f} s after its process began"),
            ("the others by themselves", f"{found['podsPerSecond']:,.0f} pods/s"),
            (
                "the others meanwhile",
                f"{found['podsPerSecondMeanwhile']:,.0f} pods/s; ratio {found['ratio']:.2f}",
            ),
            *finding_lines(self.findings),
        ]

    def _median(self, name: str) -> float:
        return median([getattr(run, name) for run in self.runs])


def measure(setting: Setting, *, quiet: bool) -> Reconnect:
    """`repeat` returns, each on a fresh platform."""
    nodes = setting.node_specs()
    workers = (*report.workers(setting.workers), _RETURNING)
    options = PlatformOptions(workers=workers, redis_url=setting.redis_url, seed=setting.seed)
    result = Reconnect(setting)
    for _ in range(setting.repeat):
        with report.platform(options) as starter:
            report.run_on(starter.state, partial(_run, result, starter, nodes, quiet=quiet))
    return result


async def _run(
    result: Reconnect, starter: Starter, nodes: Sequence[NodeSpec], clients: Clients, *, quiet: bool
) -> None:
    setting = result.setting
    await report.prepare(clients, nodes, setting.workers + 1)
    await _place(clients, setting, "before", quiet=quiet)
    _kill(starter)
    alone = await _place(clients, setting, "without", quiet=quiet)
    returned = asyncio.ensure_future(_return(clients, starter, setting, begins := asyncio.Event()))
    load = setting.load("again", setting.pods)
    with placing("while it returns", setting.pods, quiet=quiet) as progress:

        def show(tracker: Tracker) -> None:
            progress(tracker)
            if tracker.settled > _BEGUN * tracker.pods:
                begins.set()

        tracker = await runner.place(clients.dispatcher, load, progress=show, poll_seconds=_POLL_SECONDS)
    begins.set()
    began, at_work, fill_seconds = await returned
    ended = min(at_work, float(tracker.bound_at.max()))  # the load may be through before
    meanwhile = int(np.count_nonzero((tracker.bound_at > began) & (tracker.bound_at <= ended)))
    result.runs.append(
        Run(
            fill_seconds=fill_seconds,
            start_seconds=at_work - began,
            pods_per_second=per_second(alone.count(pb.BOUND), alone.binding_seconds()),
            pods_per_second_meanwhile=per_second(meanwhile, ended - began),
        )
    )
    result.findings += (await auditing.audit(clients.dispatcher, clients.resolver)).findings


async def _place(clients: Clients, setting: Setting, title: str, *, quiet: bool) -> Tracker:
    load = setting.load(title, setting.pods)
    with placing(title, setting.pods, quiet=quiet) as progress:
        return await runner.place(clients.dispatcher, load, progress=progress)


def _kill(starter: Starter) -> None:
    for record in starter.state.processes:
        if record.name == f"worker-{_RETURNING.name}" and (process := record.find()) is not None:
            process.kill()
            process.wait()


async def _return(
    clients: Clients, starter: Starter, setting: Setting, begins: asyncio.Event
) -> tuple[float, float, float]:
    """Start the worker again once `begins` is set. The clock readings then and when it is given work, and the
    seconds that the worker itself measured."""
    await begins.wait()
    began = time.perf_counter()
    await asyncio.to_thread(starter.start_worker, setting.workers, _RETURNING)
    await until_filled(clients, setting.workers + 1)
    ended = time.perf_counter()
    workers = {worker.name: worker for worker in await clients.dispatcher.list_workers()}
    return began, ended, workers[_RETURNING.name].fill_seconds
