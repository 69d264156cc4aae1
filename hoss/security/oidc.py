"""Tokens of OpenID Connect issuers: JWTs that the issuer has signed.

The issuer's keys are read from its discovery document (OpenID Connect Discovery 1.0) and its key set (RFC
7517), over HTTPS. They are read again when they are old, and when a token names a key that is not among them,
which is how an issuer rotates its keys.

Invariants: the event loop never waits for an issuer, and a token waits only where no key fits it. While an
issuer does not answer, the keys that it had go on. It is asked at most once in RETRY_SECONDS, whatever tokens
come."""

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hoss.errors import AccessDenied, ConfigError, quoted
from hoss.security.users import CheckedUser, OidcIssuer, UncheckedToken, User, claim, text_claims
from hoss.telemetry import logger

# Signatures by the issuer's private key alone. None of them can be made with what its key set tells
# everybody.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_BY_KEY = {  # of a key that does not say itself what it is for
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "OKP": ("EdDSA",),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
}
_LEAST_RSA_BITS = 2048

# Keys are used for so long before they are read again, and a checked token is looked at again after as long.
# So a key that the issuer takes back is good for twice this at most.
REFRESH_SECONDS = 300.0
RETRY_SECONDS = 10.0
_FETCH_SECONDS = 5.0
_MOST_BYTES = 1_000_000
_MOST_KEYS = 100
_DISCOVERY = "/.well-known/openid-configuration"

BesideTheLoop = Callable[[Callable[[], Any]], Awaitable[Any]]


class UnreachableIssuerError(Exception):
    """The issuer's keys cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key of the issuer, and the algorithms that it is for."""

    kid: str
    algorithms: tuple[str, ...]
    key: Any


class IssuerKeys:
    """The keys of an issuer, followed."""

    def __init__(
        self, config: OidcIssuer, *, clock: Callable[[], float], beside_the_loop: BesideTheLoop
    ) -> None:
        """`clock`: monotonic seconds. Raises ConfigError for a file of an authority that cannot be used."""
        self._config = config
        self._clock = clock
        self._beside_the_loop = beside_the_loop
        self._keys: tuple[_Key, ...] = ()
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._problem = ""
        self._trust()

    def __len__(self) -> int:
        return len(self._keys)

    async def find(self, kid: str, algorithm: str) -> list[Any]:
        """The keys that a signature by this algorithm may be of. `kid`: as the token names its key; "": it
        does not. Raises UnreachableIssuerError where no key is known at all."""
        found = self._among(kid, algorithm)
        now = self._clock()
        stale = now - self._fetched_at >= REFRESH_SECONDS
        if (stale or not found) and (self._fetching is not None or now - self._tried_at >= RETRY_SECONDS):
            fetching = self._begin()
            # An issuer that does not answer is asked beside the calls, as long as its keys are known.
            if not found or not self._problem:
                await asyncio.shield(fetching)
                found = self._among(kid, algorithm)
        if not self._keys:
            raise UnreachableIssuerError(self._problem)
        return found

    def _among(self, kid: str, algorithm: str) -> list[Any]:
        return [
            held.key
            for held in self._keys
            if algorithm in held.algorithms and (not kid or not held.kid or held.kid == kid)
        ]

    def _begin(self) -> "asyncio.Task[None]":
        """The reading that is under way, or a new one. Calls share it, and it outlives those that are given
        up."""
        if self._fetching is None:
            self._tried_at = self._clock()
            self._fetching = asyncio.ensure_future(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        issuer = self._config.issuer
        try:
            keys = await self._read()
        except UnreachableIssuerError as exc:
            self._problem = str(exc)
            logger().warning("oidc_issuer_unreachable", issuer=issuer, problem=str(exc), keys=len(self._keys))
        else:
            if {key.kid for key in keys} != {key.kid for key in self._keys} or self._problem:
                logger().info("oidc_keys_taken", issuer=issuer, keys=sorted(key.kid for key in keys))
            self._keys, self._fetched_at, self._problem = keys, self._clock(), ""
        finally:
            self._fetching = None

    async def _read(self) -> tuple[_Key, ...]:
        import aiohttp  # noqa: PLC0415 - services without an issuer do without it

        config = self._config
        try:
            trusted = await self._beside_the_loop(self._trust)
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trusted),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=_FETCH_SECONDS),
                trust_env=True,  # HTTPS_PROXY and NO_PROXY, as of every other client of the machine
            ) as session:
                discovered = await _get(session, config.issuer.rstrip("/") + _DISCOVERY)
                if discovered.get("issuer") != config.issuer:
                    raise UnreachableIssuerError(
                        f"its discovery document is of another issuer, {quoted(discovered.get('issuer'))}"
                    )
                address = discovered.get("jwks_uri")
                if not isinstance(address, str) or not address.startswith("https://"):
                    raise UnreachableIssuerError(
                        "its discovery document names no https address of its keys (jwks_uri)"
                    )
                keys = _keys_of(await _get(session, address))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ConfigError) as exc:
            raise UnreachableIssuerError(str(exc) or type(exc).__name__) from exc
        if not keys:
            raise UnreachableIssuerError(f"its key set has no key for any of {', '.join(ALGORITHMS)}")
        return keys

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._config.ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(
                f"is no readable file of certificates: {getattr(exc, 'strerror', None) or exc}",
                where=f"oidc: ca_file {self._config.ca_file}",
            ) from exc


async def _get(session: Any, address: str) -> dict[str, Any]:
    """The JSON object at an address. Raises UnreachableIssuerError, and aiohttp's errors."""
    import orjson  # noqa: PLC0415 - see aiohttp above

    async with session.get(address, allow_redirects=False) as response:
        if response.status != 200:
            raise UnreachableIssuerError(f"{address} answers {response.status}")
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > _MOST_BYTES:
                raise UnreachableIssuerError(f"{address} answers with more than {_MOST_BYTES:,} bytes")
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise UnreachableIssuerError(f"{address} answers with no JSON object")
    return found


def _keys_of(key_set: Mapping[str, Any]) -> tuple[_Key, ...]:
    """The keys that can have signed tokens. Others, such as those for encryption, are left out."""
    listed = key_set.get("keys")
    found = [_key_of(one) for one in (listed if isinstance(listed, list) else ())[:_MOST_KEYS]]
    return tuple(key for key in found if key is not None)


def _key_of(jwk: Any) -> _Key | None:
    import jwt  # noqa: PLC0415 - see aiohttp above

    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
        return None
    possible = _BY_KEY.get(str(jwk.get("crv") if jwk.get("kty") == "EC" else jwk.get("kty")), ())
    algorithms = tuple(name for name in possible if jwk.get("alg", name) == name)
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(jwk, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if jwk["kty"] == "RSA" and key.key_size < _LEAST_RSA_BITS:
        return None
    return _Key(str(jwk.get("kid", "")), algorithms, key)


class OidcTokens:
    """Checks the tokens of one issuer."""

    def __init__(self, config: OidcIssuer, keys: IssuerKeys, *, unix_clock: Callable[[], float]) -> None:
        self._config = config
        self._keys = keys
        self._unix_clock = unix_clock

    def __len__(self) -> int:
        """How many keys of the issuer are known."""
        return len(self._keys)

    def takes(self, claims: Mapping[str, Any]) -> bool:
        """Whether the token says that it is of this issuer."""
        return claims.get("iss") == self._config.issuer

    async def check(self, text: str, claims: Mapping[str, Any]) -> CheckedUser:
        """Whose token it is, by the issuer's keys. The caller checks its times. Raises AccessDenied."""
        del claims  # which nobody has signed so far
        algorithm, kid = _header(text)
        config = self._config
        try:
            keys = await self._keys.find(kid, algorithm)
        except UnreachableIssuerError as exc:
            raise UncheckedToken(
                f"the token cannot be checked: the keys of its issuer {config.issuer} cannot be read ({exc});"
                " try again later"
            ) from exc
        return self._user(self._signed_claims(text, algorithm, keys))

    def _signed_claims(self, text: str, algorithm: str, keys: list[Any]) -> Mapping[str, Any]:
        import jwt  # noqa: PLC0415 - see aiohttp above

        options: Any = {
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
            "require": ["exp", "iss", "aud"],
        }
        config = self._config
        for key in keys:
            try:
                return jwt.decode(
                    text,
                    key,
                    algorithms=[algorithm],
                    options=options,
                    issuer=config.issuer,
                    audience=config.audience,
                )
            except jwt.InvalidSignatureError:  # noqa: PERF203 - there are few keys
                continue
            except jwt.InvalidAudienceError:
                raise AccessDenied(
                    f"the token is refused: it is for another audience; ask {config.issuer} for one for "
                    f"{config.audience!r}"
                ) from None
            except (jwt.PyJWTError, ValueError, TypeError) as exc:
                raise AccessDenied(
                    f"the token is refused: it is no token of an issuer ({type(exc).__name__})"
                ) from exc
        raise AccessDenied(
            f"the token is refused: no key of {config.issuer} has signed it, or it was changed; "
            "get a new one from there"
        )

    def _user(self, claims: Mapping[str, Any]) -> CheckedUser:
        config = self._config
        for required, value in config.required_claims.items():
            if claim(claims, required) != value:
                raise AccessDenied(
                    f"the token is refused: its claim {required!r} is not {value!r}, as this platform wants"
                )
        name = claim(claims, config.name_claim)
        if not isinstance(name, str) or not name:
            raise AccessDenied(f"the token is refused: it names no user in the claim {config.name_claim!r}")
        if config.name_claim == "email" and claims.get("email_verified", True) is not True:
            raise AccessDenied("the token is refused: its issuer has not verified the user's email")
        groups = tuple(f"{config.prefix}{group}" for group in text_claims(claim(claims, config.groups_claim)))
        begins, ends = claims.get("nbf", 0), claims["exp"]
        if not all(isinstance(time, int | float) and math.isfinite(time) for time in (begins, ends)):
            raise AccessDenied("the token is refused: its times are no numbers")
        return CheckedUser(
            User(f"{config.prefix}{name}", groups),
            config.issuer,
            begins - config.leeway_seconds,
            ends + config.leeway_seconds,
            self._unix_clock() + REFRESH_SECONDS,
        )


def _header(text: str) -> tuple[str, str]:
    """The algorithm and the key's id that a token names. Raises AccessDenied for an algorithm that is not
    taken."""
    import jwt  # noqa: PLC0415 - see aiohttp above

    try:
        header = jwt.get_unverified_header(text)
    except jwt.PyJWTError as exc:
        raise AccessDenied(
            f"the token is refused: it is no token of an issuer ({type(exc).__name__})"
        ) from exc
    algorithm, kid = header.get("alg"), header.get("kid", "")
    if isinstance(algorithm, str) and algorithm.lower() == "none":
        raise AccessDenied("the token is refused: nobody has signed it (its algorithm is none)")
    if algorithm not in ALGORITHMS:
        raise AccessDenied(
            f"the token is refused: it is signed by {quoted(algorithm)}, and not by an issuer's own key"
        )
    return algorithm, kid if isinstance(kid, str) else ""
