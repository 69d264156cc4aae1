"""Requests to an API server: raw JSON over connections that stay open.

One attempt and its bare status (`send`), for what must not be done twice without looking; or as many as it takes (`ask`), for
what may be repeated.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import orjson

from hoss.client.backoff import Backoff
from hoss.errors import HossError, TransportError
from hoss.kube.access import Access
from hoss.kube.connections import Connections, ProtocolError

# A request that hangs is as good as lost after this; the API server itself gives up after a minute.
REQUEST_SECONDS = 10.0

_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 5.0
_MOST_RETRY_AFTER_SECONDS = 30.0

_BODILESS = ("GET", "HEAD")
_PLAIN = "/:@!$&'()*+,;=%"  # of a path, beside letters and digits

JSON = "application/json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

Object = dict[str, Any]


class Refused(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """The API server has answered, and no is the answer."""

    def __init__(self, reply: "Reply", asked: str) -> None:
        super().__init__(f"the API server refuses {asked}: {reply.status} {reply.reason}: {reply.message}")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came."""

    status: int
    body: bytes
    retry_after_seconds: float = 0.0  # as the server wishes; 0: it does not say

    @property
    def done(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300

    @property
    def passing(self) -> bool:
        """Whether the same request may well be answered otherwise a little later."""
        return self.status == 429 or self.status >= 500

    def json(self) -> Any:
        """The body. Raises TransportError where it is no JSON: then a proxy has answered, or the connection broke."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as exc:
            raise TransportError(f"the API server's answer is no JSON: {self.body[:80]!r}") from exc

    @property
    def reason(self) -> str:
        """Of a refusal: its reason in one word, such as Conflict or AlreadyExists."""
        return str(self._status().get("reason", ""))

    @property
    def message(self) -> str:
        """Of a refusal: a sentence."""
        return str(self._status().get("message", "")) or self.body[:200].decode(errors="replace")

    def _status(self) -> Object:
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}


class KubeApi:
    """One client of one API server. Methods raise TransportError when nobody answers or too late: what was asked may have been
    done."""

    def __init__(self, access: Access, *, connections: int = 64, user_agent: str = "hoss") -> None:
        """`connections`: so many requests are under way at once; the rest wait."""
        self.server = access.server
        self._access = access
        self._user_agent = user_agent
        parts = urlsplit(access.server)
        port = parts.port or (443 if access.tls else 80)
        self._base = parts.path
        self._host = parts.netloc.rpartition("@")[2]
        self._connections = Connections(parts.hostname or "", port, access.tls, limit=connections)
        self._session: aiohttp.ClientSession | None = None  # of streams

    async def close(self) -> None:
        """End every connection."""
        self._connections.close()
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> Reply:
        """One attempt. `path` begins with a slash."""
        message = self._message(method, path, body, params, content_type)
        try:
            answer = await self._connections.request(
                message, repeatable=method in _BODILESS, timeout_seconds=timeout_seconds
            )
        except (ProtocolError, asyncio.TimeoutError, OSError) as exc:
            raise self._unreachable(exc, f"{method} {path}") from exc
        return Reply(answer.status, answer.body, _seconds(answer.headers.get(b"retry-after", b"").decode("latin-1")))

    def _message(
        self, method: str, path: str, body: Object | None, params: Mapping[str, str] | None, content_type: str
    ) -> bytes:
        headers = {"Host": self._host, **self._headers(content_type if body is not None else "")}
        content = b"" if body is None else orjson.dumps(body)
        if content or method not in _BODILESS:
            headers["Content-Length"] = str(len(content))
        target = quote(self._base + path, safe=_PLAIN) + (f"?{urlencode(params)}" if params else "")
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + content

    async def ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_seconds: float = REQUEST_SECONDS,
        patience_seconds: float = float("inf"),
    ) -> Reply:
        """Repeat what may be repeated until there is an answer that stays, or patience ends: then TransportError."""
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, patience_seconds)
        while True:
            wish = 0.0
            try:
                reply = await self.send(
                    method, path, body, params=params, content_type=content_type, timeout_seconds=timeout_seconds
                )
                if not reply.passing:
                    return reply
                problem = f"the API server answers {method} {path} with {reply.status}: {reply.message}"
                wish = reply.retry_after_seconds * random.uniform(1.0, 1.25)
            except TransportError as exc:
                problem = str(exc)
            delay = backoff.failed(time.monotonic())
            if delay is None:
                raise TransportError(problem)
            await asyncio.sleep(max(delay, wish))

    async def get(self, path: str, params: Mapping[str, str] | None = None, **options: Any) -> Any:
        """The object or list at a path; options as `ask`. Raises Refused for any final answer but success."""
        reply = await self.ask("GET", path, params=params, **options)
        if not reply.done:
            raise Refused(reply, f"GET {path}")
        return reply.json()

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on, such as a watch. A server that says nothing for `silence_seconds` has gone.
        Raises Refused where it does not begin, TransportError where it breaks."""
        asked = f"GET {path}"
        try:
            async with self._open().get(
                self.server + path,
                params=params,
                headers=self._headers(""),
                timeout=aiohttp.ClientTimeout(total=None, connect=REQUEST_SECONDS, sock_read=silence_seconds),
            ) as response:
                if response.status != 200:
                    wish = _seconds(response.headers.get("Retry-After", ""))
                    raise Refused(Reply(response.status, await response.read(), wish), asked)
                yield _lines(response)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
            raise self._unreachable(exc, asked) from exc

    def _open(self) -> aiohttp.ClientSession:
        # Made here and not above: a session belongs to the event loop that runs when it is made.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._access.tls or False)
            )
        return self._session

    def _headers(self, content_type: str) -> dict[str, str]:
        # Not compressed: the server would spend more on a list of 50,000 pods than the network does.
        headers = {"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": self._user_agent}
        if content_type:
            headers["Content-Type"] = content_type
        if authorization := self._access.authorization().strip():
            headers["Authorization"] = authorization
        return headers

    def _unreachable(self, error: BaseException, asked: str) -> TransportError:
        told = "no answer in time" if isinstance(error, asyncio.TimeoutError) else str(error) or type(error).__name__
        return TransportError(f"the API server at {self.server} cannot be reached ({asked}): {told}")


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole lines, however long: those of a watch are whole objects. What the end cuts off is no line."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def _seconds(wish: str) -> float:
    """Of a header Retry-After."""
    return min(float(wish), _MOST_RETRY_AFTER_SECONDS) if wish.isdigit() else 0.0
