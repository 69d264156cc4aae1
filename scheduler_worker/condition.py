"""A worker's figures of itself, for the dispatcher's heartbeats and for metrics: its time, its queues, its
lags, and how long attempts took by result."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hoss.statistics import Histogram
from hoss.v1 import common_pb2
from hoss.v1.workerlink_pb2 import Heartbeat
from hoss.wire.columns import F32, U32, encode
from scheduler_worker import messages
from scheduler_worker.config import SyncMode
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.work import OutcomeColumns

# Outcomes of attempts. Pods that were given back, or that belonged to another epoch, were not tried.
_RESULTS: dict[int, str] = {
    Outcome.BOUND: "scheduled",
    Outcome.UNSCHEDULABLE: "unschedulable",
    Outcome.CONFLICT: "conflict",
    Outcome.INVALID: "error",
}


class AttemptTimes:
    """From a batch's arrival until a pod's outcome: waiting behind other work, placing, and the commit."""

    def __init__(self) -> None:
        self.by_result = {result: Histogram() for result in _RESULTS.values()}

    def answered(self, outcomes: OutcomeColumns, now: float) -> None:
        """These outcomes are sent now, on the clock of the batch's arrival."""
        for code, pods in enumerate(np.bincount(outcomes.codes).tolist()):
            if pods and code in _RESULTS:
                self.by_result[_RESULTS[code]].add_equal(now - outcomes.received_at, pods)


# Expected seqs kept of each shard. When there are more, the latest ones share a moment.
_MOMENTS = 64


@dataclass(frozen=True, slots=True)
class ShardLag:
    """Zeros where nothing is known to be missing."""

    shard: int
    seqs: int  # entries that verdicts showed and the view lacks
    seconds: float  # since a verdict showed the first of them


class LagMeter:
    """How far the view lags behind the seqs that verdicts have shown, by shard."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._unseen: dict[int, deque[tuple[int, float]]] = {}  # seqs shown by verdicts, ascending, and when

    def expect(self, shard: int, seq: int, now: float) -> None:
        """A verdict shows that the shard stands at `seq`."""
        unseen = self._unseen.setdefault(shard, deque())
        if seq <= (unseen[-1][0] if unseen else self._seen.get(shard, 0)):
            return
        if len(unseen) == _MOMENTS:
            now = unseen.pop()[1]
        unseen.append((seq, now))

    def reached(self, shard: int, seq: int, *, restarted: bool = False) -> None:
        """The view stands at `seq`; `restarted`: in a history that may be another one."""
        self._seen[shard] = seq
        unseen = self._unseen.get(shard)
        while unseen and (restarted or unseen[0][0] <= seq):
            unseen.popleft()

    def lags(self, now: float) -> list[ShardLag]:
        """The lags of all shards, by number."""
        return [self._lag(shard, seq, now) for shard, seq in sorted(self._seen.items())]

    def _lag(self, shard: int, seq: int, now: float) -> ShardLag:
        unseen = self._unseen.get(shard)
        return ShardLag(shard, unseen[-1][0] - seq, now - unseen[0][1]) if unseen else ShardLag(shard, 0, 0.0)


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
    """Most figures are read from the scheduler on demand. `busy`, `working` and `spent` measure time around
    the work; `lags` is fed by verdicts and the feed."""

    def __init__(
        self, scheduler: Scheduler, *, clock: Callable[[], float], thread_clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._thread_clock = thread_clock  # the CPU time of this thread
        self.lags = LagMeter()
        self.fill_seconds = 0.0  # from the start until the cache was filled; 0.0: not yet
        self._busy_seconds = 0.0  # of CPU time
        self._working_seconds = 0.0  # by the clock: on a shared machine, much more
        self._scheduler = scheduler
        self._started = clock()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count the block's CPU time."""
        started = self._thread_clock()
        yield
        self._busy_seconds += self._thread_clock() - started

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count the block's time by the clock."""
        started = self._clock()
        yield
        self._working_seconds += self._clock() - started

    def spent(self, seconds: float) -> None:
        """Count this time as both: decision time that configuration adds."""
        self._busy_seconds += seconds
        self._working_seconds += seconds

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
        self.fill_seconds = self._clock() - self._started

    def read(self) -> Condition:
        """All figures, as of now."""
        scheduler = self._scheduler
        return Condition(
            busy_seconds=self._busy_seconds,
            backlog=scheduler.backlog,
            proposed=scheduler.proposed,
            conflicts=scheduler.conflicts,
            preemption_attempts=scheduler.preemption_attempts,
            ready=self.ready,
            nodes=self.nodes,
            fill_seconds=self.fill_seconds,
            lags=tuple(self.lags.lags(self._clock())),
        )

    def heartbeat(self, mode: SyncMode) -> Heartbeat:
        """The figures for the dispatcher. Costs and refusals are reported once."""
        scheduler, now = self._scheduler, self._clock()
        costs = scheduler.costs.take_changed()
        heartbeat = Heartbeat(
            busy_seconds=self._busy_seconds,
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
            lags=[
                common_pb2.ShardLag(shard=lag.shard, seqs=lag.seqs, seconds=lag.seconds)
                for lag in self.lags.lags(now)
            ],
            fill_seconds=self.fill_seconds,
            working_seconds=self._working_seconds,
            clock_seconds=now,
            failing=scheduler.failing(now),
        )
        if (refusals := scheduler.refusals.take()) is not None:
            messages.add_refusals(refusals, heartbeat)
        return heartbeat
