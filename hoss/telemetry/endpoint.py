"""The HTTP endpoint that Prometheus scrapes: GET /metrics.

It runs on the service's own event loop, so that a reading is of one moment. It is so small that a web
framework, which takes a tenth of a second to import in each service, is not worth it.

Invariants: with a door nobody reads metrics whom it does not let in. A connection ends within some seconds,
whatever its client sends or leaves unread, and so many are open at most. Of too many, the oldest without a
request goes first, as in hoss/limits/http_connections.py: so nobody keeps Prometheus out by connections that
count. With TLS a connection counts once its handshake has ended. Until then a stranger may hold a file
descriptor, for as long as a handshake may take."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from hoss.errors import ConfigError
from hoss.telemetry.logs import logger
from hoss.telemetry.metrics import Metrics

# In which a client has to do the handshake, send its request, and take the answer.
_HANDSHAKE_SECONDS, _REQUEST_SECONDS, _ANSWER_SECONDS = 5.0, 5.0, 10.0
# A Prometheus has one.
_MOST_CONNECTIONS = 32
_LOG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class MetricsDoor:
    """TLS, and who may read metrics by it. `refusal` gets a client's certificate (DER) and its Authorization
    header, and says why it may not; "": it may."""

    context: ssl.SSLContext
    refusal: Callable[[bytes, str], Awaitable[str]]


@contextlib.asynccontextmanager
async def metrics_endpoint(
    listen: str, metrics: Metrics, door: MetricsDoor | None = None
) -> AsyncIterator[int]:
    """Serve at "host:port" within the block and yield the port. Port 0 takes a free one. With an empty
    `listen` nothing is served, and 0 is yielded. Without a door whoever reaches the port reads. Raises
    ConfigError for an address that cannot be listened on."""
    if not listen:
        yield 0
        return
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ConfigError(
            f"{listen!r} is no address; give host:port, as in 127.0.0.1:9100", where="metrics_listen"
        )
    # Imported now: at the first scrape it would stall the event loop.
    from hoss.telemetry.exposition import exposition  # noqa: PLC0415

    answers = _Answers(lambda accept: exposition(metrics, accept), door)
    tls = None if door is None else door.context
    patience = None if door is None else _HANDSHAKE_SECONDS
    try:
        server = await asyncio.start_server(
            answers.serve, host.strip("[]"), int(port), ssl=tls, ssl_handshake_timeout=patience
        )
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {listen}: "
            "the port is in use or the host is not this machine's; choose another",
            where="metrics_listen",
        ) from exc
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


class _Answers:
    """`shown`: the metrics and their content type, for an Accept header."""

    def __init__(self, shown: Callable[[str], tuple[bytes, str]], door: MetricsDoor | None) -> None:
        self._shown = shown
        self._door = door
        self._silent: dict[asyncio.StreamWriter, None] = {}  # who has sent no request yet, oldest first
        self._answering = 0
        self._next_line = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with one request. With TLS its handshake has ended, and only now it counts."""
        self._silent[writer] = None
        if len(self._silent) + self._answering > _MOST_CONNECTIONS:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()
        try:
            with contextlib.suppress(
                OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_SECONDS)
                self._silent.pop(writer, None)
                await self._serve_request(head.decode("latin-1"), writer)
        finally:
            self._silent.pop(writer, None)
            # Not closed, which would wait for a client that takes nothing. What it took is sent.
            writer.transport.abort()

    async def _serve_request(self, head: str, writer: asyncio.StreamWriter) -> None:
        self._answering += 1
        try:
            answer = await self._answer(head, writer)
            await asyncio.wait_for(_sent(writer, answer), _ANSWER_SECONDS)
        finally:
            self._answering -= 1

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> bytes:
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        if problem := await self._refusal(_header(lines, "authorization"), writer):
            return _response(method, "403 Forbidden", f"{problem}\n".encode())
        if rest.partition(" ")[0].partition("?")[0] != "/metrics":
            return _response(method, "404 Not Found", b"metrics are at /metrics\n")
        if method not in ("GET", "HEAD"):
            return _response(method, "405 Method Not Allowed", b"metrics are read with GET\n")
        return _response(method, "200 OK", *self._shown(_header(lines, "accept")))

    async def _refusal(self, authorization: str, writer: asyncio.StreamWriter) -> str:
        if self._door is None:
            return ""
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        problem = await self._door.refusal(certificate, authorization)
        now = asyncio.get_running_loop().time()
        if problem and now >= self._next_line:  # so that nobody fills the log
            self._next_line = now + _LOG_SECONDS
            logger().warning("metrics_refused", peer=writer.get_extra_info("peername"), problem=problem)
        return problem


async def _sent(writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Write an answer, and return when the client has it."""
    writer.transport.set_write_buffer_limits(high=0)  # so that `drain` waits for all of it
    writer.write(answer)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def _header(lines: list[str], wanted: str) -> str:
    found = [value for name, _, value in (line.partition(":") for line in lines) if name.lower() == wanted]
    return ",".join(found).strip()


def _response(
    method: str, status: str, content: bytes, content_type: str = "text/plain; charset=utf-8"
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == "HEAD" else content)
