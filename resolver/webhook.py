"""The guard's web server: AdmissionReviews over HTTPS.

A question that is answered, yes or no, is answered with 200. One that cannot be (the ledger or the API server is away) gets 503, and one
that is no question 400: to both the API server applies the webhook's failurePolicy.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web

from hoss.errors import ConfigError, InvalidInput, LedgerUnavailable, TransportError
from hoss.telemetry import logger
from resolver.binding_guard import BindingGuard
from resolver.core.binding_review import answer_document, read_review

PATH = "/bindings"

_SHUTDOWN_SECONDS = 1.0

# The API server keeps its connections for as long as they are of use to it.
_IDLE_SECONDS = 300.0
# It keeps 25 of them at most: of a burst of bindings each further one comes on a connection of its own.
_BACKLOG = 1024


@asynccontextmanager
async def serving(guard: BindingGuard, listen: str, tls: ssl.SSLContext) -> AsyncIterator[int]:
    """Serve within the block, at host:port (0: a free one); gives the port. Raises ConfigError where it cannot listen."""

    async def handle(request: web.BaseRequest) -> web.Response:
        # An application's router would take as long as a tenth of the judgement.
        if request.path == PATH and request.method == "POST":
            return await _answer(guard, request)
        if request.path == "/healthz":
            return web.Response(text="ok")
        return web.Response(status=404, text=f"POST an AdmissionReview to {PATH}\n")

    server = web.Server(handle, access_log=None, keepalive_timeout=_IDLE_SECONDS)
    runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    host, _, port = listen.rpartition(":")
    site = web.TCPSite(runner, host.strip("[]"), int(port), ssl_context=tls, backlog=_BACKLOG)
    try:
        try:
            await site.start()
        except OSError as exc:
            raise ConfigError(
                f"cannot listen there ({exc.strerror or exc}); choose another", where=f"webhook address {listen}"
            ) from exc
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _answer(guard: BindingGuard, request: web.BaseRequest) -> web.Response:
    try:
        review = read_review(_document(await request.read()))
        answer = await guard.judge(review)
    except InvalidInput as exc:
        return _problem(400, str(exc))
    except (LedgerUnavailable, TransportError, asyncio.TimeoutError) as exc:
        return _problem(503, str(exc) or "no answer in time")
    if not answer.allowed:
        logger().info(
            "binding_denied",
            verdict=answer.verdict,
            namespace=review.namespace,
            pod=review.pod,
            node=review.node,
            message=answer.message,
        )
    body = orjson.dumps(answer_document(review, answer))
    return web.Response(body=body, content_type="application/json")


def _document(body: bytes) -> "dict[str, object]":
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput(f"is no JSON ({exc})", where="body") from exc
    if not isinstance(document, dict):
        raise InvalidInput("is no object", where="body")
    return document


def _problem(status: int, text: str) -> web.Response:
    logger().warning("binding_not_judged", status=status, problem=text)
    return web.Response(status=status, text=f"{text}\n")
