"""Requests to an API server: JSON over connections that stay open.

`send` makes one attempt and returns the bare status, for requests that must not be repeated without a look at
what became of them. `ask` repeats a request until it has a final answer. aiohttp repeats a GET, PUT or DELETE
once, by itself, where the server closed an idle connection (RFC 9110, 9.2.2); it never repeats a POST or
PATCH."""

import asyncio
import random
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from hoss.client.backoff import Backoff
from hoss.errors import HossError, TransportError
from hoss.host import THIS_HOST
from hoss.kube.access import Access
from hoss.kube.paths import nobodys_name

# A request without an answer counts as lost after this time. The API server gives up after a minute.
REQUEST_SECONDS = 10.0
# An API server ends a request after a minute. A binding that has not taken effect by then never does.
BINDING_REQUEST_SECONDS = 90.0

_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 5.0
_MOST_RETRY_AFTER_SECONDS = 30.0

_NOT_FOUND = 404

_PLAIN = "/:@!$&'()*+,;=%"  # of a path, beside letters and digits

JSON = "application/json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MERGE_PATCH = "application/merge-patch+json"  # also for custom resources

Object = dict[str, Any]


class Refused(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """The API server has refused the request."""

    def __init__(self, reply: "Reply", request: str) -> None:
        super().__init__(f"the API server refuses {request}: {reply.status} {reply.reason}: {reply.message}")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of any status."""

    status: int
    body: bytes
    retry_after_seconds: float = 0.0  # the header Retry-After; 0: absent

    @property
    def done(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status == 429 or self.status >= 500

    def json(self) -> Any:
        """The body. Raises TransportError where it is not JSON, as from a proxy or a broken connection."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as exc:
            raise TransportError(f"the API server's answer is no JSON: {self.body[:80]!r}") from exc

    @property
    def reason(self) -> str:
        """The reason of a refusal in one word, such as Conflict or AlreadyExists."""
        return str(self._status().get("reason", ""))

    @property
    def message(self) -> str:
        """The message of a refusal."""
        return str(self._status().get("message", "")) or self.body[:200].decode(errors="replace")

    def _status(self) -> Object:
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}


class KubeApi:
    """One client of one API server. Methods raise TransportError where no answer comes in time: the server
    may have done what was asked."""

    def __init__(
        self,
        access: Access,
        *,
        connections: int = 64,
        user_agent: str = "hoss",
        clock: Callable[[], float] = THIS_HOST.monotonic,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        """`connections`: the most requests under way at once; further requests wait. Streams do not count."""
        self.server = access.server
        self._access = access
        self._user_agent = user_agent
        self._clock = clock
        self._rng = rng
        self._connections = connections
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End every connection."""
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()

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
        """One attempt. `path` begins with a slash; names are in it as hoss.kube.paths puts them there."""
        if (name := nobodys_name(path)) is not None:
            return _no_such_object(name)
        if self._requests is None:
            self._requests = self._session(self._connections)
        try:
            headers = await self._headers(content_type if body is not None else "")
            async with self._requests.request(
                method,
                self._url(path),
                params=params,
                data=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
                allow_redirects=False,
                proxy=self._access.proxy,
                server_hostname=self._access.tls_server_name,
            ) as response:
                content = await response.read()
                return Reply(response.status, content, _seconds(response.headers.get("Retry-After", "")))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
            raise self._unreachable(exc, f"{method} {path}") from exc

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
        """Repeat a request until its answer is final. Raises TransportError after `patience_seconds`."""
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, patience_seconds, rng=self._rng)
        while True:
            server_wait_seconds = 0.0
            try:
                reply = await self.send(
                    method,
                    path,
                    body,
                    params=params,
                    content_type=content_type,
                    timeout_seconds=timeout_seconds,
                )
                if not reply.passing:
                    return reply
                problem = f"the API server answers {method} {path} with {reply.status}: {reply.message}"
                server_wait_seconds = reply.retry_after_seconds * self._rng.uniform(1.0, 1.25)
            except TransportError as exc:
                problem = str(exc)
            delay = backoff.failed(self._clock())
            if delay is None:
                raise TransportError(problem)
            await asyncio.sleep(max(delay, server_wait_seconds))

    async def get(self, path: str, params: Mapping[str, str] | None = None, **options: Any) -> Any:
        """The object or list at a path. Options as for `ask`. Raises Refused where the request fails."""
        reply = await self.ask("GET", path, params=params, **options)
        if not reply.done:
            raise Refused(reply, f"GET {path}")
        return reply.json()

    async def find(self, path: str, params: Mapping[str, str] | None = None, **options: Any) -> Object | None:
        """As `get`; None: there is nothing at the path."""
        try:
            found: Object = await self.get(path, params, **options)
        except Refused as refused:
            if refused.reply.status == _NOT_FOUND:
                return None
            raise
        return found

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an endless answer, such as a watch. A server that is silent for `silence_seconds`
        counts as gone. Raises Refused where the stream does not start, TransportError where it breaks."""
        request = f"GET {path}"
        if (name := nobodys_name(path)) is not None:
            raise Refused(_no_such_object(name), request)
        if self._streams is None:
            self._streams = self._session(0)
        try:
            headers = await self._headers("")
            async with self._streams.get(
                self._url(path),
                params=params,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, connect=REQUEST_SECONDS, sock_read=silence_seconds),
                proxy=self._access.proxy,
                server_hostname=self._access.tls_server_name,
            ) as response:
                if response.status != 200:
                    wait_seconds = _seconds(response.headers.get("Retry-After", ""))
                    raise Refused(Reply(response.status, await response.read(), wait_seconds), request)
                yield _lines(response)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
            raise self._unreachable(exc, request) from exc

    def _session(self, limit: int) -> aiohttp.ClientSession:
        """A session of at most `limit` connections (0: no limit), for the running event loop."""
        connector = tls_connector(limit, self._access.tls)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    def _url(self, path: str) -> URL:
        return URL(self.server + quote(path, safe=_PLAIN), encoded=True)

    async def _headers(self, content_type: str) -> dict[str, str]:
        # Uncompressed: to compress a list of 50,000 pods costs the server more than the network costs.
        headers = {"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": self._user_agent}
        if content_type:
            headers["Content-Type"] = content_type
        if authorization := (await self._access.authorization()).strip():
            headers["Authorization"] = authorization
        return headers

    def _unreachable(self, error: BaseException, request: str) -> TransportError:
        problem = (
            "no answer in time"
            if isinstance(error, asyncio.TimeoutError)
            else str(error) or type(error).__name__
        )
        return TransportError(f"the API server at {self.server} cannot be reached ({request}): {problem}")


def tls_connector(limit: int, tls: ssl.SSLContext | None) -> aiohttp.TCPConnector:
    """At most `limit` connections (0: no limit) for a session of the running event loop, which end with it.
    `tls`: None, the server's certificate is not looked at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Pythons that end TLS better themselves
        # Else a connection that is left amid an answer stays open, also after the session, until the server
        # has said goodbye too.
        return aiohttp.TCPConnector(limit=limit, ssl=tls or False, enable_cleanup_closed=True)


def _no_such_object(name: str) -> Reply:
    text = f"no object can have the name {name[:100]!r}, so it was not asked for"
    return Reply(_NOT_FOUND, orjson.dumps({"kind": "Status", "reason": "NotFound", "message": text}))


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Complete lines of any length. A line that the end of the stream cuts off is dropped."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def _seconds(header: str) -> float:
    """The value of a header Retry-After."""
    return min(float(header), _MOST_RETRY_AFTER_SECONDS) if header.isdigit() else 0.0
