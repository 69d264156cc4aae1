"""Mutual TLS by the files of one directory, which are followed: a rotation needs no restart.

The directory is laid out as a Secret of Kubernetes or of cert-manager: ca.crt (whom to trust), tls.crt and
tls.key. A server reads changed files at the next handshake; a channel takes them for the next call, and
streams that run stay on the connection that they have.

Invariants: both sides show a certificate of the authority. A client checks that the server is the kind of
service that it wants, by the name KIND.hoss.internal in its certificate, wherever the server runs. Services
speak TLS 1.3 alone (hoss.speak_tls_1_3_alone)."""

import asyncio
import base64
import contextlib
import hashlib
import logging
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from hoss.errors import AccessDenied, ConfigError, HossError
from hoss.security.identity import SCHEME, CallerKind

AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
FILES = (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)

# Channels with earlier certificates that may still have streams. An older one is closed.
_RETIRED_CHANNELS = 2

ChannelOptions = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Material:
    """What a directory held at some time, PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


def server_name(kind: str) -> str:
    """The DNS name that certificates of a kind of service have, wherever it runs."""
    return f"{kind}.hoss.internal"


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of the (first) certificate in a PEM text, in hexadecimal. Raises ValueError for another
    text."""
    return hashlib.sha256(_der(certificate)).hexdigest()


def _der(certificate: bytes) -> bytes:
    _, begins, rest = certificate.partition(b"-----BEGIN CERTIFICATE-----")
    body, ends, _ = rest.partition(b"-----END CERTIFICATE-----")
    if not begins or not ends:
        raise ValueError("no PEM certificate")
    return base64.b64decode(b"".join(body.split()), validate=True)


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """From when until when the (first) certificate in a PEM text is valid.

    Read from its encoding (RFC 5280, 4.1): to import a library for that would take half as long again as a
    client takes to start. Raises ValueError for another text."""
    whole = _contents(_der(certificate))
    fields = _elements(_contents(whole))
    if fields and fields[0][0] == _VERSION_TAG:
        fields = fields[1:]
    times = _elements(fields[3][1])  # after serial number, signature and issuer
    begins, ends = (_time(tag, content.decode("ascii")) for tag, content in times)
    return begins, ends


_VERSION_TAG, _UTC_TIME_TAG, _EXTENSIONS_TAG, _URI_TAG = 0xA0, 0x17, 0xA3, 0x86
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")  # 2.5.29.17


def uris(certificate: bytes) -> list[str]:
    """The URIs among the alternative names of the (first) certificate in a PEM text, read as in `validity`
    (RFC 5280, 4.2.1.6). Raises ValueError for another text."""
    fields = _elements(_contents(_contents(_der(certificate))))
    found: list[str] = []
    for tag, content in fields:
        for _, extension in _elements(_contents(content)) if tag == _EXTENSIONS_TAG else ():
            (_, identifier), *_, (_, value) = _elements(extension)
            if identifier == _ALTERNATIVE_NAMES:
                names = _elements(_contents(value))
                found += [name.decode("ascii") for kind, name in names if kind == _URI_TAG]
    return found


def _contents(element: bytes) -> bytes:
    return _elements(element)[0][1]


def _elements(text: bytes) -> list[tuple[int, bytes]]:
    """The elements of a DER text one after another, each with its tag."""
    found, at = [], 0
    while at < len(text):
        tag, length, start = text[at], text[at + 1], at + 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(text[at + 2 : start], "big")
        found.append((tag, text[start : start + length]))
        at = start + length
    return found


def _time(tag: int, text: str) -> datetime:
    # Two digits of a year are of 1950 to 2049.
    century = ("20" if int(text[:2]) < 50 else "19") if tag == _UTC_TIME_TAG else ""
    return datetime.strptime(f"{century}{text}", "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)


def _log(level: int, event: str, **fields: object) -> None:
    """As services log; in a program that has the client library alone, with Python's own logging."""
    try:
        from hoss.telemetry import logger  # noqa: PLC0415 - clients have no structlog
    except ImportError:
        logging.getLogger(__name__).log(level, "%s %s", event, fields)
    else:
        logger().log(level, event, **fields)


class FollowedFile:
    """One file that is read again when it was replaced. It may be absent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._content = b""

    def read(self) -> bytes:
        """The present content; b"" of a file that is not there. Costs a microsecond if nothing changed.
        Raises ConfigError for a file that cannot be read."""
        try:
            found = self.path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                self._content, self._stamp = self.path.read_bytes(), stamp
        except FileNotFoundError:
            self._content, self._stamp = b"", None
        except OSError as exc:
            raise ConfigError(f"cannot be read: {exc.strerror}", where=str(self.path)) from exc
        return self._content


def _utc_now() -> datetime:
    return datetime.now(tz=timezone.utc)


class TlsFiles:
    """The files of a directory. `latest` is never a mixture of two rotations: it stays what it was until
    certificate and key belong together. While it is valid, it is not replaced by a certificate that is not,
    such as one that a machine with a fast clock has issued."""

    def __init__(
        self, directory: Path, *, kind: CallerKind | None = None, utc_now: Callable[[], datetime] = _utc_now
    ) -> None:
        """`kind`: of the service whose certificate it has to be; None: anybody's. Raises ConfigError, which
        names what is missing or wrong."""
        self.directory = directory
        self._kind = kind
        self._utc_now = utc_now
        self._followed = [FollowedFile(directory / name) for name in FILES]
        self._refused: Material | None = None
        self._put_off: Material | None = None
        self._latest = self._read()
        missing = [name for name, text in zip(FILES, self._texts(self._latest), strict=True) if not text]
        if missing:
            raise ConfigError(
                f"has no {' and no '.join(missing)}; `hoss certs issue` makes a directory with all of them",
                where=f"TLS directory {directory}",
            )
        problem = self._problem(self._latest)
        if problem:
            raise ConfigError(problem, where=f"TLS directory {directory}")

    def check_times(self, now: datetime) -> None:
        """Raises ConfigError for a certificate that is not valid at this time: the handshake would fail, and
        neither side would say why."""
        if problem := _untimely(self._latest, now):
            raise ConfigError(f"its certificate {problem}", where=f"TLS directory {self.directory}")

    def exposed_key(self) -> str:
        """Who may read the key besides its owner, in a sentence; "": nobody who must not. A group may read it
        if root owns the file, as in Secrets that Kubernetes mounts."""
        path = self.directory / KEY_FILE
        found = path.stat()
        if found.st_mode & stat.S_IROTH:
            return (
                f"every user of this machine may read {path}: chmod 600 it, or 440 in a Secret's defaultMode"
            )
        if found.st_mode & stat.S_IRGRP and found.st_uid != 0:
            return f"its group may read {path}: chmod 600 it"
        return ""

    def latest(self) -> Material:
        """What the files hold now, or what they held before they became unusable."""
        try:
            found = self._read()
        except ConfigError as exc:
            _log(logging.WARNING, "certificate_files_unreadable", error=str(exc))
            return self._latest
        if found == self._put_off and self._has_to_wait(found):
            return self._latest
        if found not in (self._latest, self._refused):
            problem = self._problem(found)
            if problem:
                self._refused = found  # reported once
                _log(logging.WARNING, "certificate_not_taken", directory=str(self.directory), problem=problem)
            elif not self._has_to_wait(found):
                self._latest, self._refused = found, None
                _log(
                    logging.INFO,
                    "certificate_taken",
                    directory=str(self.directory),
                    fingerprint=fingerprint(found.certificate),
                )
        return self._latest

    def _has_to_wait(self, found: Material) -> bool:
        """Whether it is not valid now, and the present one is."""
        now = self._utc_now()
        problem = _untimely(found, now)
        if not problem or _untimely(self._latest, now):
            return False
        if found != self._put_off:
            self._put_off = found  # reported once
            problem = f"the new certificate {problem}"
            _log(logging.WARNING, "certificate_not_taken", directory=str(self.directory), problem=problem)
        return True

    def _read(self) -> Material:
        authority, certificate, key = (file.read() for file in self._followed)
        return Material(authority, certificate, key)

    @staticmethod
    def _texts(material: Material) -> tuple[bytes, bytes, bytes]:
        return material.authority, material.certificate, material.key

    def _problem(self, material: Material) -> str:
        """What is wrong with the files; "" if they belong together."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            _der(material.certificate)
            context.load_verify_locations(cadata=material.authority.decode("ascii"))
        except (ValueError, ssl.SSLError):
            return f"{AUTHORITY_FILE} or {CERTIFICATE_FILE} holds no PEM certificate"
        try:
            context.load_cert_chain(self.directory / CERTIFICATE_FILE, self.directory / KEY_FILE)
        except (OSError, ValueError):
            return f"{KEY_FILE} is not the key of {CERTIFICATE_FILE}"
        return self._wrong_kind(material.certificate)

    def _wrong_kind(self, certificate: bytes) -> str:
        """Why the certificate is not one of this kind of service; "" if it is. Clients would not connect, and
        other services would take its bearer for somebody else."""
        if self._kind is None:
            return ""
        named = [uri for uri in uris(certificate) if uri.startswith(SCHEME)]
        if [uri.removeprefix(SCHEME).partition("/")[0].partition("?")[0] for uri in named] == [
            self._kind.value
        ]:
            return ""
        return (
            f"{CERTIFICATE_FILE} is a certificate for {' and '.join(named) or 'nobody of HOSS'}, and"
            " this is a"
            f" {self._kind.value}; give it a directory of `hoss certs issue {self._kind.value}"
            f"{'/NAME' if self._kind is CallerKind.WORKER else ''}`"
        )


def _untimely(material: Material, now: datetime) -> str:
    """Why a certificate is not valid at this time; "" if it is."""
    begins, ends = validity(material.certificate)
    if now >= ends:
        return f"has expired on {ends:%Y-%m-%d %H:%M} UTC; renew it (`hoss certs renew`)"
    if now < begins:
        return (
            f"is not valid yet, but from {begins:%Y-%m-%d %H:%M} UTC on; see that the clock of this machine"
            " is right"
        )
    return ""


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """For a server: every client shows a certificate of the authority, else the handshake fails."""
    offered = files.latest()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal offered
        latest = files.latest()
        if latest is offered:
            return None
        offered = latest
        return _configuration(latest)

    # None is right where nothing has changed, and the stubs do not know that.
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", changed)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(offered), fetch, require_client_authentication=True
    )


def server_context(files: TlsFiles, *, clients_certified: bool) -> ssl.SSLContext:
    """The same for a server that is not gRPC's: TLS 1.3, and changed files are taken at the next handshake.
    `clients_certified`: every client shows a certificate of the authority; browsers have none."""
    offered, context = files.latest(), _context(files, clients_certified)

    def follow(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _first: ssl.SSLContext) -> None:
        nonlocal offered, context
        latest = files.latest()
        if latest is not offered:
            # A rotation that goes on this moment leaves the former context; the next connection tries again.
            with contextlib.suppress(OSError, ValueError):
                offered, context = latest, _context(files, clients_certified)
        connection.context = context

    listening = _context(files, clients_certified)
    listening.sni_callback = follow  # called at each handshake, whether the client says a name or not
    return listening


def _context(files: TlsFiles, clients_certified: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if clients_certified:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.directory / AUTHORITY_FILE)
    context.load_cert_chain(files.directory / CERTIFICATE_FILE, files.directory / KEY_FILE)
    return context


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.authority
    )


def secure_channel(
    files: TlsFiles,
    kind: CallerKind,
    target: str,
    options: ChannelOptions,
    token: Callable[[], str] | None = None,
) -> grpc.aio.Channel:
    """A channel to a service of that kind. `token`: the bearer token of each call; None: calls have none."""
    named = [*options, ("grpc.ssl_target_name_override", server_name(kind.value))]

    def connect(material: Material) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(material.authority, material.key, material.certificate)
        return grpc.aio.secure_channel(target, credentials, options=named)

    return _FollowingChannel(files, connect, _BearerToken(token, f"{kind.value} at {target}"))


class _BearerToken:
    """Adds the token to the metadata of each call.

    By ourselves and not by gRPC's AuthMetadataPlugin: gRPC frees that in a thread of its own, which waits for
    the interpreter's lock while it holds one of its own, and `Channel.close` takes them in the other
    order."""

    def __init__(self, token: Callable[[], str] | None, peer: str) -> None:
        self._token = token
        self._peer = peer

    def add_to(self, named: dict[str, Any]) -> dict[str, Any]:
        """A call's arguments by name, with the token. Raises AccessDenied where there is none to be had."""
        if self._token is None:
            return named
        try:
            token = self._token()
        except HossError as exc:
            raise AccessDenied(f"no token for {self._peer}: {exc}") from exc
        return {**named, "metadata": (*(named.get("metadata") or ()), ("authorization", f"Bearer {token}"))}


class _FollowingChannel(grpc.aio.Channel):
    """A channel that connects anew when the files have changed. Stubs keep what `unary_unary` and the like
    return, so those look up the present channel at each call."""

    def __init__(
        self, files: TlsFiles, connect: Callable[[Material], grpc.aio.Channel], bearer: _BearerToken
    ) -> None:
        self.bearer = bearer
        self._files = files
        self._connect = connect
        self._material = files.latest()
        self._channel = connect(self._material)
        self._retired: list[grpc.aio.Channel] = []
        self._closing: set[asyncio.Future[None]] = set()

    def present(self) -> grpc.aio.Channel:
        """The channel with the latest certificate."""
        latest = self._files.latest()
        if latest is not self._material:
            # Its streams go on. gRPC would cancel them if the channel were collected.
            self._retired.append(self._channel)
            self._material, self._channel = latest, self._connect(latest)
            for oldest in self._retired[:-_RETIRED_CHANNELS]:
                self._retired.remove(oldest)
                self._closing.add(closing := asyncio.ensure_future(oldest.close()))
                closing.add_done_callback(self._closing.discard)
        return self._channel

    async def __aenter__(self) -> "_FollowingChannel":  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        for channel in (self._channel, *self._retired):
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.present().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.present().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.present().channel_ready()

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:
        return _Followed(self, "unary_unary", arguments, named)

    def unary_stream(self, *arguments: Any, **named: Any) -> Any:
        return _Followed(self, "unary_stream", arguments, named)

    def stream_unary(self, *arguments: Any, **named: Any) -> Any:
        return _Followed(self, "stream_unary", arguments, named)

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        return _Followed(self, "stream_stream", arguments, named)


class _Followed:
    """A method of the present channel."""

    def __init__(
        self, channel: _FollowingChannel, form: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self._channel = channel
        self._make: Callable[[grpc.aio.Channel], Any] = lambda present: getattr(present, form)(
            *arguments, **named
        )
        self._of: grpc.aio.Channel | None = None
        self._method: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        present = self._channel.present()
        if present is not self._of:
            self._of, self._method = present, self._make(present)
        return self._method(*arguments, **self._channel.bearer.add_to(named))
