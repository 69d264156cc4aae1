"""Certificates of our own, by what a TLS client makes of them."""

import contextlib
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from hoss.certificates import KeyPair, issue, new_authority, validity
from hoss.errors import InvalidInput

_NOW = datetime.now(timezone.utc)
_DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return new_authority("test", now=_NOW, lifetime=_DAY)


def _handshake(directory: Path, trusted: KeyPair, serving: KeyPair, host: str) -> None:
    """Raises ssl.SSLError where the client does not believe the server."""
    (directory / "pair.pem").write_bytes(serving.certificate + serving.key)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(directory / "pair.pem")
    client_context = ssl.create_default_context(cadata=trusted.certificate.decode())
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()


@pytest.mark.parametrize("host", ["hoss.example.svc", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_believes_every_name_in_the_certificate(
    authority: KeyPair, tmp_path: Path, host: str
) -> None:
    serving = issue(authority, ["hoss.example.svc", "127.0.0.1"], now=_NOW, lifetime=_DAY)
    _handshake(tmp_path, authority, serving, host)


def test_a_client_refuses_another_name_another_authority_and_what_has_expired(
    authority: KeyPair, tmp_path: Path
) -> None:
    serving = issue(authority, ["hoss.example.svc"], now=_NOW, lifetime=_DAY)
    stranger = new_authority("test", now=_NOW, lifetime=_DAY)
    expired = issue(authority, ["hoss.example.svc"], now=_NOW - 2 * _DAY, lifetime=_DAY)
    for trusted, pair, host in (
        (authority, serving, "other.example.svc"),
        (stranger, serving, "hoss.example.svc"),
        (authority, expired, "hoss.example.svc"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            _handshake(tmp_path, trusted, pair, host)


def test_validity_is_what_was_asked_for_with_some_minutes_for_slow_clocks(authority: KeyPair) -> None:
    begins, ends = validity(authority.certificate)
    assert abs(ends - (_NOW + _DAY)) < timedelta(seconds=1)
    assert timedelta(minutes=1) < _NOW - begins < timedelta(minutes=10)


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no PEM certificate"):
        validity(b"hello")
