"""Runs one cell on a platform of its own, as its mode (hossctl/compare/modes.py) and its scheduler say.

The load is made before any clock starts. Ctrl-C and SIGTERM end the current load: its figures are still
taken, and no new run begins. No signal raises an exception here: an exception in the middle of a platform's
start or end would leave processes behind."""

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import template_from_proto
from hossctl import auditing
from hossctl.bench import processes
from hossctl.compare import figures
from hossctl.compare.cells import Plan, has_cost
from hossctl.compare.document import Cell, ComparisonRun, DecisionTimes, ServiceFigures, WorkerFigures
from hossctl.compare.figures import LeftOver, Pool
from hossctl.compare.loads import make_trace, with_label
from hossctl.compare.modes import MODE_REGISTRY, CoordinationMode
from hossctl.compare.schedulers import ComparedScheduler, find_scheduler
from hossctl.endpoints import Clients
from hossctl.figures import per_second, share
from hossctl.load import report
from hossctl.load.playing import Trace, left_over, play, templates_by_row
from hossctl.load.runner import Tracker
from hossctl.local.platform import PlatformOptions
from hossctl.local.platform_state import PlatformState
from hossctl.local.process import ProcessRecord

# After this time every worker has reported everything: heartbeats are half a second apart.
HEARTBEAT_SECONDS = 0.7
_MOST_VIOLATIONS = 20  # reported in full for one run
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether SIGINT or SIGTERM has requested the end, and the event that ends a running load."""

    def __init__(self) -> None:
        self.requested = False
        self._notify: Callable[[], Any] = lambda: None

    def install(self) -> None:
        """Handle the signals from now on, instead of any earlier handler."""
        for number in _SIGNALS:
            signal.signal(number, self._request)

    def event(self) -> asyncio.Event:
        """An event of the running loop that is set once the end is requested. Only the latest event is
        set."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        if self.requested:
            event.set()
        self._notify = lambda: None if loop.is_closed() else loop.call_soon_threadsafe(event.set)
        return event

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        self._notify()


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Signals request the end for the length of the block; then the earlier handlers are back."""
    stop = Stop()
    previous = [signal.getsignal(number) for number in _SIGNALS]
    stop.install()
    try:
        yield stop
    finally:
        for number, handler in zip(_SIGNALS, previous, strict=True):
            signal.signal(number, handler)


def platform_of(
    cell: Cell,
    mode: CoordinationMode,
    scheduler: ComparedScheduler,
    *,
    seed: int,
    redis_url: str,
    directory: Path,
) -> PlatformOptions:
    """The services of a cell's platform. `directory` is for the mode's own files."""
    slow = _decision_flags(cell.decision)
    workers = [
        scheduler.worker(f"w{number + 1}", (*slow, *mode.worker_flags(number, cell.workers, directory)))
        for number in range(cell.workers)
    ]
    return PlatformOptions(
        workers=tuple(workers),
        redis_url=redis_url,
        policy=mode.policy,
        unchecked=mode.unchecked,
        seed=seed,
    )


def labelled_nodes(mode: CoordinationMode, workers: int, nodes: Sequence[NodeSpec]) -> tuple[NodeSpec, ...]:
    """The nodes with the labels that the mode needs."""
    labelled = []
    for number, node in enumerate(nodes):
        for key, value in mode.node_labels(number, workers).items():
            node = with_label(node, key, value)  # noqa: PLW2901 - the same node with one more label
        labelled.append(node)
    return tuple(labelled)


def _decision_flags(decision: DecisionTimes) -> tuple[str, ...]:
    if not has_cost(decision):
        return ()
    return ("--decision-job-ms", str(decision.job_ms), "--decision-task-ms", str(decision.task_ms))


def measure(cell: Cell, repetition: int, plan: Plan, stop: Stop) -> ComparisonRun:
    """One run on a new platform. It is incomplete where `stop` ended it."""
    seed, started = plan.seed + repetition, utc_now()
    trace = make_trace(cell, seed, plan.traces)
    mode, scheduler = MODE_REGISTRY.find(cell.mode, where="--modes"), find_scheduler(cell.scheduler)
    with tempfile.TemporaryDirectory(prefix="hoss-compare-") as directory:
        options = platform_of(
            cell, mode, scheduler, seed=seed, redis_url=plan.redis_url, directory=Path(directory)
        )
        trace = replace(trace, nodes=labelled_nodes(mode, cell.workers, trace.nodes))
        with report.platform(options) as starter:
            stop.install()  # the start has changed the handlers, and nothing shall cut the end short
            seen = report.run_on(
                starter.state, lambda clients: _observed(cell, trace, clients, starter.state, stop)
            )
    run = _run_of(seen, cell, trace, repetition=repetition, seed=seed, started=started)
    return run.model_copy(update={"validated": not mode.unchecked})


@dataclass(frozen=True, slots=True, eq=False)
class _Observed:
    complete: bool
    tracker: Tracker
    workers: list[pb.WorkerInfo]
    pool: Pool
    status: pb.DispatcherStatus
    refused: int
    services: dict[str, ServiceFigures]
    violations: list[str]


async def _observed(
    cell: Cell, trace: Trace, clients: Clients, state: PlatformState, stop: Stop
) -> _Observed:
    ended, tracker = stop.event(), Tracker(trace.pods)
    await report.prepare(clients, trace.nodes, cell.workers)
    before = processes.cpu_seconds(state.processes)
    await play(clients.dispatcher, trace, tracker, ended)
    reported = asyncio.ensure_future(asyncio.sleep(HEARTBEAT_SECONDS))
    services = services_since(before, state.processes)
    violations = [] if ended.is_set() else await violations_of(clients)
    await reported
    return _Observed(
        complete=not ended.is_set(),
        tracker=tracker,
        workers=await clients.dispatcher.list_workers(),
        violations=violations,
        pool=Pool.of(await clients.resolver.list_nodes()),
        status=await clients.dispatcher.status(),
        refused=figures.refusals((await clients.resolver.status()).counters),
        services=services,
    )


def _run_of(
    seen: _Observed, cell: Cell, trace: Trace, *, repetition: int, seed: int, started: str
) -> ComparisonRun:
    tracker, workers, pool = seen.tracker, seen.workers, seen.pool
    templates, of_row = templates_by_row(trace)
    specs = [template_from_proto(template).spec for template in templates]
    left = [
        LeftOver(tuple((specs[template], pods) for template, pods in group.pods), group.needed)
        for group in left_over(trace, of_row, tracker.phases)
    ]
    latencies, seconds = tracker.latencies(), tracker.binding_seconds()
    bound, proposed = len(latencies), sum(worker.proposed for worker in workers)
    return ComparisonRun(
        cell=cell,
        repetition=repetition,
        seed=seed,
        started=started,
        complete=seen.complete,
        pods=tracker.pods,
        bound=bound,
        unschedulable=sum(group.total for group in left),
        seconds=round(seconds, 4),
        pods_per_second=round(per_second(bound, seconds), 1),
        latency=figures.phases_of(seen.status.phases) | {"total": figures.latency_of(latencies)},
        latency_curve=figures.curve_of(latencies),
        jobs=_jobs(trace),
        proposals=proposed,
        conflicts=seen.refused,
        jobs_with_conflicts=seen.status.counters.get("jobs_refused", 0),
        retries=sum(worker.conflicts for worker in workers),
        wasted_decisions=max(0, proposed - bound),
        workers=workers_of(workers, seconds),
        overcommit=figures.overcommit(pool),
        unschedulable_with_room=figures.with_room(pool, left),
        utilisation=figures.utilisation_of(pool),
        fragmentation=figures.fragmentation(pool, specs, np.bincount(of_row, minlength=len(specs))),
        services=seen.services,
        violations=seen.violations,
        quality=figures.quality(
            pool,
            specs,
            submitted=np.bincount(of_row, minlength=len(specs)),
            # Those that were deleted in time were bound before.
            bound=np.bincount(of_row[tracker.bound_at > 0], minlength=len(specs)),
            moves=seen.status.counters.get("moved", 0),
        ),
    )


def workers_of(workers: Sequence[pb.WorkerInfo], seconds: float) -> list[WorkerFigures]:
    """The figures of each worker after a run of so many seconds."""
    return [
        WorkerFigures(
            name=worker.name,
            busyness=round(share(worker.busy_seconds, seconds), 4),
            bound=worker.bound,
            conflicts=worker.conflicts,
        )
        for worker in workers
    ]


def services_since(before: dict[str, float], records: Sequence[ProcessRecord]) -> dict[str, ServiceFigures]:
    """CPU seconds of each service since the reading `before`, and its peak memory."""
    peaks = processes.by_service({}, processes.peak_mib(records))
    used = processes.by_service(before, processes.cpu_seconds(records))
    return {
        name: ServiceFigures(cpu_seconds=round(seconds, 3), peak_mib=round(peaks[name], 1))
        for name, seconds in used.items()
    }


async def violations_of(clients: Clients) -> list[str]:
    """The findings of an audit, as sentences."""
    found = await auditing.audit(clients.dispatcher, clients.resolver)
    texts = [f"invariant {finding.invariant}: {finding.text}" for finding in found.findings]
    if len(texts) > _MOST_VIOLATIONS:
        texts = [*texts[:_MOST_VIOLATIONS], f"and {len(texts) - _MOST_VIOLATIONS} more"]
    return texts + [f"not checked: {text}" for text in found.unchecked]


def _jobs(trace: Trace) -> int:
    """Jobs of several pods, and pods without a job."""
    messages = [arrival.message for arrival in trace.arrivals]
    return sum(len(message.jobs) for message in messages) + sum(
        len(message.pods.names) for message in messages
    )


def utc_now() -> str:
    """ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
