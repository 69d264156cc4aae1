"""The HTTP endpoint that Prometheus reads: GET /metrics, on the service's own event loop, so that a reading is of one moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from hoss.errors import ConfigError
from hoss.telemetry.metrics import Metrics, exposition

_REQUEST_SECONDS = 5.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@contextlib.asynccontextmanager
async def metrics_endpoint(listen: str, metrics: Metrics) -> AsyncIterator[int]:
    """Serve at "host:port" (port 0: a free one) for the length of the block; yields the port, 0 where `listen` is empty and
    nothing is served. Raises ConfigError where nobody can listen."""
    if not listen:
        yield 0
        return
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ConfigError(f"{listen!r} is no address; give host:port, as in 127.0.0.1:9100", where="metrics_listen")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            ConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            try:
                await _answer(metrics, reader, writer)
            finally:
                writer.close()

    try:
        server = await asyncio.start_server(answer, host.strip("[]"), int(port))
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {listen}: the port is in use or the host is not this machine's; choose another",
            where="metrics_listen",
        ) from exc
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def _answer(metrics: Metrics, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_SECONDS)
    method, _, rest = head.decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if path != "/metrics":
        status, body = "404 Not Found", "metrics are at /metrics\n"
    elif method not in ("GET", "HEAD"):
        status, body = "405 Method Not Allowed", "metrics are read with GET\n"
    else:
        status, body = "200 OK", exposition(metrics.collect())
    content = body.encode()
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT_TYPE}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
    )
    if method != "HEAD":
        writer.write(content)
    await asyncio.wait_for(writer.drain(), _REQUEST_SECONDS)
