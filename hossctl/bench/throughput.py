"""`hoss bench throughput`: from Submit to reported as bound, beside the ledger script's own ceiling.

The JSON document (camel case, seconds unless named otherwise):

    nodes, pods, workers, mix, seed, repeat, overlap
    podsPerSecond            median over the runs
    ceilingPodsPerSecond     the ledger script alone on the same Redis after each run, batches of 500; median
    ratio                    of the two
    latencyP50Ms, latencyP99Ms   under full load: a pod waits for those submitted with it
    lonePodP50Ms             a pod submitted alone to the idle platform, median of 50
    workerStartSeconds       from a worker's start, all pods in the ledger, until its cache is the ledger's; null if not asked for
    runs[]                   placement (see hossctl.report.Placement), cpuSeconds by service, microsPerPod by service
    peakMib                  the most resident memory of each process
    violations               from the audit after the last run
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import auditing, report
from hossctl.bench import processes
from hossctl.bench.lone import lone_latencies
from hossctl.choices import Mix
from hossctl.console import Document
from hossctl.endpoints import Clients, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import median, per_second, share
from hossctl.load import OPENB_SHAPE, TraceClass, bench_load, bench_nodes, lone_pods
from hossctl.platform import PlatformOptions, Starter, WorkerOptions, temporary
from hossctl.progress import counting, placing
from hossctl.redis_database import borrowed
from resolver.ledger.ceiling import measure_ceiling

LONE_PODS = 50
CEILING_BATCH = 500
CEILING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    nodes: int
    pods: int
    workers: int
    mix: Mix
    seed: int
    repeat: int = 1
    redis_url: str = ""
    trace: Sequence[TraceClass] = OPENB_SHAPE
    worker_start: bool = False
    overlap: str = ""  # of workers' node preferences (`hoss steer`); empty: as the dispatcher chooses
    trace_ratio: float | None = None  # share of work batches whose traces are kept; None: nothing is traced


@dataclass(frozen=True, slots=True)
class Run:
    """One load placed on a fresh platform."""

    placement: report.Placement
    cpu_seconds: dict[str, float]  # by service

    def as_json(self) -> Document:
        """All figures."""
        return {
            "placement": self.placement.as_json(),
            "cpuSeconds": {name: round(seconds, 3) for name, seconds in self.cpu_seconds.items()},
            "microsPerPod": {
                name: round(1e6 * per_second(seconds, self.placement.bound), 2)
                for name, seconds in self.cpu_seconds.items()
            },
        }


@dataclass(slots=True)
class Throughput:
    """The whole measurement."""

    setting: Setting
    ceilings: list[float] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    lone_seconds: list[float] = field(default_factory=list)
    peak_mib: dict[str, float] = field(default_factory=dict)
    worker_start_seconds: float | None = None
    audit: auditing.AuditResult = field(default_factory=auditing.AuditResult)

    @property
    def pods_per_second(self) -> float:
        """The median of the runs."""
        return median([run.placement.pods_per_second for run in self.runs])

    @property
    def ceiling(self) -> float:
        """What the ledger script alone does, reservations per second: the median."""
        return median(self.ceilings)

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        last = self.runs[-1]
        pods = last.placement.bound
        lines: list[tuple[str, object]] = [
            (
                "pods/s",
                f"{self.pods_per_second:,.0f} (runs: {', '.join(f'{r.placement.pods_per_second:,.0f}' for r in self.runs)})",
            ),
            (
                "ledger script alone",
                f"{self.ceiling:,.0f} pods/s; ratio {share(self.pods_per_second, self.ceiling):.2f}",
            ),
            ("latency under load", f"p50 {self._latency(50):,.0f} ms, p99 {self._latency(99):,.0f} ms"),
            ("a lone pod", f"p50 {1000 * median(self.lone_seconds):.1f} ms of {len(self.lone_seconds)}"),
            ("bound", f"{pods:,} of {last.placement.pods:,}, {last.placement.conflicts:,} conflicts"),
        ]
        lines += [(f"  {count:,} not bound", reason) for reason, count in last.placement.reasons.items()]
        for name, seconds in sorted(last.cpu_seconds.items()):
            lines.append((f"CPU {name}", f"{seconds:.2f} s, {1e6 * per_second(seconds, pods):.2f} us a pod"))
        lines += [(f"peak memory {name}", f"{mib:.0f} MiB") for name, mib in sorted(self.peak_mib.items())]
        if self.worker_start_seconds is not None:
            lines.append(("a worker's start", f"{self.worker_start_seconds:.2f} s until its cache is filled"))
        return lines + report.audit_lines(self.audit)

    def as_json(self) -> Document:
        """See the module's docstring."""
        setting = self.setting
        return {
            "nodes": setting.nodes,
            "pods": setting.pods,
            "workers": setting.workers,
            "mix": setting.mix.value,
            "seed": setting.seed,
            "repeat": setting.repeat,
            "overlap": setting.overlap or "auto",
            "podsPerSecond": round(self.pods_per_second, 1),
            "ceilingPodsPerSecond": round(self.ceiling, 1),
            "ratio": round(share(self.pods_per_second, self.ceiling), 4),
            "latencyP50Ms": round(self._latency(50), 2),
            "latencyP99Ms": round(self._latency(99), 2),
            "lonePodP50Ms": round(1000 * median(self.lone_seconds), 3),
            "workerStartSeconds": self.worker_start_seconds,
            "runs": [run.as_json() for run in self.runs],
            "peakMib": {name: round(mib, 1) for name, mib in self.peak_mib.items()},
            "violations": [finding.as_json() for finding in self.audit.findings],
        }

    def _latency(self, level: int) -> float:
        placements = [run.placement for run in self.runs]
        return median([p.latency_p50_ms if level == 50 else p.latency_p99_ms for p in placements])


def measure(setting: Setting, *, quiet: bool) -> Throughput:
    """Place the load `repeat` times, each on a fresh platform, and measure the ceiling on each."""
    nodes = bench_nodes(setting.mix, setting.nodes, seed=setting.seed)
    cards = sum(node.cards for node in nodes)
    options = PlatformOptions(
        workers=tuple(WorkerOptions(f"w{i + 1}") for i in range(setting.workers)),
        redis_url=setting.redis_url,
        trace_ratio=setting.trace_ratio,
        seed=setting.seed,
    )
    result = Throughput(setting)
    for _ in range(setting.repeat):
        load = bench_load(setting.mix, setting.pods, cards=cards, seed=setting.seed, trace=setting.trace)
        with borrowed(setting.redis_url), temporary(options) as starter:
            run_async(_run(result, starter, nodes, load, quiet=quiet))
    return result


async def _run(
    result: Throughput, starter: Starter, nodes: Sequence[NodeSpec], load: list[pb.SubmitRequest], *, quiet: bool
) -> None:
    setting = result.setting
    async with clients_of(of_state(starter.state)) as clients:
        with counting("nodes", len(nodes), quiet=quiet) as registered:
            await report.prepare(clients, nodes, setting.workers, registered)
        if setting.overlap:
            await clients.dispatcher.steer(setting.overlap)
        result.lone_seconds += await lone_latencies(clients.dispatcher, lone_pods(LONE_PODS))
        before = processes.cpu_seconds(starter.state.processes)
        with placing(f"run {len(result.runs) + 1}", setting.pods, quiet=quiet) as progress:
            placement = await report.place(clients, load, progress)
        used = processes.by_service(before, processes.cpu_seconds(starter.state.processes))
        result.runs.append(Run(placement, used))
        result.peak_mib = processes.peak_mib(starter.state.processes)
        result.audit = await auditing.audit(clients.dispatcher, clients.resolver)
        # After the peak of Redis' memory was read: the scratch ledger is as large as a benchmark's.
        redis_url = starter.state.redis_url
        result.ceilings.append(
            await measure_ceiling(redis_url, nodes=setting.nodes, batch=CEILING_BATCH, seconds=CEILING_SECONDS)
        )
        if setting.worker_start and len(result.runs) == setting.repeat:
            result.worker_start_seconds = await _worker_start(clients, starter, setting.workers)


async def _worker_start(clients: Clients, starter: Starter, workers: int) -> float:
    started = time.perf_counter()
    starter.start_worker(workers, WorkerOptions("late"))
    await auditing.until_caches_agree(clients.dispatcher, clients.resolver, workers + 1)
    return time.perf_counter() - started
