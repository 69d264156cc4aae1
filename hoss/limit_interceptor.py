"""The door of a gRPC service: every call passes here before its handler runs.

Three things are done here and nowhere else. The caller gets its key, and `CallerLimits` says whether it may call.
Bytes that are no message are refused by INVALID_ARGUMENT. A reader that takes too long for a message of a resumable
stream is cut with UNAVAILABLE; the clients of hoss.client resume by themselves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hoss.caller_limits import CallerLimits
from hoss.client.errors import refuse
from hoss.errors import InvalidInput, Overloaded

# The key of a peer without an address, as of a Unix socket.
_LOCAL = "local"

Context = grpc.aio.ServicerContext[Any, Any]
Decode = Callable[[bytes], Any]


def caller_of(context: Context) -> str:
    """The key of a caller: the address it calls from, without the port."""
    kind, _, address = context.peer().partition(":")
    return address.rpartition(":")[0] if kind in ("ipv4", "ipv6") else _LOCAL


class LimitInterceptor(grpc.aio.ServerInterceptor):
    """Holds every call of a server to `limits`. `resumable`: methods ("/service/Method") whose slow readers are
    cut."""

    def __init__(self, limits: CallerLimits, resumable: Collection[str] = ()) -> None:
        self._limits = limits
        self._resumable = frozenset(resumable)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler, within its limits. Messages are decoded here, so that bytes that are none get an answer."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        decode, encode = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._answering(handler.unary_unary, decode), None, encode
            )
        if handler.stream_unary is not None:
            answering = self._answering(handler.stream_unary, decode, streamed=True)
            return grpc.stream_unary_rpc_method_handler(answering, None, encode)
        seconds = self._limits.slow_reader_seconds if handler_call_details.method in self._resumable else 0.0
        if handler.unary_stream is not None:
            writing = self._writing(handler.unary_stream, decode, seconds)
            return grpc.unary_stream_rpc_method_handler(writing, None, encode)
        writing = self._writing(handler.stream_stream, decode, seconds, streamed=True)
        return grpc.stream_stream_rpc_method_handler(writing, None, encode)

    def _answering(self, answer: Any, decode: Decode, *, streamed: bool = False) -> Any:
        """A method with one reply."""

        async def handle(request: Any, context: Context) -> Any:
            caller = await self._begin(context, stream=streamed)
            try:
                return await answer(self._read(request, decode, caller, streamed=streamed), context)
            except _NoMessageError as exc:
                await refuse(context, exc)
            finally:
                if streamed:
                    self._limits.end(caller)

        return handle

    def _writing(self, answer: Any, decode: Decode, seconds: float, *, streamed: bool = False) -> Any:
        """A method with a stream of replies."""

        async def handle(request: Any, context: Context) -> None:
            caller = await self._begin(context, stream=True)
            try:
                requests = self._read(request, decode, caller, streamed=streamed)
                found = answer(requests, context)
                if not hasattr(found, "__aiter__"):  # it writes by itself, as gRPC's health check does
                    await found
                    return
                # Closed at once and not when it is collected: the end of its stream is how a lost worker is noticed.
                async with aclosing(found) as replies:
                    async for reply in replies:
                        if seconds:
                            await self._write_in_time(context, reply, seconds, caller)
                        else:
                            await context.write(reply)
            except _NoMessageError as exc:
                await refuse(context, exc)
            finally:
                self._limits.end(caller)

        return handle

    async def _begin(self, context: Context, *, stream: bool) -> str:
        caller = caller_of(context)
        try:
            self._limits.begin(caller, stream=stream)
        except Overloaded as exc:
            await refuse(context, exc)
        return caller

    def _read(self, request: Any, decode: Decode, caller: str, *, streamed: bool) -> Any:
        def decoded(data: bytes) -> Any:
            try:
                return decode(data)
            except DecodeError as exc:
                self._limits.note("malformed", caller)
                raise _NoMessageError(f"is no message: {exc}", where="request") from None

        return _Requests(request, decoded) if streamed else decoded(request)

    async def _write_in_time(self, context: Context, reply: Any, seconds: float, caller: str) -> None:
        try:
            await asyncio.wait_for(context.write(reply), seconds)
        except asyncio.TimeoutError:
            self._limits.note("slow_reader", caller)
            text = f"the reader took no message for {seconds:g} s (limits.slow_reader_seconds); resume where it was"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)


class _NoMessageError(InvalidInput):
    """The bytes of a request are no message of its type."""


class _Requests:
    """The requests of a stream, decoded. Not a generator, which would have to be closed."""

    def __init__(self, source: AsyncIterator[bytes], decode: Decode) -> None:
        self._next = source.__aiter__().__anext__
        self._decode = decode

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        return self._decode(await self._next())
