"""Connections of an HTTP server, over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from waiting import DEADLINE_SECONDS, until

from hoss import http_connections
from hoss.http_connections import HttpConnections, body_of

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Socket = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A server that answers "ok", or what it was sent."""

    def __init__(self, most: int) -> None:
        self.server = web.Server(self._answer)
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


async def test_an_address_in_use_is_an_error() -> None:
    async with serving() as served:
        with pytest.raises(OSError, match="in use"):
            async with served.connections.listening("127.0.0.1", served.port, None):
                pass
