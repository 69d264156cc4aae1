"""Snapshots of the platform for the dashboard. A snapshot never changes, so every viewer can get the
difference to the one it has.

A snapshot holds sections of JSON values, the heat map's cells, and curves of throughput and latency, to which
each sample of the platform adds a point."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.dashboard.nodes import RESOURCES, Cells

KEPT_POINTS = 3600  # an hour
GAP_SECONDS = 5.0  # a longer time without samples is left out of the curves

RATES = ("bound", "accepted", "refused")
PHASES = ("queued", "deciding", "committing")

# The start of a dispatcher is calculated from its uptime; such differences are not shown as another start.
_STEADY_MS = 2000


class Point(NamedTuple):
    """`per_second` by RATES; `p50` and `p99` in seconds by PHASES, None without pods."""

    at_ms: int
    per_second: tuple[float, ...]
    p50: tuple[float | None, ...]
    p99: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """What the dispatcher said at one moment. `now` is monotonic."""

    now: float
    at_ms: int
    status: pb.DispatcherStatus
    workers: Sequence[pb.WorkerInfo]
    conflicts: pb.Conflicts


@dataclass(slots=True)
class Curves:
    """Throughput and latency over time."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    _at: float = float("-inf")
    _term: int = 0
    _sums: tuple[int, ...] = ()
    _counts: tuple[NDArray[np.int64], ...] = ()

    def add(self, sample: Sample) -> None:
        """Add a point, from the sums since the dispatcher's start. The first sample after a gap, and the
        first one of a dispatcher, add none."""
        status, times = sample.status, {times.phase: times for times in sample.status.phases}
        sums = tuple(status.counters.get(name, 0) for name in RATES)
        counts = tuple(np.array(times[phase].counts, np.int64) for phase in PHASES)
        elapsed = sample.now - self._at
        if 0 < elapsed <= GAP_SECONDS and status.term == self._term:
            passed = [new - old for new, old in zip(counts, self._counts, strict=True)]
            bounds = [times[phase].bounds_seconds for phase in PHASES]
            self.points.append(
                Point(
                    sample.at_ms,
                    tuple(round((new - old) / elapsed, 1) for new, old in zip(sums, self._sums, strict=True)),
                    tuple(percentile(part, of, 0.50) for part, of in zip(passed, bounds, strict=True)),
                    tuple(percentile(part, of, 0.99) for part, of in zip(passed, bounds, strict=True)),
                )
            )
        self._at, self._term, self._sums, self._counts = sample.now, status.term, sums, counts


def percentile(counts: NDArray[np.int64], bounds_seconds: Sequence[float], share: float) -> float | None:
    """The upper bound, in seconds, of the bucket that reaches this share of all pods; None without pods."""
    total = int(counts.sum())
    if not total:
        return None
    bucket = int(np.searchsorted(np.cumsum(counts), share * total))
    return float(bounds_seconds[min(bucket, len(bounds_seconds) - 1)])


@dataclass(frozen=True, slots=True, eq=False)
class DashboardSnapshot:
    """`sections` are JSON values by name."""

    at_ms: int
    sections: Mapping[str, Any]
    cells: Cells = field(default_factory=Cells)
    points: tuple[Point, ...] = ()

    def of_tenant(self, summary: pb.PodSummary) -> "DashboardSnapshot":
        """The same moment for a viewer who is limited to a tenant: that tenant's pods, and nothing of the
        platform that tells of others."""
        platform = self.sections["platform"]
        return DashboardSnapshot(
            self.at_ms,
            {
                "platform": {name: platform[name] for name in ("version", "term", "startedMs")},
                "problems": [],
                **pod_sections(summary),
            },
        )


class SnapshotTaker:
    """Makes snapshots of samples. `started_ms` stays while one dispatcher leads."""

    def __init__(self) -> None:
        self._started = (0, 0)  # term, Unix milliseconds

    def take(
        self,
        sample: Sample,
        summary: pb.PodSummary,
        cells: Cells,
        points: Sequence[Point],
        *,
        problem: str = "",
    ) -> DashboardSnapshot:
        """`problem`: why a part is outdated; "": nothing is."""
        status = sample.status
        sections = {
            "platform": {
                "version": status.version,
                "address": status.address,
                "term": status.term,
                "startedMs": self._started_ms(sample),
                "jobs": status.jobs,
                "overlap": status.steering.overlap,
                "workersAtOnce": status.steering.workers,
            },
            "problems": [*status.problems, *([problem] if problem else [])],
            "counters": dict(status.counters),
            "capacity": [
                {"name": name, "allocatable": allocatable, "requested": requested}
                for name, allocatable, requested in zip(
                    RESOURCES, cells.allocatable, cells.requested, strict=True
                )
            ],
            "workers": [worker_row(worker) for worker in sample.workers],
            "conflicts": conflict_pairs(sample.conflicts),
            **pod_sections(summary),
        }
        return DashboardSnapshot(sample.at_ms, sections, cells, tuple(points))

    def _started_ms(self, sample: Sample) -> int:
        term, at_ms = sample.status.term, sample.at_ms - sample.status.uptime_ms
        if self._started[0] != term or abs(self._started[1] - at_ms) > _STEADY_MS:
            self._started = (term, at_ms)
        return self._started[1]


def pod_sections(summary: pb.PodSummary) -> dict[str, Any]:
    """The sections about pods: the numbers by phase, and why pods wait."""
    return {
        "queues": dict(summary.pods_by_phase),
        "pending": [
            {"reason": group.reason, "pods": group.pods, "example": group.example}
            for group in summary.pending
        ],
    }


def worker_row(worker: pb.WorkerInfo) -> dict[str, Any]:
    """A worker for JSON, in short."""
    return {
        "name": worker.name,
        "state": f"{worker.state}, failing" if worker.failing else worker.state,
        "labels": {label.key: label.value for label in worker.labels},
        "podsPerSecond": round(worker.pods_per_second, 1),
        "busyShare": round(worker.busy_share, 3),
        "outstanding": worker.outstanding,
        "window": worker.window,
        "workMs": round(worker.estimated_micros / 1000, 1),
        "conflictShare": round(worker.conflicts / worker.proposed, 4) if worker.proposed else 0.0,
        "bound": worker.bound,
        "conflicts": worker.conflicts,
        "unschedulable": worker.unschedulable,
        "behind": max((lag.seqs for lag in worker.lags), default=0),
    }


def conflict_pairs(conflicts: pb.Conflicts) -> dict[str, Any]:
    """Pairs of a refused worker and the winner, with pods by reason. An empty winner: no other worker caused
    it."""
    pairs: dict[tuple[str, str], Counter[str]] = {}
    for pair in conflicts.pairs:
        pairs.setdefault((pair.loser, pair.winner), Counter())[pair.reason] += pair.pods
    return {
        "proposed": conflicts.proposed,
        "refused": conflicts.refused,
        "pairs": [
            {"loser": loser, "winner": winner, "pods": sum(by_reason.values()), "reasons": dict(by_reason)}
            for (loser, winner), by_reason in pairs.items()
        ],
    }
