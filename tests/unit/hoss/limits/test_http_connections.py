"""Connections of an HTTP server, over real sockets."""

import asyncio
import contextlib
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from waiting import DEADLINE_SECONDS, until

from hoss.limits import http_connections
from hoss.limits.http_connections import SERVER_OPTIONS, HttpConnections, body_of

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Socket = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A server that answers "ok", or what it was sent."""

    def __init__(self, most: int) -> None:
        self.server = web.Server(self._answer, **{**SERVER_OPTIONS, "lingering_time": 0.1})
        self.connections = HttpConnections(self.server, most=most)
        self.port = 0
        self._sockets: list[Socket] = []

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        with self.connections.request(request):
            return web.Response(body=(await body_of(request)) or b"ok")

    async def connect(self, text: bytes = b"") -> Socket:
        """A client that sends this; its connection is known to the server."""
        before = len(self.connections)
        made = await asyncio.open_connection("127.0.0.1", self.port)
        self._sockets.append(made)
        made[1].write(text)
        await until(lambda: len(self.connections) > before, "the connection")
        if text == ASK:
            assert b"200 OK" in await made[0].readuntil(b"ok")
        self.connections.look()
        return made

    async def close(self) -> None:
        for _, writer in self._sockets:
            writer.close()
        await self.server.shutdown()


@contextlib.asynccontextmanager
async def serving(most: int = 100) -> AsyncIterator[Served]:
    served = Served(most)
    async with served.connections.listening("127.0.0.1", 0, None) as served.port:
        yield served
        await served.close()


async def cut(client: Socket) -> bool:
    try:
        return await asyncio.wait_for(client[0].read(), DEADLINE_SECONDS) == b""
    except ConnectionError:
        return True


async def test_who_sends_no_request_is_cut_and_who_was_answered_is_not(monkeypatch) -> None:
    monkeypatch.setattr(http_connections, "FIRST_REQUEST_SECONDS", 0.0)
    async with serving() as served:
        good = await served.connect(ASK)
        for text in (b"", b"GET / HTTP/1.1\r\nx: "):
            assert await cut(await served.connect(text))
        good[1].write(ASK)
        assert b"200 OK" in await good[0].readuntil(b"ok")
        assert served.connections.cut == 2


async def test_of_too_many_those_go_first_that_asked_nothing_then_those_that_rest_longest() -> None:
    async with serving(most=2) as served:
        first, second = await served.connect(ASK), await served.connect(ASK)
        assert await cut(await served.connect())
        assert len(served.connections) <= 2 or served.connections.look() is None
        third = await served.connect(ASK)
        assert await cut(first)
        for kept in (second, third):
            kept[1].write(ASK)
            assert b"200 OK" in await kept[0].readuntil(b"ok")


async def test_a_body_that_does_not_come_ends_with_a_sentence(monkeypatch) -> None:
    monkeypatch.setattr(http_connections, "BODY_SECONDS", 0.05)
    async with serving() as served:
        client = await served.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert b"408 Request Timeout" in await client[0].readuntil(b"the body did not come within 0.05 s")


async def test_a_body_that_does_not_end_is_refused_in_a_sentence_and_cut_and_little_of_it_is_kept() -> None:
    chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    async with serving() as served:
        reader, writer = await served.connect(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        tracemalloc.start()
        try:
            said = asyncio.ensure_future(reader.readuntil(b"which is the most that is taken"))
            with contextlib.suppress(ConnectionError):  # the client goes on until it is cut
                while True:
                    writer.write(chunk)
                    await writer.drain()
            assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
        finally:
            tracemalloc.stop()
        assert b"413 Request Entity Too Large" in await said
        assert b"the body is longer than 1048576 bytes" in await said
        await until(lambda: len(served.connections) == 0, "the end of the connection")


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_sent() -> None:
    async with serving() as served:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10485760\r\n\r\n"
        reader, _ = await served.connect(head)
        said = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)  # to the end of the connection
        assert b"the body is longer than 1048576 bytes" in said


async def test_a_compressed_body_is_not_unpacked() -> None:
    async with serving() as served:
        bomb = zlib.compress(b"x" * 2**20)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: deflate\r\nContent-Length: %d\r\n\r\n"
        reader, _ = await served.connect(head % len(bomb) + bomb)
        assert b"415 Unsupported" in await reader.readuntil(b"the body is compressed; send it as it is")


async def test_an_address_in_use_is_an_error() -> None:
    async with serving() as served:
        with pytest.raises(OSError, match="in use"):
            async with served.connections.listening("127.0.0.1", served.port, None):
                pass
