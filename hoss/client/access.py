"""With which certificate and token a client connects.

HOSS_TLS_DIR and HOSS_TOKEN say it, else the context that has the address (hoss.contexts). So programs need no
setting for the platform of `hoss up`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc.aio

from hoss import rpc
from hoss.contexts import home, load_contexts
from hoss.errors import ConfigError

TLS_DIR_VARIABLE, TOKEN_VARIABLE = "HOSS_TLS_DIR", "HOSS_TOKEN"


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """A certificate's directory (ca.crt, tls.crt, tls.key) and a bearer token. Without a directory: no TLS."""

    tls_dir: Path | None = None
    token: str = field(default="", repr=False)

    def channel(
        self, addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
    ) -> grpc.aio.Channel:
        """For a client's `open_channel`. Raises ConfigError for a directory without usable files, and for a
        token that would travel in plain text."""
        if self.tls_dir is None:
            if self.token:
                raise ConfigError(
                    "a token is sent over TLS alone: give the certificates' directory too",
                    where=TLS_DIR_VARIABLE,
                )
            return rpc.channel(addresses, kind=kind, service=service, retried=retried)
        from hoss.security.identity import CallerKind  # noqa: PLC0415 - for TLS alone
        from hoss.security.transport import TlsFiles, secure_channel  # noqa: PLC0415 - for TLS alone

        files = TlsFiles(self.tls_dir)
        files.check_times(datetime.now(timezone.utc))

        def connect(of: str, target: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
            return secure_channel(files, CallerKind(of), target, options, lambda: self.token)

        return rpc.channel(addresses, kind=kind, service=service, retried=retried, connect=connect)


def found_access(addresses: Sequence[str], environment: Mapping[str, str] = os.environ) -> ClientAccess:
    """What the environment says, else the context that has one of these addresses, else no TLS."""
    token = environment.get(TOKEN_VARIABLE, "")
    if given := environment.get(TLS_DIR_VARIABLE):
        return ClientAccess(Path(given), token)
    for context in load_contexts(home()).contexts.values():
        if context.has(addresses):
            return ClientAccess(Path(context.tls_dir) if context.tls_dir else None, token or context.token)
    return ClientAccess(None, token)


def found_channel(
    addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
) -> grpc.aio.Channel:
    """As hoss.rpc.channel, with what `found_access` finds."""
    return found_access(addresses).channel(addresses, kind=kind, service=service, retried=retried)
