"""Bearer tokens: genuine or not, in time or not, revoked or not."""

import base64
import hashlib
import hmac
import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import jwt
import pytest

from hoss.errors import AccessDenied, InvalidInput, NotFound
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.tokens import PUBLIC_KEYS_FILE, REVOKED_FILE, RevocationList, TokenVerifier

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
RESEARCH = Identity(CallerKind.CLIENT, "ana", Role.SUBMIT, "research")


class Clock:
    def __init__(self) -> None:
        self.seconds = NOW.timestamp()

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", now=NOW)


@pytest.fixture
def verifier(authority: Authority, clock: Clock) -> TokenVerifier:
    revoked = RevocationList(authority.directory / REVOKED_FILE)
    return TokenVerifier(authority.directory / PUBLIC_KEYS_FILE, revoked, unix_clock=clock)


def a_token(authority: Authority, identity: Identity = RESEARCH, days: float = 30) -> str:
    return authority.create_token(identity, now=NOW, lifetime=timedelta(days=days))


async def refused(verifier: TokenVerifier, token: str) -> str:
    with pytest.raises(AccessDenied) as caught:
        await verifier.identify(token)
    assert not token or token not in str(caught.value)
    return str(caught.value)


async def test_a_token_says_who_its_bearer_is(authority, verifier) -> None:
    assert await verifier.identify(a_token(authority)) == RESEARCH


async def test_a_token_ends_with_its_lifetime_also_one_that_was_checked_before(
    authority, verifier, clock
) -> None:
    token = a_token(authority, days=1)
    clock.seconds += 86_399
    assert await verifier.identify(token) == RESEARCH
    clock.seconds += 1
    assert "expired" in await refused(verifier, token)


async def test_a_token_of_tomorrow_is_not_valid_yet(authority, verifier, clock) -> None:
    clock.seconds -= 86_400
    assert "not valid yet" in await refused(verifier, a_token(authority))


async def test_a_revoked_token_is_refused_at_the_next_use_and_others_are_not(authority, verifier) -> None:
    token, other = a_token(authority), a_token(authority)
    assert await verifier.identify(token) == RESEARCH
    authority.revoke_token(authority.tokens()[0]["id"], now=NOW)
    assert "revoked" in await refused(verifier, token)
    assert await verifier.identify(other) == RESEARCH
    assert [held["revoked"] for held in authority.tokens()] == ["yes", "no"]


async def test_a_token_of_another_platform_is_refused(tmp_path, verifier) -> None:
    other = Authority.create(tmp_path / "other", now=NOW)
    assert "not signed by this platform" in await refused(verifier, a_token(other))


async def test_a_changed_token_is_refused(authority, verifier) -> None:
    head, claims, signature = a_token(authority).split(".")
    read = json.loads(base64.urlsafe_b64decode(claims + "=="))
    changed = base64.urlsafe_b64encode(json.dumps({**read, "role": "admin", "tenant": ""}).encode()).decode()
    assert "was changed" in await refused(verifier, ".".join((head, changed.rstrip("="), signature)))


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_a_token_of_another_algorithm_is_refused_also_one_signed_with_the_public_key(
    authority, verifier, algorithm
) -> None:
    claims = {"iss": "hoss", "sub": "eve", "role": "admin", "tenant": "", "jti": "1", "nbf": 0, "exp": 2**40}
    head = (
        base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "typ": "JWT"}).encode()).decode().rstrip("=")
    )
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    signature = ""
    if algorithm == "HS256":
        key = (authority.directory / PUBLIC_KEYS_FILE).read_bytes()
        digest = hmac.new(key, f"{head}.{body}".encode(), hashlib.sha256).digest()
        signature = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert "no token of HOSS: it is not signed with EdDSA" in await refused(
        verifier, f"{head}.{body}.{signature}"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"iss": "others"}, "it is from another issuer, 'others'"),
        ({"role": "root"}, "its role, name or tenant is none of HOSS's"),
        ({"sub": ""}, "its role, name or tenant is none of HOSS's"),
        ({"tenant": 7}, "its role, name or tenant is none of HOSS's"),
        ({"exp": None}, "it is no token of HOSS: it does not say its 'exp'"),
    ],
)
async def test_a_signed_token_with_other_claims_is_refused(authority, verifier, change, problem) -> None:
    claims = {"iss": "hoss", "sub": "a", "role": "view", "tenant": "", "jti": "1", "nbf": 0, "exp": 2**40}
    given = {name: value for name, value in {**claims, **change}.items() if value is not None}
    key = (authority.directory / "token.key").read_text()
    assert problem in await refused(verifier, jwt.encode(given, key, algorithm="EdDSA"))


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "é" * 10, "x" * 100_000])
async def test_what_is_no_token_is_refused_without_the_name_of_a_class(verifier, text) -> None:
    told = await refused(verifier, text)
    assert "Error" not in told
    assert "no token of HOSS: it is damaged, or something else" in told or "longer than" in told


async def test_without_keys_a_service_takes_no_tokens(tmp_path, clock, authority) -> None:
    verifier = TokenVerifier(tmp_path / "none", RevocationList(tmp_path / "none"), unix_clock=clock)
    assert "takes no tokens" in await refused(verifier, a_token(authority))


async def test_keys_that_are_replaced_count_at_once(authority, verifier, tmp_path) -> None:
    token, other = a_token(authority), Authority.create(tmp_path / "other", now=NOW)
    assert await verifier.identify(token) == RESEARCH
    keys = authority.directory / PUBLIC_KEYS_FILE
    keys.write_bytes(keys.read_bytes() + (other.directory / PUBLIC_KEYS_FILE).read_bytes())
    assert await verifier.identify(token) == await verifier.identify(a_token(other)) == RESEARCH
    keys.write_bytes((other.directory / PUBLIC_KEYS_FILE).read_bytes())
    await refused(verifier, token)


async def test_a_new_token_key_signs_and_the_one_before_is_good_for_its_tokens(authority, clock) -> None:
    """Services follow the file of the directory that was issued to them."""
    service = authority.issue(Identity(CallerKind.DISPATCHER), now=NOW).directory
    verifier = TokenVerifier.of_directory(service, unix_clock=clock)
    first = a_token(authority)
    assert await verifier.identify(first) == RESEARCH
    authority.rotate_token_key()
    second = a_token(authority)
    assert await verifier.identify(first) == await verifier.identify(second) == RESEARCH
    authority.rotate_token_key()
    third = a_token(authority)
    assert "not signed by this platform's token key" in await refused(verifier, first)
    assert await verifier.identify(second) == await verifier.identify(third) == RESEARCH
    authority.rotate_token_key(at_once=True)
    for token in (second, third):
        await refused(verifier, token)
    assert await verifier.identify(a_token(authority)) == RESEARCH


def test_a_role_for_the_whole_platform_is_not_limited_to_a_tenant() -> None:
    with pytest.raises(InvalidInput, match="whole platform"):
        Identity(CallerKind.CLIENT, "ana", Role.OPERATE, "research")


def test_a_token_without_a_role_and_an_unknown_id_are_refused(authority) -> None:
    with pytest.raises(InvalidInput):
        a_token(authority, Identity(CallerKind.CLIENT, "ana"))
    with pytest.raises(NotFound):
        authority.revoke_token("nobody's", now=NOW)


def test_no_file_of_the_authority_holds_a_token(authority) -> None:
    token = a_token(authority).encode()
    assert not any(token in file.read_bytes() for file in authority.directory.rglob("*") if file.is_file())


async def test_a_known_token_costs_a_small_part_of_a_first_check(authority, verifier) -> None:
    token = a_token(authority)
    begun = time.perf_counter()
    await verifier.identify(token)
    first = time.perf_counter() - begun
    costs = []
    for _ in range(200):
        begun = time.perf_counter()
        await verifier.identify(token)
        costs.append(time.perf_counter() - begun)
    assert min(costs) < first / 5
