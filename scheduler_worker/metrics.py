"""A worker's metrics."""

from collections.abc import Iterator

from hoss.telemetry.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Metric, tables_source
from scheduler_worker.service import WorkerService

BUSY = Metric(
    "hoss_worker_busy_seconds_total",
    COUNTER,
    "CPU time spent scheduling, and decision cost added by configuration.",
    ("worker",),
)
BACKLOG = Metric("hoss_worker_backlog_pods", GAUGE, "Pods received and not yet placed.", ("worker",))
PROPOSED = Metric(
    "hoss_worker_proposed_pods_total", COUNTER, "Pods proposed, each as often as it was.", ("worker",)
)
REFUSED = Metric("hoss_worker_refused_pods_total", COUNTER, "Of these, refused by the ledger.", ("worker",))
READY = Metric("hoss_worker_ready", GAUGE, "1: its cache holds every shard.", ("worker",))
NODES = Metric("hoss_cache_nodes", GAUGE, "Nodes in its cache.", ("worker",))
FILLED = Metric(
    "hoss_cache_fill_seconds", GAUGE, "From its start until the cache was filled; 0: not yet.", ("worker",)
)
LAG_ENTRIES = Metric(
    "hoss_cache_lag_entries",
    GAUGE,
    "Entries of a shard's feed that exist and have not been applied.",
    ("worker", "shard"),
)
LAG_SECONDS = Metric(
    "hoss_cache_lag_seconds", GAUGE, "Seconds since the first of them became known.", ("worker", "shard")
)

ATTEMPT_TIMES = Metric(
    "scheduler_scheduling_attempt_duration_seconds",
    HISTOGRAM,
    "From a work batch's coming to a worker until its answer for a pod, by result "
    "(scheduled, unschedulable, conflict, error) and the worker's profile.",
    ("result", "profile"),
)
PREEMPTION_ATTEMPTS = Metric(
    "scheduler_preemption_attempts_total",
    COUNTER,
    "Pods that fitted nowhere and for which it was asked whose less urgent pods could go.",
)

METRICS = (
    ATTEMPT_TIMES, PREEMPTION_ATTEMPTS, BUSY, BACKLOG, PROPOSED, REFUSED, READY, NODES, FILLED, LAG_ENTRIES,
    LAG_SECONDS,
)  # fmt: skip


class WorkerSource:
    """A metrics source: one worker."""

    def __init__(self, name: str, profile: str, service: WorkerService) -> None:
        self._name = name
        self._profile = profile
        self._service = service
        self._tables = tables_source("scheduler_worker", service.table_sizes)

    def __call__(self) -> Iterator[Family]:
        condition, name = self._service.condition(), self._name
        by_result = self._service.attempts.by_result.items()
        yield ATTEMPT_TIMES.by(((result, self._profile), times) for result, times in by_result)
        yield PREEMPTION_ATTEMPTS.single(condition.preemption_attempts)
        yield BUSY.by([(name, condition.busy_seconds)])
        yield BACKLOG.by([(name, condition.backlog)])
        yield PROPOSED.by([(name, condition.proposed)])
        yield REFUSED.by([(name, condition.conflicts)])
        yield READY.by([(name, int(condition.ready))])
        yield NODES.by([(name, condition.nodes)])
        yield FILLED.by([(name, condition.fill_seconds)])
        yield LAG_ENTRIES.by(((name, str(lag.shard)), lag.seqs) for lag in condition.lags)
        yield LAG_SECONDS.by(((name, str(lag.shard)), lag.seconds) for lag in condition.lags)
        yield from self._tables()
