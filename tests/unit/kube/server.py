"""A real HTTP server on loopback whose answers a test writes down, in the order in which they are given."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from hoss.kube.access import Access
from hoss.kube.api import KubeApi

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def answering(*handlers: Handler, token: str = "") -> AsyncIterator[KubeApi]:
    """A client of a server that hands request number i to handler i, and all further ones to the last."""
    served = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal served
        handler = handlers[min(served, len(handlers) - 1)]
        served += 1
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]

    async def authorization() -> str:
        return token

    api = KubeApi(Access(f"http://127.0.0.1:{port}", None, authorization))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


def saying(status: int, body: object = None, **headers: str) -> Handler:
    """A handler that always answers this."""

    async def handler(_request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body if body is not None else {}, status=status, headers=named)

    return handler
