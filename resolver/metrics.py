"""A resolver's metrics."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from hoss.telemetry.metrics import Family, Metric, MetricKind, TableSizes, tables_source
from resolver.api.committing import Committer
from resolver.api.maintenance import Availability
from resolver.core.values import Verdict

AVAILABLE = Metric("hoss_ledger_available", MetricKind.GAUGE, "1: the ledger can be used.")
REDIS_MEMORY = Metric(
    "hoss_ledger_redis_memory_bytes", MetricKind.GAUGE, "What Redis says it uses, a second ago at most."
)
PROPOSALS = Metric("hoss_proposals_total", MetricKind.COUNTER, "Proposals decided.")
PODS = Metric("hoss_proposed_pods_total", MetricKind.COUNTER, "Pods of these.")
VERDICTS = Metric("hoss_verdicts_total", MetricKind.COUNTER, "Pods by verdict.", ("verdict",))
EVENTS = Metric(
    "hoss_resolver_events_total",
    MetricKind.COUNTER,
    "Proposals that were invalid or came while the ledger was unavailable; pods displaced or reaped; "
    "commits with damaged records whose leases were over; steps of quarantine.",
    ("event",),
)
WAITING = Metric(
    "hoss_ledger_waiting_proposals", MetricKind.GAUGE, "Proposals that wait for their round trip.", ("shard",)
)
LATENCY = Metric(
    "hoss_ledger_commit_duration_seconds",
    MetricKind.HISTOGRAM,
    "Round trips to the ledger that decided proposals.",
    ("shard",),
)

METRICS = (AVAILABLE, REDIS_MEMORY, PROPOSALS, PODS, VERDICTS, EVENTS, WAITING, LATENCY)

_VERDICTS = {verdict.name.lower(): verdict.name for verdict in Verdict}


class ResolverSource:
    """A metrics source: proposals, verdicts, and the ledger's state."""

    def __init__(
        self,
        committers: Sequence[Committer],
        availability: Availability,
        counters: Callable[[], Counter[str]],
        own_tables: TableSizes = dict,
    ) -> None:
        """`own_tables`: what this process remembers, beside the ledger's keys."""
        self._committers = committers
        self._availability = availability
        self._counters = counters
        self._tables = tables_source("resolver", self._ledger_tables, own_tables)

    def __call__(self) -> Iterator[Family]:
        counted = self._counters()
        yield AVAILABLE.single(int(not self._availability.problem))
        yield REDIS_MEMORY.single(int(self._availability.facts.get("used_memory_bytes", 0)))
        yield PROPOSALS.single(counted.pop("proposals", 0))
        yield PODS.single(counted.pop("pods", 0))
        yield VERDICTS.by((name, counted.pop(counter, 0)) for counter, name in _VERDICTS.items())
        yield EVENTS.by(sorted(counted.items()))
        yield WAITING.by((str(c.shard), c.waiting) for c in self._committers)
        yield LATENCY.by((str(c.shard), c.round_trips) for c in self._committers)
        yield from self._tables()

    def _ledger_tables(self) -> dict[str, int]:
        return {f"ledger_{key}": entries for key, entries in self._availability.tables.items()}
