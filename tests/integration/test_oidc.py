"""Tokens of OpenID Connect issuers: a real HTTPS issuer, its keys, and a clock that the tests move."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import oidc_issuer
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from oidc_issuer import DISCOVERY, KEYS, Issuer

from hoss.errors import AccessDenied, ConfigError
from hoss.host import THIS_HOST
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.oidc import REFRESH_SECONDS, RETRY_SECONDS, IssuerKeys, OidcTokens
from hoss.security.tokens import REVOKED_FILE, TokenVerifier
from hoss.security.users import AuthenticationConfig, UnmappedUser

RULES = [
    {"groups": ["oidc:research"], "role": "submit", "tenant": "research"},
    {"users": ["oidc:ops@example.com"], "role": "operate"},
]
ANA = Identity(CallerKind.CLIENT, "oidc:ana", Role.SUBMIT, "research")


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[Issuer]:
    with oidc_issuer.serving(tmp_path) as made:
        yield made


class Checked:
    """A service's verifier. `seconds` moves both of its clocks."""

    def __init__(self, directory: Path, issuer: Issuer, **settings: Any) -> None:
        self.seconds = 0.0
        self.directory = directory
        config = AuthenticationConfig.model_validate({"oidc": [issuer.settings(**settings)], "rules": RULES})
        self.verifier = TokenVerifier.of_directory(directory, unix_clock=self.unix, authentication=config)
        (only,) = config.oidc
        keys = IssuerKeys(only, clock=lambda: self.seconds, beside_the_loop=THIS_HOST.beside_the_loop)
        self.verifier.also_ask(OidcTokens(only, keys, unix_clock=self.unix))
        self._began = time.time()

    def unix(self) -> float:
        return self._began + self.seconds

    async def identify(self, token: str) -> Identity:
        return await self.verifier.identify(token)

    async def refused(self, token: str) -> str:
        with pytest.raises(AccessDenied) as caught:
            await self.verifier.identify(token)
        assert token not in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def checked(tmp_path: Path, issuer: Issuer) -> Checked:
    return Checked(tmp_path, issuer)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
async def test_a_user_of_the_issuer_has_the_role_that_a_rule_gives(issuer, checked, algorithm) -> None:
    issuer.rotate("k", algorithm)
    assert await checked.identify(issuer.token()) == ANA


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"exp": 1}, "has expired; get a new one from https"),
        ({"nbf": 2**40, "exp": 2**41}, "not valid yet"),
        ({"iss": "https://elsewhere.example.com"}, "from another issuer, 'https://elsewhere.example.com'"),
        ({"aud": "others"}, "for another audience; ask https"),
        ({"aud": ["others", "more"]}, "for another audience"),
        ({"aud": None}, "no token of an issuer"),
        ({"exp": None}, "no token of an issuer"),
        ({"exp": float("nan")}, "no numbers"),
        ({"exp": float("inf")}, "no numbers"),
        ({"exp": "tomorrow"}, "no numbers"),
        ({"sub": None}, "names no user"),
        ({"sub": ["ana"]}, "no token of an issuer|names no user"),
        ({"sub": "x" * 300}, "printable"),
    ],
)
async def test_a_signed_token_with_other_claims_is_refused_with_the_reason(
    issuer, checked, claims, sentence
) -> None:
    assert re.search(sentence, await checked.refused(issuer.token(**claims)))


async def test_what_the_issuer_has_not_signed_is_refused(issuer, checked) -> None:
    token = issuer.token()
    stranger = rsa.generate_private_key(65537, 2048)
    assert "or it was changed" in await checked.refused(oidc_issuer.tampered(token, sub="root"))
    assert "no key of https" in await checked.refused(issuer.token(key=stranger))
    assert "algorithm is none" in await checked.refused(oidc_issuer.unsigned(token))
    assert await checked.identify(token) == ANA


async def test_a_public_key_signs_nothing_although_everybody_has_it(issuer, checked) -> None:
    """HS256 with the public key as the secret: the oldest trick."""
    public = issuer.keys["first"].public_key()
    secret = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"first"}').decode().rstrip("=")
    signed = f"{head}.{issuer.token().split('.')[1]}"
    digest = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    forged = f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    assert "signed by 'HS256'" in await checked.refused(forged)


async def test_a_key_for_encryption_and_a_short_one_sign_nothing(issuer, checked) -> None:
    other, short = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 1024)
    listed = json.loads(issuer.document(KEYS))["keys"]
    listed += [{**oidc_issuer.jwk_of("enc", other), "use": "enc"}, oidc_issuer.jwk_of("short", short)]
    listed += [7, {}, {"kty": "RSA"}, {"kty": "oct", "k": "AAAA", "kid": "first"}]
    issuer.answers[KEYS] = json.dumps({"keys": listed}).encode()
    assert await checked.identify(issuer.token()) == ANA
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns whoever signs with a short key, as newer ones do
        forged = [issuer.token(kid=kid, key=key) for kid, key in (("enc", other), ("short", short))]
    for token in forged:
        assert "no key of" in await checked.refused(token)


async def test_a_user_without_a_rule_is_known_and_may_do_nothing(issuer, checked) -> None:
    with pytest.raises(UnmappedUser, match="oidc:bob is known and has no role here"):
        await checked.identify(issuer.token(sub="bob", groups=["others"]))


async def test_claims_of_name_and_groups_are_the_issuers_own(tmp_path, issuer) -> None:
    settings = {"name_claim": "email", "groups_claim": "roles", "required_claims": {"hd": "example.com"}}
    checked = Checked(tmp_path, issuer, **settings)
    right = {"email": "ops@example.com", "hd": "example.com"}
    identity = await checked.identify(issuer.token(**right))
    assert (identity.name, identity.role) == ("oidc:ops@example.com", Role.OPERATE)
    assert "not verified" in await checked.refused(issuer.token(**right, email_verified=False))
    assert "claim 'hd'" in await checked.refused(issuer.token(**{**right, "hd": "evil.com"}))
    listed = issuer.token(email="ana@example.com", hd="example.com", roles="research", email_verified=True)
    assert (await checked.identify(listed)).tenant == "research"


async def test_claims_within_claims_are_named_by_a_path(tmp_path, issuer) -> None:
    """As an issuer that keeps the roles of each of its clients apart."""
    settings = {
        "groups_claim": "resource_access.hoss.roles",
        "required_claims": {"realm.name": "prod"},
    }
    checked = Checked(tmp_path, issuer, **settings)
    roles = {"resource_access": {"other": {"roles": ["staff"]}, "hoss": {"roles": ["research"]}}}
    assert await checked.identify(issuer.token(**roles, groups=[], realm={"name": "prod"})) == ANA
    assert "claim 'realm.name' is not 'prod'" in await checked.refused(issuer.token(**roles, realm="prod"))


async def test_clocks_may_differ_by_the_leeway_and_no_more(tmp_path, issuer) -> None:
    checked = Checked(tmp_path, issuer, leeway_seconds=30)
    token = issuer.token(exp=int(checked.unix()) + 60)
    checked.seconds = 80
    assert await checked.identify(token) == ANA
    checked.seconds = 91
    assert "expired" in await checked.refused(token)


async def test_a_rotated_key_is_found_at_once_and_the_former_one_ends(issuer, checked) -> None:
    former = issuer.keys["first"]
    before = issuer.token()
    assert await checked.identify(before) == ANA
    checked.seconds = RETRY_SECONDS
    issuer.rotate("second", "ES256")
    assert await checked.identify(issuer.token()) == ANA
    assert issuer.asked[KEYS] == 2
    assert "no key of" in await checked.refused(issuer.token(kid="first", key=former, sub="eve"))
    # The token that was checked before goes on until it is looked at again.
    assert await checked.identify(before) == ANA
    checked.seconds = REFRESH_SECONDS
    assert "no key of" in await checked.refused(before)


async def test_unknown_keys_do_not_have_the_issuer_asked_more_often(issuer, checked) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    forged = [issuer.token(kid=f"k{number}", key=stranger) for number in range(50)]
    told = await asyncio.gather(*(checked.refused(token) for token in forged))
    assert all("no key of" in text for text in told)
    assert issuer.asked[KEYS] == 1
    checked.seconds = RETRY_SECONDS
    await asyncio.gather(*(checked.refused(token) for token in forged))
    assert issuer.asked[KEYS] == 2


async def test_without_its_issuer_a_service_goes_on_with_the_keys_that_it_has(issuer, checked) -> None:
    assert await checked.identify(issuer.token()) == ANA
    issuer.stop()
    try:
        for _ in range(3):
            checked.seconds += REFRESH_SECONDS
            assert await checked.identify(issuer.token(now=checked.unix())) == ANA
        stranger = rsa.generate_private_key(65537, 2048)
        assert "no key of" in await checked.refused(issuer.token(kid="new", key=stranger, exp=2**40))
    finally:
        issuer.start()
    issuer.rotate("second")
    checked.seconds += RETRY_SECONDS
    assert await checked.identify(issuer.token(now=checked.unix())) == ANA


async def test_an_issuer_that_was_never_reached_is_the_reason_and_is_asked_again(issuer, checked) -> None:
    issuer.silent = True
    assert "keys of its issuer https" in (said := await checked.refused(issuer.token()))
    assert "answers 503" in said
    issuer.silent = False
    assert "try again later" in await checked.refused(issuer.token())  # not asked so soon
    checked.seconds = RETRY_SECONDS
    assert await checked.identify(issuer.token()) == ANA


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        (DISCOVERY, b'{"issuer": "https://evil.example.com"}', "of another issuer"),
        (DISCOVERY, b"<html>", "no JSON object"),
        (DISCOVERY, b"[]", "no JSON object"),
        (KEYS, b'{"keys": []}', "no key for any of"),
        (KEYS, b'{"keys": "all"}', "no key for any of"),
        (KEYS, b'{"x": "' + b"y" * 2_000_000 + b'"}', "more than 1,000,000 bytes"),
    ],
)
async def test_an_issuer_that_answers_something_else_gives_no_keys(
    issuer, checked, path, body, problem
) -> None:
    issuer.answers[path] = body
    assert problem in await checked.refused(issuer.token())


async def test_keys_are_read_over_https_alone(issuer, checked) -> None:
    plain = {"issuer": issuer.url, "jwks_uri": f"http://localhost:{issuer.port}{KEYS}"}
    issuer.answers[DISCOVERY] = json.dumps(plain).encode()
    assert "no https address" in await checked.refused(issuer.token())


async def test_an_issuer_with_a_certificate_of_another_authority_is_not_believed(tmp_path, issuer) -> None:
    (tmp_path / "other").mkdir()
    other = Issuer(tmp_path / "other")
    checked = Checked(tmp_path, issuer, ca_file=str(other.ca_file))
    assert "certificate" in await checked.refused(issuer.token())
    assert not issuer.asked


def test_an_authority_that_cannot_be_read_is_said_at_the_start(tmp_path, issuer) -> None:
    with pytest.raises(ConfigError, match="ca_file"):
        Checked(tmp_path, issuer, ca_file=str(tmp_path / "none"))


async def test_a_user_is_shut_out_whatever_tokens_the_issuer_gives(tmp_path, issuer, checked) -> None:
    token, other = issuer.token(), issuer.token(sub="bob")
    assert await checked.identify(token) == ANA
    (tmp_path / REVOKED_FILE).write_text("token oidc:ana\n")
    assert "oidc:ana was shut out" in await checked.refused(token)
    assert "shut out" in await checked.refused(issuer.token(jti="another"))
    assert (await checked.identify(other)).name == "oidc:bob"


async def test_a_token_that_only_says_to_be_of_this_platform_is_not(issuer, checked) -> None:
    forged = issuer.token(iss="hoss", aud=None, role="admin", tenant="", jti="1", nbf=0)
    assert "takes no tokens" in await checked.refused(forged)


async def test_a_call_that_is_given_up_does_not_end_the_reading_for_others(issuer, checked) -> None:
    first = asyncio.ensure_future(checked.identify(issuer.token()))
    second = asyncio.ensure_future(checked.identify(issuer.token(jti="2")))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ANA
    assert first.cancelled()
    assert issuer.asked[KEYS] == 1


async def test_a_known_token_of_an_issuer_costs_no_signature_check(issuer, checked, monkeypatch) -> None:
    token = issuer.token()
    assert await checked.identify(token) == ANA

    def not_called(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(jwt, "decode", not_called)
    assert await checked.identify(token) == ANA


async def test_a_refusal_is_remembered_for_a_moment_so_that_nobody_uses_up_what_may_be_asked(
    issuer, checked, monkeypatch
) -> None:
    token = issuer.token(groups=["others"])
    first = await checked.refused(token)
    asked = []
    check = OidcTokens.check

    async def counted(source: OidcTokens, *arguments: Any) -> Any:
        asked.append(source)
        return await check(source, *arguments)

    monkeypatch.setattr(OidcTokens, "check", counted)
    with pytest.raises(UnmappedUser, match=re.escape(first)):
        await checked.identify(token)
    assert asked == []
    checked.seconds = 5
    await checked.refused(token)
    assert len(asked) == 1
