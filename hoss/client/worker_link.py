"""The worker's end of WorkerLink: registers, and registers again after every break."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio

from hoss import rpc
from hoss.client.backoff import Backoff
from hoss.client.errors import translate
from hoss.errors import AccessDenied, ConfigError
from hoss.host import THIS_HOST
from hoss.rpc import written
from hoss.tasks import end_tasks
from hoss.telemetry import logger
from hoss.v1.workerlink_pb2 import DispatcherMessage, Heartbeat, Register, Welcome, WorkerMessage
from hoss.v1.workerlink_pb2_grpc import WorkerLinkStub
from hoss.wire import PROTOCOL_VERSION

if TYPE_CHECKING:
    from hoss.v1.workerlink_pb2_grpc import WorkerLinkAsyncStub

_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 1.0

SERVICE = "hoss.v1.WorkerLink"

# How long a stream may take to end after this side closed it.
_CLOSE_SECONDS = 1.0


class LinkHandler(Protocol):
    """The service behind the link."""

    def welcomed(self, welcome: Welcome) -> None:
        """A new epoch begins; nothing of the former one counts any more."""

    def received(self, message: DispatcherMessage) -> None:
        """Anything but Welcome."""

    def heartbeat(self) -> Heartbeat:
        """The worker's figures."""


class DispatcherLink:
    """One stream at a time. Messages sent without a stream are dropped: the next epoch starts with no
    state."""

    def __init__(
        self,
        addresses: Sequence[str],
        registration: Register,
        handler: LinkHandler,
        *,
        open_channel: rpc.OpenChannel = THIS_HOST.channel,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        self._open_channel = open_channel
        self._rng = rng
        self._addresses = addresses
        self._registration = Register()
        self._registration.CopyFrom(registration)
        self._registration.protocol = PROTOCOL_VERSION
        self._handler = handler
        self._outbox: asyncio.Queue[WorkerMessage | None] | None = None
        self._between_streams = asyncio.Event()
        self._between_streams.set()
        self._welcomed = False  # by any dispatcher, ever

    def send(self, message: WorkerMessage) -> None:
        """Send it on the present stream."""
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    def end_stream(self) -> None:
        """Close the stream after what was sent so far. `run` then registers again."""
        if self._outbox is not None:
            self._outbox.put_nowait(None)
            self._outbox = None

    async def leave(self) -> None:
        """Close the stream, and return when it has ended. The caller cancels `run` next."""
        self.end_stream()
        await self._between_streams.wait()

    async def run(self) -> None:
        """Keep registered, with the active one of several dispatchers, until cancelled. Raises ConfigError if
        the dispatcher finds the registration invalid, and AccessDenied if it never let this worker in: no
        retry changes its certificate. A worker that was let in once retries, because its certificate may be
        renewed."""
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, rng=self._rng)
        peer = f"dispatcher at {','.join(self._addresses)}"
        channel = self._open_channel(self._addresses, kind="dispatcher", service=SERVICE)
        try:
            stub: WorkerLinkAsyncStub = WorkerLinkStub(channel)
            while True:
                try:
                    if await self._one_stream(stub):
                        backoff.succeeded()
                except grpc.aio.AioRpcError as exc:
                    if exc.code() is grpc.StatusCode.INVALID_ARGUMENT:
                        raise ConfigError(
                            exc.details() or "was refused", where=f"registration of {self._registration.name}"
                        ) from exc
                    problem = translate(exc, peer)
                    if isinstance(problem, AccessDenied) and not self._welcomed:
                        raise problem from exc
                    logger().warning("link_interrupted", error=str(problem))
                await asyncio.sleep(backoff.failed(asyncio.get_running_loop().time()) or 0)
        finally:
            await channel.close()

    async def _one_stream(self, stub: "WorkerLinkAsyncStub") -> bool:
        """From registration to the stream's end; whether the dispatcher sent Welcome."""
        outbox: asyncio.Queue[WorkerMessage | None] = asyncio.Queue()
        outbox.put_nowait(WorkerMessage(register=self._registration))
        # One of several dispatchers will be active; the call connects as soon as it serves. A worker that was
        # never let in does not wait: a call that waits does not say what is wrong with a certificate.
        call = stub.Connect(wait_for_ready=rpc.of_several(self._addresses) and self._welcomed)
        messages = _messages(
            outbox, lambda: asyncio.get_running_loop().call_later(_CLOSE_SECONDS, call.cancel)
        )
        self._between_streams.clear()
        try:
            async with written(call, messages):
                # A task of its own: the call's cancellation ends the reader and must not look like a
                # cancellation of this task.
                reader = asyncio.create_task(self._read(call, outbox))
                try:
                    await asyncio.wait({reader})
                finally:
                    await end_tasks((reader,))
        finally:
            self._between_streams.set()
            self._outbox = None
        return not reader.cancelled() and reader.result()

    async def _read(
        self,
        call: "grpc.aio.StreamStreamCall[WorkerMessage, DispatcherMessage]",
        outbox: "asyncio.Queue[WorkerMessage | None]",
    ) -> bool:
        heartbeats: asyncio.Task[None] | None = None
        try:
            async for message in call:
                if message.HasField("welcome"):
                    self._outbox, self._welcomed = outbox, True
                    self._handler.welcomed(message.welcome)
                    heartbeats = asyncio.create_task(self._beat(message.welcome.heartbeat_ms / 1000, outbox))
                elif heartbeats is not None:
                    self._handler.received(message)
        finally:
            if heartbeats is not None:
                await end_tasks((heartbeats,))
        return heartbeats is not None

    async def _beat(self, period_seconds: float, outbox: "asyncio.Queue[WorkerMessage | None]") -> None:
        while True:
            outbox.put_nowait(WorkerMessage(heartbeat=self._handler.heartbeat()))
            await asyncio.sleep(period_seconds)


async def _messages(
    outbox: "asyncio.Queue[WorkerMessage | None]", on_end: Callable[[], object]
) -> AsyncIterator[WorkerMessage]:
    while (message := await outbox.get()) is not None:
        yield message
    on_end()
