"""What a worker shows Prometheus, read from what it counts anyway."""

import time
from collections.abc import Iterator

from hoss.telemetry.metrics import Family, Kind, Metric
from scheduler_worker.service import WorkerService

BUSY = Metric(
    "hoss_worker_busy_seconds_total",
    Kind.COUNTER,
    "CPU time spent scheduling, and decision cost added by configuration.",
    ("worker",),
)
BACKLOG = Metric("hoss_worker_backlog_pods", Kind.GAUGE, "Pods received and not yet placed.", ("worker",))
PROPOSED = Metric(
    "hoss_worker_proposed_pods_total", Kind.COUNTER, "Pods proposed, each as often as it was.", ("worker",)
)
REFUSED = Metric("hoss_worker_refused_pods_total", Kind.COUNTER, "Of these, refused by the ledger.", ("worker",))
READY = Metric("hoss_worker_ready", Kind.GAUGE, "1: its cache holds every shard.", ("worker",))
NODES = Metric("hoss_cache_nodes", Kind.GAUGE, "Nodes in its cache.", ("worker",))
FILLED = Metric(
    "hoss_cache_fill_seconds", Kind.GAUGE, "From its start until the cache was filled; 0: not yet.", ("worker",)
)
LAG_ENTRIES = Metric(
    "hoss_cache_lag_entries",
    Kind.GAUGE,
    "Entries of a shard's history it has heard of and not seen.",
    ("worker", "shard"),
)
LAG_SECONDS = Metric("hoss_cache_lag_seconds", Kind.GAUGE, "Since the first of them was heard of.", ("worker", "shard"))

ATTEMPT_TIMES = Metric(
    "scheduler_scheduling_attempt_duration_seconds",
    Kind.HISTOGRAM,
    "From a work batch's coming to a worker until its answer for a pod, by result (scheduled, unschedulable, conflict, error) and "
    "the worker's profile.",
    ("result", "profile"),
)
PREEMPTION_ATTEMPTS = Metric(
    "scheduler_preemption_attempts_total",
    Kind.COUNTER,
    "Pods that fitted nowhere and for which it was asked whose less urgent pods could go.",
)

METRICS = (
    ATTEMPT_TIMES,
    PREEMPTION_ATTEMPTS,
    BUSY,
    BACKLOG,
    PROPOSED,
    REFUSED,
    READY,
    NODES,
    FILLED,
    LAG_ENTRIES,
    LAG_SECONDS,
)


class WorkerSource:
    """A metrics source: how a worker does."""

    def __init__(self, name: str, profile: str, service: WorkerService) -> None:
        self._name = name
        self._profile = profile
        self._service = service

    def __call__(self) -> Iterator[Family]:
        condition, name = self._service.condition(time.monotonic()), self._name
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
