"""The connections of an HTTP server that anybody can reach: how many there are, and how long one may take.

aiohttp bounds how large a request may be. It bounds neither how many connections there are nor, in all its
versions, how long a client takes for its request. So whoever reached the dashboard or the binding webhook
could have taken every file descriptor of its process. It also decompresses bodies, which none of HOSS's
callers compress.

Invariants: a connection without a request ends after FIRST_REQUEST_SECONDS, one whose TLS handshake does not
end after HANDSHAKE_SECONDS. Of too many, those without a request go first, the oldest first, then those that
rest. A client whose requests are answered is not cut for one who sends none. Of a body no more is kept than
the server's `client_max_size`. What a refused client goes on to send is thrown away for LINGERING_SECONDS, so
that it can read why, and then its connection ends.

With TLS a connection counts once its handshake has ended: asyncio tells of none before. Until then each
connection holds a file descriptor, for HANDSHAKE_SECONDS at most."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from aiohttp import web

from hoss.tasks import background

HANDSHAKE_SECONDS = 10.0
FIRST_REQUEST_SECONDS = 10.0
BODY_SECONDS = 10.0
LINGERING_SECONDS = 2.0
MOST_CONNECTIONS = 1000
_LOOK_SECONDS = 0.5

# For aiohttp's server, or the runner that makes one.
SERVER_OPTIONS: dict[str, Any] = {
    "access_log": None,
    "auto_decompress": False,
    "lingering_time": LINGERING_SECONDS,
}

_Server = web.Server
_Connection = web.RequestHandler


class HttpConnections:
    """Of one server. `request` is entered for each request, by what answers it."""

    def __init__(self, server: _Server, *, most: int = MOST_CONNECTIONS) -> None:
        self._server = server
        self._most = most
        self._since: dict[_Connection, float] = {}  # of those seen so far
        self._answered: dict[_Connection, float] = {}  # when, for the last time
        self._busy: set[_Connection] = set()
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self.cut = 0

    def __len__(self) -> int:
        return len(self._server.connections)

    @contextlib.asynccontextmanager
    async def listening(
        self, host: str | None, port: int, tls: ssl.SSLContext | None, *, backlog: int = 128
    ) -> AsyncIterator[int]:
        """Listen within the block; yields the port (0: a free one). Raises OSError where it cannot."""
        patience = None if tls is None else HANDSHAKE_SECONDS
        listener = await asyncio.get_running_loop().create_server(
            self._server, host, port, ssl=tls, ssl_handshake_timeout=patience, backlog=backlog
        )
        try:
            async with background(self._watch()):
                yield int(listener.sockets[0].getsockname()[1])
        finally:
            listener.close()

    @contextlib.contextmanager
    def request(self, request: web.BaseRequest) -> Iterator[None]:
        """While it is answered. What a client does not take of the answer does not count."""
        connection = request.protocol
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)
            self._answered[connection] = self._clock()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """End what took too long, and what is too much."""
        now, there = self._clock(), self._server.connections
        self._since = {connection: self._since.get(connection, now) for connection in there}
        self._answered = {
            connection: at for connection, at in self._answered.items() if connection in self._since
        }
        resting = [connection for connection in there if connection not in self._busy]
        # Never answered first, then by when they were answered last.
        resting.sort(key=lambda connection: (self._answered.get(connection, 0.0), self._since[connection]))
        too_many = len(there) - self._most
        for place, connection in enumerate(resting):
            silent = (
                connection not in self._answered and now - self._since[connection] >= FIRST_REQUEST_SECONDS
            )
            if place < too_many or silent:
                self.cut += 1
                if connection.transport is not None:
                    connection.transport.abort()


async def body_of(request: web.BaseRequest) -> bytes:
    """The body of a request. Raises an HTTPException that says why it is not taken."""
    if "Content-Encoding" in request.headers:
        raise web.HTTPUnsupportedMediaType(text="the body is compressed; send it as it is")
    most = request.client_max_size
    if (request.content_length or 0) > most:
        raise _too_long(most)
    try:
        if request.content.is_eof():  # a small one is all there, and a timer costs as much as to read it
            return await request.read()
        return await asyncio.wait_for(request.read(), BODY_SECONDS)
    except web.HTTPRequestEntityTooLarge:
        raise _too_long(most) from None
    except asyncio.TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {BODY_SECONDS:g} s") from None


def _too_long(most: int) -> web.HTTPException:
    # Made where it is raised: it is a whole response, and takes longer to make than a review takes to read.
    return web.HTTPRequestEntityTooLarge(
        most, text=f"the body is longer than {most} bytes, which is the most that is taken"
    )
