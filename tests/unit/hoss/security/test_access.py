"""Who makes a call, by its connection's certificate."""

from datetime import datetime, timedelta, timezone

import pytest

from hoss.errors import AccessDenied
from hoss.host import THIS_HOST
from hoss.security import access, tokens
from hoss.security.access import Authenticator
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.options import CERTIFICATE_ENDS, SecuredHost, door_source, door_tables
from hoss.security.tokens import RevocationList, TokenVerifier

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)
WORKER = Identity(CallerKind.WORKER, "w1")


class Connection:
    """What gRPC says of a call's connection."""

    def __init__(self, certificate: bytes, token: str = "") -> None:
        self._certificate, self._token = certificate, token

    def auth_context(self):
        return {"x509_pem_cert": [self._certificate]}

    def invocation_metadata(self):
        return (("authorization", f"Bearer {self._token}"),) if self._token else ()


async def test_a_certificate_ends_also_on_a_connection_that_stands(tmp_path):
    """A handshake looks at it once."""
    authority = Authority.create(tmp_path, now=NOW)
    issued = authority.issue(WORKER, now=NOW, lifetime=timedelta(days=1))
    clock = [NOW.timestamp()]
    revoked = RevocationList(tmp_path / "revoked")
    verifier = TokenVerifier(tmp_path / "tokens.pem", revoked, unix_clock=lambda: clock[0])
    authenticator = Authenticator(revoked, verifier, unix_clock=lambda: clock[0])
    connection = Connection((issued.directory / "tls.crt").read_bytes())
    assert await authenticator.identify(connection) == WORKER
    clock[0] += 86_399
    assert await authenticator.identify(connection) == WORKER
    clock[0] += 1
    with pytest.raises(AccessDenied, match="expired since it connected; renew it"):
        await authenticator.identify(connection)


async def test_what_a_door_remembers_is_counted_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(access, "_REMEMBERED_CERTIFICATES", 3)
    monkeypatch.setattr(tokens, "_REMEMBERED_TOKENS", 2)
    authority = Authority.create(tmp_path, now=NOW)
    host = SecuredHost(authority.issue(Identity(CallerKind.DISPATCHER), now=THIS_HOST.utc_now()).directory)
    assert door_tables(host) == {
        "door_certificates": 0, "door_tokens": 0, "door_tokens_refused": 0, "door_revoked": 0,
        "door_sources": 0,
    }  # fmt: skip
    asking = host.authenticator
    for number in range(5):
        identity = Identity(CallerKind.CLIENT, f"c{number}")
        issued = authority.issue(identity, now=NOW)
        token = authority.create_token(
            Identity(CallerKind.CLIENT, f"t{number}", Role.VIEW),
            now=THIS_HOST.utc_now(),
            lifetime=timedelta(1),
        )
        connection = Connection((issued.directory / "tls.crt").read_bytes(), token)
        assert (await asking.identify(connection)).name == f"t{number}"
    authority.revoke_token(authority.tokens()[0]["id"], now=THIS_HOST.utc_now())
    assert door_tables(host) == {
        "door_certificates": 3, "door_tokens": 2, "door_tokens_refused": 0, "door_revoked": 1,
        "door_sources": 0,
    }  # fmt: skip
    assert door_tables(THIS_HOST) == {}


def test_until_when_a_services_certificate_is_valid_is_a_metric(tmp_path):
    authority, now = Authority.create(tmp_path, now=THIS_HOST.utc_now()), THIS_HOST.utc_now()
    issued = authority.issue(Identity(CallerKind.DISPATCHER), now=now, lifetime=timedelta(days=3))
    shown = {family.metric: family for family in door_source("dispatcher", SecuredHost(issued.directory))()}
    assert list(shown[CERTIFICATE_ENDS].numbers()) == [((), issued.not_after.timestamp())]
    assert CERTIFICATE_ENDS not in {family.metric for family in door_source("dispatcher", THIS_HOST)()}
