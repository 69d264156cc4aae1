"""A gRPC server between a scheduler that is checked and the platform. It passes every call on as it is, and
shows the messages of WorkerLink and of proposals to an observer first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from hoss import rpc
from hoss.v1.resolver_pb2 import ProposalBatch, VerdictBatch
from hoss.v1.workerlink_pb2 import DispatcherMessage, WorkerMessage
from hossctl.checking.protocol import ProtocolObserver

_Show = Callable[[bytes], None]

_CONNECT = "/hoss.v1.WorkerLink/Connect"
_PROPOSE = "/hoss.v1.Resolver/Propose"


class Relay(grpc.GenericRpcHandler):
    """Listens on `address` while the block runs: `async with Relay(...)`."""

    def __init__(self, target: str, observer: ProtocolObserver) -> None:
        self._observer = observer
        self._channel = grpc.aio.insecure_channel(target, options=rpc.COMMON_OPTIONS)
        self._server = grpc.aio.server(options=rpc.COMMON_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._links: set[Any] = set()  # calls of WorkerLink
        self._cut: set[Any] = set()  # those that `cut_links` ended

    async def __aenter__(self) -> "Relay":  # noqa: PYI034 - typing.Self came with Python 3.11
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)
        await self._channel.close()

    def cut_links(self) -> None:
        """End every WorkerLink stream, as a network does that fails."""
        self._cut |= self._links
        for call in self._links:
            call.cancel()

    def service(self, details: Any) -> Any:
        """A handler of bytes: on the wire every method is a stream of messages either way."""
        return grpc.stream_stream_rpc_method_handler(partial(self._pass_on, details.method))

    async def _pass_on(
        self, method: str, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        stream = object()
        asked, answered = self._shows(method, stream)

        async def seen() -> AsyncIterator[bytes]:
            async for request in requests:
                asked(request)
                yield request

        passed: Any = self._channel.stream_stream(method)  # without codecs, so messages are bytes
        call = passed(seen(), timeout=context.time_remaining())
        # gRPC may abandon this generator at a yield, and then its `finally` comes late.
        context.add_done_callback(lambda _: call.cancel())
        if method == _CONNECT:
            self._links.add(call)
        refusal = ""
        try:
            async for answer in call:
                answered(answer)
                yield answer
        except grpc.aio.AioRpcError as exc:
            refusal = exc.details() or exc.code().name
            await context.abort(exc.code(), exc.details() or "")
        except asyncio.CancelledError:
            if call not in self._cut:
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the check has cut this connection")
        finally:
            self._links.discard(call)
            self._cut.discard(call)
            if method == _CONNECT:
                self._observer.stream_ended(refusal, stream)
            call.cancel()

    def _shows(self, method: str, stream: object) -> tuple[_Show, _Show]:
        """What shows the observer a request and an answer of this call."""
        observer = self._observer
        if method == _CONNECT:
            return (
                _shown(WorkerMessage, partial(observer.sent, stream=stream)),
                _shown(DispatcherMessage, partial(observer.received, stream=stream)),
            )
        if method == _PROPOSE:
            return _shown(ProposalBatch, observer.proposed), _shown(VerdictBatch, observer.judged)
        return _nothing, _nothing


def _nothing(_message: bytes) -> None:
    pass


def _shown(kind: type[Message], show: Callable[[Any], None]) -> _Show:
    def read(data: bytes) -> None:
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return  # whoever gets it says so
        show(message)

    return read
