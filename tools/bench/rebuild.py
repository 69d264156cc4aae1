"""`python -m tools.bench rebuild`: how long nothing is bound after Redis was killed and came back empty.

`pods` pods are bound. Then Redis, which writes nothing to disk, is killed (-9) and started again at once at
the same address. The dispatcher has the ledger rebuilt from its own record. Times begin with the kill, as a
client sees them.

The JSON document:

    nodes, pods, workers, seed, repeat
    servingSeconds       until a resolver serves again, with every earlier reservation; median, as the next
    boundSeconds         until a pod that was submitted then is reported as bound
    movedPods            pods whose reservation was gone or on another node, in any run: 0 unless HOSS errs
    runs[]               servingSeconds, boundSeconds, movedPods of each
    violations           of any audit after a run
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from hoss.client.resolver import ResolverClient
from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U32, decode, decode_uids
from hossctl import auditing
from hossctl.auditing import Finding
from hossctl.choices import Mix
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import camel, median
from hossctl.load import report, runner
from hossctl.load.generated import bench_load, bench_nodes
from hossctl.load.progress import placing
from hossctl.local.platform import PlatformOptions, Starter


@dataclass(frozen=True, slots=True)
class Setting:
    """A platform whose ledger is full of pods before a part of it is lost, `repeat` times. `redis_url`:
    empty, the platform has a Redis of its own."""

    nodes: int
    pods: int
    workers: int
    seed: int
    repeat: int = 1
    redis_url: str = ""

    def as_json(self) -> Document:
        return camel(self, "nodes", "pods", "workers", "seed", "repeat")

    def node_specs(self) -> list[NodeSpec]:
        """The nodes to register."""
        return bench_nodes(Mix.UNIFORM, self.nodes, seed=self.seed)

    def load(self, name: str, pods: int) -> list[pb.SubmitRequest]:
        """Messages of so many equal pods."""
        return bench_load(Mix.UNIFORM, pods, cards=0, seed=self.seed, name=name)


def finding_lines(findings: Iterable[Finding]) -> list[tuple[str, object]]:
    """Findings of audits for the summary."""
    return [(f"INVARIANT {finding.invariant}", finding.text) for finding in findings]


_POLL_SECONDS = 0.005
_WAIT_SECONDS = 120.0

Reserved = dict[bytes, int]  # node by UID


@dataclass(frozen=True, slots=True)
class Run:
    """One loss of Redis."""

    serving_seconds: float
    bound_seconds: float
    moved_pods: int

    def as_json(self) -> Document:
        """See the module's docstring."""
        return camel(self, "serving_seconds", "bound_seconds", "moved_pods", digits=3)


@dataclass(slots=True)
class Rebuild:
    """The whole measurement."""

    setting: Setting
    runs: list[Run] = field(default_factory=list)
    findings: list[auditing.Finding] = field(default_factory=list)

    @property
    def moved_pods(self) -> int:
        """Moved pods of all runs."""
        return sum(run.moved_pods for run in self.runs)

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            **self.setting.as_json(),
            "servingSeconds": round(median([run.serving_seconds for run in self.runs]), 3),
            "boundSeconds": round(median([run.bound_seconds for run in self.runs]), 3),
            "movedPods": self.moved_pods,
            "runs": [run.as_json() for run in self.runs],
            "violations": [finding.as_json() for finding in self.findings],
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        found = self.as_json()
        return [
            ("commits are accepted", f"{found['servingSeconds']:.2f} s after Redis was killed"),
            ("the next pod is bound", f"{found['boundSeconds']:.2f} s after"),
            ("bound pods that moved", f"{found['movedPods']:,}"),
            *finding_lines(self.findings),
        ]


def measure(setting: Setting, *, quiet: bool) -> Rebuild:
    """`repeat` losses, each on a fresh platform."""
    nodes = setting.node_specs()
    options = PlatformOptions(workers=report.workers(setting.workers), seed=setting.seed)
    result = Rebuild(setting)
    for _ in range(setting.repeat):
        with report.platform(options) as starter:
            report.run_on(starter.state, partial(_run, result, starter, nodes, quiet=quiet))
    return result


async def _run(
    result: Rebuild, starter: Starter, nodes: Sequence[NodeSpec], clients: Clients, *, quiet: bool
) -> None:
    setting = result.setting
    await report.prepare(clients, nodes, setting.workers)
    with placing("before", setting.pods, quiet=quiet) as progress:
        await runner.place(clients.dispatcher, setting.load("before", setting.pods), progress=progress)
    before = await reserved(clients.resolver)
    began = time.perf_counter()
    await asyncio.to_thread(starter.lose_redis)
    await _until_serving(clients.resolver, len(before))
    serving_seconds = time.perf_counter() - began
    tracker = await runner.place(clients.dispatcher, setting.load("after", 1))
    bound_seconds = float(tracker.bound_at[0]) - began
    moved = moved_pods(before, await reserved(clients.resolver))
    result.runs.append(Run(serving_seconds, bound_seconds, moved))
    await auditing.until_caches_agree(clients.dispatcher, clients.resolver, setting.workers)
    result.findings += (await auditing.audit(clients.dispatcher, clients.resolver)).findings


async def reserved(resolver: ResolverClient) -> Reserved:
    """The node of each pod that has a reservation."""
    found: Reserved = {}
    async for chunk in resolver.reservations():
        nodes = decode(chunk.nodes, U32, name="nodes").tolist()
        found.update(zip(map(bytes, decode_uids(chunk.uids)), nodes, strict=True))
    return found


def moved_pods(before: Reserved, after: Reserved) -> int:
    """Pods that have no reservation any more, or one on another node."""
    return sum(after.get(uid) != node for uid, node in before.items())


async def _until_serving(resolver: ResolverClient, reservations: int) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not ((status := await resolver.status()).serving and status.reservations >= reservations):
        if time.monotonic() > deadline:
            raise HossError(f"the ledger was not rebuilt within {_WAIT_SECONDS:.0f} s: {status.problem}")
        await asyncio.sleep(_POLL_SECONDS)
