"""With which certificate and token a client connects.

HOSS_TLS_DIR, HOSS_TOKEN and HOSS_TOKEN_FILE say it, else the context that has the address (hoss.contexts). So
programs need no setting for the platform of `hoss up`. A token may come from a file that is followed, as the
kubelet keeps one of a ServiceAccount in a pod, or from a command that prints one, as kubectl's credential
plugins do."""

import base64
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc.aio

from hoss import rpc
from hoss.contexts import home, load_contexts
from hoss.errors import ConfigError
from hoss.rpc import MOST_TOKEN_BYTES

TLS_DIR_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "HOSS_TLS_DIR", "HOSS_TOKEN", "HOSS_TOKEN_FILE"

# A printed token is used until so long before it expires; one that does not say when, for so long.
_RENEWED_BEFORE_SECONDS = 30.0
_UNKNOWN_LIFETIME_SECONDS = 60.0
_COMMAND_SECONDS = 120.0  # it may ask a person


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """A certificate's directory (ca.crt, tls.crt, tls.key) and a bearer token: itself, or a file with it, or
    a command that prints it, split as a shell does. Without a directory: no TLS."""

    tls_dir: Path | None = None
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    token_command: str = ""

    def channel(
        self, addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
    ) -> grpc.aio.Channel:
        """For a client's `open_channel`. Raises ConfigError for a directory without usable files, and for a
        token that would travel in plain text."""
        if self.tls_dir is None:
            if self.token or self.token_file or self.token_command:
                raise ConfigError(
                    "a token is sent over TLS alone: give the certificates' directory too",
                    where=TLS_DIR_VARIABLE,
                )
            return rpc.channel(addresses, kind=kind, service=service, retried=retried)
        from hoss.security.identity import CallerKind  # noqa: PLC0415 - for TLS alone
        from hoss.security.transport import TlsFiles, secure_channel  # noqa: PLC0415 - for TLS alone

        files = TlsFiles(self.tls_dir)
        files.check_times(datetime.now(timezone.utc))
        token = self._token_source()

        def connect(of: str, target: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
            return secure_channel(files, CallerKind(of), target, options, token)

        return rpc.channel(addresses, kind=kind, service=service, retried=retried, connect=connect)

    def _token_source(self) -> Callable[[], str] | None:
        """The token of each call; None: calls have none."""
        if self.token:
            token = checked_token(self.token.strip(), "token")
            return lambda: token
        if self.token_file is not None:
            return token_of_file(self.token_file)
        return PrintedToken(self.token_command) if self.token_command else None


def token_of_file(path: Path) -> Callable[[], str]:
    """The token in a file, which is followed. Raises ConfigError where there is none."""
    from hoss.security.transport import FollowedFile  # noqa: PLC0415 - for TLS alone

    followed = FollowedFile(path)

    def read() -> str:
        return checked_token(followed.read().decode("utf-8", "replace").strip(), f"token file {path}")

    return read


def checked_token(token: str, where: str) -> str:
    """A text that can travel as a token. Raises ConfigError, which does not show it."""
    if not token:
        raise ConfigError("has no token", where=where)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "is no token: it has spaces or characters that no token has; see that it is the token alone",
            where=where,
        )
    if len(token) > MOST_TOKEN_BYTES:
        raise ConfigError(
            f"is no token: it has {len(token):,} bytes, and no service takes more than {MOST_TOKEN_BYTES:,}",
            where=where,
        )
    return token


class PrintedToken:
    """The token that a command prints: by itself, or in an ExecCredential as kubectl's credential plugins do.
    The command runs again when the token is about to expire, and the call that finds so waits for it."""

    def __init__(self, command: str, unix_clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError for a text that is no command."""
        self._where = f"token command {command!r}"
        try:
            self._command = shlex.split(command)
        except ValueError as exc:
            raise ConfigError(f"is no command: {exc}", where=self._where) from exc
        self._unix_clock = unix_clock
        self._token = ""
        self._renew_at = 0.0

    def __call__(self) -> str:
        """Raises ConfigError where the command prints none. What it writes to stderr its user sees."""
        if not self._token or self._unix_clock() >= self._renew_at:
            self._token = self._printed()
            expires = _expiry(self._token)
            lasts_until = expires - _RENEWED_BEFORE_SECONDS if expires else 0.0
            self._renew_at = lasts_until or self._unix_clock() + _UNKNOWN_LIFETIME_SECONDS
        return self._token

    def _printed(self) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - it is the user's own command
                self._command, stdout=subprocess.PIPE, timeout=_COMMAND_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            reason = getattr(exc, "strerror", None) or f"it took longer than {_COMMAND_SECONDS:g} s"
            raise ConfigError(f"cannot be run: {reason}", where=self._where) from exc
        if done.returncode:
            raise ConfigError(f"ended with exit code {done.returncode}", where=self._where)
        text = done.stdout.decode("utf-8", "replace").strip()
        if text.startswith("{"):
            try:
                text = str(json.loads(text)["status"]["token"])
            except (ValueError, KeyError, TypeError):
                text = ""
        if not text or len(text.split()) > 1:
            raise ConfigError("prints no token, and no ExecCredential with one", where=self._where)
        return checked_token(text, self._where)


def _expiry(token: str) -> float:
    """When a token expires, as it says itself, Unix seconds; 0.0 of one that does not say."""
    try:
        body = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return 0.0


def found_access(addresses: Sequence[str], environment: Mapping[str, str] = os.environ) -> ClientAccess:
    """What the environment says, else the context that has one of these addresses, else no TLS. A token of
    the environment takes the place of the context's, however that is had."""
    token, file = environment.get(TOKEN_VARIABLE, ""), environment.get(TOKEN_FILE_VARIABLE, "")
    given = ClientAccess(None, token, None if token or not file else Path(file))
    if directory := environment.get(TLS_DIR_VARIABLE):
        return replace(given, tls_dir=Path(directory))
    for context in load_contexts(home()).contexts.values():
        if context.has(addresses):
            tls_dir = Path(context.tls_dir) if context.tls_dir else None
            if token or file:
                return replace(given, tls_dir=tls_dir)
            return ClientAccess(tls_dir, context.token, token_command=context.token_command)
    return given


def found_channel(
    addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
) -> grpc.aio.Channel:
    """As hoss.rpc.channel, with what `found_access` finds."""
    return found_access(addresses).channel(addresses, kind=kind, service=service, retried=retried)
