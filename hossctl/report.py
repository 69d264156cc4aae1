"""Places a load on a platform and says how it went: what demo, replay and the benchmarks have in common."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import auditing, runner
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import per_second, percentiles, share
from hossctl.nodes import register
from hossctl.tracking import Tracker
from hossctl.usage import CARDS, Usage, usage_of


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts since the services began, and how many pods each worker has bound."""

    conflicts: int
    requeued: int
    worker_conflicts: int
    bound_by_worker: dict[str, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a load was placed. Latency: from sending the message that holds a pod to the report that it is bound."""

    pods: int
    bound: int  # at the end
    departed: int  # bound for a time, and deleted by whoever submitted them
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
        """Pods bound per second."""
        return per_second(self.bound + self.departed, self.seconds)

    @property
    def unaccounted(self) -> int:
        """Pods that ended in no final state: always 0, or something was lost."""
        return self.pods - self.bound - self.departed - self.unschedulable - self.failed

    def as_json(self) -> Document:
        """All figures, named as the fields."""
        return {
            "pods": self.pods,
            "bound": self.bound,
            "departed": self.departed,
            "unschedulable": self.unschedulable,
            "failed": self.failed,
            "unaccounted": self.unaccounted,
            "reasons": self.reasons,
            "seconds": round(self.seconds, 4),
            "podsPerSecond": round(self.pods_per_second, 1),
            "latencyP50Ms": round(self.latency_p50_ms, 2),
            "latencyP99Ms": round(self.latency_p99_ms, 2),
            "conflicts": self.conflicts,
            "retries": self.retries,
            "boundByWorker": self.bound_by_worker,
        }

    def lines(self) -> list[tuple[str, object]]:
        """A summary's lines."""
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
    clients: Clients, nodes: Sequence[NodeSpec], workers: int, registered: Callable[[int], None] = lambda _: None
) -> None:
    """Register the nodes and wait until `workers` workers know all of them. Raises HossError when they do not in time."""
    await register(clients.resolver, nodes, registered)
    if not await auditing.until_caches_agree(clients.dispatcher, clients.resolver, workers):
        raise HossError(
            f"{workers} workers with filled caches were expected within 120 s; see `hoss get workers` and their logs"
        )


async def place(
    clients: Clients, requests: Sequence[pb.SubmitRequest], progress: runner.Progress = lambda _: None
) -> Placement:
    """Submit a load, follow it to its end, and draw up the figures."""
    before = await tally(clients)
    tracker = await runner.place(clients.dispatcher, requests, progress=progress)
    return figures(tracker, before, await tally(clients))


def figures(tracker: Tracker, before: Tally, after: Tally) -> Placement:
    """The figures of a tracked load."""
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


async def tally(clients: Clients) -> Tally:
    """The services' counters now."""
    resolver = (await clients.resolver.status()).counters
    dispatcher = (await clients.dispatcher.status()).counters
    workers = await clients.dispatcher.list_workers()
    return Tally(
        conflicts=sum(count for name, count in resolver.items() if "conflict" in name),
        requeued=dispatcher.get("requeued", 0),
        worker_conflicts=sum(worker.conflicts for worker in workers),
        bound_by_worker={worker.name: worker.bound for worker in workers},
    )


async def usage(clients: Clients) -> Usage:
    """How full the nodes are."""
    return usage_of(await clients.resolver.list_nodes())


def usage_lines(used: Usage) -> list[tuple[str, object]]:
    """A summary's lines on the nodes."""
    shares = ", ".join(f"{name} {fraction:.1%}" for name, fraction in used.shares().items())
    lines: list[tuple[str, object]] = [
        ("utilisation", shares or "nothing requested"),
        ("overcommitted nodes", f"{len(used.overcommitted)} of {used.nodes:,}"),
    ]
    return lines + [("", text) for text in used.overcommitted[:5]]


def usage_json(used: Usage) -> Document:
    """The same as a document; shares are fractions, cards in thousandths of a card."""
    return {
        "nodes": used.nodes,
        "utilisation": {name: round(fraction, 5) for name, fraction in used.shares().items()},
        "cardsMilliRequested": used.requested.get(CARDS, 0),
        "overcommittedNodes": list(used.overcommitted),
    }


def audit_lines(result: auditing.AuditResult) -> list[tuple[str, object]]:
    """A summary's lines on an audit."""
    held = (
        f"{result.nodes:,} nodes, {result.reservations:,} reservations, {result.bound:,} bound, {result.workers} caches"
    )
    lines: list[tuple[str, object]] = [("mended", text) for text in result.mended]
    lines += [("not mended", text) for text in result.unmended]
    lines += [("audit", f"{result.verdict} ({held})")]
    lines += [(f"  invariant {finding.invariant}", finding.text) for finding in result.findings]
    lines += [("  not checked", text) for text in result.unchecked]
    return lines + [("  note", text) for text in result.reports]


def audit_json(result: auditing.AuditResult) -> Document:
    """The same as a document."""
    return {
        "verdict": result.verdict,
        "nodes": result.nodes,
        "reservations": result.reservations,
        "bound": result.bound,
        "workers": result.workers,
        "violations": [finding.as_json() for finding in result.findings],
        "unchecked": result.unchecked,
        "reports": result.reports,
        "mended": result.mended,
        "notMended": result.unmended,
    }
