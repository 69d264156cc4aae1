"""The dashboard's HTTP server. It lives as long as the process; what it shows comes and goes with the dispatcher's terms."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from dispatcher.dashboard import deltas
from dispatcher.dashboard.access import Guard, add_security_headers
from dispatcher.dashboard.board import Away, Board
from dispatcher.dashboard.desk import Desk
from dispatcher.dashboard.picture import Look
from hoss import rpc
from hoss.errors import ConfigError, HossError, InvalidInput, NotFound
from hoss.telemetry import logger

STATIC = Path(__file__).with_name("static")

MAX_VIEWERS = 64
MAX_BODY_BYTES = 4096
# A viewer hears something this often; browsers take three times as long without a word for a lost connection.
WORD_SECONDS = 2.0
_CLOSE_SECONDS = 1.0
_AGAIN_SECONDS = 5.0

_EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


class Dashboard:
    """`start` once, `showing` through every term, `close` while another dispatcher is active, `stop` at the end."""

    def __init__(self, token: str = "") -> None:
        self._guard = Guard(token)
        self._board = Board()
        self._desk: Desk | None = None
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None

    async def start(self, address: str) -> int:
        """Listen on "host:port" (port 0: a free one) and return the port. Raises ConfigError if it cannot be had."""
        host, _, port = address.rpartition(":")
        where = f"dashboard listen address {address}"
        if not port.isdecimal() or int(port) > 65_535:
            raise ConfigError("is no address; give host:port, as in 127.0.0.1:7180", where=where)
        self._runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=_CLOSE_SECONDS)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]") or None, int(port)).start()
        except OSError as exc:
            await self._runner.cleanup()
            raise ConfigError(
                "cannot listen there: the port is in use or the host is not this machine's; choose another", where=where
            ) from exc
        bound = int(self._runner.addresses[0][1])
        logger().info("dashboard_serving", host=host, port=bound, actions=self._guard.actions)
        return bound

    async def stop(self) -> None:
        """End every stream and the server."""
        for stream in self._streams:
            stream.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    @contextlib.asynccontextmanager
    async def showing(self, desk: Desk) -> AsyncIterator[None]:
        """For the length of the block, a term, this is what there is to show."""
        self._desk = desk
        self._board.show(None)
        try:
            async with rpc.background(self._run(desk)):
                yield
        finally:
            self.close("this dispatcher has ended its term")

    async def _run(self, desk: Desk) -> None:
        """Take looks, whatever happens: scheduling never ends because of its dashboard."""
        while True:
            try:
                await desk.run(self._board)
            except Exception as exc:  # noqa: BLE001, PERF203 - told to viewers and the log; the loop is the retry
                logger().error("dashboard_failed", error=str(exc), exc_info=exc)
                self._board.show(Away(f"the dashboard failed and begins again; the dispatcher's log says more: {exc}"))
                await asyncio.sleep(_AGAIN_SECONDS)

    def close(self, why: str, *, active: str = "") -> None:
        """There is nothing to show; `active` is the address of the dispatcher that has it."""
        self._desk = None
        self._board.show(Away(why, active))

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_answer_errors])
        app.on_response_prepare.append(add_security_headers)
        app.router.add_get("/", self._index)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/pods", self._pods)
        app.router.add_get("/api/nodes/{name}", self._node)
        app.router.add_get("/api/access", self._access)
        app.router.add_post("/api/workers/{name}", self._act_on_worker)
        app.router.add_post("/api/nodes/{name}", self._act_on_node)
        app.router.add_static("/static", STATIC)
        return app

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._board.viewers >= MAX_VIEWERS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_VIEWERS} viewers are connected, which is all there may be")
        response = web.StreamResponse(headers=_EVENT_STREAM)
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - aiohttp runs every request in one
        self._streams.add(task)
        try:
            with self._board.viewer(), contextlib.suppress(ConnectionResetError):  # the viewer went
                await self._tell(response)
        finally:
            self._streams.discard(task)
        return response

    async def _tell(self, response: web.StreamResponse) -> None:
        """Looks as they come, the first whole; a viewer that missed some is told the difference to what it has."""
        told: Look | None = None
        while True:
            shown = self._board.shown
            if isinstance(shown, Away):
                told = None
                await response.write(_event("away", {"why": shown.why, "active": shown.active}))
            elif shown is None or shown is told:
                await response.write(_event("word", {}))
            else:
                await response.write(_event("look", deltas.message(shown, told)))
                told = shown
            await self._board.other_than(shown, WORD_SECONDS)

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        return _json(self._open_desk().pods(request.query.get("name", "")))

    async def _node(self, request: web.Request) -> web.StreamResponse:
        return _json(self._open_desk().node(request.match_info["name"]))

    async def _access(self, request: web.Request) -> web.StreamResponse:
        """Whether the token that is shown is ours; 401 and 403 as for actions."""
        self._guard.require(request)
        return _json({"actions": True})

    async def _act_on_worker(self, request: web.Request) -> web.StreamResponse:
        self._guard.require(request)
        wanted = await _body(request, "state", str)
        return _json(self._open_desk().set_worker_state(request.match_info["name"], wanted))

    async def _act_on_node(self, request: web.Request) -> web.StreamResponse:
        self._guard.require(request)
        wanted = await _body(request, "unschedulable", bool)
        return _json(await self._open_desk().cordon_node(request.match_info["name"], wanted))

    def _open_desk(self) -> Desk:
        if self._desk is None:
            shown = self._board.shown
            raise web.HTTPServiceUnavailable(
                text=shown.why if isinstance(shown, Away) else "this dispatcher is starting"
            )
        return self._desk


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors as JSON with a sentence; what was asked wrong is 400, what is not there 404, what nobody can answer now 503."""
    try:
        return await handler(request)
    except web.HTTPException as exc:
        if exc.status < 400:
            raise
        headers = {name: exc.headers[name] for name in ("WWW-Authenticate", "Allow") if name in exc.headers}
        return _json({"error": exc.text or exc.reason}, status=exc.status, headers=headers)
    except NotFound as exc:
        return _json({"error": str(exc)}, status=404)
    except InvalidInput as exc:
        return _json({"error": str(exc)}, status=400)
    except HossError as exc:
        return _json({"error": str(exc)}, status=503)


async def _body(request: web.Request, field: str, kind: type[Any]) -> Any:
    """One field of the request's JSON. Raises InvalidInput."""
    try:
        document = orjson.loads(await request.read())
    except orjson.JSONDecodeError as exc:
        raise InvalidInput(f"is no JSON: {exc}", where="body") from exc
    value = document.get(field) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise InvalidInput(f"is missing, or no {kind.__name__}", where=field)
    return value


def _event(name: str, value: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(value))


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    told = {"Cache-Control": "no-store", **(headers or {})}
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json", headers=told)
