"""Streams to the dispatcher that outlive it: broken off, they are made anew, with the same dispatcher or the one that took over."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from hoss.client.backoff import Backoff
from hoss.client.errors import translate
from hoss.client.patience import Patience
from hoss.client.seen import Seen
from hoss.errors import Overloaded
from hoss.v1 import dispatcher_pb2 as pb

if TYPE_CHECKING:
    SubmitCall = grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]
    from hoss.v1.dispatcher_pb2_grpc import DispatcherAsyncStub

# A takeover takes 3 s and a restart by hand some more; whoever is away for longer is not coming back by itself.
PATIENCE_SECONDS = 15.0
PATIENCE_WITH_STRANGERS_SECONDS = 2.0
_FIRST_DELAY_SECONDS = 0.05
_LONGEST_DELAY_SECONDS = 0.5

# Messages read from the caller before the dispatcher has answered those that were sent.
_MESSAGES_AHEAD = 16

# How gRPC says that a stream broke off: no connection or lost, server stopped, or (INTERNAL) lost while a message was being
# written. The rest is an answer.
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)


class Peer:
    """A dispatcher's stub and how patient to be with it. `name` is for errors."""

    def __init__(self, stub: "DispatcherAsyncStub", name: str, *, several: bool) -> None:
        self.stub = stub
        self.name = name
        # One address that never answered is most often a wrong one: said soon.
        self._patience_at_first = PATIENCE_SECONDS if several else PATIENCE_WITH_STRANGERS_SECONDS

    def backoff(self) -> Backoff:
        """For one stream."""
        return Backoff(_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS, self._patience_at_first)

    async def wait_or_raise(self, exc: grpc.aio.AioRpcError, backoff: Backoff) -> None:
        """Wait before the next attempt after a break; raise what the error means when it is none, or patience has run out."""
        delay = backoff.failed(time.monotonic()) if exc.code() in _BROKEN else None
        if delay is None:
            raise translate(exc, self.name) from exc
        await asyncio.sleep(delay)


async def watch(peer: Peer, since_revision: int, *, states: bool) -> AsyncIterator[pb.WatchBatch]:
    """See DispatcherClient.watch."""
    seen, backoff = Seen(), peer.backoff()
    position, listing, resumed = since_revision, states, False
    while True:
        call = peer.stub.Watch(pb.WatchRequest(since_revision=position, states=listing))
        listed: list[pb.WatchBatch] = []
        try:
            async for batch in call:
                backoff.succeeded(PATIENCE_SECONDS)
                resumed = False
                if listing:
                    listed.append(batch)
                    if not batch.states_end:
                        continue
                position = batch.revision
                for told in list(seen.differences(listed)) if listing else (batch,):
                    seen.note(told)
                    yield told
                listing = False
        except grpc.aio.AioRpcError as exc:
            # Resumed too late, or with a dispatcher that has taken over: what is different is found by listing. That a stream
            # falls behind while it is read is another matter, and the caller's.
            if exc.code() is grpc.StatusCode.OUT_OF_RANGE and resumed:
                listing = True
            else:
                await peer.wait_or_raise(exc, backoff)
        finally:
            # A caller that stops iterating must not leave the server writing into a stream nobody reads.
            call.cancel()
        resumed = True


async def submit_stream(
    peer: Peer, requests: AsyncIterable[pb.SubmitRequest], patience: Patience
) -> AsyncIterator[pb.SubmitReply]:
    """See DispatcherClient.submit_stream. Every request must have its id: those unanswered at a break are sent again."""
    source, backoff = _Source(requests), peer.backoff()
    try:
        while True:
            call = peer.stub.SubmitStream()
            writing = asyncio.ensure_future(source.write_to(call))
            try:
                async for reply in call:
                    backoff.succeeded(PATIENCE_SECONDS)
                    patience.progressed()
                    source.answered()
                    yield reply
            except grpc.aio.AioRpcError as exc:
                error = translate(exc, peer.name)
                if isinstance(error, Overloaded):
                    await patience.wait(error)
                else:
                    await peer.wait_or_raise(exc, backoff)
            finally:
                writing.cancel()
                call.cancel()
            if source.finished:
                await source.close()  # raises what reading them raised
                return
    finally:
        source.cancel()


class _Source:
    """The caller's requests, read ahead by a task of its own: a stream that breaks off must not take the caller's iterator
    with it."""

    def __init__(self, requests: AsyncIterable[pb.SubmitRequest]) -> None:
        self._unanswered: deque[pb.SubmitRequest] = deque()
        self._first_answered = asyncio.Event()  # of what was sent again
        self._ahead: asyncio.Queue[pb.SubmitRequest | None] = asyncio.Queue(_MESSAGES_AHEAD)
        self._reader = asyncio.ensure_future(self._read(requests))
        self._exhausted = False
        self._given_up = False

    @property
    def finished(self) -> bool:
        """Whether every request was sent and answered."""
        return self._exhausted and not self._unanswered

    def answered(self) -> None:
        """The first of those that were sent and not answered has its reply."""
        self._unanswered.popleft()
        self._first_answered.set()

    async def write_to(self, call: "SubmitCall") -> None:
        """Send on one stream: first what an earlier one left unanswered. Ends with the stream; whoever reads the replies is told
        why that ended.

        The first that is sent again goes alone. It may be what the server refuses, and a refusal that meets a message on its
        way is lost: gRPC says INTERNAL of such a call, and no more.
        """
        self._first_answered.clear()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for number, request in enumerate(list(self._unanswered)):
                if number == 1:
                    await self._first_answered.wait()
                await call.write(request)
            while not self._exhausted:
                next_request = await self._ahead.get()
                if next_request is None:
                    self._exhausted = True
                else:
                    self._unanswered.append(next_request)
                    await call.write(next_request)
            await call.done_writing()

    async def close(self) -> None:
        """Wait for the reader. Raises what the caller's iterator raised."""
        await self._reader

    def cancel(self) -> None:
        """Stop reading."""
        self._given_up = True
        self._reader.cancel()

    async def _read(self, requests: AsyncIterable[pb.SubmitRequest]) -> None:
        try:
            async for request in requests:
                await self._ahead.put(request)
        finally:
            if not self._given_up:  # then nobody takes it, and there may be no room
                await self._ahead.put(None)
