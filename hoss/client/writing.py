"""Bidirectional streams whose requests are written by a task that HOSS owns.

gRPC reads an iterator of requests in a task of its own. When the peer ends the stream, gRPC drops that task
while it waits for the next request, and Python reports a pending task that was destroyed."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc.aio

from hoss.tasks import end_tasks

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[Any, Any]


@contextlib.asynccontextmanager
async def written(call: "Call", requests: AsyncIterable[Any]) -> AsyncIterator[None]:
    """Write requests to the call while the body reads its replies. The call and the writer end with the body.
    Raises the error of the requests' iterator."""
    writer = asyncio.ensure_future(_write(call, requests))
    try:
        yield
    finally:
        call.cancel()
        await end_tasks((writer,))
        if not writer.cancelled() and (error := writer.exception()) is not None:
            raise error


async def _write(call: "Call", requests: AsyncIterable[Any]) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # the stream has ended: the reader of the replies gets the error
    except BaseException:
        call.cancel()  # otherwise both sides would wait for each other
        raise
