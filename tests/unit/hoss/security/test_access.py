"""Who makes a call, by its connection's certificate."""

from datetime import datetime, timedelta, timezone

import pytest

from hoss.errors import AccessDenied
from hoss.security.access import Authenticator
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity
from hoss.security.tokens import RevocationList, TokenVerifier

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)
WORKER = Identity(CallerKind.WORKER, "w1")


class Connection:
    """What gRPC says of a call's connection."""

    def __init__(self, certificate: bytes, uri: str) -> None:
        self._certificate, self._uri = certificate, uri

    def auth_context(self):
        return {"x509_pem_cert": [self._certificate], "x509_subject_alternative_name": [self._uri.encode()]}

    def invocation_metadata(self):
        return ()


async def test_a_certificate_ends_also_on_a_connection_that_stands(tmp_path):
    """A handshake looks at it once."""
    authority = Authority.create(tmp_path, now=NOW)
    issued = authority.issue(WORKER, now=NOW, lifetime=timedelta(days=1))
    clock = [NOW.timestamp()]
    revoked = RevocationList(tmp_path / "revoked")
    tokens = TokenVerifier(tmp_path / "tokens.pem", revoked, unix_clock=lambda: clock[0])
    authenticator = Authenticator(revoked, tokens, unix_clock=lambda: clock[0])
    connection = Connection((issued.directory / "tls.crt").read_bytes(), WORKER.uri)
    assert await authenticator.identify(connection) == WORKER
    clock[0] += 86_399
    assert await authenticator.identify(connection) == WORKER
    clock[0] += 1
    with pytest.raises(AccessDenied, match="expired since it connected; renew it"):
        await authenticator.identify(connection)
