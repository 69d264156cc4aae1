"""The server's side of the simulated gRPC: what `grpc.aio.server()` is to a service.

Owns the calls that a server has under way. Invariant: each call is one task of the server's process, and
sends one status at most. What a handler may do and what becomes of its errors is as in grpc.aio;
tests/simulation holds both to one contract."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import copy_context
from typing import Any, NoReturn

import grpc
import grpc.aio

from hoss.security.identity import (
    TENANT_METADATA,
    CallerKind,
    Identity,
    Role,
    set_caller,
    tenant_of_metadata,
)
from tools.simulation.call import passed
from tools.simulation.connection import OK, Connection, Status, Stream
from tools.simulation.network import Network

_LOG = logging.getLogger(__name__)

Metadata = tuple[tuple[str, Any], ...]


class SimulatedServer:
    """A server on a simulated network: of grpc.aio.Server what generated code and hoss.serving use. Make it
    in its process."""

    def __init__(self, network: Network, process: str) -> None:
        self.process = process
        self.context = copy_context()
        self._network = network
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._addresses: list[str] = []
        self._connections: dict[Connection, None] = {}
        self._calls: dict[_ServerCall, None] = {}
        self._stopping = False

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Handlers that are asked in turn for a method."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """A quicker way to handlers that are also among the generic ones. Not used."""

    def add_insecure_port(self, address: str) -> int:
        """Listen there from `start` on. Returns the port. Raises RuntimeError where the address is in use."""
        name, port = self._network.bind(address, self.process)
        self._addresses.append(name)
        return port

    async def start(self) -> None:
        for address in self._addresses:
            self._network.listen(address, self)

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, give those that run `grace` seconds, and end them."""
        self._stopping = True
        self._network.stop_listening(self)
        for connection in self._connections:
            connection.go_away()
        tasks = [call.task for call in self._calls]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for connection in list(self._connections):
            connection.close(connection.server, "the server has stopped", "Cancelling all calls")

    # -- what the network tells

    def on_connected(self, connection: Connection) -> None:
        self._connections[connection] = None

        def closed() -> None:
            self._connections.pop(connection, None)

        connection.server.on_closed = closed

    def on_request(
        self, stream: Stream, metadata: Metadata, timeout_seconds: float | None, request: bytes | None
    ) -> None:
        if self._stopping:
            stream.send_refusal()
            return
        call = _ServerCall(self, stream, metadata, timeout_seconds, request)
        self._calls[call] = None

    # -- what its calls use

    def handler_of(self, method: str, metadata: Metadata) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Runs the services' code that finds a handler, so it is called in a task of the process."""
        details = _CallDetails()
        details.method, details.invocation_metadata = method, metadata
        return next((h for handler in self._handlers if (h := handler.service(details))), None)

    def failed(self, method: str, error: Exception) -> None:
        """A handler raised an error that is no answer."""
        _LOG.error("%s of %s raised", method, self.process, exc_info=error)
        self._network.observe("handler failed", self.process, self.process, method)

    def ended(self, call: "_ServerCall") -> None:
        self._calls.pop(call, None)


class _CallDetails(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: Any


class _ClientHasGone(Exception):  # noqa: N818 - nothing is wrong: there is nobody to write to
    """Ends a handler that writes to a call which its client has ended."""


class _ServerCall:
    """One call, from its first frame to its status."""

    def __init__(
        self,
        server: SimulatedServer,
        stream: Stream,
        metadata: Metadata,
        timeout_seconds: float | None,
        request: bytes | None,
    ) -> None:
        self.metadata = metadata
        self._server = server
        self._stream = stream
        self._inbox: deque[bytes] = deque()
        self._no_more_requests = False
        self._client_has_gone = False
        self._abort: grpc.aio.AbortError | None = None
        self._readers: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        stream.server = self
        if request is not None:
            self._inbox.append(request)
            self._no_more_requests = True
        if timeout_seconds is not None:
            loop = asyncio.get_running_loop()
            # The client's deadline holds here even if nothing comes from the client any more.
            self._timer = loop.call_later(timeout_seconds, self.on_cancelled, context=server.context)
        self.task = asyncio.get_running_loop().create_task(self._run(), name=stream.method)
        # Not at the end of `_run`: a task that is cancelled before its first step does not run at all.
        self.task.add_done_callback(self._ended)

    # -- what the client sends

    def on_message(self, message: bytes) -> None:
        self._inbox.append(message)
        self._wake_readers()

    def on_half_close(self) -> None:
        self._no_more_requests = True
        self._wake_readers()

    def on_cancelled(self) -> None:
        """Ends the requests, too, for a task that reads them beside the handler."""
        self._client_has_gone = True
        self._no_more_requests = True
        self._inbox.clear()
        self._stream.to_client.release()
        self._wake_readers()
        self.task.cancel()

    # -- what the handler uses

    async def receive(self) -> bytes | None:
        """The next request; None after the last one."""
        while not self._inbox:
            if self._no_more_requests:
                return None
            changed = asyncio.get_running_loop().create_future()
            self._readers.append(changed)
            await changed
        message = self._inbox.popleft()
        self._stream.to_server.read(message)
        return message

    async def send(self, message: bytes) -> None:
        """Send a reply of a stream, as soon as the client has read enough of those before."""
        if self._abort is not None:
            raise self._abort
        await self._stream.to_client.admit(message)
        if self._client_has_gone:
            raise _ClientHasGone
        self._stream.send_to_client(message)

    async def abort(self, status: Status) -> NoReturn:
        """End the call with this status."""
        if self._abort is not None:
            raise grpc.aio.UsageError("Abort already called!")
        self._abort = grpc.aio.AbortError("Locally aborted.")
        self._stream.send_status(status)
        raise self._abort

    # -- the call's task

    async def _run(self) -> None:
        try:
            await self._handle()
        except (grpc.aio.AbortError, _ClientHasGone):
            pass
        except asyncio.CancelledError:
            # A handler that is cancelled, by whomever, sends no status. A client that is still there waits
            # on.
            pass
        except Exception as exc:  # noqa: BLE001 - the client gets it
            self._server.failed(self._stream.method, exc)
            if self._abort is None:
                text = f"Unexpected {type(exc)}: {exc}"
                self._stream.send_status(Status(grpc.StatusCode.UNKNOWN, text))

    def _ended(self, _task: "asyncio.Task[None]") -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._no_more_requests = True
        self._wake_readers()
        self._server.ended(self)

    async def _handle(self) -> None:
        if tenant := tenant_of_metadata(dict(self.metadata).get(TENANT_METADATA, "")):
            # As hoss.interceptor does where it knows its callers.
            set_caller(Identity(CallerKind.CLIENT, "simulated", Role.SUBMIT, tenant))
        handler: Any = self._server.handler_of(self._stream.method, self.metadata)
        if handler is None:
            self._stream.send_status(Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            return
        request: Any
        if handler.request_streaming:
            request = _Requests(self, handler.request_deserializer)
        else:
            message = await self.receive()
            if message is None:
                return  # the client ended the call before it said anything
            request = passed(handler.request_deserializer, message)
        encode = handler.response_serializer
        context = ServicerContext(self, encode)
        if not handler.response_streaming:
            answer = handler.stream_unary if handler.request_streaming else handler.unary_unary
            reply = passed(encode, await answer(request, context))
            if self._abort is None:
                self._stream.send_reply(reply)
            return
        answers = handler.stream_stream if handler.request_streaming else handler.unary_stream
        replies = answers(request, context)
        if hasattr(replies, "__aiter__"):
            async for each in replies:
                await self.send(passed(encode, each))
        else:
            await replies
        if self._abort is None:
            self._stream.send_status(OK)

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            if not reader.done():
                reader.set_result(None)


class ServicerContext:
    """Of grpc.aio.ServicerContext what HOSS and gRPC's health service use."""

    def __init__(self, call: _ServerCall, encode: Callable[[Any], bytes] | None) -> None:
        self._call = call
        self._encode = encode

    def peer(self) -> str:
        return "simulated"

    def invocation_metadata(self) -> Metadata:
        return self._call.metadata

    async def write(self, message: Any) -> None:
        await self._call.send(passed(self._encode, message))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        await self._call.abort(Status(code, details, tuple(trailing_metadata)))


class _Requests:
    """A handler's iterator over the requests of its stream."""

    def __init__(self, call: _ServerCall, decode: Callable[[bytes], Any] | None) -> None:
        self._call = call
        self._decode = decode

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self._call.receive()
        if message is None:
            raise StopAsyncIteration
        return passed(self._decode, message)
