"""`python -m tools.bench rebuild` and `python -m tools.bench takeover`: how long something does not work
after a part of the platform was lost.

- *rebuild*: `pods` pods are bound. Then Redis, which writes nothing to disk, is killed (-9) and started again
  at once at the same address. The dispatcher has the ledger rebuilt from its own record. A resolver has to
  serve again, with every earlier reservation, and then to bind one more pod.
- *takeover*: `pods` pods are bound, and as many wait for a node that does not exist. Then the active one of
  two dispatchers is killed (-9). The standby waits for the lease (1.5 s) to end, reads the journal and all
  reservations. A dispatcher has to answer that knows every pod.

Times begin with the kill, as a client sees them. The JSON document:

    nodes, pods, workers, seed, repeat
    servingSeconds       until it serves again; median, as the next
    boundSeconds         until a pod that was submitted then is reported as bound; only of a rebuild
    movedPods            pods whose reservation was gone or on another node, in any run: 0 unless HOSS errs
    runs[]               servingSeconds, boundSeconds, movedPods of each
    violations           of any audit after a run
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
class Loss:
    """What is lost and what is waited for. `waiting`: whether as many pods wait as are bound. `lose` kills
    it, on a thread, by the address of the active dispatcher. `serves`: whether the platform serves again,
    given the term at the loss and how many pods there are; it may raise HossError while nothing answers.
    `binds`: whether one more pod is bound afterwards. `serving`: this for people, and what to say of its
    time."""

    dispatchers: int
    waiting: bool
    lose: Callable[[Starter, str], None]
    serves: Callable[[Clients, int, int], Awaitable[bool]]
    binds: bool
    serving: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """One loss. `bound_seconds`: None where no further pod was placed."""

    serving_seconds: float
    bound_seconds: float | None
    moved_pods: int

    def as_json(self) -> Document:
        """See the module's docstring."""
        names = (
            "serving_seconds",
            *(("bound_seconds",) if self.bound_seconds is not None else ()),
            "moved_pods",
        )
        return camel(self, *names, digits=3)


@dataclass(slots=True)
class Losses:
    """The whole measurement."""

    loss: Loss
    setting: Setting
    runs: list[Run] = field(default_factory=list)
    findings: list[auditing.Finding] = field(default_factory=list)

    @property
    def moved_pods(self) -> int:
        """Moved pods of all runs."""
        return sum(run.moved_pods for run in self.runs)

    def as_json(self) -> Document:
        """See the module's docstring."""
        bound = [run.bound_seconds for run in self.runs if run.bound_seconds is not None]
        return {
            **self.setting.as_json(),
            "servingSeconds": round(median([run.serving_seconds for run in self.runs]), 3),
            **({"boundSeconds": round(median(bound), 3)} if bound else {}),
            "movedPods": self.moved_pods,
            "runs": [run.as_json() for run in self.runs],
            "violations": [finding.as_json() for finding in self.findings],
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        found = self.as_json()
        what, since = self.loss.serving
        lines: list[tuple[str, object]] = [(what, f"{found['servingSeconds']:.2f} s after {since}")]
        if "boundSeconds" in found:
            lines.append(("the next pod is bound", f"{found['boundSeconds']:.2f} s after"))
        return [*lines, ("bound pods that moved", f"{found['movedPods']:,}"), *finding_lines(self.findings)]


def measure(loss: Loss, setting: Setting, *, quiet: bool) -> Losses:
    """`repeat` losses, each on a fresh platform."""
    nodes = setting.node_specs()
    workers = report.workers(setting.workers)
    options = PlatformOptions(workers=workers, dispatchers=loss.dispatchers, seed=setting.seed)
    result = Losses(loss, setting)
    for _ in range(setting.repeat):
        with report.platform(options) as starter:
            report.run_on(starter.state, partial(_run, result, starter, nodes, quiet=quiet))
    return result


async def _run(
    result: Losses, starter: Starter, nodes: Sequence[NodeSpec], clients: Clients, *, quiet: bool
) -> None:
    setting, loss, dispatcher = result.setting, result.loss, clients.dispatcher
    await report.prepare(clients, nodes, setting.workers)
    with placing("before", setting.pods, quiet=quiet) as progress:
        await runner.place(dispatcher, setting.load("before", setting.pods), progress=progress)
    for request in setting.load("waiting", setting.pods) if loss.waiting else ():
        for template in request.templates:
            template.spec.node_selector.add(key="example.org/zone", value="nowhere")
        await dispatcher.submit(request)
    before, status = await reserved(clients.resolver), await dispatcher.status()
    pods = 2 * setting.pods if loss.waiting else len(before)
    began = time.perf_counter()
    await asyncio.to_thread(loss.lose, starter, status.address)
    await until_serving(partial(loss.serves, clients, status.term, pods))
    serving_seconds = time.perf_counter() - began
    bound_seconds = None
    if loss.binds:
        tracker = await runner.place(dispatcher, setting.load("after", 1))
        bound_seconds = float(tracker.bound_at[0]) - began
    moved = moved_pods(before, await reserved(clients.resolver))
    result.runs.append(Run(serving_seconds, bound_seconds, moved))
    await auditing.until_caches_agree(dispatcher, clients.resolver, setting.workers)
    result.findings += (await auditing.audit(dispatcher, clients.resolver)).findings


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


async def until_serving(
    serves: Callable[[], Awaitable[bool]],
    *,
    wait_seconds: float = _WAIT_SECONDS,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Return once it serves. Raises HossError where it does not in time."""
    deadline, problem = time.monotonic() + wait_seconds, ""
    while True:
        try:
            if await serves():
                return
        except HossError as exc:
            problem = f": {exc}"
        if time.monotonic() > deadline:
            raise HossError(f"the platform does not serve again within {wait_seconds:.0f} s{problem}")
        await asyncio.sleep(poll_seconds)


async def _ledger_is_back(clients: Clients, _term: int, reservations: int) -> bool:
    status = await clients.resolver.status()
    return status.serving and status.reservations >= reservations


async def next_term_knows(clients: Clients, term: int, pods: int) -> bool:
    """Whether a dispatcher of a later term answers that has so many pods."""
    status = await clients.dispatcher.status()
    return status.term > term and sum(status.pods_by_phase.values()) >= pods


def kill_active(starter: Starter, address: str) -> None:
    """Kill the dispatcher with this address."""
    number = 1 + starter.state.dispatcher.split(",").index(address)
    for record in starter.state.processes:
        if record.name == f"dispatcher-{number}" and (process := record.find()) is not None:
            process.kill()
            process.wait()


REBUILD = Loss(
    dispatchers=1,
    waiting=False,
    lose=lambda starter, _address: starter.lose_redis(),
    serves=_ledger_is_back,
    binds=True,
    serving=("commits are accepted", "Redis was killed"),
)
TAKEOVER = Loss(
    dispatchers=2,
    waiting=True,
    lose=kill_active,
    serves=next_term_knows,
    binds=False,
    serving=("the next dispatcher serves", "the kill, lease included"),
)
