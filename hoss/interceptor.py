"""The door of a gRPC service: every call passes here before its handler runs.

Four things are done here and nowhere else. The caller gets its key, its identity where there is one, and
`CallerLimits` says whether it may call. Bytes that are no message are refused by INVALID_ARGUMENT. Where the
service speaks TLS, `AccessControl` says whether this caller may call this method. A reader that takes too
long for a message of a resumable stream is cut with UNAVAILABLE; the clients of hoss.client resume by
themselves.

Invariant: no stream outlasts what its caller was let in by, a certificate or a token, for longer than
RECHECK_SECONDS. It is cut with UNAVAILABLE, too. A client with a new certificate or token resumes, and
another one is told at the door why it may not."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hoss.client.errors import refuse
from hoss.errors import AccessDenied, InvalidInput, Overloaded
from hoss.limits.callers import CallerLimits
from hoss.security.identity import Identity, caller, set_caller
from hoss.security.users import UncheckedToken, UnmappedUser
from hoss.telemetry import logger

# The key of a peer without an address, as of a Unix socket.
_LOCAL = "local"

# For so long a stream that is to be refused waits for its first request. Python's client of gRPC makes
# INTERNAL of a refusal that crosses a request on its way.
_FIRST_REQUEST_SECONDS = 1.0

# How often the callers of open streams are identified again. A look takes 5 us.
RECHECK_SECONDS = 5.0
_CHECKED_AT_ONCE = 100

Context = grpc.aio.ServicerContext[Any, Any]
Decode = Callable[[bytes], Any]


class CallAccess(Protocol):
    """Who calls, and whether he may (hoss.security.access)."""

    async def identify(self, context: Context) -> Identity | AccessDenied:
        """Who makes a call, or why nobody knows."""

    def refusal(self, method: str, who: Identity, request: Any, peer: str) -> str:
        """Why this caller may not make this call; "" if it may."""


def caller_of(context: Context) -> str:
    """The key of the present call's caller: its identity where there is one, else its address."""
    identity = caller()
    return _address_of(context) if identity is None else str(identity)


def _address_of(context: Context) -> str:
    """The address that a caller calls from, without the port."""
    kind, _, address = context.peer().partition(":")
    return address.rpartition(":")[0] if kind in ("ipv4", "ipv6") else _LOCAL


class _OpenStreams:
    """The open streams of callers that were identified. Each is the task that handles it."""

    def __init__(self, access: CallAccess, recheck_seconds: float) -> None:
        self._access = access
        self._recheck_seconds = recheck_seconds
        self._open: dict[asyncio.Task[Any], tuple[Context, Identity]] = {}
        self._ended: dict[asyncio.Task[Any], AccessDenied] = {}
        self._checking: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def one(self, context: Context, who: Identity) -> AsyncIterator[None]:
        """The length of a stream, within its handler. Ends the call where its caller may not go on."""
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment] # a handler is a task's
        self._open[task] = context, who
        if self._checking is None:
            self._checking = asyncio.ensure_future(self._check_all())
        try:
            yield
        except asyncio.CancelledError:
            problem = self._ended.get(task)
            if problem is None:
                raise
            logger().warning("stream_ended", caller=str(who), peer=context.peer(), problem=str(problem))
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the stream ends: {problem}")
        finally:
            del self._open[task]
            self._ended.pop(task, None)

    async def _check_all(self) -> None:
        try:
            while self._open:
                await asyncio.sleep(self._recheck_seconds)
                for number, (task, (context, who)) in enumerate([*self._open.items()], 1):
                    problem = await self._problem(context, who)
                    if problem is not None and task in self._open:
                        self._ended[task] = problem
                        task.cancel()
                    if number % _CHECKED_AT_ONCE == 0:
                        await asyncio.sleep(0)
        finally:
            self._checking = None

    async def _problem(self, context: Context, who: Identity) -> AccessDenied | None:
        found = await self._access.identify(context)
        if isinstance(found, UncheckedToken):
            return None  # nobody says that it is wrong; the stream goes on until somebody can
        if isinstance(found, AccessDenied):
            return found
        return None if found == who else AccessDenied(f"{who} has other rights now")


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Holds every call of a server to `limits`, and to the rights of `guard_by`. `resumable`: methods
    ("/service/Method") whose slow readers are cut."""

    def __init__(
        self,
        limits: CallerLimits,
        resumable: Collection[str] = (),
        *,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        self._limits = limits
        self._resumable = frozenset(resumable)
        self._recheck_seconds = recheck_seconds
        self._access: CallAccess | None = None
        self._streams: _OpenStreams | None = None

    def guard_by(self, access: CallAccess) -> None:
        """From now on calls need a right. A host with TLS does this before the server exists."""
        self._access, self._streams = access, _OpenStreams(access, self._recheck_seconds)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler, within limits and rights. Messages are decoded here, so that bytes that are none get
        an answer."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        seconds = self._limits.slow_reader_seconds if method in self._resumable else 0.0
        streamed = bool(handler.request_streaming)
        form = f"{'stream' if streamed else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
        inner, decode = getattr(handler, form), handler.request_deserializer
        handle = (
            self._writing(method, inner, decode, seconds, streamed=streamed)
            if handler.response_streaming
            else self._answering(method, inner, decode, streamed=streamed)
        )
        make: Any = getattr(grpc, f"{form}_rpc_method_handler")
        return make(handle, None, handler.response_serializer)

    def _answering(self, method: str, answer: Any, decode: Decode, *, streamed: bool) -> Any:
        """A method with one reply."""

        async def handle(request: Any, context: Context) -> Any:
            requests = request if streamed else None
            caller, who = await self._begin(method, context, requests, stream=streamed)
            try:
                message = self._read(request, decode, caller, streamed=streamed)
                await self._admit(method, who, message, context, requests)
                async with self._open(context, who if streamed else None):
                    return await answer(message, context)
            except _NoMessageError as exc:
                await refuse(context, exc)
            finally:
                if streamed:
                    self._limits.end(caller)

        return handle

    def _writing(self, method: str, answer: Any, decode: Decode, seconds: float, *, streamed: bool) -> Any:
        """A method with a stream of replies."""

        async def handle(request: Any, context: Context) -> None:
            requests = request if streamed else None
            caller, who = await self._begin(method, context, requests, stream=True)
            try:
                message = self._read(request, decode, caller, streamed=streamed)
                await self._admit(method, who, message, context, requests)
                async with self._open(context, who):
                    found = answer(message, context)
                    if not hasattr(found, "__aiter__"):  # it writes by itself, as gRPC's health check does
                        await found
                        return
                    # Closed at once and not when it is collected: the end of its stream is how a lost worker
                    # is noticed.
                    async with contextlib.aclosing(found) as replies:
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

    def _open(self, context: Context, who: Identity | None) -> contextlib.AbstractAsyncContextManager[None]:
        """The length of a stream; nothing for a call that is none, and where nobody is asked who he is."""
        if self._streams is None or who is None:
            return contextlib.nullcontext()
        return self._streams.one(context, who)

    async def _begin(
        self, method: str, context: Context, requests: AsyncIterator[bytes] | None, *, stream: bool
    ) -> tuple[str, Identity | None]:
        """The key of the caller, which may call now, and who it is. `requests`: of a stream of them."""
        who: Identity | AccessDenied | None = None
        if self._access is not None:
            who = await self._access.identify(context)
        known = who if isinstance(who, Identity) else None
        # Who shows nothing valid is counted, too, and first: to refuse costs more than to count.
        caller = _address_of(context) if known is None else str(known)
        try:
            self._limits.begin(caller, stream=stream)
        except Overloaded as exc:
            await refuse(context, exc)
        if isinstance(who, AccessDenied):
            try:
                await _first_of(requests)
            finally:
                if stream:
                    self._limits.end(caller)
            await self._deny(method, who, context)
        return caller, known

    async def _deny(self, method: str, problem: AccessDenied, context: Context) -> None:
        unlogged = self._limits.refuse_identity(_address_of(context))
        if unlogged is not None:
            logger().warning(
                "caller_refused",
                method=method,
                peer=context.peer(),
                problem=str(problem),
                **({"unlogged": unlogged} if unlogged else {}),
            )
        known = isinstance(problem, UnmappedUser)
        code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
        await context.abort(code, str(problem))

    async def _admit(
        self,
        method: str,
        who: Identity | None,
        request: Any,
        context: Context,
        requests: AsyncIterator[bytes] | None,
    ) -> None:
        if self._access is None or who is None:
            return
        if problem := self._access.refusal(method, who, request, context.peer()):
            await _first_of(requests)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
        set_caller(who)

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
            text = (
                f"the reader took no message for {seconds:g} s (limits.slow_reader_seconds); resume where"
                " it was"
            )
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)


async def _first_of(requests: AsyncIterator[bytes] | None) -> None:
    """Wait until a stream's first request is there, which nobody reads; nothing for a call without a
    stream."""
    if requests is not None:
        with contextlib.suppress(asyncio.TimeoutError, StopAsyncIteration):
            await asyncio.wait_for(anext(requests.__aiter__()), _FIRST_REQUEST_SECONDS)


class _NoMessageError(InvalidInput):
    """The bytes of a request are no message of its type."""


class _Requests:
    """The requests of a stream, decoded. Not a generator, which would have to be closed.

    gRPC's iterator begins with the first request that is asked for: one that a handler never asks would be
    a coroutine that is never awaited."""

    def __init__(self, source: AsyncIterable[bytes], decode: Decode) -> None:
        self._source = source
        self._begun: AsyncIterator[bytes] | None = None
        self._decode = decode

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        if self._begun is None:
            self._begun = self._source.__aiter__()
        return self._decode(await self._begun.__anext__())
