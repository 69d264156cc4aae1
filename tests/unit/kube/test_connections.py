"""HTTP as the API server speaks it: whole answers whatever way they come, connections used again, and none
after its end."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import trustme

from hoss.errors import TransportError
from hoss.kube.access import Access
from hoss.kube.api import KubeApi

COUNTED = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nRetry-After: 7\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;what=ever\r\nhel\r\nC\r\nlo\r\n12345678\r\n0\r\nTrailer: t\r\n\r\n"
)
UNTIL_END = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED

PATIENCE_SECONDS = 10.0  # less than TLS waits for the other's goodbye


class Server:
    """Gives request number i answer number i, or the last one. An empty one is none: the connection ends."""

    def __init__(self) -> None:
        self.requests = self.connections = self.under_way = self.most = 0
        self.go = asyncio.Event()
        self.answers: list[bytes] = []
        self.bytewise = self.closes = False
        self.handlers: list[asyncio.Task[None] | None] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.handlers.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                answer = self.answers[min(self.requests, len(self.answers) - 1)]
                self.requests += 1
                self.under_way += 1
                self.most = max(self.most, self.under_way)
                await self.go.wait()
                self.under_way -= 1
                for part in [bytes([b]) for b in answer] if self.bytewise else [answer]:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.closes or not answer:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(*answers: bytes, limit: int = 4) -> AsyncIterator[tuple[Server, KubeApi]]:
    server = Server()
    server.answers = [*answers]
    server.go.set()
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    api = KubeApi(Access(f"http://127.0.0.1:{port}", None), connections=limit)
    try:
        yield server, api
    finally:
        await api.close()
        listening.close()
        server.go.set()
        await asyncio.gather(*filter(None, server.handlers))  # else a connection may outlive the loop


@pytest.mark.parametrize("bytewise", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(
    ("answer", "status", "body", "closes"),
    [
        (COUNTED, 201, b"hello", False),
        (CHUNKED, 200, b"hello\r\n12345678", False),
        (EMPTY, 204, b"", False),
        (CONTINUED, 201, b"hello", False),
        (UNTIL_END, 200, b"hello", True),
    ],
    ids=["counted", "in chunks", "without a body", "after word that it goes on", "until the end"],
)
async def test_an_answer_is_read_whole_and_its_connection_used_again_unless_it_ends(
    answer: bytes, status: int, body: bytes, closes: bool, bytewise: bool
):
    async with serving(answer) as (server, api):
        server.bytewise, server.closes = bytewise, closes
        for _ in range(3):
            found = await api.send("POST", "/x", timeout_seconds=60)
            assert (found.status, found.body) == (status, body)
        assert server.connections == (3 if closes else 1)


async def test_how_long_the_server_wants_to_be_left_alone_is_read():
    async with serving(COUNTED) as (_, api):
        assert (await api.send("POST", "/x", timeout_seconds=60)).retry_after_seconds == 7


@pytest.mark.parametrize(
    "answer",
    [CHUNKED[:-9], COUNTED[:-1], COUNTED[:20], CONTINUED[:25], b""],
    ids=["chunks", "counted", "head", "word that it goes on", "nothing"],
)
async def test_what_is_cut_off_is_no_answer(answer: bytes):
    async with serving(answer) as (server, api):
        server.closes = True
        with pytest.raises(TransportError, match="cannot be reached"):
            await api.send("POST", "/x", timeout_seconds=60)


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"x" * 70_000])
async def test_what_is_no_http_is_said_to_be_none(answer: bytes):
    async with serving(answer) as (_, api):
        with pytest.raises(TransportError, match="cannot be reached"):
            await api.send("POST", "/x", timeout_seconds=60)


async def test_a_late_answer_is_nobody_s_and_the_next_request_has_its_own():
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate", COUNTED) as (server, api):
        server.go.clear()
        with pytest.raises(TransportError, match="no answer in time"):
            await api.send("POST", "/x", timeout_seconds=0.05)
        server.go.set()
        assert (await api.send("POST", "/x", timeout_seconds=60)).body == b"hello"


async def test_no_more_than_the_limit_are_under_way_and_the_rest_wait_or_go_without_harm():
    async with serving(COUNTED, limit=2) as (server, api):
        server.go.clear()
        asked = [asyncio.create_task(api.send("POST", "/x", timeout_seconds=60)) for _ in range(5)]
        with pytest.raises(TransportError, match="no answer in time"):  # it waits for its turn behind them
            await api.send("POST", "/x", timeout_seconds=0.05)
        asked[3].cancel()
        server.go.set()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [getattr(found, "status", 0) for found in done] == [201, 201, 201, 0, 201]
        assert server.most <= 2
        assert (await api.send("POST", "/x", timeout_seconds=60)).status == 201


async def test_what_may_be_repeated_is_sent_again_once_where_an_idle_connection_has_ended():
    async with serving(COUNTED, b"", COUNTED, b"", b"", COUNTED) as (server, api):
        for _ in range(2):
            assert (await api.send("GET", "/x", timeout_seconds=60)).body == b"hello"
        assert (server.requests, server.connections) == (3, 2)
        with pytest.raises(TransportError, match="cannot be reached"):
            await api.send("GET", "/x", timeout_seconds=60)
        assert server.requests == 5
        assert (await api.send("GET", "/x", timeout_seconds=60)).body == b"hello"


async def test_what_may_be_done_once_only_is_never_sent_again():
    async with serving(EMPTY, b"", COUNTED) as (server, api):
        await api.send("POST", "/x", timeout_seconds=60)
        with pytest.raises(TransportError, match="cannot be reached"):
            await api.send("POST", "/x", timeout_seconds=60)
        assert server.requests == 2


async def test_an_answer_that_has_begun_is_not_asked_for_again():
    async with serving(COUNTED, COUNTED[:20], COUNTED) as (server, api):
        await api.send("POST", "/x", timeout_seconds=60)
        server.closes = True
        with pytest.raises(TransportError, match="cannot be reached"):
            await api.send("POST", "/x", timeout_seconds=60)
        assert server.requests == 2


async def test_a_server_that_restarts_is_found_by_the_next_request():
    async with serving(COUNTED) as (server, api):
        server.closes = True  # it says nothing of it, and is gone when the next request comes
        await api.send("POST", "/x", timeout_seconds=60)
        server.closes = False
        for attempt in range(2):
            try:
                assert (await api.send("POST", "/x", timeout_seconds=60)).status == 201
                break
            except TransportError:
                assert attempt == 0
        assert server.connections == 2


class Silent:
    """A server that speaks TLS, reads one request, sends what it has of an answer, and never says goodbye."""

    def __init__(self, begun: bytes) -> None:
        self._begun = begun
        self.left = threading.Event()  # the client has ended the connection
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_SECONDS)
        authority = trustme.CA()
        self._tls, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)
        authority.configure_trust(trusting)
        self.access = Access(f"https://127.0.0.1:{self._listening.getsockname()[1]}", trusting)
        self.asked = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        below = connection.dup()  # where bytes come as they were sent, a client's goodbye among them
        with below, self._tls.wrap_socket(connection, server_side=True) as over_tls:
            over_tls.recv(65536)
            over_tls.sendall(self._begun)
            self.asked.set()
            below.settimeout(PATIENCE_SECONDS)
            try:
                while below.recv(65536):
                    pass
            except ConnectionError:
                pass
            except TimeoutError:
                return
            self.left.set()

    def end(self) -> None:
        self._listening.close()
        self._thread.join()


@pytest.fixture
def silent(request: pytest.FixtureRequest) -> Iterator[Silent]:
    server = Silent(request.param)
    yield server
    server.end()


@pytest.mark.parametrize("silent", [b""], indirect=True, ids=["no answer"])
async def test_a_request_that_is_given_up_keeps_no_connection_open_beyond_its_client(silent: Silent):
    api = KubeApi(silent.access)
    asked = asyncio.create_task(api.send("GET", "/x", timeout_seconds=60))
    await asyncio.to_thread(silent.asked.wait)
    asked.cancel()
    await asyncio.wait([asked])
    await api.close()
    assert await asyncio.to_thread(silent.left.wait, PATIENCE_SECONDS)


@pytest.mark.parametrize("silent", [CHUNKED[:-9]], indirect=True, ids=["a part of one"])
async def test_a_stream_that_is_left_keeps_no_connection_open_beyond_its_client(silent: Silent):
    api = KubeApi(silent.access)
    async with api.stream("/x", {}, silence_seconds=60) as lines:
        assert await anext(lines) == b"hello\r"
    await api.close()
    assert await asyncio.to_thread(silent.left.wait, PATIENCE_SECONDS)
