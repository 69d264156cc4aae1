"""Routes incoming gRPC calls to the services of the present term, or refuses them and names the leader.

Services come and go with terms while the port stays open. So a standby answers health checks, and a client
that calls the wrong dispatcher learns the address of the leader."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from dispatcher.leader.leadership import Leadership
from hoss.client.errors import LEDGER_UNAVAILABLE, OUTCOME_UNKNOWN

ACTIVE_ADDRESS = "hoss-active-dispatcher"  # trailing metadata: host:port of the leader

# Answered while the lease is uncertain, too: the reply names that among its problems.
_STATUS = "/hoss.v1.Dispatcher/GetStatus"

_READING = ("Get", "List", "Watch", "TestPolicy", "Audit")  # prefixes of methods that change nothing

Context = grpc.aio.ServicerContext[Any, Any]


class Services:
    """The handlers of one term. Generated `add_..._to_server` functions take it for a server."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Same as grpc.aio.Server's."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Same as grpc.aio.Server's: a faster way to the same handlers, not used here."""

    def find(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """The handler of a method, or None."""
        return next((found for handler in self._handlers if (found := handler.service(details))), None)


class RequestRouter(grpc.GenericRpcHandler):
    """Handles calls of the named gRPC services."""

    def __init__(self, names: Sequence[str]) -> None:
        self._prefixes = tuple(f"/{name}/" for name in names)
        self._services: Services | None = None
        self._streams: dict[asyncio.Task[Any], None] = {}  # in the order of their start
        self._reason = "this dispatcher is starting"
        self._leader_address = ""

    @property
    def serves(self) -> bool:
        """Whether services of a term answer."""
        return self._services is not None

    def open(self, services: Services) -> None:
        """Route calls to these services from now on."""
        self._services = services

    def close(self, reason: str, *, leader: str = "") -> None:
        """Refuse calls from now on, and end open streams. `leader`: the address of the leader, if known."""
        was_open = self._services is not None
        self._services, self._reason, self._leader_address = None, reason, leader
        if was_open:
            for stream in self._streams:
                stream.cancel()

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """The handler of a call; None for other services."""
        method: str = details.method
        if not method.startswith(self._prefixes):
            return None
        if self._services is None:
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        leadership = self._services.leadership
        if not leadership.lease_valid() and method != _STATUS:
            refuse = _lease_uncertain(leadership.uncertainty(), method)
            return grpc.stream_stream_rpc_method_handler(refuse)
        handler = self._services.find(details)
        if handler is None or not handler.response_streaming:
            return handler
        return self._until_closed(handler, self._services)

    def _until_closed(
        self, handler: "grpc.RpcMethodHandler[Any, Any]", services: Services
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """The same streaming handler. Its streams end when the router closes."""
        make: Any = grpc.unary_stream_rpc_method_handler
        answer: Any = handler.unary_stream
        if handler.request_streaming:
            make, answer = grpc.stream_stream_rpc_method_handler, handler.stream_stream

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - gRPC runs every call in a task
            if self._services is not services:  # closed since the handler was found
                await self._abort(context)
            self._streams[task] = None
            try:
                # Closed at once and not when it is collected: the end of its stream is how a lost worker is
                # noticed.
                async with contextlib.aclosing(answer(request, context)) as messages:
                    async for message in messages:
                        # gRPC writes it now. A task that is cancelled meanwhile would end without a status,
                        # and its client would wait for ever.
                        self._streams.pop(task)
                        yield message
                        if self._services is not services:
                            await self._abort(context)
                        self._streams[task] = None
            except asyncio.CancelledError:
                if self._services is services:  # cancelled by the client
                    raise
                await self._abort(context)
            finally:
                self._streams.pop(task, None)

        wrapped: grpc.RpcMethodHandler[Any, Any] = make(
            stream, handler.request_deserializer, handler.response_serializer
        )
        return wrapped

    async def _refuse(self, _requests: Any, context: Context) -> AsyncIterator[bytes]:
        await self._abort(context)
        yield b""  # makes it a generator, as a stream's handler must be; abort has raised

    async def _abort(self, context: Context) -> NoReturn:
        leader = self._leader_address
        where = f"; the active one is {leader}" if leader else ""
        trailing = ((ACTIVE_ADDRESS, leader),) if leader else (LEDGER_UNAVAILABLE,)
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self._reason}{where}", trailing)
        raise AssertionError  # for the type checker: abort has raised


def _lease_uncertain(why: str, method: str) -> Callable[[Any, Context], AsyncIterator[bytes]]:
    reads = method.rpartition("/")[2].startswith(_READING)
    # This attempt changes nothing. But gRPC repeats calls by itself, and a client sees the last answer only.
    therefore = (
        "so what this one knows may be out of date: try again"
        if reads
        else "and an earlier attempt of this call may have been accepted: make the same call again, a "
        "submission with the same request id"
    )
    mark = LEDGER_UNAVAILABLE if reads else OUTCOME_UNKNOWN

    async def refuse(_requests: Any, context: Context) -> AsyncIterator[bytes]:
        text = f"{why}; another dispatcher may be active, {therefore}"
        await context.abort(grpc.StatusCode.UNAVAILABLE, text, (mark,))
        yield b""  # as in _refuse

    return refuse
