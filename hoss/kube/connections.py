"""A pool of HTTP/1.1 connections that stay open: as much of a client as requests to an API server need, because a binding is one of them.

A general client spends 0.1 to 0.15 ms of CPU on a request, as much as all the rest that HOSS does for a pod; this one a fifth of it.
Answers are read by llhttp, in the httptools package.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from ssl import SSLContext
from typing import TypeVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

# A connection that was idle for longer is not used again: the API server ends them after 90 s, maybe just as we write.
_IDLE_SECONDS = 60.0

ResultT = TypeVar("ResultT")


class ProtocolError(Exception):
    """What came is no answer in HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request. Names of headers are lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Connections:
    """Up to `limit` requests are under way at once, each on a connection of its own; who comes later waits, in order."""

    def __init__(self, host: str, port: int, tls: SSLContext | None, *, limit: int) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._limit = limit
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: list[_Connection] = []  # the one that was used last comes first, so those too many grow old

    def close(self) -> None:
        """End the idle connections; those in use end with their requests' tasks."""
        while self._idle:
            self._idle.pop().abort()

    async def request(self, message: bytes, *, repeatable: bool, timeout_seconds: float) -> Answer:
        """Send a whole request and wait for the whole answer. `repeatable`: it may be heard twice, and is sent again where an idle
        connection turns out to have ended. Raises asyncio.TimeoutError, OSError or ProtocolError; then it may have been heard all
        the same."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await self._begin(deadline)
        try:
            idle = self._take_idle()
            if idle is None:
                return await self._exchange(await self._connect(deadline), message, deadline)
            try:
                return await self._exchange(idle, message, deadline)
            except ConnectionError:
                # Maybe the server ended it just as we wrote. Whether it has read the request nobody knows.
                if idle.heard or not repeatable:
                    raise
            return await self._exchange(await self._connect(deadline), message, deadline)
        finally:
            self._end()

    async def _exchange(self, connection: "_Connection", message: bytes, deadline: float) -> Answer:
        answer = await connection.exchange(message, deadline)
        if connection.reusable:
            self._idle.append(connection)
        return answer

    async def _begin(self, deadline: float) -> None:
        if self._under_way < self._limit:
            self._under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await _by(deadline, turn)
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._end()  # it was our turn, and we have gone
            raise

    def _end(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # who was under way is replaced
                return
        self._under_way -= 1

    def _take_idle(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.monotonic() - connection.used < _IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self, deadline: float) -> "_Connection":
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        _, connection = await asyncio.wait_for(opening, max(0.0, deadline - loop.time()))
        return connection


class _Connection(asyncio.Protocol):
    """One exchange after the other. It is also what httptools tells of an answer's parts (the methods `on_...`)."""

    def __init__(self) -> None:
        self.reusable = True
        self.heard = False  # anything of the answer to the last request
        self.used = time.monotonic()
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._waiting: asyncio.Future[Answer] | None = None
        self._stays = False  # after the answer, as its head says
        self._status = 0  # 0: its head is not complete
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    async def exchange(self, message: bytes, deadline: float) -> Answer:
        """Raises as `Connections.request`."""
        self._waiting = asyncio.get_running_loop().create_future()
        self.reusable = self.heard = False  # until all of the answer is here
        self._status = 0
        cast("asyncio.Transport", self._transport).write(message)
        try:
            return await _by(deadline, self._waiting)
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiting = None
            self.used = time.monotonic()

    def abort(self) -> None:
        """End it now."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    @property
    def _asked(self) -> bool:
        return self._waiting is not None and not self._waiting.done()

    def _answer(self) -> None:
        cast("asyncio.Future[Answer]", self._waiting).set_result(
            Answer(self._status, self._headers, b"".join(self._body))
        )

    # -- what the event loop calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self.abort()  # nobody has asked
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as exc:
            self.reusable = False
            if self._asked:
                cast("asyncio.Future[Answer]", self._waiting).set_exception(ProtocolError(f"no HTTP: {exc}"))
        if not self._asked and not self.reusable:
            self.abort()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if not self._asked:
            return
        counted = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if self._status and not counted:  # the end of the connection is the end of the body
            self._answer()
        else:
            lost = exc or ConnectionResetError("the server has ended the connection")
            cast("asyncio.Future[Answer]", self._waiting).set_exception(lost)

    # -- what the parser calls ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.reusable = False  # where an answer was complete, this is more than was asked for
        self._status, self._headers, self._body = 0, {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._stays = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._status < 200:
            self._status = 0  # the answer itself is still to come
        elif self._asked:
            self.reusable = self._stays
            self._answer()


async def _by(deadline: float, future: "asyncio.Future[ResultT]") -> ResultT:
    """The future's result. Raises asyncio.TimeoutError after the deadline, by the event loop's clock."""
    timer = asyncio.get_running_loop().call_at(deadline, _late, future)
    try:
        return await future
    finally:
        timer.cancel()


def _late(future: "asyncio.Future[ResultT]") -> None:
    if not future.done():
        future.set_exception(asyncio.TimeoutError())
