"""Where calls arrive: the services of the present term answer them, or a refusal that says who would.

A term's services come and go while the port stays open, so that a standby can be asked for its health, and a client that
asks the wrong dispatcher is told of the right one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from dispatcher.candidate import Term
from hoss.client.errors import LEDGER_UNAVAILABLE

ACTIVE_ADDRESS = "hoss-active-dispatcher"  # trailing metadata: host:port of the one to ask instead

# Answered while it is in doubt who is active, too: it says so among its problems.
_STATUS = "/hoss.v1.Dispatcher/GetStatus"

_READING = ("Get", "List", "Watch", "TestPolicy", "Audit")  # methods that begin so change nothing

Context = grpc.aio.ServicerContext[Any, Any]


class Services:
    """The handlers of one term. Generated `add_..._to_server` functions take it for a server."""

    def __init__(self, term: Term) -> None:
        self.term = term
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As grpc.aio.Server's."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """As grpc.aio.Server's: a faster way to the same handlers, not taken here."""

    def find(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """The handler of a method, or None."""
        return next((found for handler in self._handlers if (found := handler.service(details))), None)


class Reception(grpc.GenericRpcHandler):
    """Sends calls of the named gRPC services to whoever serves."""

    def __init__(self, names: Sequence[str]) -> None:
        self._prefixes = tuple(f"/{name}/" for name in names)
        self._services: Services | None = None
        self._streams: set[asyncio.Task[Any]] = set()
        self._why = "this dispatcher is starting"
        self._active_address = ""

    @property
    def serves(self) -> bool:
        """Whether a term's services answer."""
        return self._services is not None

    def open(self, services: Services) -> None:
        """These answer from now on."""
        self._services = services

    def close(self, why: str, *, active: str = "") -> None:
        """Nobody answers; `active` is the address of the dispatcher that would. Streams that are open end."""
        was_open = self._services is not None
        self._services, self._why, self._active_address = None, why, active
        if was_open:
            for stream in self._streams:
                stream.cancel()

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """What answers a call; None for a service that is none of ours."""
        method: str = details.method
        if not method.startswith(self._prefixes):
            return None
        if self._services is None:
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        if not self._services.term.certain() and method != _STATUS:
            return grpc.stream_stream_rpc_method_handler(_in_doubt(self._services.term.doubt(), method))
        handler = self._services.find(details)
        if handler is None or not handler.response_streaming:
            return handler
        return self._watched(handler, self._services)

    def _watched(
        self, handler: "grpc.RpcMethodHandler[Any, Any]", services: Services
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """The same handler of these services, ended when the reception closes."""
        make: Any = grpc.unary_stream_rpc_method_handler
        answer: Any = handler.unary_stream
        if handler.request_streaming:
            make, answer = grpc.stream_stream_rpc_method_handler, handler.stream_stream

        async def until_closed(request: Any, context: Context) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - gRPC runs every call in one
            if self._services is not services:  # closed since the handler was found
                await self._end(context)
            self._streams.add(task)
            try:
                # Closed at once and not when it is collected: its end is how the dispatcher learns of a lost worker.
                async with contextlib.aclosing(answer(request, context)) as messages:
                    async for message in messages:
                        yield message
            except asyncio.CancelledError:
                if self._services is services:  # the client's doing
                    raise
                await self._end(context)
            finally:
                self._streams.discard(task)

        watched: grpc.RpcMethodHandler[Any, Any] = make(
            until_closed, handler.request_deserializer, handler.response_serializer
        )
        return watched

    async def _refuse(self, _requests: Any, context: Context) -> AsyncIterator[bytes]:
        await self._end(context)
        yield b""  # makes it a generator, as a stream's handler must be; abort has raised

    async def _end(self, context: Context) -> NoReturn:
        where = f"; the active one is {self._active_address}" if self._active_address else ""
        trailing = ((ACTIVE_ADDRESS, self._active_address),) if self._active_address else (LEDGER_UNAVAILABLE,)
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self._why}{where}", trailing)
        raise AssertionError  # abort has raised already; this tells the type checker so


def _in_doubt(why: str, method: str) -> Callable[[Any, Context], AsyncIterator[bytes]]:
    reads = method.rpartition("/")[2].startswith(_READING)
    therefore = "what this one knows may be out of date" if reads else "nothing was accepted"

    async def refuse(_requests: Any, context: Context) -> AsyncIterator[bytes]:
        text = f"{why}; another dispatcher may be active, so {therefore}: try again"
        await context.abort(grpc.StatusCode.UNAVAILABLE, text, (LEDGER_UNAVAILABLE,))
        yield b""  # as in _refuse

    return refuse
