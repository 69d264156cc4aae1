"""The HTTP endpoint that Prometheus scrapes: GET /metrics.

It runs on the service's own event loop, so that a reading is of one moment. It is so small that a web
framework, which takes a tenth of a second to import in each service, is not worth it.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

from hoss.errors import ConfigError
from hoss.telemetry.metrics import Metrics

_REQUEST_SECONDS = 5.0


@contextlib.asynccontextmanager
async def metrics_endpoint(
    listen: str, metrics: Metrics, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve at "host:port" within the block and yield the port. Port 0 takes a free one. With an empty
    `listen` nothing is served, and 0 is yielded. `tls`: over TLS. Raises ConfigError for an address that
    cannot be listened on."""
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

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            ConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_SECONDS)
                writer.write(_response(head.decode("latin-1"), lambda accept: exposition(metrics, accept)))
                await asyncio.wait_for(writer.drain(), _REQUEST_SECONDS)
            finally:
                writer.close()

    try:
        server = await asyncio.start_server(answer, host.strip("[]"), int(port), ssl=tls)
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


def _response(head: str, shown: Callable[[str], tuple[bytes, str]]) -> bytes:
    """`shown`: the metrics and their content type, for an Accept header."""
    request, *headers = head.split("\r\n")
    method, _, rest = request.partition(" ")
    content_type = "text/plain; charset=utf-8"
    if rest.partition(" ")[0].partition("?")[0] != "/metrics":
        status, content = "404 Not Found", b"metrics are at /metrics\n"
    elif method not in ("GET", "HEAD"):
        status, content = "405 Method Not Allowed", b"metrics are read with GET\n"
    else:
        accepted = [
            value for name, _, value in (line.partition(":") for line in headers) if name.lower() == "accept"
        ]
        status, (content, content_type) = "200 OK", shown(",".join(accepted))
    answer = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n"
    return f"{answer}Connection: close\r\n\r\n".encode() + (b"" if method == "HEAD" else content)
