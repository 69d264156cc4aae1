"""The platform's own authority, in a directory: it issues certificates and tokens, and revokes them.

    ca.crt, ca.key            the authority's certificate and key
    token.key, tokens.pem     the key that signs tokens, and its public half
    revoked                   what is revoked; copied to every directory that was issued
    tokens.jsonl              which tokens were made, without the tokens themselves
    certificates.jsonl        which certificates were issued, wherever they are
    issued/NAME/              a directory for each identity, as services take it (hoss/security/transport.py)

Invariants: keys and everything else here are readable by their user alone. A file is replaced as a whole, by
one command at a time: two at once would lose a revocation, or a certificate that then nobody could revoke.
Each entry of the three lists goes a day after the token or certificate that it is about has expired, when the
list is written next; a user of another issuer stays revoked for ever."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import orjson

from hoss import certificates
from hoss.certificates import KeyPair
from hoss.errors import ConfigError, InvalidInput, NotFound
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.tokens import LOGIN_AUDIENCE, PUBLIC_KEYS_FILE, REVOKED_FILE, Token, id_of_user, sign
from hoss.security.transport import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, fingerprint, server_name

AUTHORITY_LIFETIME = timedelta(days=3650)
CERTIFICATE_LIFETIME = timedelta(days=365)
LOGIN_LIFETIME = timedelta(minutes=10)

# Services refuse what has expired by clocks of their own, which may differ.
_KEPT_AFTER_EXPIRY = timedelta(days=1)

_AUTHORITY_KEY, _TOKEN_KEY, _TOKENS = "ca.key", "token.key", "tokens.jsonl"
_CERTIFICATES = "certificates.jsonl"
_ISSUED = "issued"

_Record = dict[str, str]  # a line of a list
# What each line has. An earlier release wrote no role, tenant and serial of certificates.
_FIELDS = {
    _TOKENS: ("id", "name", "role", "tenant", "created", "expires"),
    _CERTIFICATES: ("identity", "fingerprint", "expires"),
}


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate in a directory of its own."""

    identity: Identity
    directory: Path
    not_before: datetime
    not_after: datetime
    fingerprint: str
    serial: str  # hexadecimal, as openssl prints it
    revoked: bool

    @property
    def record(self) -> _Record:
        """Its line in the list of what was issued."""
        role = self.identity.role.value if self.identity.kind is CallerKind.CLIENT else ""
        return {
            "identity": str(self.identity),
            "role": role,
            "tenant": self.identity.tenant,
            "serial": self.serial,
            "fingerprint": self.fingerprint,
            "expires": self.not_after.isoformat(timespec="seconds"),
        }


class Authority:
    """The authority in a directory."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError where there is none."""
        self.directory = directory
        if not self.exists(directory):
            raise ConfigError("holds no authority; `hoss certs init` makes one", where=str(directory))

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether a directory holds an authority."""
        return all((directory / name).is_file() for name in (AUTHORITY_FILE, _AUTHORITY_KEY))

    @classmethod
    def create(cls, directory: Path, *, now: datetime) -> "Authority":
        """A new authority. Raises InvalidInput where there is one already."""
        if cls.exists(directory):
            raise InvalidInput("holds an authority already; remove it, or use another", where=str(directory))
        pair = certificates.new_authority("hoss", now=now, lifetime=AUTHORITY_LIFETIME)
        signing, public = _new_token_key()
        _private_directory(directory)
        _private_directory(directory / _ISSUED)
        _write(directory / _TOKEN_KEY, signing)
        _write(directory / PUBLIC_KEYS_FILE, public)
        _write(directory / REVOKED_FILE, b"")
        _write(directory / _AUTHORITY_KEY, pair.key)
        _write(directory / AUTHORITY_FILE, pair.certificate)  # last: then it exists
        return cls(directory)

    @classmethod
    def found_or_created(cls, directory: Path, *, now: datetime) -> "Authority":
        """The authority of the directory, which is made if it is not there."""
        return cls(directory) if cls.exists(directory) else cls.create(directory, now=now)

    def issue(
        self,
        identity: Identity,
        *,
        now: datetime,
        lifetime: timedelta = CERTIFICATE_LIFETIME,
        hosts: tuple[str, ...] = (),
        into: Path | None = None,
    ) -> Issued:
        """Write a directory for this identity, with a new key. `hosts`: further DNS names and addresses, for
        clients that are not HOSS's, such as browsers. `into`: elsewhere than among those issued."""
        return self._issue(identity, into or self._directory_of(identity), now, lifetime, hosts, key=b"")

    def current(
        self, identity: Identity, *, now: datetime, hosts: tuple[str, ...] = (), into: Path | None = None
    ) -> Issued:
        """The certificate of an identity among those issued, or in the directory `into`; issued anew if there
        is none, with these `hosts`, and renewed if a third of its lifetime is left."""
        directory = into or self._directory_of(identity)
        if not (directory / CERTIFICATE_FILE).is_file():
            return self.issue(identity, now=now, hosts=hosts, into=into)
        of_this_authority = (self.directory / AUTHORITY_FILE).read_bytes()
        if (directory / AUTHORITY_FILE).read_bytes() != of_this_authority:
            return self.issue(identity, now=now, hosts=hosts, into=into)
        held = self._read(directory)
        if held.identity != identity or held.revoked:
            return self.issue(identity, now=now, hosts=hosts, into=into)
        with self._alone():
            self._copy_lists(directory)
        due = held.not_after - (held.not_after - held.not_before) / 3
        return self.renew(held, now=now) if now >= due else held

    def _directory_of(self, identity: Identity) -> Path:
        return self.directory / _ISSUED / str(identity).replace("/", "-")

    def renew(self, issued: Issued, *, now: datetime, lifetime: timedelta = CERTIFICATE_LIFETIME) -> Issued:
        """Replace a certificate, keeping its names and its key: whoever follows the files never sees one
        without the other. One that was revoked gets another key: somebody else may have that."""
        key = b"" if issued.revoked else (issued.directory / KEY_FILE).read_bytes()
        named = certificates.hosts((issued.directory / CERTIFICATE_FILE).read_bytes())
        further = tuple(host for host in named if host != server_name(issued.identity.kind.value))
        return self._issue(issued.identity, issued.directory, now, lifetime, further, key=key)

    def _issue(
        self,
        identity: Identity,
        directory: Path,
        now: datetime,
        lifetime: timedelta,
        hosts: tuple[str, ...],
        *,
        key: bytes,
    ) -> Issued:
        # A client has no name as a server, but a dashboard serves pages with its certificate.
        named = hosts if identity.kind is CallerKind.CLIENT else (server_name(identity.kind.value), *hosts)
        try:
            pair = certificates.issue(
                self._pair(), named, now=now, lifetime=lifetime, uri=identity.uri, key=key
            )
        except certificates.DamagedPem as exc:
            whose = directory if exc.where == "key" else self.directory
            raise ConfigError(f"{exc}; restore the files there", where=str(whose)) from exc
        with self._alone():
            _private_directory(directory)
            _write(directory / AUTHORITY_FILE, (self.directory / AUTHORITY_FILE).read_bytes())
            self._copy_lists(directory)
            # On the list first: what is in nobody's list, nobody can revoke.
            made = self._issued(pair.certificate, directory)
            self._add_record(_CERTIFICATES, made.record, now)
            _write(directory / KEY_FILE, pair.key)
            _write(directory / CERTIFICATE_FILE, pair.certificate)
        return made

    def _copy_lists(self, directory: Path) -> None:
        """Bring the keys of tokens and the list of what is revoked up to date in a directory."""
        for name in (PUBLIC_KEYS_FILE, REVOKED_FILE):
            content, path = (self.directory / name).read_bytes(), directory / name
            if not path.exists() or path.read_bytes() != content:
                _write(path, content)

    def issued(self) -> Iterator[Issued]:
        """The certificates that were issued here and not into other directories, by name."""
        for certificate in sorted((self.directory / _ISSUED).glob(f"*/{CERTIFICATE_FILE}")):
            yield self._read(certificate.parent)

    def known(self, *, now: datetime) -> list[_Record]:
        """All certificates that were issued and have not expired, and those among its own files: identity,
        role, tenant, serial, fingerprint, expires, revoked ("yes", "no"), and directory; "": it was written
        elsewhere, or another has replaced it. Role, tenant and serial are "" where an earlier release issued
        it. By identity, what lasts longest first."""
        revoked = self._revoked_entries()
        here = {held.fingerprint: held for held in self.issued()}
        listed = {
            record["fingerprint"]: record
            for record in self._records(_CERTIFICATES)
            if now < datetime.fromisoformat(record["expires"])
        }
        found = [
            {
                "role": "",
                "tenant": "",
                "serial": "",
                **record,
                "revoked": "yes" if f"certificate {print_}" in revoked else "no",
                "directory": str(here[print_].directory) if print_ in here else "",
            }
            for print_, record in (listed | {print_: held.record for print_, held in here.items()}).items()
        ]
        found.sort(key=lambda record: datetime.fromisoformat(record["expires"]), reverse=True)
        return sorted(found, key=lambda record: record["identity"])

    def named(self, name: str) -> Issued:
        """The certificate of an identity, as "worker/w1". Raises NotFound."""
        for issued in self.issued():
            if str(issued.identity) == name:
                return issued
        if any(record["identity"] == name for record in self._records(_CERTIFICATES)):
            raise NotFound(
                f"the certificate for {name!r} was written elsewhere, and its key is there alone; "
                "`hoss certs issue` with --out writes another there"
            )
        raise NotFound(f"no certificate was issued here for {name!r}; `hoss certs show` lists them")

    def revoke_identity(self, name: str, *, now: datetime) -> int:
        """Services refuse all certificates of an identity, as "client/ana", from the next call on: also those
        that were written elsewhere, and those that were renewed since. Returns how many. Raises NotFound."""
        known = self._records(_CERTIFICATES)
        found = {record["fingerprint"]: record["expires"] for record in known if record["identity"] == name}
        # An earlier release kept no list.
        here = [issued for issued in self.issued() if str(issued.identity) == name]
        found |= {issued.fingerprint: issued.not_after.isoformat(timespec="seconds") for issued in here}
        lasting = {print_: until for print_, until in found.items() if _lasts(until, now)}
        if not lasting:
            raise NotFound(f"no certificate was issued here for {name!r}; `hoss certs show` lists them")
        for print_, until in lasting.items():
            self._revoke(f"certificate {print_}", datetime.fromisoformat(until), now, name)
        return len(lasting)

    def revoke_certificate(self, issued: Issued, *, now: datetime) -> None:
        """Services refuse this one certificate from the next call on."""
        self._revoke(f"certificate {issued.fingerprint}", issued.not_after, now, str(issued.identity))

    def create_token(self, identity: Identity, *, now: datetime, lifetime: timedelta) -> str:
        """A token, which is written down nowhere; its id, bearer and expiry are."""
        if identity.role is Role.NONE:
            raise InvalidInput("none would be of no use; give view, submit, operate or admin", where="role")
        token = Token(secrets.token_hex(8), identity, now.timestamp(), (now + lifetime).timestamp())
        text = sign(self._token_key(), token)
        record = {
            "id": token.id,
            "name": identity.name,
            "role": identity.role.value,
            "tenant": identity.tenant,
            "created": now.isoformat(timespec="seconds"),
            "expires": (now + lifetime).isoformat(timespec="seconds"),
        }
        with self._alone():
            self._add_record(_TOKENS, record, now)
        return text

    def create_login(self, identity: Identity, *, now: datetime) -> str:
        """A token for a link that logs in to the dashboard once, within LOGIN_LIFETIME. It is not listed."""
        expires = (now + LOGIN_LIFETIME).timestamp()
        token = Token(secrets.token_hex(8), identity, now.timestamp(), expires)
        return sign(self._token_key(), token, audience=LOGIN_AUDIENCE)

    def tokens(self) -> list[dict[str, str]]:
        """The tokens that were made: id, name, role, tenant, created, expires, and whether revoked."""
        revoked = self._revoked_entries()
        return [
            {**record, "revoked": "yes" if f"token {record['id']}" in revoked else "no"}
            for record in self._records(_TOKENS)
        ]

    def revoke_token(self, token_id: str, *, now: datetime) -> None:
        """Services refuse the token from the next call on. An id with a colon is the name of a user of
        another issuer, all of whose tokens are refused. Raises NotFound."""
        expiries = {record["id"]: record["expires"] for record in self._records(_TOKENS)}
        if ":" not in token_id and token_id not in expiries:
            raise NotFound(f"no token has the id {token_id!r}; `hoss token list` lists them")
        until = datetime.fromisoformat(expiries[token_id]) if token_id in expiries else None
        self._revoke(f"token {id_of_user(token_id)}", until, now)

    def rotate_token_key(self, *, at_once: bool = False) -> None:
        """Sign tokens by a new key from now on. Tokens of the key before stay good until they expire, unless
        it ends `at_once`; those of older keys end."""
        signing, public = _new_token_key()
        with self._alone():
            before = _public_key(self.directory / _TOKEN_KEY)
            keys = public if at_once else before + public
            # Known before the first token is signed by it.
            for directory in (self.directory, *(self.directory / _ISSUED).glob("*/")):
                _write(directory / PUBLIC_KEYS_FILE, keys)
            _write(self.directory / _TOKEN_KEY, signing)

    def _revoke(self, entry: str, until: datetime | None, now: datetime, whose: str = "") -> None:
        """`until`: when what is revoked expires; None: never. `whose` is for people who read the list."""
        with self._alone():
            known = (self.directory / REVOKED_FILE).read_text("utf-8").splitlines()
            again = entry.split()
            kept = [line for line in known if _lasts(_end_of(line), now) and line.split()[:2] != again]
            end = "" if until is None else f"until {until.isoformat(timespec='seconds')}"
            fresh = " ".join(filter(None, (entry, end, whose)))
            lines = "".join(f"{line}\n" for line in (*kept, fresh)).encode()
            _write(self.directory / REVOKED_FILE, lines)
            for directory in (self.directory / _ISSUED).glob("*/"):
                _write(directory / REVOKED_FILE, lines)

    def _revoked_entries(self) -> frozenset[str]:
        lines = (self.directory / REVOKED_FILE).read_text("utf-8").splitlines()
        return frozenset(" ".join(line.split()[:2]) for line in lines)

    def _records(self, name: str) -> list[_Record]:
        """Raises ConfigError for a line that is no record, which only another hand can have written."""
        path = self.directory / name
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [
            _record(line, _FIELDS[name], where=f"{path}, line {number}")
            for number, line in enumerate(lines, 1)
        ]

    def _add_record(self, name: str, record: _Record, now: datetime) -> None:
        kept = [known for known in self._records(name) if _lasts(known["expires"], now)]
        _write(self.directory / name, b"".join(orjson.dumps(line) + b"\n" for line in (*kept, record)))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other command changes files of this authority. Its key is never replaced."""
        path = self.directory / _AUTHORITY_KEY
        try:
            lock: BinaryIO = path.open("rb+")  # NFS locks exclusively only what is open for writing
        except OSError:
            lock = path.open("rb")  # its user may only read it, which is enough elsewhere
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _token_key(self) -> bytes:
        _public_key(self.directory / _TOKEN_KEY)  # which refuses a file that holds none
        return (self.directory / _TOKEN_KEY).read_bytes()

    def _pair(self) -> KeyPair:
        certificate, key = (self.directory / name for name in (AUTHORITY_FILE, _AUTHORITY_KEY))
        return KeyPair(certificate.read_bytes(), key.read_bytes())

    def _read(self, directory: Path) -> Issued:
        return self._issued((directory / CERTIFICATE_FILE).read_bytes(), directory)

    def _issued(self, certificate: bytes, directory: Path) -> Issued:
        """Raises ConfigError for what is no certificate of HOSS."""
        try:
            not_before, not_after = certificates.validity(certificate)
            identity = Identity.from_uri("".join(certificates.uris(certificate)[:1]))
        except InvalidInput as exc:
            problem = "is no certificate of HOSS; restore the file, or remove its directory and issue another"
            raise ConfigError(problem, where=str(directory / CERTIFICATE_FILE)) from exc
        print_ = fingerprint(certificate)
        revoked = f"certificate {print_}" in self._revoked_entries()
        serial = certificates.serial(certificate)
        return Issued(identity, directory, not_before, not_after, print_, serial, revoked)


def _record(line: bytes, fields: tuple[str, ...], *, where: str) -> _Record:
    """A line of a list. Raises ConfigError."""
    with contextlib.suppress(ValueError):
        found = orjson.loads(line)
        whole = isinstance(found, dict) and all(isinstance(found.get(field), str) for field in fields)
        if whole and datetime.fromisoformat(found["expires"]).tzinfo is not None:
            return dict(found)
    problem = "is no record of this authority; restore the file, or take out the line, and what it named"
    raise ConfigError(f"{problem} cannot be revoked by name any more", where=where)


def _end_of(line: str) -> str:
    """Of an entry of what is revoked, `certificate FINGERPRINT until TIME IDENTITY`: the time; "": it has
    none."""
    words = line.split()
    return words[3] if words[2:3] == ["until"] and len(words) > 3 else ""


def _lasts(expires: str, now: datetime) -> bool:
    """Whether something has to be remembered that expires then; "": for ever, as in lists of an earlier
    release."""
    return not expires or now < datetime.fromisoformat(expires) + _KEPT_AFTER_EXPIRY


def _new_token_key() -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - for a new authority alone
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)


def _public_key(path: Path) -> bytes:
    """The public half of the key in a file, PEM. Raises ConfigError for a file without one."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as exc:
        raise ConfigError("holds no key, so tokens cannot be signed", where=str(path)) from exc
    pem = serialization.Encoding.PEM
    return key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)


def _private_directory(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, readable by its user alone."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    fresh.replace(path)
