"""The TLS side of the webhook's server: new certificates count from the next connection on, without a restart."""

import asyncio
import os
import random
import ssl
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from hoss.certificates import KeyPair, validity
from hoss.errors import HossError, InvalidInput, TransportError
from hoss.telemetry import logger

CERTIFICATE_FILES = ("tls.crt", "tls.key")  # as Secrets of certificates are mounted

_RETRY_SECONDS = 1.0


class CertificateSource(Protocol):
    """Where certificates come from."""

    async def look(self) -> None:
        """Take up what is new. Raises HossError when that cannot be done."""


async def look_until_there(source: CertificateSource) -> None:
    """Return once there is a certificate. Raises what no waiting mends."""
    while problem := await _unreachable(source):
        logger().warning("waiting_for_certificate", error=problem)
        await asyncio.sleep(_RETRY_SECONDS)


async def _unreachable(source: CertificateSource) -> str:
    try:
        await source.look()
    except TransportError as exc:
        return str(exc)
    return ""


async def look_for_ever(source: CertificateSource, *, period_seconds: float) -> None:
    """Look again and again, until cancelled; while it fails, the last certificate serves on."""
    while True:
        # By chance apart, so that of several resolvers one renews and the others find it renewed.
        await asyncio.sleep(period_seconds * random.uniform(0.8, 1.2))
        try:
            await source.look()
        except HossError as exc:
            logger().error("certificate_not_renewed", error=str(exc))


class LiveCertificate:
    """`context` serves by what `use` was given last."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._used: KeyPair | None = None

    def use(self, pair: KeyPair) -> bool:
        """Whether it is another one than before. Raises InvalidInput for a pair that does not belong together."""
        if pair == self._used:
            return False
        until = validity(pair.certificate)[1]
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)  # what fails half way must not be the one that serves
        _load(self.context, pair)
        self._used = pair
        logger().info("webhook_certificate", valid_until=until.isoformat())
        return True


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    # OpenSSL reads files only; this one is ours alone, and gone again at once.
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
    """tls.crt and tls.key in a directory, as kubelets mount Secrets (of cert-manager, say) and renew them."""

    def __init__(self, directory: Path, live: LiveCertificate, *, clock: Callable[[], datetime]) -> None:
        """`clock` tells UTC."""
        self._clock = clock
        self._paths = [directory / name for name in CERTIFICATE_FILES]
        self._live = live
        self._seen: list[tuple[int, int]] = []
        self._until = datetime.max.replace(tzinfo=timezone.utc)

    async def look(self) -> None:
        """Take up what is there, if it is new. Raises InvalidInput, also where there is nothing. One that has ended is told at every
        look, and served by: the API server believes it no more, but all else that we do goes on."""
        self._take_up()
        if self._until <= self._clock():
            logger().error("webhook_certificate_ended", until=self._until.isoformat(), file=str(self._paths[0]))

    def _take_up(self) -> None:
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
