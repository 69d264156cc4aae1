"""Jobs that run beside a piece of code, tasks that surely end, and long work in turns with others. Python
alone: the client library needs no more."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

# How long a cancelled job may clean up before it is cancelled again.
_CANCEL_AGAIN_SECONDS = 0.5

# Long work gives others their turn after so much of it, by its own estimate.
_SLICE_MICROS = 10_000.0


@contextlib.asynccontextmanager
async def background(*jobs: Awaitable[None]) -> AsyncIterator[None]:
    """Run jobs beside the body. The error of a job ends the body; the end of the body cancels the jobs."""
    body = asyncio.current_task()
    failure: list[BaseException] = []

    async def guard(job: Awaitable[None]) -> None:
        try:
            await job
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # noqa: BLE001 - handed to the body
            failure.append(exc)
            if body is not None:
                body.cancel()

    tasks = [asyncio.ensure_future(guard(job)) for job in jobs]
    try:
        yield
    except asyncio.CancelledError:
        if failure:
            raise failure[0] from None
        raise
    finally:
        await end_tasks(tasks)
        for job in jobs:
            if asyncio.iscoroutine(job):
                job.close()  # Python warns of a coroutine that never ran


async def end_tasks(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel tasks and wait until each has ended, even when the caller is cancelled meanwhile. Their errors
    are for the caller to ask for: Python reports none."""
    # Repeated, because a job can lose its cancellation: before Python 3.12 asyncio.wait_for loses one that
    # comes together with its result, and a gRPC call one that comes together with its failure. Not
    # interrupted, because whoever is told twice to end (by such a repetition) would leave jobs behind that
    # nobody ends.
    me, interrupted = asyncio.current_task(), False
    others = [task for task in tasks if task is not me]  # in this order, for simulations
    running = [task for task in others if not task.done()]
    while running:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        except asyncio.CancelledError:
            interrupted = True
        running = [task for task in running if not task.done()]
    for task in others:
        if not task.cancelled():
            task.exception()
    if interrupted:
        raise asyncio.CancelledError


async def in_turns(steps: Generator[float, None, ResultT], *, keeps: bool = False) -> ResultT:
    """The result of long work (see hoss.model.slices); others get their turn between slices of it.

    `keeps`: most objects that it makes live on. Python's cycle collector then looks at those of each slice
    for themselves. Left alone it looks at 200,000 at once (hoss.serving), which takes 0.1 s."""
    spent_micros = 0.0
    while True:
        try:
            spent_micros += next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        if spent_micros >= _SLICE_MICROS:
            spent_micros = 0.0
            await asyncio.sleep(0)
            if keeps and gc.isenabled():
                # Only for work that is rare: what survives here is looked at again when the collector would
                # have started by itself, and that moment is put off.
                gc.collect(0)
