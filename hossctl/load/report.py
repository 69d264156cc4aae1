"""A load on a platform: start the platform, register nodes, place the load, and report the outcome. demo,
replay and the benchmarks share this."""

from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from hoss.errors import HossError, counted
from hoss.model.node import NodeSpec
from hoss.model.resources import WHOLE_CARD_MILLI
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hossctl import auditing
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.endpoints import Clients, clients_of, of_state
from hossctl.figures import camel, per_second, percentiles, share
from hossctl.load import runner
from hossctl.load.nodes import register
from hossctl.load.runner import Tracker
from hossctl.local.platform import PlatformOptions, Starter, temporary
from hossctl.local.platform_state import PlatformState, WorkerOptions
from hossctl.local.redis_database import borrowed

CARDS = "cards"

_ResultT = TypeVar("_ResultT")


@contextmanager
def platform(options: PlatformOptions) -> Iterator[Starter]:
    """A temporary platform for the length of the block. A Redis that the options name is left as it was."""
    with borrowed(options.redis_url), temporary(options) as starter:
        yield starter


def workers(
    count: int, labels: tuple[tuple[str, str], ...] = (), flags: tuple[str, ...] = ()
) -> tuple[WorkerOptions, ...]:
    """Equal workers w1, w2, ..."""
    return tuple(WorkerOptions(f"w{number + 1}", labels, flags) for number in range(count))


def run_on(state: PlatformState, use: Callable[[Clients], Coroutine[Any, Any, _ResultT]]) -> _ResultT:
    """Run a coroutine with clients of the platform, on an event loop of its own."""

    async def main() -> _ResultT:
        async with clients_of(of_state(state)) as clients:
            return await use(clients)

    return run_async(main())


@dataclass(frozen=True, slots=True)
class Usage:
    """Amounts over all nodes, schema units; cards in thousandths."""

    nodes: int
    requested: dict[str, int]
    allocatable: dict[str, int]
    overcommitted: tuple[str, ...]  # one sentence a node

    def shares(self) -> dict[str, float]:
        """The fraction in use of each resource that any node offers and any pod requested."""
        return {
            name: share(used, self.allocatable[name]) for name, used in sorted(self.requested.items()) if used
        }


def usage_of(nodes: Sequence[resolver_pb2.NodeInfo]) -> Usage:
    requested: dict[str, int] = defaultdict(int)
    allocatable: dict[str, int] = defaultdict(int)
    overcommitted = []
    for node in nodes:
        for amount in node.spec.allocatable:
            allocatable[amount.resource] += amount.amount
        for amount in node.requested:
            requested[amount.resource] += amount.amount
        allocatable[CARDS] += node.spec.cards * WHOLE_CARD_MILLI
        requested[CARDS] += sum(node.cards_used_milli[: node.spec.cards])
        if problem := _overcommit(node):
            overcommitted.append(problem)
    return Usage(len(nodes), dict(requested), dict(allocatable), tuple(overcommitted))


def _overcommit(node: resolver_pb2.NodeInfo) -> str:
    offered = {amount.resource: amount.amount for amount in node.spec.allocatable}
    over = [
        f"{amount.resource} {amount.amount} requested of {offered.get(amount.resource, 0)}"
        for amount in node.requested
        if amount.amount > offered.get(amount.resource, 0)
    ]
    over += [
        f"card {number} {milli} thousandths used"
        for number, milli in enumerate(node.cards_used_milli[: node.spec.cards])
        if milli > WHOLE_CARD_MILLI
    ]
    return f"{node.spec.name}: {', '.join(over)}" if over else ""


@dataclass(frozen=True, slots=True)
class ServiceCounters:
    """Counts since the services began, and how many pods each worker has bound."""

    conflicts: int
    requeued: int
    bound_by_worker: dict[str, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a load was placed. The latency of a pod goes from sending its message to the report that it is
    bound."""

    pods: int
    bound: int  # at the end
    departed: int  # bound for a time, then deleted by the client
    unschedulable: int
    failed: int
    reasons: dict[str, int]  # of the unschedulable and failed, by kind
    seconds: float  # from the first message sent to the last pod bound
    latency_p50_ms: float
    latency_p99_ms: float
    conflicts: int  # proposals of a pod that the ledger refused
    retries: int  # pods that went back to the dispatcher's queue and out again
    bound_by_worker: dict[str, int]

    @property
    def pods_per_second(self) -> float:
        return per_second(self.bound + self.departed, self.seconds)

    @property
    def unaccounted(self) -> int:
        """Pods in no final state. Anything but 0 means that pods were lost."""
        return self.pods - self.bound - self.departed - self.unschedulable - self.failed

    def as_json(self) -> Document:
        return {
            **camel(self, "pods", "bound", "departed", "unschedulable", "failed", "unaccounted", "reasons"),
            **camel(self, "seconds", digits=4),
            **camel(self, "pods_per_second", digits=1),
            **camel(self, "latency_p50_ms", "latency_p99_ms", digits=2),
            **camel(self, "conflicts", "retries", "bound_by_worker"),
        }

    def lines(self) -> list[tuple[str, object]]:
        lines: list[tuple[str, object]] = [
            ("pods", f"{self.pods:,}"),
            ("bound", f"{self.bound + self.departed:,} in {self.seconds:.2f} s"),
            ("pods/s", f"{self.pods_per_second:,.0f}"),
            ("latency", f"p50 {self.latency_p50_ms:,.0f} ms, p99 {self.latency_p99_ms:,.0f} ms"),
            ("unschedulable", f"{self.unschedulable:,}"),
            *((f"  {count:,}", reason) for reason, count in Counter(self.reasons).most_common(8)),
        ]
        if self.failed:
            lines.append(("failed", f"{self.failed:,}"))
        lines += [("conflicts", f"{self.conflicts:,}, all resolved"), ("retries", f"{self.retries:,}")]
        if self.unaccounted:
            lines.append(("UNACCOUNTED", f"{self.unaccounted:,} pods are in no final state"))
        return lines + [
            (f"worker {name}", f"{count:,} bound ({share(count, self.bound + self.departed):.0%})")
            for name, count in sorted(self.bound_by_worker.items())
        ]


async def prepare(
    clients: Clients,
    nodes: Sequence[NodeSpec],
    workers: int,
    registered: Callable[[int], None] = lambda _: None,
) -> None:
    """Register the nodes and wait until so many workers know all of them. Raises HossError after 120 s."""
    await register(clients.resolver, nodes, registered)
    if not await auditing.until_caches_agree(clients.dispatcher, clients.resolver, workers):
        raise HossError(
            f"{workers} workers with filled caches were expected within 120 s; see `hoss get workers` and "
            "their logs"
        )


async def place(
    clients: Clients, requests: Sequence[pb.SubmitRequest], progress: runner.Progress = lambda _: None
) -> Placement:
    """Submit a load, follow it until every pod is settled, and return the figures."""
    before = await counters(clients)
    tracker = await runner.place(clients.dispatcher, requests, progress=progress)
    return figures(tracker, before, await counters(clients))


def figures(tracker: Tracker, before: ServiceCounters, after: ServiceCounters) -> Placement:
    p50, p99 = percentiles(tracker.latencies() * 1000, 50, 99)
    return Placement(
        pods=tracker.pods,
        bound=tracker.count(pb.BOUND),
        departed=tracker.count(pb.DELETED),
        unschedulable=tracker.count(pb.UNSCHEDULABLE),
        failed=tracker.count(pb.FAILED),
        reasons=dict(tracker.reasons() + tracker.reasons(pb.FAILED)),
        seconds=tracker.binding_seconds(),
        latency_p50_ms=p50,
        latency_p99_ms=p99,
        conflicts=after.conflicts - before.conflicts,
        retries=after.requeued - before.requeued,
        bound_by_worker={
            name: count - before.bound_by_worker.get(name, 0) for name, count in after.bound_by_worker.items()
        },
    )


async def counters(clients: Clients) -> ServiceCounters:
    resolver = (await clients.resolver.status()).counters
    dispatcher = (await clients.dispatcher.status()).counters
    return ServiceCounters(
        conflicts=sum(count for name, count in resolver.items() if "conflict" in name),
        requeued=dispatcher.get("requeued", 0),
        bound_by_worker={worker.name: worker.bound for worker in await clients.dispatcher.list_workers()},
    )


async def usage(clients: Clients) -> Usage:
    return usage_of(await clients.resolver.list_nodes())


def usage_lines(used: Usage) -> list[tuple[str, object]]:
    shares = ", ".join(f"{name} {fraction:.1%}" for name, fraction in used.shares().items())
    lines: list[tuple[str, object]] = [
        ("utilisation", shares or "nothing requested"),
        ("overcommitted nodes", f"{len(used.overcommitted)} of {used.nodes:,}"),
    ]
    return lines + [("", text) for text in used.overcommitted[:5]]


def usage_json(used: Usage) -> Document:
    """Shares are fractions, cards in thousandths of a card."""
    return {
        "nodes": used.nodes,
        "utilisation": {name: round(fraction, 5) for name, fraction in used.shares().items()},
        "cardsMilliRequested": used.requested.get(CARDS, 0),
        "overcommittedNodes": list(used.overcommitted),
    }


def audit_lines(result: auditing.AuditResult) -> list[tuple[str, object]]:
    held = (
        f"{counted(result.nodes, 'node')}, {counted(result.reservations, 'reservation')}, "
        f"{result.bound:,} bound, {counted(result.workers, 'cache')}"
    )
    lines: list[tuple[str, object]] = [("mended", text) for text in result.repaired]
    lines += [("not mended", text) for text in result.unrepaired]
    lines += [("audit", f"{result.verdict} ({held})")]
    lines += [(f"  invariant {finding.invariant}", finding.text) for finding in result.findings]
    lines += [("  not checked", text) for text in result.unchecked]
    return lines + [("  note", text) for text in result.reports]


def audit_json(result: auditing.AuditResult) -> Document:
    return {
        **camel(result, "verdict", "nodes", "reservations", "bound", "workers"),
        "violations": [finding.as_json() for finding in result.findings],
        **camel(result, "unchecked", "reports"),
        "mended": result.repaired,
        "notMended": result.unrepaired,
    }
