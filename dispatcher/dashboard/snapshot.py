"""Snapshots of the platform for the dashboard. A snapshot never changes, so every viewer can get the
difference to the one it has.

A snapshot holds sections of JSON values, the heat map's cells, and curves of throughput and latency, to which
each snapshot adds a point. Pods that wait are grouped by their dominant reason: of `0/5 nodes are available:
3 Insufficient cpu, 2 ...` that is Insufficient cpu."""

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.api.queries import Queries
from dispatcher.api.tenancy import TenantView
from dispatcher.core.machine import Machine
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase
from dispatcher.core.workers.membership import Worker
from dispatcher.dashboard.nodes import RESOURCES, Cells, NodeTable
from dispatcher.runtime import Runtime
from dispatcher.workers.overlap_control import reason
from hoss import version
from hoss.model.statistics import BOUNDS_SECONDS

NO_REASON_GIVEN = "waits for its turn"
MOST_GROUPS = 12

_TRIED = np.isin(np.arange(len(Phase)), (Phase.BACKOFF, Phase.UNSCHEDULABLE))
_DIAGNOSIS = re.compile(r"0/\d+ nodes are available: (.*?)(?:\.$|\. preemption: |$)")
_ENTRY = re.compile(r"(?:^|, )(\d+) ([^,]+(?:, (?!\d+ )[^,]+)*)")

MOST_PAIRS = 400

KEPT_POINTS = 300
GAP_SECONDS = 5.0  # a longer time without snapshots is left out of the curves

RATES = ("bound", "accepted", "refused")
PHASES = ("queued", "deciding", "committing")


class Point(NamedTuple):
    """`per_second` by RATES; `p50` and `p99` in seconds by PHASES, None without pods."""

    at_ms: int
    per_second: tuple[float, ...]
    p50: tuple[float | None, ...]
    p99: tuple[float | None, ...]


@dataclass(slots=True)
class Curves:
    """Throughput and latency over the last minutes with viewers."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    _at: float = float("-inf")
    _sums: tuple[int, ...] = ()
    _counts: tuple[NDArray[np.int64], ...] = ()

    def sample(
        self,
        counters: Mapping[str, int],
        histograms: Mapping[str, NDArray[np.int64]],
        now: float,
        now_ms: int,
    ) -> None:
        """Add a point, from the sums since the start. `now` is monotonic; `histograms` are counts by bucket
        (dispatcher.core.pods.history). The first sample after a gap adds none."""
        sums = tuple(counters.get(name, 0) for name in RATES)
        counts = tuple(histograms[phase].copy() for phase in PHASES)
        elapsed = now - self._at
        if 0 < elapsed <= GAP_SECONDS:
            passed = [new - old for new, old in zip(counts, self._counts, strict=True)]
            self.points.append(
                Point(
                    now_ms,
                    tuple(round((new - old) / elapsed, 1) for new, old in zip(sums, self._sums, strict=True)),
                    tuple(percentile(part, 0.50) for part in passed),
                    tuple(percentile(part, 0.99) for part in passed),
                )
            )
        self._at, self._sums, self._counts = now, sums, counts


def percentile(counts: NDArray[np.int64], share: float) -> float | None:
    """The upper bound, in seconds, of the bucket that reaches this share of all pods; None without pods."""
    total = int(counts.sum())
    if not total:
        return None
    bucket = int(np.searchsorted(np.cumsum(counts), share * total))
    return float(BOUNDS_SECONDS[min(bucket, len(BOUNDS_SECONDS) - 1)])


@lru_cache(maxsize=65_536)
def dominant(text: str) -> str:
    """The part of a reason that most nodes gave; of as many, the first. A text without numbers of nodes is
    its own."""
    found = _DIAGNOSIS.search(text)
    entries = _ENTRY.findall(found[1]) if found else []
    return max(entries, key=lambda entry: int(entry[0]))[1] if entries else text or NO_REASON_GIVEN


def pending_groups(machine: Machine, view: TenantView | None = None) -> list[dict[str, Any]]:
    """Pods that wait by dominant reason, the largest group first, each with an example. The groups beyond
    MOST_GROUPS are joined. `view`: whose pods alone; None: of all."""
    registry = machine.registry
    pods = registry.pods
    phase = pods.phase[: pods.size]
    # In the active queue a pod's last reason is outdated. There it waits for its turn, or for a worker.
    queued, tried = np.flatnonzero(phase == Phase.QUEUED), np.flatnonzero(_TRIED[phase])
    if view is not None:
        queued, tried = queued[view.mask(queued)], tried[view.mask(tried)]
    sub_queues = registry.templates.sub_queue[pods.template[queued]]
    waiting: Counter[str] = Counter()
    example: dict[str, _Found] = {}
    kinds: tuple[tuple[NDArray[np.intp], NDArray[np.unsignedinteger], Callable[[int], str]], ...] = (
        (
            queued,
            sub_queues,
            lambda sub_queue: machine.routing.destination(sub_queue).problem or NO_REASON_GIVEN,
        ),
        (tried, pods.reason[tried], lambda number: dominant(registry.reasons.texts[number])),
    )
    for rows, numbers, written in kinds:
        counts = np.bincount(numbers)  # without sorting: a million pods may wait
        for number in np.flatnonzero(counts).tolist():
            reason = written(number)
            waiting[reason] += int(counts[number])
            example.setdefault(reason, _Found(rows, numbers, number))
    largest = waiting.most_common(MOST_GROUPS)
    groups = [
        {"reason": reason, "pods": count, "example": _name(registry, example[reason])}
        for reason, count in largest
    ]
    others = sum(waiting.values()) - sum(count for _, count in largest)
    return groups + ([{"reason": "other reasons", "pods": others, "example": ""}] if others else [])


class _Found(NamedTuple):
    """The rows whose number is `number`."""

    rows: NDArray[np.intp]
    numbers: NDArray[np.unsignedinteger]
    number: int


def _name(registry: PodRegistry, found: _Found) -> str:
    row = int(found.rows[(found.numbers == found.number).argmax()])
    return f"{registry.namespace_of(row)}/{registry.set_of(row).pod_name(row)}"


@dataclass(frozen=True, slots=True, eq=False)
class DashboardSnapshot:
    """`sections` are JSON values by name."""

    at_ms: int
    sections: Mapping[str, Any]
    cells: Cells = field(default_factory=Cells)
    points: tuple[Point, ...] = ()


class SnapshotTaker:
    """Takes snapshots. Changes nothing but its own curves."""

    def __init__(self, runtime: Runtime, queries: Queries, nodes: NodeTable) -> None:
        self._runtime = runtime
        self._queries = queries
        self._nodes = nodes
        self._curves = Curves()

    def take(self, *, nodes_problem: str = "") -> DashboardSnapshot:
        """The platform now. `nodes_problem`: why the nodes are outdated."""
        machine, now = self._runtime.machine, self._runtime.now()
        now_ms = self._runtime.now_ms()
        histograms = {phase: histogram.counts for phase, histogram in machine.settlement.times.by_phase()}
        self._curves.sample(machine.counters, histograms, now, now_ms)
        cells = self._nodes.cells()
        return DashboardSnapshot(
            now_ms, self._sections(machine, cells, now, nodes_problem), cells, tuple(self._curves.points)
        )

    def of_tenant(self, shown: DashboardSnapshot, tenant: str) -> DashboardSnapshot:
        """The same moment for a viewer who is limited to a tenant: that tenant's pods, and nothing of the
        platform that tells of others."""
        machine = self._runtime.machine
        view, pods = TenantView(machine, tenant), machine.registry.pods
        present = np.flatnonzero(pods.phase[: pods.size] != Phase.ABSENT)
        counts = np.bincount(pods.phase[present[view.mask(present)]], minlength=len(Phase))
        platform = shown.sections["platform"]
        sections = {
            "platform": {name: platform[name] for name in ("version", "term", "startedMs")},
            "problems": [],
            "queues": {phase.name: int(counts[phase]) for phase in Phase if phase is not Phase.ABSENT},
            "pending": pending_groups(machine, view),
        }
        return DashboardSnapshot(shown.at_ms, sections)

    def _sections(self, machine: Machine, cells: Cells, now: float, nodes_problem: str) -> dict[str, Any]:
        status = self._queries.status(version())
        problems = [*status.problems, *([nodes_problem] if nodes_problem else [])]
        overlap, workers_at_once = machine.overlap.control.setting
        return {
            "platform": {
                "version": status.version,
                "address": status.address,
                "term": status.term,
                "startedMs": machine.unix_ms(self._runtime.started_at),
                "jobs": status.jobs,
                "overlap": overlap.value,
                "workersAtOnce": workers_at_once,
            },
            "problems": problems,
            "queues": dict(status.pods_by_phase),
            "counters": dict(status.counters),
            "capacity": [
                {"name": name, "allocatable": allocatable, "requested": requested}
                for name, allocatable, requested in zip(
                    RESOURCES, cells.allocatable, cells.requested, strict=True
                )
            ],
            "workers": [
                _worker(worker, now) for worker in sorted(machine.members, key=lambda worker: worker.name)
            ],
            "pending": pending_groups(machine),
            "conflicts": _conflicts(machine),
        }


def _worker(worker: Worker, now: float) -> dict[str, Any]:
    heartbeat = worker.heartbeat
    return {
        "name": worker.name,
        "state": worker.state.value,
        "labels": worker.labels,
        "podsPerSecond": round(worker.throughput.per_second(now), 1),
        "busyShare": round(worker.busy_share, 3),
        "outstanding": worker.outstanding,
        "window": worker.window,
        "workMs": round(worker.work_micros / 1000, 1),
        "conflictShare": round(heartbeat.conflicts / heartbeat.proposed, 4) if heartbeat.proposed else 0.0,
        "bound": worker.bound,
        "conflicts": heartbeat.conflicts,
        "unschedulable": worker.unschedulable,
        "behind": max((seqs for _, seqs, _ in heartbeat.lags), default=0),
    }


def _conflicts(machine: Machine) -> dict[str, Any]:
    """Pairs of a refused worker and the winner, with pods by reason. An empty winner: no other worker caused
    it."""
    pairs: dict[tuple[str, str], Counter[str]] = {}
    for pair, pods in machine.overlap.conflicts.pairs.most_common(MOST_PAIRS):
        pairs.setdefault((pair.loser, pair.winner), Counter())[reason(pair.verdict)] += pods
    return {
        "proposed": machine.counters["proposed"],
        "refused": machine.counters["refused"],
        "pairs": [
            {"loser": loser, "winner": winner, "pods": sum(by_reason.values()), "reasons": dict(by_reason)}
            for (loser, winner), by_reason in pairs.items()
        ],
    }
