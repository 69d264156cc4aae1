"""How a worker does, by what it measures of itself: for the dispatcher's heartbeats, and for whoever scrapes it."""

import time
from typing import NamedTuple

from hoss.v1.workerlink_pb2 import Heartbeat
from hoss.wire.columns import F32, U32, encode
from scheduler_worker import messages
from scheduler_worker.config import SyncMode
from scheduler_worker.core.lag import LagMeter, ShardLag
from scheduler_worker.core.scheduler import Scheduler


class Condition(NamedTuple):
    """See Heartbeat in proto/hoss/v1/workerlink.proto."""

    busy_seconds: float
    backlog: int
    proposed: int
    conflicts: int
    preemption_attempts: int
    ready: bool
    nodes: int
    fill_seconds: float
    lags: tuple[ShardLag, ...]


class Gauges:
    """Read from the scheduler when asked; `busy_seconds`, `working_seconds` and `lags` are told by whoever works and hears."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.busy_seconds = 0.0
        self.working_seconds = 0.0  # by the clock: on a machine that others use, much more
        self.lags = LagMeter()
        self.fill_seconds = 0.0  # from the start until the cache was filled; 0.0: not yet
        self._scheduler = scheduler
        self._started = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the cache holds every shard."""
        cache = self._scheduler.cache
        return cache.shards > 0 and len(cache.seqs) == cache.shards

    @property
    def nodes(self) -> int:
        """Nodes in the cache."""
        return int(self._scheduler.cache.present.sum())

    def filled(self) -> None:
        """The cache is filled as of now."""
        self.fill_seconds = time.monotonic() - self._started

    def read(self, now: float) -> Condition:
        """All of them."""
        scheduler = self._scheduler
        return Condition(
            busy_seconds=self.busy_seconds,
            backlog=scheduler.backlog,
            proposed=scheduler.proposed,
            conflicts=scheduler.conflicts,
            preemption_attempts=scheduler.preemption_attempts,
            ready=self.ready,
            nodes=self.nodes,
            fill_seconds=self.fill_seconds,
            lags=tuple(self.lags.lags(now)),
        )

    def heartbeat(self, mode: SyncMode) -> Heartbeat:
        """What is told to the dispatcher. Costs and refusals are told once."""
        scheduler, now = self._scheduler, time.monotonic()
        costs = scheduler.costs.take_changed()
        heartbeat = Heartbeat(
            busy_seconds=self.busy_seconds,
            micros_per_pod=costs.per_pod,
            backlog=scheduler.backlog,
            ready=self.ready,
            conflicts=scheduler.conflicts,
            proposed=scheduler.proposed,
            cost_classes=encode(costs.classes, U32),
            cost_micros=encode(costs.micros, F32),
            first_micros=costs.first,
            seen_micros=costs.seen,
            synchronisation=mode.value,
            lags=messages.shard_lags(self.lags.lags(now)),
            fill_seconds=self.fill_seconds,
            working_seconds=self.working_seconds,
            clock_seconds=now,
        )
        if (refusals := scheduler.refusals.take()) is not None:
            messages.tell_refusals(refusals, heartbeat)
        return heartbeat
