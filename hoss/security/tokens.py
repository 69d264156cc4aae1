"""Bearer tokens: signed statements of who a client is, with an expiry. JWTs.

The platform's token key signs its own (Ed25519, EdDSA); services hold its public half alone. Tokens of others
are checked by a source each (hoss.security.users). A token is checked once and remembered, one of the
platform's own until it expires, so a further check is a look-up. What is revoked is in a list that services
follow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hoss.errors import AccessDenied, InvalidInput, quoted
from hoss.rpc import MOST_TOKEN_BYTES
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.transport import FollowedFile
from hoss.security.users import AuthenticationConfig, UserSource

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ISSUER = "hoss"
# The audience of a token that is exchanged, once, for a session at the dashboard, and is good for nothing
# else.
LOGIN_AUDIENCE = "hoss-dashboard"
PUBLIC_KEYS_FILE, REVOKED_FILE = "tokens.pem", "revoked"
_ALGORITHM = "EdDSA"
_REMEMBERED_TOKENS = 10_000
# A refusal by somebody else's word is remembered, too: a program that tries again and again would otherwise
# use up what may be asked. Apart from the tokens that are good, which no number of bad ones pushes out.
_REMEMBERED_REFUSALS, _REFUSED_SECONDS = 1_000, 5.0
_KEY_END = b"-----END PUBLIC KEY-----\n"
_CLOCKS_DIFFER_SECONDS = 60.0


_RememberedT = TypeVar("_RememberedT")


class WrongAudience(AccessDenied):
    """A token for another purpose: that of a link, or of none."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was found to be genuine. Times are Unix seconds. `id`: by which it is revoked; of another
    issuer's the name of its user, so that user is shut out whatever tokens it gets. `issuer`: "" for this
    platform."""

    id: str
    identity: Identity
    not_before: float
    expires: float
    issuer: str = ""


def sign(signing_key: bytes, token: Token, *, audience: str = "") -> str:
    """The token as clients send it. `signing_key`: an Ed25519 key, PEM. `audience`: who alone takes it."""
    import jwt  # noqa: PLC0415 - commands that make no token do not wait for it

    claims = {
        "iss": ISSUER,
        "sub": token.identity.name,
        "role": token.identity.role.value,
        "tenant": token.identity.tenant,
        "jti": token.id,
        "nbf": int(token.not_before),
        "exp": int(token.expires),
        **({"aud": audience} if audience else {}),
    }
    return jwt.encode(claims, signing_key.decode("ascii"), algorithm=_ALGORITHM)


def id_of_user(name: str) -> str:
    """By which all tokens of a user of another issuer are revoked: one word, whatever the name."""
    return name.replace(" ", "%20")


class RevocationList:
    """What is revoked, a line each: `token ID` or `certificate FINGERPRINT`. The file is followed."""

    def __init__(self, path: Path) -> None:
        self._file = FollowedFile(path)
        self._content = b""
        self._revoked: frozenset[str] = frozenset()

    def __contains__(self, entry: str) -> bool:
        self._follow()
        return entry in self._revoked

    def __len__(self) -> int:
        self._follow()
        return len(self._revoked)

    def _follow(self) -> None:
        content = self._file.read()
        if content is not self._content:
            lines = content.decode("utf-8", "replace").splitlines()
            self._content, self._revoked = content, frozenset(" ".join(line.split()[:2]) for line in lines)


class TokenVerifier:
    """Who the bearer of a token is. `keys`: public keys of the platform, PEM one after another, followed.
    `authentication`: the roles of users whose tokens are checked by a source."""

    def __init__(
        self,
        keys: Path,
        revoked: RevocationList,
        *,
        unix_clock: Callable[[], float],
        authentication: AuthenticationConfig | None = None,
    ) -> None:
        self._file = FollowedFile(keys)
        self._content = b""
        self._keys: list[Ed25519PublicKey] = []
        self._revoked = revoked
        self._unix_clock = unix_clock
        self._authentication = authentication or AuthenticationConfig()
        self._sources: list[UserSource] = []
        self._known: dict[str, tuple[Token, float]] = {}  # and from when on it is checked again
        self._refused: dict[str, tuple[AccessDenied, float]] = {}  # likewise

    @classmethod
    def of_directory(
        cls,
        directory: Path,
        *,
        unix_clock: Callable[[], float],
        authentication: AuthenticationConfig | None = None,
    ) -> "TokenVerifier":
        """By the keys and the revocations of a TLS directory."""
        revoked = RevocationList(directory / REVOKED_FILE)
        keys = directory / PUBLIC_KEYS_FILE
        return cls(keys, revoked, unix_clock=unix_clock, authentication=authentication)

    def table_sizes(self) -> Mapping[str, int]:
        """What is remembered of tokens, for the metric of that."""
        return {
            "door_tokens": len(self._known),
            "door_tokens_refused": len(self._refused),
            "door_revoked": len(self._revoked),
            "door_sources": sum(map(len, self._sources)),
        }

    def also_ask(self, source: UserSource) -> None:
        """Take the tokens that this source checks, too. Of several that take a token the first is asked."""
        self._sources.append(source)

    async def identify(self, text: str) -> Identity:
        """The identity that a token states. Raises AccessDenied, which says what is wrong with the token and
        never shows it."""
        return (await self.token(text)).identity

    async def token(self, text: str) -> Token:
        """A token that is valid now. Raises AccessDenied as `identify`."""
        self._follow_keys()
        token, check_again = self._known.get(text) or (None, 0.0)
        if token is None or self._unix_clock() >= check_again:
            self._known.pop(text, None)
            token, check_again = await self._checked(text)
            _remember(self._known, text, (token, check_again), _REMEMBERED_TOKENS)
        self.check(token)
        return token

    def login_token(self, text: str) -> Token:
        """The token of a link to the dashboard that is valid now. Raises AccessDenied as `identify`."""
        self._follow_keys()
        token = self._own(text, LOGIN_AUDIENCE)
        self.check(token)
        return token

    def check(self, token: Token) -> None:
        """Raises AccessDenied once a token that was genuine has expired, or was revoked."""
        self._check_times(token.not_before, token.expires, token.issuer)
        if f"token {token.id}" in self._revoked:
            if token.issuer:
                raise AccessDenied(f"{token.identity.name} was shut out here; ask who runs this platform")
            raise AccessDenied("the token was revoked; get a new one (`hoss token create`, `hoss login`)")

    def _check_times(self, not_before: float, expires: float, issuer: str) -> None:
        now = self._unix_clock()
        if now >= expires:
            source = f"from {issuer}" if issuer else "(`hoss token create`, `hoss login`)"
            raise AccessDenied(f"the token has expired; get a new one {source}")
        if now < not_before - _CLOCKS_DIFFER_SECONDS:
            raise AccessDenied("the token is not valid yet; see that the clocks of the machines agree")

    def _follow_keys(self) -> None:
        content = self._file.read()
        if content is not self._content:
            self._take_keys(content)

    def _take_keys(self, content: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

        self._known.clear()
        pems = [part + _KEY_END for part in content.split(_KEY_END) if part.strip()]
        try:
            loaded = [load_pem_public_key(pem) for pem in pems]
        except ValueError:
            loaded = []
        self._keys = [key for key in loaded if isinstance(key, Ed25519PublicKey)]
        self._content = content

    async def _checked(self, text: str) -> tuple[Token, float]:
        """A token that is genuine, and until when that is relied on."""
        claims = _unchecked_claims(text)
        issuer = claims.get("iss", ISSUER)
        if issuer == ISSUER:
            return self._own(text), math.inf
        for source in self._sources:
            if source.takes(claims):
                return await self._vouched_for(source, text, claims)
        raise AccessDenied(
            f"the token is refused: it is from another issuer, {quoted(issuer)}, whose tokens this service"
            " does not take; get a new one (`hoss token create`)"
        )

    async def _vouched_for(
        self, source: UserSource, text: str, claims: Mapping[str, Any]
    ) -> tuple[Token, float]:
        refusal, ask_again = self._refused.get(text) or (None, 0.0)
        if refusal is not None and self._unix_clock() < ask_again:
            raise type(refusal)(str(refusal))
        try:
            found = await source.check(text, claims)
            self._check_times(found.not_before, found.expires, found.issuer)
            identity = self._authentication.identity_of(found.user)
        except AccessDenied as exc:
            remembered = type(exc)(str(exc)), self._unix_clock() + _REFUSED_SECONDS
            _remember(self._refused, text, remembered, _REMEMBERED_REFUSALS)
            raise
        token = Token(id_of_user(identity.name), identity, found.not_before, found.expires, found.issuer)
        return token, found.check_again

    def _own(self, text: str, audience: str = "") -> Token:
        import jwt  # noqa: PLC0415 - services whose clients have certificates need no tokens

        if not self._keys:
            raise AccessDenied(
                f"this service takes no tokens: its TLS directory has no {PUBLIC_KEYS_FILE}; use a"
                " certificate"
            )
        # Times are checked above, by the service's clock, at every use.
        options: Any = {
            "verify_exp": False,
            "verify_nbf": False,
            "require": ["exp", "nbf", "jti", "sub", "iss"],
        }
        problem = "it was not signed by this platform's token key, or was changed"
        for key in self._keys:
            try:
                claims = jwt.decode(
                    text,
                    key,
                    algorithms=[_ALGORITHM],
                    options=options,
                    issuer=ISSUER,
                    audience=audience or None,
                )
            except jwt.InvalidSignatureError:  # noqa: PERF203 - there are few keys
                continue
            except jwt.InvalidAudienceError:
                raise WrongAudience(
                    "the token is refused: the token of a link opens the dashboard, once, and no more"
                ) from None
            except jwt.MissingRequiredClaimError as exc:
                problem = f"it is no token of HOSS: it does not say its {exc.claim!r}"
            except jwt.InvalidAlgorithmError:
                problem = f"it is no token of HOSS: it is not signed with {_ALGORITHM}"
            except jwt.PyJWTError:
                problem = "it is no token of HOSS: it is damaged, or something else was given in its place"
            else:
                return _token_of(claims)
        raise AccessDenied(f"the token is refused: {problem}; get a new one (`hoss token create`)")


def _remember(table: dict[str, _RememberedT], text: str, found: _RememberedT, most: int) -> None:
    """The oldest is forgotten for it where there are too many."""
    table.pop(text, None)
    if len(table) >= most:
        table.pop(next(iter(table)))
    table[text] = found


def _unchecked_claims(text: str) -> Mapping[str, Any]:
    """What a token says of itself; nothing of a text that is no token. Raises AccessDenied for a long one."""
    import jwt  # noqa: PLC0415 - see above

    if len(text) > MOST_TOKEN_BYTES:
        raise AccessDenied(f"the token is longer than {MOST_TOKEN_BYTES} bytes")
    try:
        claims: Mapping[str, Any] = jwt.decode(text, options={"verify_signature": False})
    except jwt.PyJWTError:
        return {}
    return claims


def _token_of(claims: Mapping[str, Any]) -> Token:
    wrong = "the token is refused: its role, name or tenant is none of HOSS's"
    tenant = claims.get("tenant", "")
    if not isinstance(tenant, str):
        raise AccessDenied(wrong)
    try:
        identity = Identity(CallerKind.CLIENT, claims["sub"], Role(claims.get("role")), tenant)
        return Token(str(claims["jti"]), identity, float(claims["nbf"]), float(claims["exp"]))
    except (InvalidInput, ValueError, TypeError) as exc:
        raise AccessDenied(wrong) from exc
