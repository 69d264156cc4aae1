"""Two-way streams whose requests a task of ours writes.

Given an iterator of requests, gRPC reads it in a task of its own, and forgets that task when the other side ends the stream: it waits for the
next request for ever, until it is collected and Python complains of a task that was destroyed while it was pending.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc.aio

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[Any, Any]


async def end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks, and return when they have ended. What they raised is theirs to tell."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def written(call: "Call", requests: AsyncIterable[Any]) -> AsyncIterator[None]:
    """Requests go out on the call while the body reads its answers; afterwards the call is over, and so is the writer. Raises what
    reading the requests raised."""
    writer = asyncio.ensure_future(_write(call, requests))
    try:
        yield
    finally:
        call.cancel()
        await end(writer)
        if not writer.cancelled() and (error := writer.exception()) is not None:
            raise error


async def _write(call: "Call", requests: AsyncIterable[Any]) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # the stream has ended: whoever reads the answers is told why
    except BaseException:
        call.cancel()  # or both sides would wait for one another
        raise
