"""Runs one cell, on a platform of its own, with the load made before any clock starts."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import template_from_proto
from hossctl import auditing, report
from hossctl.bench import processes
from hossctl.compare import figures
from hossctl.compare.axes import Load
from hossctl.compare.document import Cell, Run, Service, Worker
from hossctl.compare.figures import LeftOver, Pool
from hossctl.compare.interruption import Stop
from hossctl.compare.loads import made
from hossctl.compare.modes import nodes_for, platform_of
from hossctl.compare.playing import left_over, play, templates_by_row
from hossctl.compare.traces import Trace
from hossctl.endpoints import Clients, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import per_second, share
from hossctl.platform import Starter, temporary
from hossctl.process import ProcessRecord
from hossctl.redis_database import borrowed
from hossctl.tracking import Tracker

MOST_VIOLATIONS = 20  # told in full of one run
HEARTBEAT_SECONDS = 0.7  # so long after the end every worker has told all it did: heartbeats are half a second apart


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured. `trace`: what cells of the load TRACE play."""

    cells: Sequence[Cell]
    repeat: int
    seed: int
    redis_url: str = ""
    trace: Trace | None = None

    @property
    def runs(self) -> int:
        """How many there will be."""
        return len(self.cells) * self.repeat


def title(cell: Cell) -> str:
    """A cell in a few words."""
    size = f"{cell.pods:,} pods" if cell.pods else f"{cell.fill:.0%} full"
    return f"{cell.mode.value} {cell.load.value} {cell.workers}w {cell.nodes:,} nodes {size}"


def measured(cell: Cell, repetition: int, plan: Plan, stop: Stop) -> Run:
    """One run, on a platform made for it. Incomplete where `stop` ended it."""
    seed, started = plan.seed + repetition, utc_now()
    trace = plan.trace if cell.load is Load.TRACE and plan.trace is not None else made(cell, seed)
    with tempfile.TemporaryDirectory(prefix="hoss-compare-") as directory:
        options = platform_of(cell, seed=seed, redis_url=plan.redis_url, lock=Path(directory) / "lock")
        with borrowed(plan.redis_url), temporary(options) as starter:
            stop.hear()  # for the platform's end too, which gives the signals back
            seen = run_async(_observed(cell, trace, starter, stop))
    return _run_of(seen, cell, trace, repetition=repetition, seed=seed, started=started)


@dataclass(frozen=True, slots=True, eq=False)
class _Observed:
    """What a platform showed of one load."""

    complete: bool
    tracker: Tracker
    workers: list[pb.WorkerInfo]
    pool: Pool
    status: pb.DispatcherStatus
    refused: int
    services: dict[str, Service]
    violations: list[str]


async def _observed(cell: Cell, trace: Trace, starter: Starter, stop: Stop) -> _Observed:
    ended, tracker = stop.event(), Tracker(trace.pods)
    async with clients_of(of_state(starter.state)) as clients:
        await report.prepare(clients, nodes_for(cell, trace.nodes), cell.workers)
        before = processes.cpu_seconds(starter.state.processes)
        await play(clients.dispatcher, trace, tracker, ended)
        told = asyncio.ensure_future(asyncio.sleep(HEARTBEAT_SECONDS))
        services = services_since(before, starter.state.processes)
        violations = [] if ended.is_set() else await violations_of(clients)
        await told
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


def _run_of(seen: _Observed, cell: Cell, trace: Trace, *, repetition: int, seed: int, started: str) -> Run:
    tracker, workers, pool = seen.tracker, seen.workers, seen.pool
    templates, of_row = templates_by_row(trace)
    specs = [template_from_proto(template).spec for template in templates]
    left = [
        LeftOver(specs[group.template], group.pods, group.needed) for group in left_over(trace, of_row, tracker.phases)
    ]
    latencies, seconds = tracker.latencies(), tracker.binding_seconds()
    bound, proposed = len(latencies), sum(worker.proposed for worker in workers)
    return Run(
        cell=cell,
        repetition=repetition,
        seed=seed,
        started=started,
        complete=seen.complete,
        pods=tracker.pods,
        bound=bound,
        unschedulable=sum(group.pods for group in left),
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
    )


def workers_of(told: Sequence[pb.WorkerInfo], seconds: float) -> list[Worker]:
    """What a run of so many seconds says of its workers."""
    return [
        Worker(
            name=worker.name,
            busyness=round(share(worker.busy_seconds, seconds), 4),
            bound=worker.bound,
            conflicts=worker.conflicts,
        )
        for worker in told
    ]


def services_since(before: dict[str, float], records: Sequence[ProcessRecord]) -> dict[str, Service]:
    """What services used since their processes' CPU seconds were `before`, and their peaks."""
    peaks = _by_service(processes.peak_mib(records))
    used = processes.by_service(before, processes.cpu_seconds(records))
    return {
        name: Service(cpu_seconds=round(seconds, 3), peak_mib=round(peaks[name], 1)) for name, seconds in used.items()
    }


async def violations_of(clients: Clients) -> list[str]:
    """What an audit finds, in words."""
    found = await auditing.audit(clients.dispatcher, clients.resolver)
    texts = [f"invariant {finding.invariant}: {finding.text}" for finding in found.findings]
    if len(texts) > MOST_VIOLATIONS:
        texts = [*texts[:MOST_VIOLATIONS], f"and {len(texts) - MOST_VIOLATIONS} more"]
    return texts + [f"not checked: {text}" for text in found.unchecked]


def _by_service(peaks: dict[str, float]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, mib in peaks.items():
        service = processes.service_of(name)
        totals[service] = totals.get(service, 0.0) + mib
    return totals


def _jobs(trace: Trace) -> int:
    """Jobs of several pods, and pods that came without one."""
    messages = [arrival.message for arrival in trace.arrivals]
    return sum(len(message.jobs) for message in messages) + sum(len(message.pods.names) for message in messages)


def utc_now() -> str:
    """ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
