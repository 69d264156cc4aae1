"""Submits a load and follows it on the watch stream until every pod is settled. Shared by submit, demo, replay and bench."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.tracking import Tracker

STALL_SECONDS = 30.0  # a worker's death is noticed and made good in a few seconds; this is longer
_LOOK_SECONDS = 0.1  # how often progress is shown

Progress = Callable[[Tracker], None]


def pods_of(requests: Sequence[pb.SubmitRequest]) -> int:
    """How many pods the messages hold."""
    return sum(sum(job.replicas for job in request.jobs) + len(request.pods.names) for request in requests)


async def place(
    client: DispatcherClient,
    requests: Sequence[pb.SubmitRequest],
    *,
    progress: Progress = lambda _: None,
    stall_seconds: float = STALL_SECONDS,
    look_seconds: float = _LOOK_SECONDS,
) -> Tracker:
    """Submit the messages and wait until every pod is bound, unschedulable, failed or deleted.

    `progress` is called every `look_seconds`, and once at the end.
    Clock readings in the tracker are `time.perf_counter`. Raises HossError when nothing changes for `stall_seconds`,
    and whatever submission or watch raise.
    """
    tracker = Tracker(pods_of(requests))
    if not tracker.pods:
        return tracker
    # Watched from the present revision on, so nothing is missed whichever stream the server serves first.
    revision = (await client.status()).revision
    finished = asyncio.Event()
    following = asyncio.ensure_future(follow(client, tracker, revision, finished))
    submitting = asyncio.ensure_future(submit(client, tracker, requests, finished))
    watching = asyncio.ensure_future(_until(tracker, finished, progress, stall_seconds, look_seconds))
    tasks = {following, submitting, watching}
    try:
        while watching in tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in (following, submitting, watching):
            task.cancel()
        await asyncio.gather(following, submitting, watching, return_exceptions=True)
    progress(tracker)
    return tracker


async def submit(
    client: DispatcherClient,
    tracker: Tracker,
    requests: Sequence[pb.SubmitRequest],
    finished: asyncio.Event,
    *,
    at_seconds: Sequence[float] = (),
) -> None:
    """Send the messages and tell the tracker the answers; each `at_seconds` after the first, ascending, or (none given) as
    fast as they are taken. `finished` when all pods are settled. Raises HossError where the dispatcher answers too few."""
    sent_at: list[float] = []
    began = time.perf_counter()

    async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
        for number, request in enumerate(requests):
            if at_seconds and (early := began + at_seconds[number] - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            sent_at.append(time.perf_counter())
            yield request

    answered = 0
    async for reply in client.submit_stream(outgoing()):
        tracker.add_reply(requests[answered], reply, sent_at[answered])
        answered += 1
        if tracker.done:
            finished.set()
    if answered < len(requests):
        raise HossError(f"the dispatcher answered {answered} of {len(requests)} messages and ended the stream")


async def follow(client: DispatcherClient, tracker: Tracker, revision: int, finished: asyncio.Event) -> None:
    """Tell the tracker what happens after a revision, until cancelled; `finished` when all its pods are settled."""
    async for batch in client.watch(revision):
        tracker.add_batch(batch, time.perf_counter())
        if tracker.done:
            finished.set()
    raise HossError("the dispatcher ended the watch stream; is it being stopped?")


async def _until(
    tracker: Tracker, finished: asyncio.Event, progress: Progress, stall_seconds: float, look_seconds: float
) -> None:
    last_settled, last_change = -1, time.monotonic()
    while not finished.is_set():
        try:
            await asyncio.wait_for(finished.wait(), look_seconds)
        except asyncio.TimeoutError:
            progress(tracker)
        if tracker.settled != last_settled:
            last_settled, last_change = tracker.settled, time.monotonic()
        elif time.monotonic() - last_change > stall_seconds:
            raise HossError(
                f"nothing has changed for {stall_seconds:.0f} s with {tracker.settled} of {tracker.pods} pods settled; "
                "`hoss status` says what waits for what"
            )
