"""What the dashboard remembers of an hour, whether anybody looks or not: curves, the curves of each worker,
when workers had which batches, what happened, and which policies were in force.

Everything has a bound in entries. What is older than an hour, and workers that are gone for as long, are
forgotten."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U32, U64, decode
from hossctl.dashboard.snapshot import Curves, Point, Sample

HOUR_MS = 3_600_000
WORKER_POINT_MS = 10_000
MOST_WORKERS = 500
MOST_EVENTS = 1000
MOST_POLICIES = 50
MOST_TIMELINE_ROWS = 50_000

# A burst of conflicts: so many proposals were refused in a second, and this share of all.
BURST_REFUSED = 50
BURST_SHARE = 0.2

_TIMELINE_COLUMNS = (
    ("sent_ms", U64),
    ("answered_ms", U64),
    ("queued_ms", U32),
    ("deciding_micros", U32),
    ("committing_micros", U32),
    ("bound", U32),
    ("others", U32),
)


@dataclass(slots=True)
class WorkerCurve:
    """Points of a worker: `[at, pods per second, busy share, conflict share, outstanding]`. The conflict
    share is of the proposals since the point before."""

    points: deque[tuple[int, float, float, float, int]] = field(
        default_factory=lambda: deque(maxlen=HOUR_MS // WORKER_POINT_MS)
    )
    proposed: int = 0
    conflicts: int = 0

    def add(self, worker: pb.WorkerInfo, at_ms: int) -> None:
        """Add a point, unless the last one is not old enough."""
        if self.points and at_ms - self.points[-1][0] < WORKER_POINT_MS:
            return
        proposed, refused = worker.proposed - self.proposed, worker.conflicts - self.conflicts
        known = bool(self.points) and proposed > 0 and refused >= 0  # not of another start of the worker
        share = round(refused / proposed, 4) if known else 0.0
        rate, busy = round(worker.pods_per_second, 1), round(worker.busy_share, 3)
        self.points.append((at_ms, rate, busy, share, worker.outstanding))
        self.proposed, self.conflicts = worker.proposed, worker.conflicts


class DashboardHistory:
    """Fed by `add` with each sample. `policies` and `timeline` are fed by who reads them."""

    def __init__(self) -> None:
        self.curves = Curves()
        self.events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self.policies: deque[dict[str, Any]] = deque(maxlen=MOST_POLICIES)
        self.timeline = TimelineHistory()
        self._workers: dict[str, WorkerCurve] = {}
        self._before: Sample | None = None
        self._burst = False

    def add(self, sample: Sample) -> None:
        """Take in a sample, and note what has happened since the one before."""
        before = self.curves.points[-1] if self.curves.points else None
        self.curves.add(sample)
        for worker in sample.workers:
            if worker.name in self._workers or len(self._workers) < MOST_WORKERS:
                self._workers.setdefault(worker.name, WorkerCurve()).add(worker, sample.at_ms)
        self._forget(sample.at_ms)
        for kind, name, text in self._changes(sample):
            self.events.append({"at": sample.at_ms, "kind": kind, "name": name, "text": text})
        latest = self.curves.points[-1] if self.curves.points else None
        if latest is not None and latest is not before:
            self._note_burst(latest)
        self._before = sample

    def worker(self, name: str) -> list[tuple[int, float, float, float, int]]:
        """The points of a worker's curve, oldest first."""
        curve = self._workers.get(name)
        return [] if curve is None else list(curve.points)

    def points(self, since_ms: int = 0) -> list[Point]:
        """The platform's curves after a moment."""
        return [point for point in self.curves.points if point.at_ms > since_ms]

    def note_policy(self, policy: pb.Policy) -> None:
        """A policy that is in force now; its text is kept."""
        known = {"version": policy.version, "name": policy.name, "source": policy.source}
        last = self.policies[-1] if self.policies else None
        if last is None or {name: last[name] for name in known} != known or last["yaml"] != policy.yaml:
            self.policies.append(
                {
                    **known,
                    "since": policy.since_unix_ms,
                    "yaml": policy.yaml,
                    "warnings": list(policy.warnings),
                }
            )

    def _forget(self, at_ms: int) -> None:
        gone = [
            name
            for name, curve in self._workers.items()
            if curve.points and at_ms - curve.points[-1][0] > HOUR_MS
        ]
        for name in gone:
            del self._workers[name]
        while self.events and at_ms - self.events[0]["at"] > HOUR_MS:
            self.events.popleft()
        self.timeline.forget(at_ms - HOUR_MS)

    def _changes(self, sample: Sample) -> Iterator[tuple[str, str, str]]:
        """Kind, name and text of what differs from the sample before."""
        new, before = sample.status, self._before
        if before is None:
            return
        old = before.status
        if new.term != old.term:
            yield "dispatcher", new.address, f"leads, term {new.term}"
        states = {worker.name: worker.state for worker in before.workers}
        for worker in sample.workers:
            was = states.pop(worker.name, "")
            if was != worker.state:
                yield "worker", worker.name, f"{was} → {worker.state}" if was else worker.state
        for name in sorted(states):
            yield "worker", name, "is no longer listed"
        if (new.policy.version, new.policy.name) != (old.policy.version, old.policy.name):
            yield "policy", new.policy.name, f"version {new.policy.version}, by {new.policy.source}"
        steering = (new.steering.overlap, new.steering.workers)
        if steering != (old.steering.overlap, old.steering.workers):
            yield "overlap", new.steering.overlap, new.steering.reason
        for problem in sorted(set(new.problems) - set(old.problems)):
            yield "problem", "", problem
        for problem in sorted(set(old.problems) - set(new.problems)):
            yield "solved", "", problem

    def _note_burst(self, point: Point) -> None:
        bound, _, refused = point.per_second
        share = refused / (bound + refused) if bound + refused else 0.0
        burst = refused >= BURST_REFUSED and share >= BURST_SHARE
        if burst and not self._burst:
            text = f"{refused:,.0f} proposals a second refused, {share:.0%} of all"
            self.events.append({"at": point.at_ms, "kind": "conflicts", "name": "", "text": text})
        self._burst = burst


class TimelineHistory:
    """When workers had which batches: rows of columns, as WorkTimeline has them, with one table of names."""

    def __init__(self) -> None:
        self.last = 0  # serial of the dispatcher's latest row that is here
        self._names: dict[str, int] = {}
        self._parts: deque[dict[str, NDArray[Any]]] = deque()
        self._rows = 0

    def add(self, reply: pb.WorkTimeline) -> None:
        """Take in a reply. Raises ColumnError where its columns disagree."""
        index = decode(reply.worker, U32, name="worker")
        part: dict[str, NDArray[Any]] = {
            name: decode(getattr(reply, name), dtype, name=name, rows=len(index))
            for name, dtype in _TIMELINE_COLUMNS
        }
        numbers = np.array(
            [self._names.setdefault(name, len(self._names)) for name in reply.workers], np.int64
        )
        part["worker"] = numbers[index]
        self.last = reply.last
        if len(index):
            self._parts.append(part)
            self._rows += len(index)
        while self._rows > MOST_TIMELINE_ROWS and len(self._parts) > 1:
            self._drop()

    def forget(self, before_ms: int) -> None:
        """Drop rows that were answered before a moment; and the names, with the last of the rows."""
        while self._parts and int(self._parts[0]["answered_ms"][-1]) < before_ms:
            self._drop()
        if not self._parts:
            self._names.clear()

    def since(self, ms: int, most: int, workers: Sequence[str] = ()) -> dict[str, Any]:
        """The rows that were answered after a moment, the latest `most`, for JSON. `workers`: only theirs."""
        names = list(self._names)
        wanted = [self._names[name] for name in workers if name in self._names] if workers else None
        rows: list[tuple[int, ...]] = []
        columns = ("worker", *(name for name, _ in _TIMELINE_COLUMNS))
        for part in reversed(self._parts):
            chosen = part["answered_ms"] > ms
            if wanted is not None:
                chosen &= np.isin(part["worker"], wanted)
            picked = [part[name][chosen].tolist() for name in columns]
            rows[:0] = zip(*picked, strict=True)
            if len(rows) >= most or int(part["answered_ms"][0]) <= ms:
                break
        return {"workers": names, "columns": columns, "rows": rows[-most:]}

    def _drop(self) -> None:
        self._rows -= len(self._parts.popleft()["worker"])
