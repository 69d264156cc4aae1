"""The authority's files: who can read them, what they say, and how they are replaced."""

import os
import shutil
import stat
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography import x509

from hoss import certificates
from hoss.certificates import KeyPair
from hoss.errors import ConfigError, InvalidInput, NotFound
from hoss.security.authority import CERTIFICATE_LIFETIME, Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.options import SecurityConfig, host_of, of_loopback
from hoss.security.tokens import REVOKED_FILE, RevocationList
from hoss.security.transport import FILES, TlsFiles, fingerprint, uris

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
WORKER = Identity(CallerKind.WORKER, "w1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", now=NOW)


def test_its_user_alone_can_read_what_it_writes(authority) -> None:
    authority.issue(WORKER, now=NOW)
    authority.create_token(Identity(CallerKind.CLIENT, "a", Role.VIEW), now=NOW, lifetime=timedelta(days=1))
    written = [authority.directory, *authority.directory.rglob("*")]
    assert len(written) > 10
    assert [path for path in written if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_a_certificate_is_for_its_identity_and_as_long_as_asked(authority) -> None:
    identity = Identity(CallerKind.CLIENT, "ci", Role.SUBMIT, "research")
    issued = authority.issue(identity, now=NOW, lifetime=timedelta(days=7))
    assert (issued.identity, issued.not_after) == (identity, NOW + timedelta(days=7))
    assert [held.identity for held in authority.issued()] == [identity]
    assert authority.named("client/ci") == issued
    with pytest.raises(NotFound):
        authority.named("client/nobody")


@pytest.mark.parametrize(
    "identity",
    [WORKER, Identity(CallerKind.DISPATCHER), Identity(CallerKind.CLIENT, "a b", Role.VIEW, "t")],
    ids=str,
)
def test_the_identity_in_a_certificate_is_read_without_a_library_as_with_one(authority, identity) -> None:
    certificate = (authority.issue(identity, now=NOW).directory / "tls.crt").read_bytes()
    assert uris(certificate) == certificates.uris(certificate) == [identity.uri]


def test_a_client_that_serves_browsers_has_the_names_it_was_given_and_keeps_them(authority) -> None:
    dashboard = Identity(CallerKind.CLIENT, "dashboard", Role.OPERATE)
    issued = authority.current(dashboard, now=NOW, hosts=("dash.example.com",))
    for held in (issued, authority.renew(issued, now=NOW)):
        certificate = (held.directory / "tls.crt").read_bytes()
        assert certificates.hosts(certificate) == ["dash.example.com"]
        assert held.identity == dashboard


def test_no_certificate_outlives_the_authority(authority) -> None:
    issued = authority.issue(WORKER, now=NOW, lifetime=timedelta(days=36_500))
    assert issued.not_after == NOW + timedelta(days=3650)


def test_a_renewed_certificate_has_the_same_key_and_a_later_end(authority) -> None:
    issued = authority.issue(WORKER, now=NOW)
    key = (issued.directory / "tls.key").read_bytes()
    later = NOW + timedelta(days=100)
    renewed = authority.renew(issued, now=later)
    assert renewed.not_after == later + CERTIFICATE_LIFETIME
    assert renewed.fingerprint != issued.fingerprint
    assert (issued.directory / "tls.key").read_bytes() == key


@pytest.mark.parametrize(("days", "renewed"), [(200, False), (300, True), (400, True)])
def test_a_current_certificate_is_renewed_when_a_third_of_its_time_is_left(authority, days, renewed) -> None:
    first = authority.current(WORKER, now=NOW)
    assert authority.current(WORKER, now=NOW) == first
    later = authority.current(WORKER, now=NOW + timedelta(days=days))
    assert (later.fingerprint != first.fingerprint) == renewed


def test_an_authority_is_not_overwritten_and_is_found_again(authority) -> None:
    with pytest.raises(InvalidInput, match="already"):
        Authority.create(authority.directory, now=NOW)
    before = (authority.directory / "ca.crt").read_bytes()
    Authority.found_or_created(authority.directory, now=NOW)
    assert (authority.directory / "ca.crt").read_bytes() == before


def test_without_an_authority_the_error_says_how_to_make_one(tmp_path) -> None:
    with pytest.raises(ConfigError, match="hoss certs init"):
        Authority(tmp_path)


def test_a_revoked_certificate_is_in_the_list_of_every_directory_that_was_issued(authority) -> None:
    issued, other = authority.issue(WORKER, now=NOW), authority.issue(Identity(CallerKind.RESOLVER), now=NOW)
    revoked = RevocationList(other.directory / REVOKED_FILE)
    assert f"certificate {issued.fingerprint}" not in revoked
    authority.revoke_certificate(issued, now=NOW)
    assert f"certificate {issued.fingerprint}" in revoked
    assert f"certificate {other.fingerprint}" not in revoked
    assert [held.revoked for held in authority.issued()] == [False, True]  # resolver, worker


def test_files_are_followed_and_a_mixture_of_two_rotations_is_never_taken(authority, tmp_path) -> None:
    directory = authority.issue(WORKER, now=NOW, into=tmp_path / "served").directory
    other = authority.issue(WORKER, now=NOW, into=tmp_path / "other").directory
    files = TlsFiles(directory)
    first = files.latest()
    assert files.latest() is first
    shutil.copy(other / "tls.crt", directory / "tls.crt")
    assert files.latest() is first  # the certificate of another key
    shutil.copy(other / "tls.key", directory / "tls.key")
    assert files.latest().certificate == (other / "tls.crt").read_bytes()


def test_a_secret_that_kubernetes_replaces_is_taken_with_its_list_of_what_is_revoked(
    authority, tmp_path
) -> None:
    """As the kubelet does it: files are links into ..data, a link to a directory, which is replaced at
    once."""
    first = authority.issue(WORKER, now=NOW, into=tmp_path / "..1")
    authority.renew(authority.issue(WORKER, now=NOW), now=NOW)
    (tmp_path / "..data").symlink_to("..1")
    names = [path.name for path in first.directory.iterdir()]
    for name in names:
        (tmp_path / name).symlink_to(f"..data/{name}")
    files, revoked = TlsFiles(tmp_path), RevocationList(tmp_path / REVOKED_FILE)
    before = files.latest()
    assert f"certificate {first.fingerprint}" not in revoked

    authority.revoke_certificate(first, now=NOW)
    second = authority.current(WORKER, now=NOW, into=tmp_path / "..2")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    shutil.rmtree(first.directory)
    after = files.latest()
    assert (after.key != before.key, fingerprint(after.certificate)) == (True, second.fingerprint)
    assert f"certificate {first.fingerprint}" in revoked


def test_a_certificate_of_another_authority_is_replaced(authority, tmp_path) -> None:
    other = Authority.create(tmp_path / "other", now=NOW)
    foreign = other.issue(WORKER, now=NOW, into=tmp_path / "served")
    current = authority.current(WORKER, now=NOW, into=tmp_path / "served")
    assert current.fingerprint != foreign.fingerprint
    trusted = (authority.directory / "ca.crt").read_bytes()
    assert TlsFiles(tmp_path / "served").latest().authority == trusted


def test_files_that_are_gone_or_damaged_leave_what_was_there(authority, tmp_path) -> None:
    directory = authority.issue(WORKER, now=NOW, into=tmp_path / "served").directory
    files = TlsFiles(directory)
    first = files.latest()
    (directory / "tls.crt").write_bytes(b"no certificate")
    assert files.latest() is first
    (directory / "ca.crt").unlink()
    assert files.latest() is first


@pytest.mark.parametrize("name", FILES)
def test_a_directory_without_one_of_its_files_is_refused_by_name(authority, tmp_path, name) -> None:
    directory = authority.issue(WORKER, now=NOW, into=tmp_path / "served").directory
    (directory / name).unlink()
    with pytest.raises(ConfigError, match=f"has no {name}"):
        TlsFiles(directory)


def test_a_key_of_another_certificate_is_refused_at_the_start(authority, tmp_path) -> None:
    directory = authority.issue(WORKER, now=NOW, into=tmp_path / "served").directory
    other = authority.issue(WORKER, now=NOW, into=tmp_path / "other").directory
    shutil.copy(other / "tls.key", directory / "tls.key")
    with pytest.raises(ConfigError, match=r"tls\.key is not the key of tls\.crt"):
        TlsFiles(directory)


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:7100", True),
        ("127.9.9.9:0", True),
        ("localhost:7100", True),
        ("[::1]:7100", True),
        ("0.0.0.0:7100", False),
        ("[::]:7100", False),
        (":7100", False),
        ("10.0.0.1:7100", False),
        ("dispatcher.example.com:7100", False),
    ],
)
def test_beyond_loopback_a_service_needs_tls_or_the_word_insecure(listen, loopback) -> None:
    assert of_loopback(listen) == loopback
    host_of(SecurityConfig(insecure=True), listen)
    if loopback:
        host_of(SecurityConfig(), listen)
    else:
        with pytest.raises(ConfigError, match="--insecure"):
            host_of(SecurityConfig(), listen)


def test_what_has_expired_leaves_the_lists_of_tokens_and_of_what_is_revoked(authority) -> None:
    day, client = timedelta(days=1), Identity(CallerKind.CLIENT, "a", Role.VIEW)
    first = authority.issue(WORKER, now=NOW, lifetime=10 * day)
    authority.create_token(client, now=NOW, lifetime=5 * day)
    authority.create_token(client, now=NOW, lifetime=30 * day)
    short, long = (record["id"] for record in authority.tokens())
    for revoked in (short, long, "oidc:ana"):
        authority.revoke_token(revoked, now=NOW)
    authority.revoke_certificate(first, now=NOW)
    of_earlier_release = f"token 0123 \ncertificate {'0' * 64} worker/until now\n"
    path = authority.directory / REVOKED_FILE
    path.write_text(of_earlier_release + path.read_text())

    def left(now: datetime) -> tuple[set[str], set[str]]:
        authority.create_token(client, now=now, lifetime=day / 2)
        authority.revoke_token(authority.tokens()[-1]["id"], now=now)
        lines = path.read_text().splitlines()[:-1]
        tokens = {record["id"] for record in authority.tokens()} & {short, long}
        return tokens, {" ".join(line.split()[:2]) for line in lines}

    lasting = {"token 0123", f"certificate {'0' * 64}", "token oidc:ana"}
    certificate = f"certificate {first.fingerprint}"
    both = {f"token {short}", f"token {long}"}
    # A day longer than they are good for: clocks differ.
    assert left(NOW + 5.9 * day) == ({short, long}, lasting | both | {certificate})
    tokens, revoked = left(NOW + 12 * day)
    assert (tokens, revoked & both) == ({long}, {f"token {long}"})
    assert lasting <= revoked
    assert certificate not in revoked
    issued = RevocationList(first.directory / REVOKED_FILE)
    assert f"token {long}" in issued
    assert f"token {short}" not in issued


def test_a_certificate_that_is_not_valid_now_does_not_replace_one_that_is(
    authority, tmp_path, capsys
) -> None:
    clock, day = [NOW], timedelta(days=1)
    held = authority.issue(WORKER, now=NOW, lifetime=10 * day, into=tmp_path / "served")
    files = TlsFiles(held.directory, utc_now=lambda: clock[0])
    first = files.latest()
    authority.renew(held, now=NOW + day)  # by a machine whose clock is fast
    assert files.latest() is first
    assert files.latest() is first
    assert capsys.readouterr().out.count("the new certificate is not valid yet, but from") == 1
    clock[0] += day
    second = files.latest()
    assert second is not first
    authority.renew(held, now=NOW - 9 * day, lifetime=day)
    assert files.latest() is second
    clock[0] += 500 * day
    assert files.latest() not in (first, second)  # all have expired: the latest files are as good


@pytest.mark.parametrize("name", ["worker/w1", "client/ana", ""])
def test_a_service_takes_a_certificate_of_its_kind_alone(authority, tmp_path, name) -> None:
    kind, _, of = name.partition("/")
    if name:
        directory = authority.issue(Identity(CallerKind(kind), of), now=NOW).directory
    else:
        pair = certificates.issue(
            KeyPair(*((authority.directory / f"ca.{end}").read_bytes() for end in ("crt", "key"))),
            ("dispatcher.hoss.internal",), now=NOW, lifetime=timedelta(days=1), uri="spiffe://x/y",
        )  # fmt: skip
        directory = authority.issue(WORKER, now=NOW).directory
        (directory / "tls.crt").write_bytes(pair.certificate)
        (directory / "tls.key").write_bytes(pair.key)
    said = f"is a certificate for hoss:{name}" if name else "is a certificate for nobody of HOSS"
    with pytest.raises(ConfigError, match=f"{said}.*, and this is a dispatcher; give it a directory of"):
        TlsFiles(directory, kind=CallerKind.DISPATCHER)
    fits = authority.issue(Identity(CallerKind.DISPATCHER), now=NOW).directory
    files = TlsFiles(fits, kind=CallerKind.DISPATCHER)
    first = files.latest()
    for file in FILES:
        shutil.copy(directory / file, fits / file)
    assert files.latest() is first


@pytest.mark.parametrize(
    ("mode", "said"),
    [(0o600, ""), (0o400, ""), (0o640, "group"), (0o644, "every user"), (0o604, "every user")],
)
def test_a_key_that_others_may_read_is_told(authority, mode, said, monkeypatch) -> None:
    directory = authority.issue(WORKER, now=NOW).directory
    (directory / "tls.key").chmod(mode)
    path_stat = Path.stat
    mine = (directory / "tls.key").stat()
    as_user = os.stat_result((*mine[:4], 1000, *mine[5:10]))
    monkeypatch.setattr(Path, "stat", lambda path: as_user if path.name == "tls.key" else path_stat(path))
    problem = TlsFiles(directory).exposed_key()
    assert bool(problem) == bool(said)
    assert said in problem


def test_a_group_may_read_a_key_of_root_as_in_a_mounted_secret(authority, monkeypatch) -> None:
    directory = authority.issue(WORKER, now=NOW).directory
    (directory / "tls.key").chmod(0o440)
    path_stat = Path.stat
    mine = (directory / "tls.key").stat()
    of_root = os.stat_result((*mine[:4], 0, *mine[5:10]))
    monkeypatch.setattr(Path, "stat", lambda path: of_root if path.name == "tls.key" else path_stat(path))
    assert TlsFiles(directory).exposed_key() == ""


def test_all_certificates_of_an_identity_are_revoked_wherever_they_are(authority, tmp_path) -> None:
    day, ana = timedelta(days=1), Identity(CallerKind.CLIENT, "ana", Role.VIEW)
    expired = authority.issue(ana, now=NOW - 9 * day, lifetime=day, into=tmp_path / "expired")
    elsewhere = authority.issue(ana, now=NOW, into=tmp_path / "elsewhere")
    copied = authority.issue(ana, now=NOW)  # and renewed since, with the same key
    renewed = authority.renew(copied, now=NOW + day)
    other = authority.issue(Identity(CallerKind.CLIENT, "bo", Role.VIEW), now=NOW)
    assert authority.revoke_identity("client/ana", now=NOW) == 3
    assert authority.revoke_identity("client/ana", now=NOW) == 3  # which adds nothing
    revoked = RevocationList(other.directory / REVOKED_FILE)
    for issued in (elsewhere, copied, renewed):
        assert f"certificate {issued.fingerprint}" in revoked
    assert len(revoked) == 3
    for issued in (expired, other):
        assert f"certificate {issued.fingerprint}" not in revoked
    with pytest.raises(NotFound, match="no certificate was issued here for 'client/eve'"):
        authority.revoke_identity("client/eve", now=NOW)


def test_certificates_of_an_earlier_release_which_kept_no_list_are_revoked(authority) -> None:
    issued = authority.issue(WORKER, now=NOW)
    (authority.directory / "certificates.jsonl").unlink()
    assert authority.revoke_identity("worker/w1", now=NOW) == 1
    assert authority.named("worker/w1").revoked
    # Its key may be somebody else's by now.
    key = (issued.directory / "tls.key").read_bytes()
    renewed = authority.renew(authority.named("worker/w1"), now=NOW)
    assert not renewed.revoked
    assert (renewed.directory / "tls.key").read_bytes() != key


def test_what_was_issued_is_known_wherever_it_is_with_its_serial_and_whether_it_is_revoked(
    authority, tmp_path
) -> None:
    day, ana = timedelta(days=1), Identity(CallerKind.CLIENT, "ana", Role.VIEW, "research")
    authority.issue(ana, now=NOW - 9 * day, lifetime=day, into=tmp_path / "expired")
    elsewhere = authority.issue(ana, now=NOW, lifetime=9 * day, into=tmp_path / "elsewhere")
    first = authority.issue(WORKER, now=NOW)
    renewed = authority.renew(first, now=NOW + day)
    authority.revoke_certificate(first, now=NOW + day)
    assert authority.known(now=NOW + day) == [
        elsewhere.record | {"revoked": "no", "directory": ""},
        renewed.record | {"revoked": "no", "directory": str(authority.directory / "issued" / "worker-w1")},
        first.record | {"revoked": "yes", "directory": ""},
    ]
    assert (elsewhere.record["role"], elsewhere.record["tenant"], first.record["role"]) == (
        "view", "research", "",
    )  # fmt: skip
    written = x509.load_pem_x509_certificate((tmp_path / "elsewhere" / "tls.crt").read_bytes())
    assert int(elsewhere.serial, 16) == written.serial_number
    assert len(elsewhere.serial) % 2 == 0
    # It has expired, and is still among the authority's own files.
    held = authority.known(now=NOW + 999 * day)
    assert [record["serial"] for record in held] == [renewed.serial]


def test_what_an_earlier_release_listed_without_a_serial_is_known_too(authority, tmp_path) -> None:
    authority.issue(WORKER, now=NOW, into=tmp_path / "elsewhere")
    path = authority.directory / "certificates.jsonl"
    record = orjson.loads(path.read_bytes())
    for name in ("role", "tenant", "serial"):
        del record[name]
    path.write_bytes(orjson.dumps(record))
    (known,) = authority.known(now=NOW)
    assert (known["identity"], known["serial"], known["role"]) == ("worker/w1", "", "")


def test_a_certificate_that_was_written_elsewhere_cannot_be_renewed_here_and_the_error_says_so(
    authority, tmp_path
) -> None:
    authority.issue(WORKER, now=NOW, into=tmp_path / "elsewhere")
    with pytest.raises(NotFound, match=r"'worker/w1' was written elsewhere.*issue` with --out"):
        authority.named("worker/w1")


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'"text"',
        b'{"identity": "worker/w1"}',
        b'{"identity": "worker/w1", "fingerprint": 7, "expires": "2027-01-01T00:00:00+00:00"}',
        b'{"identity": "worker/w1", "fingerprint": "7", "expires": "tomorrow"}',
        b'{"identity": "worker/w1", "fingerprint": "7", "expires": "2027-01-01T00:00:00"}',
        b"\xff\xfe",
    ],
)
def test_a_list_that_another_hand_has_damaged_is_refused_by_its_line(authority, line) -> None:
    authority.issue(WORKER, now=NOW)
    path = authority.directory / "certificates.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    for use in (
        lambda: authority.known(now=NOW),
        lambda: authority.revoke_identity("worker/w1", now=NOW),
        lambda: authority.issue(WORKER, now=NOW),
    ):
        with pytest.raises(
            ConfigError, match=r"certificates\.jsonl, line 2: is no record.*take out the line"
        ):
            use()


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "token.key", "issued/worker-w1/tls.crt"])
def test_a_damaged_file_of_the_authority_is_refused_by_its_place(authority, name) -> None:
    held = authority.issue(WORKER, now=NOW)
    (authority.directory / name).write_bytes(b"junk")
    client, day = Identity(CallerKind.CLIENT, "a", Role.VIEW), timedelta(days=1)
    uses = {
        "token.key": lambda: authority.create_token(client, now=NOW, lifetime=day),
        "issued/worker-w1/tls.crt": lambda: list(authority.issued()),
    }
    with pytest.raises(ConfigError) as refused:
        uses.get(name, lambda: authority.renew(held, now=NOW))()
    assert str(authority.directory / name).startswith(refused.value.where)
    assert "restore the file" in str(refused.value) or "tokens cannot be signed" in str(refused.value)


def test_a_damaged_key_of_a_certificate_is_refused_by_its_directory(authority) -> None:
    held = authority.issue(WORKER, now=NOW)
    (held.directory / "tls.key").write_bytes(b"junk")
    with pytest.raises(
        ConfigError, match="key: is no PEM key without a password; restore the files"
    ) as refused:
        authority.renew(held, now=NOW)
    assert refused.value.where == str(held.directory)


def test_a_key_that_its_user_may_only_read_is_no_hindrance(authority, monkeypatch) -> None:
    opened = Path.open

    def as_no_root(path: Path, mode: str = "r", **rest: Any) -> Any:
        if path.name == "ca.key" and "+" in mode:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, **rest)

    (authority.directory / "ca.key").chmod(0o400)
    monkeypatch.setattr(Path, "open", as_no_root)
    assert authority.issue(WORKER, now=NOW).identity == WORKER
    assert authority.create_token(Identity(CallerKind.CLIENT, "a", Role.VIEW), now=NOW, lifetime=timedelta(1))


def test_of_two_commands_at_once_neither_loses_what_the_other_has_written(
    authority, tmp_path, monkeypatch
) -> None:
    """Each stops after it has read a list, until the other has read it, too. The lock lets none do that."""
    both = threading.Barrier(2)
    read = Authority._records

    def slowly(self: Authority, name: str) -> Any:
        found = read(self, name)
        try:
            both.wait(0.2)
        except threading.BrokenBarrierError:
            both.reset()
        return found

    monkeypatch.setattr(Authority, "_records", slowly)
    clients = [Identity(CallerKind.CLIENT, name, Role.VIEW) for name in ("ana", "bo")]
    commands = [
        threading.Thread(
            target=Authority(authority.directory).issue,
            args=(client,),
            kwargs={"now": NOW, "into": tmp_path / client.name},
        )
        for client in clients
    ]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    monkeypatch.undo()
    assert {record["identity"] for record in authority.known(now=NOW)} == {"client/ana", "client/bo"}
