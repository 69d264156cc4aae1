"""Certificates of our own: an authority, and servers that it vouches for.

Keys are ECDSA on P-256, PEM everywhere. Times are passed in; nothing here reads a clock or a file.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hoss.errors import InvalidInput

# Certificates are valid from a little earlier, for the sake of machines whose clocks are behind.
_BACKDATED = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, each PEM. Of an authority: the certificate is what others trust."""

    certificate: bytes
    key: bytes


def new_authority(name: str, *, now: datetime, lifetime: timedelta) -> KeyPair:
    """An authority that signs server certificates and nothing else. `now` has a time zone."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name(name)
    certificate = (
        _builder(subject, subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def issue(authority: KeyPair, hosts: Sequence[str], *, now: datetime, lifetime: timedelta) -> KeyPair:
    """A server's certificate for these DNS names and IP addresses, signed by the authority."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise InvalidInput(
            "is no key of an elliptic curve, as those of `new_authority` are", where="the authority's key"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_common_name(hosts[0]), signer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """From when to when the (first) certificate of a PEM text is valid, in UTC. Raises InvalidInput for what is none."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
    except ValueError as exc:
        raise InvalidInput(f"is no PEM certificate ({exc})", where="certificate") from exc
    return loaded.not_valid_before_utc, loaded.not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # X.520's longest


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(pem), private)
