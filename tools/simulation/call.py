"""Calls of a client on the simulated network: what gRPC's stubs return.

Owns one call through all its attempts. Invariant: a call ends with one status, and its messages come before
it. Retries, deadlines, cancellation and errors are as in grpc.aio; tests/simulation holds both to one
contract."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from tools.simulation.connection import Connection, Nobody, Status, Stream

if TYPE_CHECKING:
    from tools.simulation.channel import SimulatedChannel

# As in hoss.rpc.
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS, _RETRY_GROWTH, _MOST_ATTEMPTS = 0.1, 1.0, 2.5, 5
_RETRY_JITTER = 0.2

_CANCELLED = Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
_TOO_LATE = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
# What gRPC makes of a call that ends while a message waits to be written.
_WRITE_FAILED = Status(grpc.StatusCode.INTERNAL, "Internal error from Core")

Metadata = tuple[tuple[str, Any], ...]
Convert = Callable[[Any], Any] | None


class Call:
    """A call, through all its attempts: grpc.aio.Call, and the client's end of a stream."""

    def __init__(
        self,
        channel: "SimulatedChannel",
        method: str,
        decode: Convert,
        *,
        encode: Convert = None,
        request: bytes | None = None,
        requests: AsyncIterable[Any] | Iterable[Any] | None = None,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        wait_for_ready: bool | None = None,
    ) -> None:
        self.waits_for_ready = channel.waits(method) if wait_for_ready is None else wait_for_ready
        self._channel = channel
        self._method = method
        self._encode, self._decode = encode, decode
        self._request = request
        self._metadata = tuple(metadata or ())
        self._stream: Stream | None = None
        self._inbox: deque[bytes] = deque()
        self._answered = False  # a message came: from now on there is no retry
        self._status: Status | None = None
        self._locally_cancelled = False
        self._half_closed = request is not None
        self._attempts = 0
        self._changed: list[asyncio.Future[None]] = []
        self._poller: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._ends_at = None if timeout is None else loop.time() + timeout
        channel.begin(self)
        if timeout is not None:
            self._timer = channel.network.later(timeout, self._time_is_over, context=channel.context)
        if requests is not None:
            self._poller = loop.create_task(self._write_all(requests))

    # -- as grpc.aio.Call

    def cancel(self) -> bool:
        """End the call here and at the server. Returns False when it has ended."""
        if self._status is not None:
            return False
        self._locally_cancelled = True
        self._give_up(_CANCELLED)
        return True

    def cancelled(self) -> bool:
        return self._status is not None and self._status.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._status is not None

    async def code(self) -> grpc.StatusCode:
        return (await self._final()).code

    async def details(self) -> str:
        return (await self._final()).details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await self._final()).trailing)

    async def write(self, request: Any) -> None:
        """Send a message of a stream, as soon as the server has read enough of those before."""
        if self._status is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._half_closed:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        message = passed(self._encode, request)
        try:
            while self._stream is None and self._status is None:
                await self._change()
            if self._stream is not None:
                if self._status is None:
                    await self._stream.to_server.admit(message)
                if self._status is not None and not self._locally_cancelled:
                    self._status = _WRITE_FAILED  # in place of the server's status, as gRPC has it
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._status is not None:
            self._raise_for(self._status)
            return
        self._stream.send_to_server(message)

    async def done_writing(self) -> None:
        """Tell the server that no more messages come."""
        if self._status is not None or self._half_closed:
            return
        self._half_closed = True
        while self._stream is None and self._status is None:
            await self._change()
        if self._stream is not None and self._status is None:
            self._stream.send_half_close()

    # -- its attempts

    def attempt(self, connection: Connection) -> None:
        """Call that server."""
        self._attempts += 1
        network = self._channel.network
        stream = self._stream = connection.open_stream(self._method, self)
        left = None if self._ends_at is None else max(0.0, self._ends_at - network.loop.time())
        stream.send_request(self._metadata, left, self._request)
        self._wake()
        if self._may_retry() and network.happens(network.faults.repeat_request):
            self._believe_lost(stream)

    def attempt_failed(self, status: Status) -> None:
        """This attempt ended. Another follows where gRPC would retry it."""
        if self._status is not None:
            return
        if self._stream is None:
            self._attempts += 1  # there was no server to send it to
        if status.code is not grpc.StatusCode.UNAVAILABLE or not self._may_retry():
            self._end(status)
            return
        self._stream = None
        wait = min(_FIRST_RETRY_SECONDS * _RETRY_GROWTH ** (self._attempts - 1), _LONGEST_RETRY_SECONDS)
        wait *= self._channel.network.rng.uniform(1 - _RETRY_JITTER, 1 + _RETRY_JITTER)
        self._channel.network.later(wait, self._again, context=self._channel.context)

    def on_message(self, message: bytes) -> None:
        self._answered = True
        self._inbox.append(message)
        self._wake()

    def on_status(self, status: Status) -> None:
        self.attempt_failed(status)

    def on_refused(self) -> None:
        """gRPC tries again by itself what the server has not looked at."""
        if self._status is None:
            self._stream = None
            self._channel.assign(self)

    def on_lost(self, text: str) -> None:
        self.attempt_failed(Status(grpc.StatusCode.UNAVAILABLE, text))

    def _may_retry(self) -> bool:
        return self._channel.retried(self._method) and not self._answered and self._attempts < _MOST_ATTEMPTS

    def _again(self) -> None:
        if self._status is None and not self._channel.closed:
            self._channel.assign(self)

    def _believe_lost(self, stream: Stream) -> None:
        """As if the connection were lost for this client, and the server had not noticed yet."""
        network, connection = self._channel.network, stream.connection
        stream.client = Nobody()
        network.observe("request repeated", self._channel.process, connection.server.process, self._method)
        network.later(network.rng.uniform(0, 1), stream.send_cancel, context=self._channel.context)
        self.on_lost("recvmsg:Connection reset by peer")

    # -- how it ends

    def _time_is_over(self) -> None:
        if self._status is None:
            self._give_up(_TOO_LATE)

    def _give_up(self, status: Status) -> None:
        """End the call from this side."""
        if self._stream is not None:
            self._stream.send_cancel()
        self._end(status)

    def _end(self, status: Status) -> None:
        self._status = status
        if self._timer is not None:
            self._timer.cancel()
        if self._poller is not None:
            self._poller.cancel()
        if self._stream is not None:
            self._stream.to_server.release()
        self._channel.ended(self)
        self._wake()

    def _raise_for(self, status: Status) -> None:
        if self._locally_cancelled:
            raise asyncio.CancelledError
        if status.code is not grpc.StatusCode.OK:
            trailing = grpc.aio.Metadata(*status.trailing)
            raise grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailing, details=status.details)

    # -- waiting

    async def _next(self) -> Any:
        """The next message, decoded; grpc.aio.EOF at the end of a call that ended well."""
        try:
            while not self._inbox and self._status is None:
                await self._change()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._status is not None and (self._locally_cancelled or not self._inbox):
            self._raise_for(self._status)
            return grpc.aio.EOF
        message = self._inbox.popleft()
        if self._stream is not None:
            self._stream.to_client.read(message)
        return passed(self._decode, message)

    async def _final(self) -> Status:
        while self._status is None:
            await self._change()
        return self._status

    async def _change(self) -> None:
        """Wait until something has changed."""
        changed = asyncio.get_running_loop().create_future()
        self._changed.append(changed)
        await changed

    def _wake(self) -> None:
        waiting, self._changed = self._changed, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    async def _write_all(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        """Write what an iterator of the caller gives. Its errors end the call and go no further."""
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self.write(request)
            else:
                for request in requests:
                    await self.write(request)
            await self.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader gets the status
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - of the caller's code
            self.cancel()


class UnaryCall(Call):
    """A call with one reply: `await` it."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._reply().__await__()

    async def _reply(self) -> Any:
        try:
            status = await self._final()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._raise_for(status)
        if not self._inbox:
            text = "No message received"
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details=text
            )
        return passed(self._decode, self._inbox[0])


class StreamCall(Call):
    """A call with a stream of replies: iterate over it, or `read`."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self._next()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    async def read(self) -> Any:
        """The next message; grpc.aio.EOF after the last one."""
        return await self._next()


def passed(convert: Convert, message: Any) -> Any:
    """gRPC hands bytes through where it has no serialiser."""
    return message if convert is None else convert(message)
