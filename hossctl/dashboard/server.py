"""The dashboard's HTTP server. It shows one view model.

Every request passes `_answer` first: the name that it was sent to and the site that it comes from are checked
there. Who asks, and whether he may, is in `access`."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from hoss.errors import ConfigError, HossError, InvalidInput, NotFound
from hoss.limits.http_connections import SERVER_OPTIONS, HttpConnections, body_of
from hoss.manifests.guarded import json_value
from hoss.rpc import MOST_TOKEN_BYTES
from hoss.security import rights
from hoss.security.identity import Identity
from hoss.tasks import background
from hoss.telemetry import logger
from hossctl.dashboard import access, broadcaster
from hossctl.dashboard.access import DashboardAccess
from hossctl.dashboard.broadcaster import Broadcaster, Unavailable
from hossctl.dashboard.snapshot import DashboardSnapshot
from hossctl.dashboard.view_model import ViewModel

STATIC = Path(__file__).with_name("static")

# Addresses of pages. All are one document, whose script shows what the address names.
PAGES = (
    "/",
    "/jobs",
    "/pods",
    "/nodes",
    "/workers",
    "/tenants",
    "/timeline",
    "/fragmentation",
    "/policy",
    "/events",
    "/jobs/{namespace}/{name}",
    "/nodes/{name}",
    "/workers/{name}",
)
# Lists, and what each is over gRPC.
LISTS = {
    "jobs": access.LIST_JOBS,
    "pods": access.LOOK,
    "tenants": access.LIST_TENANTS,
    "nodes": access.SHOW_NODE,
}

MAX_VIEWERS = 64
MAX_VIEWERS_OF_ONE = 16  # of one who has logged in, so that nobody takes all of them
MAX_BODY_BYTES = 10_000  # a token has up to 8,192
# Viewers get an event this often. Browsers treat three times as long without one as a lost connection.
KEEPALIVE_SECONDS = 2.0
_CLOSE_SECONDS = 1.0
_RESTART_SECONDS = 5.0

_EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """For Application.on_response_prepare: all responses get them, also errors and streams."""
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)


class Dashboard:
    """`start` once, then `showing`, and `stop` at the end."""

    def __init__(self, authorization: DashboardAccess, tls: ssl.SSLContext | None = None) -> None:
        self._access = authorization
        self._tls = tls
        self._broadcaster = Broadcaster()
        self._view_model: ViewModel | None = None
        self._streams: dict[asyncio.Task[Any], Identity] = {}  # in the order of their start, whose they are
        self._running = contextlib.AsyncExitStack()
        self._connections: HttpConnections | None = None

    @property
    def speaks_tls(self) -> bool:
        return self._tls is not None

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered of viewers."""
        return {
            **self._access.table_sizes(),
            "dashboard_streams": len(self._streams),
            "dashboard_connections": 0 if self._connections is None else len(self._connections),
        }

    async def start(self, address: str) -> int:
        """Listen on "host:port" (port 0: a free one) and return the port. Raises ConfigError if it cannot be
        had."""
        host, _, port = address.rpartition(":")
        where = f"dashboard listen address {address}"
        if not port.isdecimal() or int(port) > 65_535:
            raise ConfigError("is no address; give host:port, as in 127.0.0.1:7180", where=where)
        runner = web.AppRunner(
            self._application(),
            shutdown_timeout=_CLOSE_SECONDS,
            max_field_size=2 * MOST_TOKEN_BYTES,
            **SERVER_OPTIONS,
        )
        await runner.setup()
        self._running.push_async_callback(runner.cleanup)
        assert runner.server is not None  # noqa: S101 - it is set up
        self._connections = HttpConnections(runner.server)
        try:
            bound = await self._running.enter_async_context(
                self._connections.listening(host.strip("[]") or None, int(port), self._tls)
            )
        except OSError as exc:
            await self._running.aclose()
            raise ConfigError(
                "cannot listen there: the port is in use or the host is not this machine's; choose another",
                where=where,
            ) from exc
        self._access.serve_at(bound)
        logger().info(
            "dashboard_serving",
            host=host,
            port=bound,
            tls=self._tls is not None,
            login=self._access.login_needed,
            actions=self._access.actions,
        )
        return bound

    async def stop(self) -> None:
        """End every stream and the server."""
        for stream in self._streams:
            stream.cancel()
        await self._running.aclose()

    @contextlib.asynccontextmanager
    async def showing(self, view_model: ViewModel) -> AsyncIterator[None]:
        """Show this view model during the block."""
        self._view_model = view_model
        self._broadcaster.show(None)
        try:
            async with background(self._run(view_model)):
                yield
        finally:
            self._view_model = None
            self._broadcaster.show(Unavailable("this dashboard ends"))

    async def _run(self, view_model: ViewModel) -> None:
        """Take snapshots, also after errors."""
        while True:
            try:
                await view_model.run(self._broadcaster)
            except Exception as exc:  # noqa: BLE001, PERF203 - shown and logged; the loop is the retry
                logger().error("dashboard_failed", error=str(exc), exc_info=exc)
                self._broadcaster.show(
                    Unavailable(f"the dashboard failed and begins again; its log says more: {exc}")
                )
                await asyncio.sleep(_RESTART_SECONDS)

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._answer])
        app.on_response_prepare.append(add_security_headers)
        for path in PAGES:
            app.router.add_get(path, self._index)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/pods", self._pods)
        app.router.add_get("/api/nodes/{name}", self._node)
        app.router.add_get("/api/lists/{kind}", self._list)
        app.router.add_get("/api/jobs/{namespace}/{name}", self._job)
        app.router.add_get("/api/workers/{name}", self._worker)
        app.router.add_get("/api/history", self._history)
        app.router.add_get("/api/events", self._events)
        app.router.add_get("/api/policies", self._policies)
        app.router.add_get("/api/timeline", self._timeline)
        app.router.add_get("/api/fragmentation", self._fragmentation)
        app.router.add_get("/api/access", self._viewer)
        app.router.add_post("/api/login", self._log_in)
        app.router.add_post("/api/logout", self._log_out)
        app.router.add_post("/api/workers/{name}", self._act_on_worker)
        app.router.add_post("/api/nodes/{name}", self._act_on_node)
        app.router.add_static("/static", STATIC)
        return app

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors as JSON with a sentence: 400 for invalid requests, 404 for unknown names, 503 for other
        errors. A browser that goes to an address of no page gets the document, which says so."""
        assert self._connections is not None  # noqa: S101 - it is of one of these
        try:
            with self._connections.request(request):
                self._access.check_source(request)
                return await handler(request)
        except web.HTTPException as exc:
            if exc.status < 400:
                raise
            if exc.status == web.HTTPNotFound.status_code and _shows_page(request):
                return web.FileResponse(STATIC / "index.html", status=exc.status)
            headers = {
                name: exc.headers[name] for name in ("WWW-Authenticate", "Allow") if name in exc.headers
            }
            return _json({"error": exc.text or exc.reason}, status=exc.status, headers=headers)
        except NotFound as exc:
            return _json({"error": str(exc)}, status=404)
        except InvalidInput as exc:
            return _json({"error": str(exc)}, status=400)
        except HossError as exc:
            return _json({"error": str(exc)}, status=503)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._access.require(request, access.LOOK)
        if self._broadcaster.viewers >= MAX_VIEWERS:
            raise web.HTTPServiceUnavailable(
                text=f"{MAX_VIEWERS} viewers are connected, which is all there may be"
            )
        mine = sum(held == viewer for held in self._streams.values())
        if mine >= MAX_VIEWERS_OF_ONE and self._access.login_needed:
            raise web.HTTPTooManyRequests(text=f"{viewer} has {mine} pages open; close some")
        response = web.StreamResponse(headers=_EVENT_STREAM)
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - aiohttp runs every request in one
        self._streams[task] = viewer
        try:
            with self._broadcaster.viewer(), contextlib.suppress(ConnectionResetError):  # the viewer left
                await self._send_snapshots(request, response, viewer)
        finally:
            self._streams.pop(task, None)
        return response

    async def _send_snapshots(
        self, request: web.Request, response: web.StreamResponse, viewer: Identity
    ) -> None:
        """The first snapshot whole, then the differences to the last one sent, while the viewer may look. A
        page that is open uses its session."""
        seen: DashboardSnapshot | Unavailable | None = None
        sent: DashboardSnapshot | None = None
        while await self._looks_on(request, viewer):
            shown = self._broadcaster.latest
            if isinstance(shown, Unavailable):
                sent = None
                await response.write(_event("away", {"why": shown.reason}))
            elif shown is None or shown is seen:
                await response.write(_event("word", {}))
            else:
                visible = await self._visible(shown, viewer)
                if isinstance(visible, Unavailable):
                    sent = None
                    await response.write(_event("away", {"why": visible.reason}))
                else:
                    await response.write(_event("look", broadcaster.message(visible, sent)))
                    sent = visible
            seen = shown
            await self._broadcaster.other_than(shown, KEEPALIVE_SECONDS)
        await response.write(_event("ended", {}))

    async def _looks_on(self, request: web.Request, viewer: Identity) -> bool:
        try:
            return await self._access.viewer(request) == viewer
        except web.HTTPException:
            return False

    async def _visible(self, shown: DashboardSnapshot, viewer: Identity) -> DashboardSnapshot | Unavailable:
        model = self._view_model
        if not viewer.tenant or model is None:
            return shown
        try:
            return await model.of_tenant(shown, viewer.tenant)
        except HossError as exc:
            return Unavailable(str(exc))

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._access.require(request, access.FIND_POD)
        return _json(await self._open_view_model().pods(request.query.get("name", ""), viewer.tenant))

    async def _node(self, request: web.Request) -> web.StreamResponse:
        await self._access.require(request, access.SHOW_NODE)
        return _json(await self._open_view_model().node(request.match_info["name"]))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if kind not in LISTS:
            raise NotFound(f"there is no list {kind[:100]!r}")
        viewer = await self._access.require(request, LISTS[kind])
        return _json(await self._open_view_model().list_page(kind, request.query, viewer.tenant))

    async def _job(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._access.require(request, access.LIST_JOBS)
        named = request.match_info
        return _json(await self._open_view_model().job(named["namespace"], named["name"], viewer.tenant))

    async def _worker(self, request: web.Request) -> web.StreamResponse:
        await self._access.require(request, access.SHOW_WORKER)
        return _json(await self._open_view_model().worker(request.match_info["name"]))

    async def _history(self, request: web.Request) -> web.StreamResponse:
        await self._access.require(request, access.SHOW_HISTORY)
        return _json(self._open_view_model().history())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        await self._access.require(request, access.SHOW_HISTORY)
        return _json(self._open_view_model().events())

    async def _policies(self, request: web.Request) -> web.StreamResponse:
        await self._access.require(request, access.SHOW_POLICY)
        return _json(self._open_view_model().policies())

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        await self._access.require(request, access.SHOW_TIMELINE)
        try:
            seconds = float(request.query.get("seconds", "60"))
        except ValueError as exc:
            raise InvalidInput("is no number", where="seconds") from exc
        return _json(self._open_view_model().timeline(seconds, request.query.get("worker", "")))

    async def _fragmentation(self, request: web.Request) -> web.StreamResponse:
        await self._access.require(request, access.SHOW_ROOM)
        label, pool, resource = (request.query.get(name, "") for name in ("label", "pool", "resource"))
        return _json(await self._open_view_model().fragmentation(label, pool, resource))

    async def _viewer(self, request: web.Request) -> web.StreamResponse:
        """Who looks and what he may do, with the CSRF token of his session. 401 for a wrong token."""
        viewer = await self._access.viewer(request)
        session = self._access.session(request)
        return _json(
            {
                "login": viewer is None,
                "actions": viewer is not None and not rights.refusal(access.ACT_ON_WORKER, viewer),
                "caller": viewer.name if viewer is not None else "",
                "role": viewer.role.value if viewer is not None else "",
                "tenant": viewer.tenant if viewer is not None else "",
                "csrf": session.csrf if session is not None else "",
            }
        )

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        """Exchange a token, or that of a link, for a session."""
        cookie = await self._access.log_in(request, await _body(request, "token", str))
        response = _json({"loggedIn": True})
        self._access.set_cookie(response, cookie)
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        self._access.require_csrf(request)
        self._access.sessions.end(request.cookies.get(self._access.cookie, ""))
        response = _json({"loggedIn": False})
        self._access.set_cookie(response, "")
        return response

    async def _act_on_worker(self, request: web.Request) -> web.StreamResponse:
        await self._access.require_to_act(request, access.ACT_ON_WORKER)
        state = await _body(request, "state", str)
        return _json(await self._open_view_model().set_worker_state(request.match_info["name"], state))

    async def _act_on_node(self, request: web.Request) -> web.StreamResponse:
        await self._access.require_to_act(request, access.ACT_ON_NODE)
        unschedulable = await _body(request, "unschedulable", bool)
        return _json(await self._open_view_model().cordon_node(request.match_info["name"], unschedulable))

    def _open_view_model(self) -> ViewModel:
        if self._view_model is None:
            shown = self._broadcaster.latest
            raise web.HTTPServiceUnavailable(
                text=shown.reason if isinstance(shown, Unavailable) else "this dashboard is starting"
            )
        return self._view_model


def _shows_page(request: web.Request) -> bool:
    """Whether a browser wants to show what is at this address. Scripts and programs ask for JSON or for
    anything."""
    wanted = "text/html" in request.headers.get("Accept", "")
    return wanted and not request.path.startswith(("/api/", "/static/"))


async def _body(request: web.Request, field: str, kind: type[Any]) -> Any:
    """One field of the request's JSON. Raises InvalidInput."""
    document = json_value(await body_of(request), "body")
    value = document.get(field) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise InvalidInput(f"is missing, or no {kind.__name__}", where=field)
    return value


def _event(name: str, value: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(value))


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    all_headers = {"Cache-Control": "no-store", **(headers or {})}
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json", headers=all_headers
    )
