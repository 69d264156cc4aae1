"""A gRPC server between two parts of a platform, that passes everything on and can hold one method's messages
back."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

SERVICE = "/hoss.v1.Resolver/"
# Who is behind it may be killed and start again: it is found again as soon as services themselves find it.
_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]


class Interposed(grpc.GenericRpcHandler):
    """Listens on `address`. `asked` and `answered` are gates by method name: what they are closed for waits,
    and is not lost."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.asked: dict[str, Gate] = defaultdict(Gate)
        self.answered: dict[str, Gate] = defaultdict(Gate)

    async def serve(self) -> None:
        """On the event loop that runs: what waits for an answer that passes here must not block it."""
        await self._server.start()

    async def stop(self) -> None:
        """End every call under way."""
        await self._server.stop(None)
        await self._channel.close()

    def service(self, details: Any) -> Any:
        """A handler of bytes: on the wire every method is a stream of messages either way."""
        method, name = details.method, details.method.removeprefix(SERVICE)

        async def pass_on(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            asked: asyncio.Queue[bytes | None] = asyncio.Queue()

            async def read() -> None:
                async for request in requests:
                    self.asked[name].meet(request)
                    asked.put_nowait(request)
                asked.put_nowait(None)

            async def gated() -> AsyncIterator[bytes]:
                while (request := await asked.get()) is not None:
                    await self.asked[name].pass_through(request)
                    yield request

            reading = asyncio.ensure_future(read())
            call = self._channel.stream_stream(method)(gated(), timeout=context.time_remaining())
            try:
                async for answer in call:
                    self.answered[name].meet(answer)
                    await self.answered[name].pass_through(answer)
                    if call.done() and await call.code() is not grpc.StatusCode.OK:
                        await context.abort(await call.code(), "it died before the answer was out")
                    yield answer
            except grpc.aio.AioRpcError as exc:
                await context.abort(exc.code(), exc.details())
            finally:
                reading.cancel()
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(pass_on)


def _everything(_message: bytes) -> bool:
    return True


class Gate:
    """Open until it is closed. `held` has what came to it while it was closed, in order, whatever became of
    that since."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self._open = asyncio.Event()
        self._open.set()
        self._holds = _everything

    def close(self, holds: Callable[[bytes], bool] = _everything) -> None:
        """What comes from now on waits; where it is told which messages it `holds`, only these."""
        self._holds = holds
        self._open.clear()

    def release(self) -> None:
        """What waited goes on, and so does what comes."""
        self._open.set()

    def meet(self, message: bytes) -> None:
        """It has come."""
        if self._holds_back(message):
            self.held.append(message)

    async def pass_through(self, message: bytes) -> None:
        """Return when the message may go on."""
        if self._holds_back(message):
            await self._open.wait()

    def _holds_back(self, message: bytes) -> bool:
        return not self._open.is_set() and self._holds(message)
