"""The webhook's HTTPS server, and the certificate that it serves by.

A review that is answered, allowed or denied, gets 200. One that cannot be answered (the ledger or the API
server is away) gets 503, and an invalid one 400: to both the API server applies the webhook's failurePolicy.
A new certificate is used from the next connection on, without a restart."""

import asyncio
import contextlib
import os
import random
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import orjson
from aiohttp import web

from hoss.certificates import KeyPair, validity
from hoss.errors import ConfigError, HossError, InvalidInput, LedgerUnavailable, TransportError
from hoss.kube.api import JSON
from hoss.limits.http_connections import SERVER_OPTIONS, HttpConnections, body_of
from hoss.manifests.guarded import json_value
from hoss.security.transport import FollowedFile
from hoss.telemetry import logger
from resolver.core.kubernetes.binding_review import answer_document, read_review
from resolver.kubernetes.webhook.binding_webhook import BindingWebhook
from resolver.kubernetes.webhook.callers import PATH, WebhookCallers

CERTIFICATE_FILES = ("tls.crt", "tls.key")  # as in mounted Secrets
PATH_FILE = "path"  # beside them: the secret of the path, if there is one

_RETRY_SECONDS = 1.0


class CertificateSource(Protocol):
    """A source of certificates."""

    async def refresh(self) -> None:
        """Use the newest certificate. Raises HossError if that fails."""


async def wait_for_certificate(source: CertificateSource) -> None:
    """Return once there is a certificate. Raises errors that waiting does not cure."""
    while problem := await _unreachable(source):
        logger().warning("waiting_for_certificate", error=problem)
        await asyncio.sleep(_RETRY_SECONDS)


async def _unreachable(source: CertificateSource) -> str:
    try:
        await source.refresh()
    except TransportError as exc:
        return str(exc)
    return ""


async def refresh_periodically(
    source: CertificateSource, *, period_seconds: float, rng: random.Random
) -> None:
    """Refresh until cancelled. While that fails, the last certificate stays in use. Looks are seconds apart,
    so what is wrong is logged when it changes."""
    told = ""
    while True:
        # Random periods, so that one of several resolvers renews and the others find the result.
        await asyncio.sleep(period_seconds * rng.uniform(0.8, 1.2))
        problem = ""
        try:
            await source.refresh()
        except HossError as exc:
            problem = str(exc)
            if problem != told:
                logger().error("certificate_not_renewed", error=problem)
        told = problem


class LiveCertificate:
    """`context` serves by the pair that `use` got last."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Go's client, which the API server is, resumes no session. Two tickets take a tenth of a handshake.
        self.context.num_tickets = 0
        self._used: KeyPair | None = None

    def trust(self, authority: Path) -> None:
        """Ask callers for a certificate of this authority, PEM. Who has none gets through, to be told so.
        Raises ConfigError."""
        try:
            self.context.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(
                f"cannot be used: {exc}", where=f"webhook.client_authority {authority}"
            ) from exc
        self.context.verify_mode = ssl.CERT_OPTIONAL

    def use(self, pair: KeyPair) -> bool:
        """Returns whether the pair is a new one. Raises InvalidInput for a pair that does not belong
        together."""
        if pair == self._used:
            return False
        until = validity(pair.certificate)[1]
        # Check first: a failure must not leave the serving context half loaded.
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
        _load(self.context, pair)
        self._used = pair
        logger().info("webhook_certificate", valid_until=until.isoformat())
        return True


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    # OpenSSL reads files only. This one is private, and deleted at once.
    with tempfile.TemporaryDirectory(prefix="hoss-tls-") as directory:
        path = Path(directory) / "pair.pem"
        path.touch(mode=0o600)
        path.write_bytes(pair.certificate.rstrip() + b"\n" + pair.key)
        try:
            context.load_cert_chain(path)
        except (ssl.SSLError, OSError) as exc:
            raise InvalidInput(
                f"certificate and key cannot be used together ({exc})", where="webhook certificate"
            ) from exc


class CertificateFiles:
    """tls.crt and tls.key in a directory, as kubelets mount Secrets (for example cert-manager's) and renew
    them; and the secret of the path, if there is one."""

    def __init__(
        self,
        directory: Path,
        live: LiveCertificate,
        callers: WebhookCallers,
        *,
        clock: Callable[[], datetime],
    ) -> None:
        """`clock`: UTC."""
        self._clock = clock
        self._callers = callers
        self._path_secret = FollowedFile(directory / PATH_FILE)
        self._paths = [directory / name for name in CERTIFICATE_FILES]
        self._live = live
        self._seen: list[tuple[int, int]] = []
        self._until = datetime.max.replace(tzinfo=timezone.utc)
        self._ended: datetime | None = None  # the end that was told

    async def refresh(self) -> None:
        """Use new files. Raises InvalidInput for invalid or missing files. An expired certificate is reported
        once and stays in use: the API server rejects it, but everything else goes on."""
        self._use_new_files()
        self._callers.use_secret(self._path_secret.read().decode("utf-8", "replace").strip())
        if self._until <= self._clock() and self._until != self._ended:
            self._ended = self._until
            logger().error(
                "webhook_certificate_ended", until=self._until.isoformat(), file=str(self._paths[0])
            )

    def _use_new_files(self) -> None:
        try:
            seen = [(status.st_mtime_ns, status.st_ino) for status in map(os.stat, self._paths)]
            if seen == self._seen:
                return
            certificate, key = (path.read_bytes() for path in self._paths)
        except OSError as exc:
            raise InvalidInput(f"cannot be read: {exc.strerror or exc}", where=str(exc.filename)) from exc
        try:
            self._live.use(KeyPair(certificate, key))
        except InvalidInput as exc:
            raise exc.at(str(self._paths[0].parent)) from exc
        self._until = validity(certificate)[1]
        self._seen = seen


_SHUTDOWN_SECONDS = 1.0

# The API server keeps a connection as long as it is useful.
_IDLE_SECONDS = 300.0
# It keeps 25 connections at most: in a burst of bindings every further request has a connection of its own.
_BACKLOG = 1024


@asynccontextmanager
async def serve_webhook(
    webhook: BindingWebhook, listen: str, tls: ssl.SSLContext, callers: WebhookCallers
) -> AsyncIterator[int]:
    """Serve within the block, at host:port (0: a free one); yields the port. Raises ConfigError if it cannot
    listen."""

    async def handle(request: web.BaseRequest) -> web.Response:
        with connections.request(request):
            response = await answer(request)
        if response.status != 200:
            response.force_close()  # the API server is not refused; nobody else keeps a connection
        return response

    async def answer(request: web.BaseRequest) -> web.Response:
        # A router of aiohttp.web.Application would take a tenth of the time of a review.
        if request.path.startswith(PATH) and request.method == "POST":
            return callers.refusal(request) or _response(
                *await answer_review(webhook, await body_of(request))
            )
        if request.path == "/healthz":
            return web.Response(text="ok")
        return web.Response(status=404, text=f"POST an AdmissionReview to {PATH}\n")

    server = web.Server(handle, keepalive_timeout=_IDLE_SECONDS, **SERVER_OPTIONS)
    connections = HttpConnections(server)
    host, _, port = listen.rpartition(":")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.shutdown, _SHUTDOWN_SECONDS)
        try:
            bound = await stack.enter_async_context(
                connections.listening(host.strip("[]"), int(port), tls, backlog=_BACKLOG)
            )
        except OSError as exc:
            raise ConfigError(
                f"cannot listen there ({exc.strerror or exc}); choose another",
                where=f"webhook address {listen}",
            ) from exc
        yield bound


async def answer_review(webhook: BindingWebhook, body: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to an AdmissionReview."""
    try:
        review = read_review(_document(body))
        answer = await webhook.review(review)
    except InvalidInput as exc:
        return _problem(400, str(exc))
    except (LedgerUnavailable, TransportError, asyncio.TimeoutError) as exc:
        return _problem(503, str(exc) or "no answer in time")
    return 200, orjson.dumps(answer_document(review, answer))


def _response(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type=JSON if status == 200 else "text/plain")


def _document(body: bytes) -> "dict[str, object]":
    document = json_value(body, "body")
    if not isinstance(document, dict):
        raise InvalidInput("is no object", where="body")
    return document


def _problem(status: int, text: str) -> tuple[int, bytes]:
    logger().warning("binding_not_judged", status=status, problem=text)
    return status, f"{text}\n".encode()
