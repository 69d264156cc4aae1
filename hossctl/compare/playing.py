"""Plays a trace on a platform: arrivals in their time, departures when their pods have lived, until nothing more happens."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.compare.traces import Arrival, Trace
from hossctl.runner import STALL_SECONDS, Progress, follow, pods_of, submit
from hossctl.tracking import Tracker

LATE_SECONDS = 0.1  # by less than this nothing is late: it is what looking now and then costs

_LOOK_SECONDS = 0.02
# What found no node may find one when others have gone, and whether it may is looked at a moment after that.
_QUIET_SECONDS = 0.5
_QUIET_SECONDS_AFTER_DEPARTURES = 2.0
_NAMESPACE = "default"


class Departures:
    """Which arrivals are to be deleted when. Times are on any one clock."""

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
        """Whether any arrival ever goes."""
        return bool(self._lives)

    @property
    def pending(self) -> bool:
        """Whether any arrival that is bound whole is still to be deleted."""
        return bool(np.isfinite(self._due_at).any())

    def take_due(self, bound_at: NDArray[np.float64], now: float) -> list[Arrival]:
        """Arrivals whose time is over, once each. `bound_at`: by row of the load, 0.0 where a pod was never bound."""
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
    """Pods that were deleted as their time was over. Late: after the time that the trace has for it, as they were bound late."""

    pods: int = 0
    late: int = 0
    latest_seconds: float = 0.0

    def add(self, arrivals: Sequence[Arrival], elapsed_seconds: float) -> None:
        """These are deleted now, so long after the trace began."""
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
    """Play until every pod that came is settled and every one that should go has gone, or until `stop`; what went.

    `tracker` has the trace's pods; clock readings in it are `time.perf_counter`. `progress` is called now and then. Raises
    HossError when nothing changes for long, and whatever submission, watch or deletion raise.
    """
    departed = Departed()
    if not trace.pods:
        return departed
    revision = (await client.status()).revision
    settled = asyncio.Event()  # of no interest: whether it is over is looked at now and then, for departures too
    messages = [arrival.message for arrival in trace.arrivals]
    times = [arrival.at_seconds for arrival in trace.arrivals]
    paced = times if any(times) else ()
    following = asyncio.ensure_future(follow(client, tracker, revision, settled))
    submitting = asyncio.ensure_future(submit(client, tracker, messages, settled, at_seconds=paced))
    ending = asyncio.ensure_future(
        _until_over(client, trace, tracker, submitting, departed=departed, progress=progress)
    )
    stopping = asyncio.ensure_future(stop.wait())
    tasks: set[asyncio.Future[Any]] = {following, submitting, ending, stopping}
    running = set(tasks)
    try:
        while ending in running and stopping in running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
        gone = tracker.count(pb.DELETED) >= departed.pods  # the watch has told of every deletion
        if submitting.done() and tracker.done and not departures.pending and gone:
            quiet = quiet_seconds > (_QUIET_SECONDS_AFTER_DEPARTURES if departures.any else _QUIET_SECONDS)
            # Others than ours may be on their way for ever.
            if not tracker.count(pb.UNSCHEDULABLE) or (
                quiet and (quiet_seconds > STALL_SECONDS or not await _on_their_way(client))
            ):
                return
        if quiet_seconds > STALL_SECONDS and not departures.pending:
            raise HossError(
                f"nothing has changed for {STALL_SECONDS:.0f} s with {tracker.settled} of {tracker.pods} pods settled"
            )
        await asyncio.sleep(_LOOK_SECONDS)


async def _on_their_way(client: DispatcherClient) -> int:
    """Pods that are to be tried again, or are being tried. Those that something woke are called unschedulable until then: that they
    wait for their backoff, up to ten seconds, is told to nobody who watches."""
    phases = (await client.status()).pods_by_phase
    return sum(phases[pb.PodPhase.Name(phase)] for phase in (pb.QUEUED, pb.SCHEDULING, pb.BACKOFF))


async def _delete(client: DispatcherClient, arrivals: Sequence[Arrival]) -> None:
    jobs = [job.name for arrival in arrivals for job in arrival.message.jobs]
    pods = [name for arrival in arrivals for name in arrival.message.pods.names]
    await client.delete(_NAMESPACE, jobs=jobs, pods=pods)


def templates_by_row(trace: Trace) -> tuple[list[pb.PodTemplate], NDArray[np.int64]]:
    """The templates of the trace's messages, and for each of its pods, in the order of a tracker's rows, which it has."""
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
    """Unschedulable pods of a template, of which so many are `needed` for any to be bound."""

    template: int
    pods: int
    needed: int


def left_over(trace: Trace, of_row: NDArray[np.int64], phases: NDArray[np.uint8]) -> list[Unplaced]:
    """The unschedulable pods of a trace: of each job that is a gang by themselves, of the others by template. `of_row`: as
    `templates_by_row` has it."""
    unplaced = phases == pb.UNSCHEDULABLE
    found, first = [], 0
    for arrival in trace.arrivals:
        for job in arrival.message.jobs:
            rows = slice(first, first + job.replicas)
            first = rows.stop
            if job.min_available and unplaced[rows].any():
                needed = job.min_available - int((phases[rows] == pb.BOUND).sum())
                found.append(Unplaced(int(of_row[rows.start]), int(unplaced[rows].sum()), max(1, needed)))
                unplaced[rows] = False
        first += len(arrival.message.pods.names)
    counts = np.bincount(of_row[unplaced])
    return found + [Unplaced(template, int(counts[template]), 1) for template in np.flatnonzero(counts).tolist()]
