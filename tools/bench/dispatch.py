"""`python -m tools.bench dispatch`: the rate of the dispatcher alone, in a process of its own, with its
journal in a real Redis.

The ledger and the workers are stand-ins in this process that accept everything at once, so nothing is
scheduled and only the dispatcher is measured. Its rate on one core is pods by second of its own CPU time; the
clock's time is shared with its client and the stand-ins. Pods are accepted and queued first, while there is
no worker, and dispatched then.

The JSON document (camel case):

    mode, pods, workers, rules, tenants, repeat
    podsPerCpuSecond, podsPerSecond      acceptance and dispatch together, medians over the runs
    goalPodsPerSecond                    of one core
    runs[]
        accept, dispatch                 each: seconds, cpuSeconds, podsPerCpuSecond
        redisCpuSeconds
    routing                              classMicros, goalMicros: to route a new class

and with --memory

    memory[]                             shape, pods, classes, residentMib, peakMib, goalMib
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from hoss.client.dispatcher import DispatcherClient, submission
from hoss.errors import HossError
from hoss.model.pod import PodSpec, PodTemplate, QosClass, Workload
from hoss.tasks import background
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.bench import processes
from hossctl.choices import Submitted
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.figures import camel, median, per_second
from hossctl.local.process import ProcessRecord, ServiceProcess, record_of, stop_all
from hossctl.local.redis_database import borrowed
from hossctl.local.redis_server import RedisServer
from tools.bench.policy import RoutingCost, policy_yaml, routing_cost
from tools.bench.stand_ins import StandInWorker, stand_in_ledger

_WINDOW_PODS = 2000
_READY_SECONDS = 30.0
_STALL_SECONDS = 60.0
_LOOK_SECONDS = 0.01

# On a busy machine no service shall be taken for dead.
_CONFIG = """\
apiVersion: hoss.dev/v1alpha1
kind: DispatcherConfig
worker_timeout_seconds: 60
lease_seconds: 60
"""


@dataclass(frozen=True, slots=True)
class Alone:
    """One dispatcher, the Redis of its journal, and a client."""

    dispatcher: ProcessRecord
    redis: ProcessRecord | None  # None: the user's
    client: DispatcherClient

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds of both processes so far, by service."""
        return processes.cpu_seconds(
            [record for record in (self.dispatcher, self.redis) if record is not None]
        )


@contextlib.asynccontextmanager
async def dispatcher_alone(redis_url: str, rules: int) -> AsyncIterator[Alone]:
    """A new dispatcher with a policy of so many rules. `redis_url`: empty, the journal has a Redis of its
    own."""
    with tempfile.TemporaryDirectory(prefix="hoss-bench-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        redis = None
        if not redis_url:
            redis = RedisServer.start(directory / "redis", append_only=True)
            stack.callback(redis.kill)
        policy, config = directory / "policy.yaml", directory / "dispatcher.yaml"
        policy.write_text(policy_yaml(rules), encoding="utf-8")
        config.write_text(_CONFIG, encoding="utf-8")
        async with stand_in_ledger() as resolver:
            arguments = [
                "--config",
                str(config),
                "--listen",
                "127.0.0.1:0",
                "--redis-url",
                redis.url if redis else redis_url,
            ]
            arguments += ["--resolver", resolver, "--policy", str(policy), "--log-level", "warning"]
            service = ServiceProcess("dispatcher", "dispatcher", arguments, directory)
            try:
                record = await asyncio.to_thread(service.wait_ready, time.monotonic() + _READY_SECONDS)
                async with DispatcherClient([record.address]) as client:
                    own = (
                        None
                        if redis is None
                        else record_of("redis", redis.pid, directory / "redis" / "redis.log")
                    )
                    yield Alone(record, own, client)
            finally:
                # In a thread, so that the stand-in ledger still answers a dispatcher that is ending.
                await asyncio.to_thread(stop_all, [service.record])


async def submit(client: DispatcherClient, messages: Sequence[pb.SubmitRequest]) -> None:
    """Submit the messages, and wait until all are durable."""

    async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
        for message in messages:
            yield message

    async for _ in client.submit_stream(outgoing()):
        pass


@contextlib.asynccontextmanager
async def stand_in_workers(dispatcher: str, count: int) -> AsyncIterator[list[StandInWorker]]:
    """Workers that report every pod as bound, for the length of the block."""
    workers = [StandInWorker(dispatcher, f"stand-in-{i}", _WINDOW_PODS) for i in range(count)]
    async with background(*(worker.serve() for worker in workers)):
        yield workers


async def until_dispatched(client: DispatcherClient, workers: Sequence[StandInWorker], pods: int) -> None:
    """Wait until so many pods are with the workers and reported as bound. Raises HossError after 60 s."""
    deadline = time.monotonic() + _STALL_SECONDS
    while sum(worker.pods for worker in workers) < pods:
        _check(deadline, workers, pods)
        await asyncio.sleep(_LOOK_SECONDS)
    while (await client.status()).pods_by_phase["BOUND"] < pods:
        _check(deadline, workers, pods)
        await asyncio.sleep(_LOOK_SECONDS)


def _check(deadline: float, workers: Sequence[StandInWorker], pods: int) -> None:
    if time.monotonic() > deadline:
        given = sum(worker.pods for worker in workers)
        raise HossError(f"the dispatcher has given {given:,} of {pods:,} pods to workers and gives no more")


MEMORY_CLASSES = 10_000
GOAL_MEMORY_MIB = 477  # 500 MB
_MIB = 2**20


GOALS = {Submitted.REPLICAS: 500_000, Submitted.DISTINCT: 50_000}
DEFAULT_PODS = {Submitted.REPLICAS: 1_000_000, Submitted.DISTINCT: 100_000}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    mode: Submitted
    pods: int
    workers: int = 2
    rules: int = 1
    tenants: int = 1
    repeat: int = 1
    redis_url: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """Acceptance or dispatch of all pods."""

    pods: int
    seconds: float
    cpu_seconds: float  # of the dispatcher

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            "seconds": round(self.seconds, 4),
            "cpuSeconds": round(self.cpu_seconds, 4),
            "podsPerCpuSecond": round(per_second(self.pods, self.cpu_seconds)),
        }


@dataclass(frozen=True, slots=True)
class Run:
    """All pods accepted, queued and dispatched by a fresh dispatcher."""

    accept: Phase
    dispatch: Phase
    redis_cpu_seconds: float

    @property
    def pods_per_cpu_second(self) -> float:
        """Acceptance and dispatch, on one core."""
        return per_second(self.accept.pods, self.accept.cpu_seconds + self.dispatch.cpu_seconds)

    @property
    def pods_per_second(self) -> float:
        """Acceptance and dispatch, by the clock."""
        return per_second(self.accept.pods, self.accept.seconds + self.dispatch.seconds)


@dataclass(slots=True)
class Dispatching:
    """The whole measurement."""

    setting: Setting
    routing: RoutingCost
    runs: list[Run] = field(default_factory=list)

    @property
    def pods_per_cpu_second(self) -> float:
        """The median of the runs."""
        return median([run.pods_per_cpu_second for run in self.runs])

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        last, goal = self.runs[-1], GOALS[self.setting.mode]
        routed = f"{self.routing.class_micros:.1f} us to route"
        runs = ", ".join(f"{run.pods_per_cpu_second:,.0f}" for run in self.runs)
        return [
            ("on one core", f"{self.pods_per_cpu_second:,.0f} pods/s, goal {goal:,} (runs: {runs})"),
            ("by the clock", f"{median([run.pods_per_second for run in self.runs]):,.0f} pods/s"),
            ("accept and queue", _phase_text(last.accept)),
            ("dispatch and settle", _phase_text(last.dispatch)),
            ("Redis", f"{last.redis_cpu_seconds:.2f} s of CPU"),
            ("a new class", f"{routed} with {self.setting.rules} rules; goal {self.routing.goal_micros:g}"),
        ]

    def as_json(self) -> Document:
        """See the module's docstring."""
        setting = self.setting
        return {
            "mode": setting.mode.value,
            **camel(setting, "pods", "workers", "rules", "tenants", "repeat"),
            "podsPerCpuSecond": round(self.pods_per_cpu_second),
            "podsPerSecond": round(median([run.pods_per_second for run in self.runs])),
            "goalPodsPerSecond": GOALS[setting.mode],
            "runs": [
                {
                    "accept": run.accept.as_json(),
                    "dispatch": run.dispatch.as_json(),
                    "redisCpuSeconds": round(run.redis_cpu_seconds, 4),
                }
                for run in self.runs
            ],
            "routing": self.routing.as_json(),
        }


def measure(setting: Setting) -> Dispatching:
    """`repeat` runs, each with a fresh dispatcher and journal."""
    result = Dispatching(setting, routing_cost(setting.rules))
    for _ in range(setting.repeat):
        with borrowed(setting.redis_url):
            result.runs.append(run_async(_run(setting)))
    return result


def measure_memory(pods: int, redis_url: str = "") -> list[Document]:
    """The memory of a dispatcher with so many queued pods: in one job, and in 10,000 classes."""
    found = []
    for shape, classes in (("one job", 1), (f"{MEMORY_CLASSES:,} classes", MEMORY_CLASSES)):
        with borrowed(redis_url):
            resident, peak = run_async(_memory(pods, min(classes, pods), redis_url))
        found.append(
            {
                "shape": shape,
                "pods": pods,
                "classes": min(classes, pods),
                "residentMib": round(resident, 1),
                "peakMib": round(peak, 1),
                "goalMib": GOAL_MEMORY_MIB,
            }
        )
    return found


def load(setting: Setting) -> list[pb.SubmitRequest]:
    """The messages of a run."""
    if setting.mode is Submitted.DISTINCT:
        return list(submission(_workload(i, 1, setting.tenants, owner="") for i in range(setting.pods)))
    parts = [
        setting.pods * (i + 1) // setting.tenants - setting.pods * i // setting.tenants
        for i in range(setting.tenants)
    ]
    return list(submission(_workload(i, part, setting.tenants) for i, part in enumerate(parts) if part))


def _workload(number: int, replicas: int, tenants: int, owner: str = "Job") -> Workload:
    spec = PodSpec(
        namespace=f"tenant-{number % tenants}",
        labels=(("app", f"app-{number % 100}"),),
        requests=(("cpu", 100), ("memory", 2**26 + 4096 * number)),
        nonzero_cpu_milli=100,
        nonzero_memory_bytes=2**26 + 4096 * number,
    )
    template = PodTemplate(spec, qos_class=QosClass.BURSTABLE, owner_kind=owner)
    return Workload(f"pods-{number}", template, replicas)


async def _run(setting: Setting) -> Run:
    messages = load(setting)
    async with dispatcher_alone(setting.redis_url, setting.rules) as bench:
        readings = [(time.perf_counter(), bench.cpu_seconds())]
        await submit(bench.client, messages)
        readings.append((time.perf_counter(), bench.cpu_seconds()))
        async with stand_in_workers(bench.dispatcher.address, setting.workers) as workers:
            await until_dispatched(bench.client, workers, setting.pods)
            readings.append((time.perf_counter(), bench.cpu_seconds()))
    accept, dispatch = (
        Phase(setting.pods, after - before, cpu_after["dispatcher"] - cpu_before["dispatcher"])
        for (before, cpu_before), (after, cpu_after) in pairwise(readings)
    )
    redis_cpu = readings[-1][1].get("redis", 0.0) - readings[0][1].get("redis", 0.0)
    return Run(accept, dispatch, redis_cpu)


async def _memory(pods: int, classes: int, redis_url: str) -> tuple[float, float]:
    """MiB resident with all pods queued, and at the peak."""
    parts = [pods * (i + 1) // classes - pods * i // classes for i in range(classes)]
    async with dispatcher_alone(redis_url, 1) as bench:
        await submit(bench.client, list(submission(_workload(i, part, 1) for i, part in enumerate(parts))))
        process = bench.dispatcher.find()
        if process is None:
            raise HossError("the dispatcher died under the load")
        return process.memory_info().rss / _MIB, processes.peak_mib([bench.dispatcher])["dispatcher"]


def _phase_text(phase: Phase) -> str:
    rate, micros = per_second(phase.pods, phase.cpu_seconds), 1e6 * per_second(phase.cpu_seconds, phase.pods)
    return f"{rate:,.0f} pods/s on one core, {micros:.2f} us of CPU a pod, {phase.seconds:.2f} s"


def memory_lines(found: Sequence[Document]) -> Iterator[tuple[str, object]]:
    """For people."""
    for row in found:
        text = (
            f"{row['residentMib']:.0f} MiB resident, {row['peakMib']:.0f} at the peak; goal {row['goalMib']}"
        )
        yield f"{row['pods']:,} pods in {row['shape']}", text
