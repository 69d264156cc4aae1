"""Streams that survive a break: they reconnect to the same dispatcher or to its successor."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from hoss.client.backoff import Backoff, Patience
from hoss.client.errors import translate
from hoss.errors import Overloaded
from hoss.v1 import dispatcher_pb2 as pb

if TYPE_CHECKING:
    SubmitCall = grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]
    from hoss.v1.dispatcher_pb2_grpc import DispatcherAsyncStub

# A takeover takes 3 s, a manual restart somewhat longer. After a longer time an operator is needed.
PATIENCE_SECONDS = 15.0
# A single address that has never answered is most often a wrong one.
FIRST_PATIENCE_SECONDS = 2.0
_FIRST_DELAY_SECONDS = 0.05
_LONGEST_DELAY_SECONDS = 0.5

# The most messages that are read ahead of the dispatcher's replies.
_MESSAGES_AHEAD = 16

# gRPC's codes for a broken stream: no connection, a stopped server, or (INTERNAL) a connection that was lost
# while a message was written. Every other code is an answer of the dispatcher.
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)


class ResumablePeer:
    """A dispatcher's stub with its retry policy. `name`: for errors."""

    def __init__(
        self,
        stub: "DispatcherAsyncStub",
        name: str,
        *,
        several: bool,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self.stub = stub
        self.name = name
        self._first_patience = PATIENCE_SECONDS if several else FIRST_PATIENCE_SECONDS

    def backoff(self) -> Backoff:
        """The backoff of one stream."""
        return Backoff(_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS, self._first_patience, rng=self._rng)

    async def wait_or_raise(self, exc: grpc.aio.AioRpcError, backoff: Backoff) -> None:
        """Wait before the next attempt. Raises the translated error where the stream is not broken, or after
        the last attempt."""
        delay = backoff.failed(self._clock()) if exc.code() in _BROKEN else None
        if delay is None:
            raise translate(exc, self.name) from exc
        await asyncio.sleep(delay)


async def watch(peer: ResumablePeer, since_revision: int, *, states: bool) -> AsyncIterator[pb.WatchBatch]:
    """See DispatcherClient.watch."""
    from hoss.client.known_pods import KnownPods  # noqa: PLC0415 - only watchers need NumPy

    known, backoff = KnownPods(), peer.backoff()
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
                for update in list(known.differences(listed)) if listing else (batch,):
                    known.note(update)
                    yield update
                listing = False
        except grpc.aio.AioRpcError as exc:
            # The stream resumed too late, or on another dispatcher: a list finds the differences. A stream
            # that falls behind while it is read is the caller's problem.
            if exc.code() is grpc.StatusCode.OUT_OF_RANGE and resumed:
                listing = True
            else:
                await peer.wait_or_raise(exc, backoff)
        finally:
            # The server must not write into a stream whose caller has stopped to iterate.
            call.cancel()
        resumed = True


async def submit_stream(
    peer: ResumablePeer, requests: AsyncIterable[pb.SubmitRequest], patience: Patience
) -> AsyncIterator[pb.SubmitReply]:
    """See DispatcherClient.submit_stream. Every request must have an id: after a break the unanswered
    requests are sent again."""
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
                await source.close()  # raises the error of the caller's iterator
                return
    finally:
        source.cancel()


class _Source:
    """The caller's requests, read ahead by a separate task, so that the iterator survives a broken stream."""

    def __init__(self, requests: AsyncIterable[pb.SubmitRequest]) -> None:
        self._unanswered: deque[pb.SubmitRequest] = deque()
        self._first_answered = asyncio.Event()  # the first request that was sent again has its reply
        self._ahead: asyncio.Queue[pb.SubmitRequest | None] = asyncio.Queue(_MESSAGES_AHEAD)
        self._reader = asyncio.ensure_future(self._read(requests))
        self._exhausted = False
        self._given_up = False

    @property
    def finished(self) -> bool:
        """Whether every request was sent and answered."""
        return self._exhausted and not self._unanswered

    def answered(self) -> None:
        """The oldest unanswered request has its reply."""
        self._unanswered.popleft()
        self._first_answered.set()

    async def write_to(self, call: "SubmitCall") -> None:
        """Write to one stream, first the unanswered requests of an earlier one. Returns when the stream ends;
        its reader gets the reason.

        The first request that is sent again goes alone. The server may refuse it, and gRPC loses a refusal
        that crosses another message: the call ends with INTERNAL."""
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
        """Wait for the reader. Raises the error of the caller's iterator."""
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
            if not self._given_up:  # nobody would take it from a full queue
                await self._ahead.put(None)
