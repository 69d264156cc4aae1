"""Plays a load of arrivals and departures on a platform: arrivals at their times, departures when the lives
of their pods end, until nothing more happens."""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.client.dispatcher import DispatcherClient, submission
from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.model.pod import Workload
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U32, decode
from hossctl.load.runner import STALL_SECONDS, Progress, Tracker, follow, pods_of, submit, until_any
from hossctl.traces.recording import TracePod


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message, sent `at_seconds` after the load begins. Its pods are deleted `life_seconds` after the
    last of them was bound; None: they stay. The namespace is "default"."""

    message: pb.SubmitRequest
    at_seconds: float = 0.0
    life_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    nodes: tuple[NodeSpec, ...]
    arrivals: tuple[Arrival, ...]

    @property
    def pods(self) -> int:
        return pods_of([arrival.message for arrival in self.arrivals])

    @property
    def seconds(self) -> float:
        """From the first arrival to the last, and to the end of every life if pods are bound at once."""
        return max(
            (arrival.at_seconds + (arrival.life_seconds or 0.0) for arrival in self.arrivals), default=0.0
        )


def arrivals_of(
    workloads: Iterable[Workload], at_seconds: float = 0.0, life_seconds: float | None = None
) -> list[Arrival]:
    """Workloads that arrive at one time, in as few messages as possible."""
    return [Arrival(message, at_seconds, life_seconds) for message in submission(workloads)]


def trace_of(nodes: Sequence[NodeSpec], pods: Sequence[TracePod], speedup: float) -> Trace:
    """A recorded trace, `speedup` times as fast, or (0) all pods at once and without departures."""
    if not speedup:
        return Trace(tuple(nodes), tuple(arrivals_of(pod.workload for pod in pods)))
    begin = min((pod.creation_seconds for pod in pods), default=0.0)

    def times(pod: TracePod) -> tuple[float, float]:
        gone = pod.deletion_seconds
        return pod.creation_seconds, math.inf if gone is None else max(0.0, gone - pod.creation_seconds)

    arrivals: list[Arrival] = []
    for (created, life), together in groupby(sorted(pods, key=times), key=times):
        workloads = [pod.workload for pod in together]
        arrivals += arrivals_of(
            workloads, (created - begin) / speedup, life / speedup if life < math.inf else None
        )
    return Trace(tuple(nodes), tuple(arrivals))


LATE_SECONDS = 0.1  # less than this is not late: it is the delay of polling

_POLL_SECONDS = 0.02
# A pod without a node may find one after a departure; the dispatcher tries it again a moment later.
_QUIET_SECONDS = 0.5
_QUIET_SECONDS_AFTER_DEPARTURES = 2.0
_NAMESPACE = "default"


class Departures:
    """When each arrival is to be deleted. Times are on any one clock."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        sizes = np.array([pods_of([arrival.message]) for arrival in arrivals], np.int64)
        ends = np.cumsum(sizes)
        leaving = [i for i, arrival in enumerate(arrivals) if arrival.life_seconds is not None]
        self._arrivals = [arrivals[i] for i in leaving]
        self._rows = [slice(int(ends[i] - sizes[i]), int(ends[i])) for i in leaving]
        self._lives = [arrivals[i].life_seconds or 0.0 for i in leaving]
        self._due_at: NDArray[np.float64] = np.full(len(leaving), np.inf)  # not before its pods are bound
        self._open = list(range(len(leaving)))  # not bound whole yet

    @property
    def any(self) -> bool:
        """Whether any arrival is ever deleted."""
        return bool(self._lives)

    @property
    def pending(self) -> bool:
        """Whether an arrival that is completely bound is still to be deleted."""
        return bool(np.isfinite(self._due_at).any())

    def take_due(self, bound_at: NDArray[np.float64], now: float) -> list[Arrival]:
        """Arrivals whose lives have ended, each once. `bound_at`: by row of the load, 0.0 where a pod was
        never bound."""
        still = []
        for i in self._open:
            bound = bound_at[self._rows[i]]
            if bound.all():
                self._due_at[i] = bound.max() + self._lives[i]
            else:
                still.append(i)
        self._open = still
        due = np.flatnonzero(self._due_at <= now)
        self._due_at[due] = np.inf
        return [self._arrivals[i] for i in due.tolist()]


@dataclass(slots=True)
class Departed:
    """Pods that were deleted at the end of their lives. They are late when their deletion is later than in
    the trace, because they were bound late."""

    pods: int = 0
    late: int = 0
    latest_seconds: float = 0.0

    def add(self, arrivals: Sequence[Arrival], elapsed_seconds: float) -> None:
        """Count these arrivals as deleted `elapsed_seconds` after the trace began."""
        for arrival in arrivals:
            pods = pods_of([arrival.message])
            lateness = elapsed_seconds - arrival.at_seconds - (arrival.life_seconds or 0.0)
            self.pods += pods
            self.late += pods if lateness > LATE_SECONDS else 0
            self.latest_seconds = max(self.latest_seconds, lateness)


async def play(
    client: DispatcherClient,
    trace: Trace,
    tracker: Tracker,
    stop: asyncio.Event,
    progress: Progress = lambda _: None,
) -> Departed:
    """Play until every pod is settled and every departure is done, or until `stop`; the departures. `tracker`
    has the trace's pods; its clock readings are `time.perf_counter`. `progress` is called now and then.
    Raises HossError when nothing changes for long, and what submission, watch or deletion raise."""
    departed = Departed()
    if not trace.pods:
        return departed
    revision = (await client.status()).revision
    settled = asyncio.Event()  # unused: _until_over checks the tracker instead
    messages = [arrival.message for arrival in trace.arrivals]
    times = [arrival.at_seconds for arrival in trace.arrivals]
    paced = times if any(times) else ()
    submitting = asyncio.ensure_future(submit(client, tracker, messages, settled, at_seconds=paced))
    following = asyncio.ensure_future(follow(client, tracker, revision, settled))
    over = asyncio.ensure_future(
        _until_over(client, trace, tracker, submitting, departed=departed, progress=progress)
    )
    await until_any({over, asyncio.ensure_future(stop.wait())}, {following, submitting})
    return departed


async def _until_over(
    client: DispatcherClient,
    trace: Trace,
    tracker: Tracker,
    submitting: "asyncio.Future[None]",
    *,
    departed: Departed,
    progress: Progress,
) -> None:
    departures, began = Departures(trace.arrivals), time.perf_counter()
    changed_at, last = time.monotonic(), (-1, -1)
    while True:
        due = departures.take_due(tracker.bound_at, time.perf_counter())
        if due:
            await _delete(client, due)
            departed.add(due, time.perf_counter() - began)
        seen = tracker.settled, tracker.count(pb.BOUND)
        if seen != last:
            progress(tracker)
        if seen != last or due or not submitting.done():
            changed_at, last = time.monotonic(), seen
        quiet_seconds = time.monotonic() - changed_at
        gone = tracker.count(pb.DELETED) >= departed.pods  # the watch has reported every deletion
        if submitting.done() and tracker.done and not departures.pending and gone:
            quiet = quiet_seconds > (_QUIET_SECONDS_AFTER_DEPARTURES if departures.any else _QUIET_SECONDS)
            # Others than ours may be on their way for ever.
            # Pods of other clients may stay in progress for ever.
            if not tracker.count(pb.UNSCHEDULABLE) or (
                quiet and (quiet_seconds > STALL_SECONDS or not await _pods_in_progress(client))
            ):
                return
        if quiet_seconds > STALL_SECONDS and not departures.pending:
            raise HossError(
                f"nothing has changed for {STALL_SECONDS:.0f} s with {tracker.settled} of {tracker.pods} "
                "pods settled"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _pods_in_progress(client: DispatcherClient) -> int:
    """Pods that are being tried or will be tried again. Pods in backoff after a wake-up are reported as
    unschedulable to watchers, for up to ten seconds."""
    phases = (await client.status()).pods_by_phase
    return sum(phases[pb.PodPhase.Name(phase)] for phase in (pb.QUEUED, pb.SCHEDULING, pb.BACKOFF))


async def _delete(client: DispatcherClient, arrivals: Sequence[Arrival]) -> None:
    jobs = [job.name for arrival in arrivals for job in arrival.message.jobs]
    pods = [name for arrival in arrivals for name in arrival.message.pods.names]
    await client.delete(_NAMESPACE, jobs=jobs, pods=pods)


def templates_by_row(trace: Trace) -> tuple[list[pb.PodTemplate], NDArray[np.int64]]:
    """The templates of the trace's messages, and the number of its template for each pod, in the order of a
    tracker's rows."""
    templates: list[pb.PodTemplate] = []
    parts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for arrival in trace.arrivals:
        message, first = arrival.message, len(templates)
        templates += message.templates
        parts += [np.full(job.replicas, first + job.template) for job in message.jobs]
        if message.pods.names:
            parts.append(first + np.frombuffer(message.pods.templates, "<u4").astype(np.int64))
    return templates, np.concatenate(parts)


class Unplaced(NamedTuple):
    """Unschedulable pods, as (template, pods). `needed`: so many of them must be placed for any to be
    bound."""

    pods: tuple[tuple[int, int], ...]
    needed: int


def left_over(trace: Trace, of_row: NDArray[np.int64], phases: NDArray[np.uint8]) -> list[Unplaced]:
    """The unschedulable pods of a trace: each gang by itself, all others by template. `of_row`: as
    `templates_by_row` returns it."""
    unplaced, bound = phases == pb.UNSCHEDULABLE, phases == pb.BOUND
    found, first = [], 0
    for arrival in trace.arrivals:
        gangs = _gangs_by_row(arrival.message)
        rows = slice(first, first + len(gangs))
        first = rows.stop
        minimums = [0, *(gang.min_available for gang in arrival.message.gangs)]
        minimums += [job.min_available for job in arrival.message.jobs]
        for gang in np.unique(gangs[unplaced[rows] & (gangs > 0)]).tolist():
            mine = rows.start + np.flatnonzero(gangs == gang)
            needed = minimums[gang] - int(bound[mine].sum())
            found.append(Unplaced(_by_template(of_row, mine[unplaced[mine]]), max(1, needed)))
            unplaced[mine] = False
    others = _by_template(of_row, np.flatnonzero(unplaced))
    return found + [Unplaced((part,), 1) for part in others]


def _gangs_by_row(message: pb.SubmitRequest) -> NDArray[np.int64]:
    """The gang of each pod of a message, 0 for none: from 1 the message's gangs, then the jobs that are
    gangs by themselves."""
    gangs = len(message.gangs)
    parts = [
        np.full(job.replicas, gangs + number if job.min_available else job.gang, np.int64)
        for number, job in enumerate(message.jobs, start=1)
    ]
    listed = message.pods.gangs or bytes(4 * len(message.pods.names))
    return np.concatenate([*parts, decode(listed, U32, name="gangs").astype(np.int64)])


def _by_template(of_row: NDArray[np.int64], rows: NDArray[np.intp]) -> tuple[tuple[int, int], ...]:
    templates, counts = np.unique(of_row[rows], return_counts=True)
    return tuple(zip(templates.tolist(), counts.tolist(), strict=True))
