"""`hoss bench throughput`: from Submit to reported as bound, beside the ceiling of the ledger script.

The JSON document (camel case, seconds unless named otherwise):

    nodes, pods, workers, mix, seed, repeat, overlap
    podsPerSecond            median over the runs
    ceilingPodsPerSecond     the ledger script alone on the same Redis after each run, batches of 500; median
    ratio                    of the two
    latencyP50Ms, latencyP99Ms   under full load: a pod waits for the pods submitted with it
    lonePodP50Ms             a pod submitted alone to the idle platform, median of 50
    workerStartSeconds       from the start of one more worker, with all pods in the ledger, until its cache
                             agrees with the ledger; null unless requested
    runs[]                   placement (hossctl.load.report.Placement); by service cpuSeconds, microsPerPod
    peakMib                  peak resident memory by process
    violations               findings of the audit after the last run
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.model.pod import PodTemplate
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U8, decode, decode_uids, numbered_uids
from hossctl import auditing
from hossctl.bench import processes
from hossctl.bench.ceiling import measure_ceiling
from hossctl.choices import Mix
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import camel, median, per_second, share
from hossctl.load import report
from hossctl.load.generated import MIB, OPENB_SHAPE, TraceClass, bench_load, bench_nodes, lone_pods
from hossctl.load.progress import counting, placing
from hossctl.local.platform import PlatformOptions, Starter
from hossctl.local.platform_state import WorkerOptions
from hossctl.traces.openb import read_pods

LONE_PODS = 50
CEILING_BATCH = 500
CEILING_SECONDS = 1.0
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ThroughputSetting:
    """What is measured: `pods` of a mix, `repeat` times, each time on a fresh platform of so many nodes and
    workers."""

    nodes: int
    pods: int
    workers: int
    mix: Mix
    seed: int
    repeat: int = 1
    redis_url: str = ""
    trace: Sequence[TraceClass] = OPENB_SHAPE
    worker_start: bool = False
    overlap: str = ""  # of node preferences (`hoss steer`); empty: the dispatcher chooses
    trace_ratio: float | None = None  # share of work batches whose traces are kept; None: no tracing
    insecure: bool = False  # without TLS and without a password of Redis


@dataclass(frozen=True, slots=True)
class ThroughputRun:
    """One load placed on a fresh platform."""

    placement: report.Placement
    cpu_seconds: dict[str, float]  # by service

    def as_json(self) -> Document:
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
    """What was measured. Ceilings are in pods a second of the script alone, peaks in MiB by process."""

    setting: ThroughputSetting
    ceilings: list[float] = field(default_factory=list)
    runs: list[ThroughputRun] = field(default_factory=list)
    lone_seconds: list[float] = field(default_factory=list)
    peak_mib: dict[str, float] = field(default_factory=dict)
    worker_start_seconds: float | None = None
    audit: auditing.AuditResult = field(default_factory=auditing.AuditResult)

    @property
    def pods_per_second(self) -> float:
        return median([run.placement.pods_per_second for run in self.runs])

    @property
    def ceiling(self) -> float:
        """Reservations per second of the ledger script alone: the median."""
        return median(self.ceilings)

    def lines(self) -> list[tuple[str, object]]:
        last = self.runs[-1]
        pods = last.placement.bound
        runs = ", ".join(f"{run.placement.pods_per_second:,.0f}" for run in self.runs)
        lines: list[tuple[str, object]] = [
            ("pods/s", f"{self.pods_per_second:,.0f} (runs: {runs})"),
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
        setting = self.setting
        return {
            **camel(setting, "nodes", "pods", "workers"),
            "mix": setting.mix.value,
            **camel(setting, "seed", "repeat"),
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


def measure(setting: ThroughputSetting, *, quiet: bool) -> Throughput:
    """Place the load `repeat` times, each on a fresh platform, and measure the ceiling on each."""
    nodes = bench_nodes(setting.mix, setting.nodes, seed=setting.seed)
    cards = sum(node.cards for node in nodes)
    options = PlatformOptions(
        workers=report.workers(setting.workers),
        redis_url=setting.redis_url,
        trace_ratio=setting.trace_ratio,
        insecure=setting.insecure,
        seed=setting.seed,
    )
    result = Throughput(setting)
    for _ in range(setting.repeat):
        load = bench_load(setting.mix, setting.pods, cards=cards, seed=setting.seed, trace=setting.trace)
        with report.platform(options) as starter:
            report.run_on(starter.state, partial(_run, result, starter, nodes, load, quiet=quiet))
    return result


async def _run(
    result: Throughput,
    starter: Starter,
    nodes: Sequence[NodeSpec],
    load: list[pb.SubmitRequest],
    clients: Clients,
    *,
    quiet: bool,
) -> None:
    setting, records = result.setting, starter.state.processes
    with counting("nodes", len(nodes), quiet=quiet) as registered:
        await report.prepare(clients, nodes, setting.workers, registered)
    if setting.overlap:
        await clients.dispatcher.steer(setting.overlap)
    result.lone_seconds += await lone_latencies(clients.dispatcher, lone_pods(LONE_PODS))
    before = processes.cpu_seconds(records)
    with placing(f"run {len(result.runs) + 1}", setting.pods, quiet=quiet) as progress:
        placement = await report.place(clients, load, progress)
    used = processes.by_service(before, processes.cpu_seconds(records))
    result.runs.append(ThroughputRun(placement, used))
    result.peak_mib = processes.peak_mib(records)
    result.audit = await auditing.audit(clients.dispatcher, clients.resolver)
    # After the peak of Redis' memory was read: the ledger of this measurement is as large as a benchmark's.
    result.ceilings.append(
        await measure_ceiling(
            starter.state.redis_url, nodes=setting.nodes, batch=CEILING_BATCH, seconds=CEILING_SECONDS
        )
    )
    if setting.worker_start and len(result.runs) == setting.repeat:
        result.worker_start_seconds = await _worker_start(clients, starter, setting.workers)


async def _worker_start(clients: Clients, starter: Starter, workers: int) -> float:
    started = time.perf_counter()
    starter.start_worker(workers, WorkerOptions("late"))
    await auditing.until_caches_agree(clients.dispatcher, clients.resolver, workers + 1)
    return time.perf_counter() - started


async def lone_latencies(client: DispatcherClient, requests: Sequence[pb.SubmitRequest]) -> list[float]:
    """Submit messages of one pod each, one after the other; seconds from each submission to the report as
    bound. Raises HossError for a pod that is not bound within 10 s."""
    reported: dict[bytes, float] = {}
    reports = asyncio.Event()

    async def follow(revision: int) -> None:
        async for batch in client.watch(revision):
            now = time.perf_counter()
            phases = decode(batch.phases, U8, name="phases")
            reported.update((uid.tobytes(), now) for uid in decode_uids(batch.uids)[phases == pb.BOUND])
            reports.set()

    following = asyncio.ensure_future(follow((await client.status()).revision))
    try:
        return [await _lone(client, request, reported, reports) for request in requests]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _lone(
    client: DispatcherClient, request: pb.SubmitRequest, reported: dict[bytes, float], reports: asyncio.Event
) -> float:
    started = time.perf_counter()
    reply = await client.submit(request)
    uid = numbered_uids(reply.sets[0].uid_prefix, 0, 1).tobytes()
    while uid not in reported:
        reports.clear()
        try:
            await asyncio.wait_for(reports.wait(), _PATIENCE_SECONDS)
        except asyncio.TimeoutError as exc:
            raise HossError(
                f"a lone pod was not bound within {_PATIENCE_SECONDS:.0f} s; the platform is not idle or full"
            ) from exc
    return reported[uid] - started


def trace_classes(path: Path) -> list[TraceClass]:
    """The requests of the openb trace's pods, the commonest first, to draw a load of any size from. Card
    models are left out: simulated nodes have other models."""
    counts: Counter[PodTemplate] = Counter(pod.template for pod in read_pods(path))
    return [_trace_class(template, pods) for template, pods in counts.most_common()]


def _trace_class(template: PodTemplate, pods: int) -> TraceClass:
    requests, devices = dict(template.spec.requests), template.spec.devices
    return TraceClass(
        pods,
        requests.get("cpu", 0),
        requests.get("memory", 0) // MIB,
        devices.count if devices else 0,
        devices.milli if devices else 0,
    )
