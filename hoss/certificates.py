"""HOSS's own certificates: an authority, and the certificates of servers and clients that it signs.

Keys are ECDSA on P-256; everything is PEM. Times are passed in; nothing here reads a clock or a file."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hoss.errors import InvalidInput

# Certificates are valid from a little earlier, for machines whose clocks are slow.
_BACKDATED = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, each PEM."""

    certificate: bytes
    key: bytes


class DamagedPem(InvalidInput):
    """A certificate or a private key cannot be read. `where`: which of those that were given."""


def new_authority(name: str, *, now: datetime, lifetime: timedelta) -> KeyPair:
    """An authority that signs certificates of servers and clients. `now` has a time zone."""
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


def issue(
    authority: KeyPair,
    hosts: Sequence[str],
    *,
    now: datetime,
    lifetime: timedelta,
    uri: str = "",
    key: bytes = b"",
) -> KeyPair:
    """A server's certificate for these DNS names and IP addresses, signed by the authority.

    `uri`: an identity that it also names. Then it is a client's certificate too, and a client's alone if
    there are no hosts. `key`: keep this key, PEM, instead of making one. It never outlives the authority."""
    signer = _certificate(authority.certificate, where="the authority's certificate")
    signing_key = _loaded(authority.key, where="the authority's key")
    own_key = _loaded(key, where="key") if key else ec.generate_private_key(ec.SECP256R1())
    names = [_alternative(host) for host in hosts]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
    if uri:
        names.append(x509.UniformResourceIdentifier(uri))
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    lifetime = min(lifetime, signer.not_valid_after_utc - now)
    certificate = (
        _builder(_common_name((*hosts, uri)[0]), signer.subject, own_key.public_key(), now, lifetime)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
        )
        .sign(signing_key, hashes.SHA256())
    )
    return _pair(certificate, own_key)


def _loaded(key: bytes, *, where: str) -> ec.EllipticCurvePrivateKey:
    try:
        loaded = serialization.load_pem_private_key(key, password=None)
    except (TypeError, ValueError) as exc:  # TypeError: it is encrypted
        raise DamagedPem("is no PEM key without a password", where=where) from exc
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise DamagedPem("is no key of an elliptic curve, as those of `new_authority` are", where=where)
    return loaded


def _certificate(pem: bytes, *, where: str = "certificate") -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as exc:
        raise DamagedPem("is no PEM certificate", where=where) from exc


def uris(certificate: bytes) -> list[str]:
    """The URIs among the alternative names of the (first) certificate in a PEM text."""
    names = _alternatives(certificate)
    return [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)


def hosts(certificate: bytes) -> list[str]:
    """The DNS names and addresses among the alternative names of the (first) certificate in a PEM text."""
    names = _alternatives(certificate)
    if names is None:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _alternatives(certificate: bytes) -> x509.SubjectAlternativeName | None:
    extensions = _certificate(certificate).extensions
    try:
        return extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """Start and end of the validity of the (first) certificate in a PEM text, in UTC. Raises DamagedPem for
    any other text, as everything here does."""
    loaded = _certificate(certificate)
    return loaded.not_valid_before_utc, loaded.not_valid_after_utc


def serial(certificate: bytes) -> str:
    """The serial number of the (first) certificate in a PEM text, hexadecimal as openssl prints it."""
    digits = f"{_certificate(certificate).serial_number:X}"
    return digits.zfill(len(digits) + len(digits) % 2)


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
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # X.520's limit


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as exc:  # only of what is no ASCII
        problem = f"{host!r} is neither an address nor a DNS name; write other scripts as xn--..."
        raise InvalidInput(problem, where="host") from exc


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(pem), private)
