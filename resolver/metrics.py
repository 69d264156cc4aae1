"""What a resolver shows Prometheus, read from what it counts anyway."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from hoss.telemetry.metrics import Family, Kind, Metric
from resolver.availability import Availability
from resolver.committer import Committer
from resolver.core.values import Verdict

AVAILABLE = Metric("hoss_ledger_available", Kind.GAUGE, "1: the ledger can be used.")
REDIS_MEMORY = Metric("hoss_ledger_redis_memory_bytes", Kind.GAUGE, "What Redis says it uses, a second ago at most.")
PROPOSALS = Metric("hoss_proposals_total", Kind.COUNTER, "Proposals decided.")
PODS = Metric("hoss_proposed_pods_total", Kind.COUNTER, "Pods of these.")
VERDICTS = Metric("hoss_verdicts_total", Kind.COUNTER, "Pods by verdict.", ("verdict",))
EVENTS = Metric(
    "hoss_resolver_events_total",
    Kind.COUNTER,
    "Proposals that were invalid or came while the ledger was unavailable; pods displaced or reaped; steps of quarantine.",
    ("event",),
)
WAITING = Metric("hoss_ledger_waiting_proposals", Kind.GAUGE, "Proposals that wait for their round trip.", ("shard",))
LATENCY = Metric(
    "hoss_ledger_commit_duration_seconds",
    Kind.HISTOGRAM,
    "Round trips to the ledger that decided proposals.",
    ("shard",),
)

METRICS = (AVAILABLE, REDIS_MEMORY, PROPOSALS, PODS, VERDICTS, EVENTS, WAITING, LATENCY)

_VERDICTS = {verdict.name.lower(): verdict.name for verdict in Verdict}


class ResolverSource:
    """A metrics source: what it decided, and how the ledger is."""

    def __init__(
        self, committers: Sequence[Committer], availability: Availability, counters: Callable[[], Counter[str]]
    ) -> None:
        self._committers = committers
        self._availability = availability
        self._counters = counters

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
