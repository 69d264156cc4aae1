"""Users that somebody else vouches for: an OpenID Connect issuer, or the API server of a cluster. What they
may do here is said by one list of rules, in one document of kind AuthenticationConfig.

A user has a name and groups. Both carry a prefix of whoever vouches for them, as kube-apiserver does it:
`oidc:` of an issuer unless it is told another, `system:serviceaccount:NAMESPACE:NAME` of the API server's
own. So nobody elsewhere can choose the name of a certificate or token of this platform.

Invariant: a user whom no rule names may do nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from hoss.config import Document
from hoss.errors import AccessDenied, InvalidInput
from hoss.security.identity import CallerKind, Identity, Role

KIND = "AuthenticationConfig"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
_OF_KUBERNETES = "system:"
_ANY = "*"


class UnmappedUser(AccessDenied):
    """The token is genuine, and no rule gives its user a role here."""


class UncheckedToken(AccessDenied):
    """Whoever knows whether the token is genuine cannot be asked now."""


@dataclass(frozen=True, slots=True)
class User:
    """Whom a token names, with the prefix of who vouches for it."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedUser:
    """A user whose token was found to be genuine. Times are Unix seconds; what clocks may differ by is in
    them."""

    user: User
    issuer: str  # who gives out another token
    not_before: float
    expires: float
    check_again: float  # from when on this is not relied on any more


class UserSource(Protocol):
    """Checks the tokens of others. `claims` are the token's, as it says itself: nothing in them is checked
    yet."""

    def __len__(self) -> int:
        """How much it remembers: keys, or questions that are under way."""

    def takes(self, claims: Mapping[str, Any]) -> bool:
        """Whether a token with such claims is for this source to check."""

    async def check(self, text: str, claims: Mapping[str, Any]) -> CheckedUser:
        """Whose token it is. Raises AccessDenied with a sentence for the caller, which never shows the
        token."""


def _one_star(pattern: str) -> str:
    if not pattern.strip(_ANY) or pattern.count(_ANY) > 1:
        raise ValueError(
            "is no name, and no name with one * in it; only users and groups that are named get a role"
        )
    return pattern


Pattern = Annotated[str, AfterValidator(_one_star)]


class RoleRule(Document):
    """Gives users a role. A rule is for whoever has one of the names, or is in one of the groups."""

    # Names and groups, with their prefix. One `*` in each stands for one or more characters.
    users: tuple[Pattern, ...] = ()
    groups: tuple[Pattern, ...] = ()

    # What they may do: none (which shuts out whom later rules would let in), metrics, view, submit, operate,
    # admin.
    role: Role

    # For view and submit: the only tenant whose pods they see and change. A `*` in it is what the `*` of the
    # name or group stands for. Empty: all tenants.
    tenant: str = ""

    @model_validator(mode="after")
    def _whole(self) -> "RoleRule":
        patterns = (*self.users, *self.groups)
        if not patterns:
            raise ValueError("names neither users nor groups, so it is for nobody")
        if _ANY in self.tenant and not all(_ANY in pattern for pattern in patterns):
            raise ValueError(
                "has a * in the tenant and a name or group without one, so nothing says which tenant"
            )
        try:
            Identity(CallerKind.CLIENT, "user", self.role, self.tenant)
        except InvalidInput as exc:
            raise ValueError(exc.text) from exc
        return self

    def tenant_of(self, user: User) -> str | None:
        """The tenant of a user whom this rule is for; None: it is not for that user."""
        for patterns, names in ((self.users, (user.name,)), (self.groups, sorted(user.groups))):
            for pattern in patterns:
                for name in names:
                    if (stands_for := _match(pattern, name)) is not None:
                        return self.tenant.replace(_ANY, stands_for)
        return None


def _match(pattern: str, name: str) -> str | None:
    """What the pattern's `*` stands for in a name; "" without one, None where they do not match. Never an
    empty part of the name: a tenant by that would be every tenant."""
    before, star, after = pattern.partition(_ANY)
    if not star:
        return "" if name == pattern else None
    fits = name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
    return name[len(before) : len(name) - len(after)] if fits else None


class OidcIssuer(Document):
    """An OpenID Connect issuer whose tokens are taken. Its keys are read from its discovery document."""

    # https URL, exactly as in the claim `iss` of its tokens.
    issuer: str = Field(max_length=500)

    # The claim `aud` of a token names this: the client id that the issuer knows this platform by.
    audience: str = Field(min_length=1, max_length=500)

    # The authority of the issuer's own certificate, PEM. Left out: those of the system.
    ca_file: Path | None = None

    # The claims that name a user and its groups. Of `email` only a verified one counts. `sub` is the only
    # claim that an issuer never gives to another user later. A claim within another is named by a path, such
    # as realm_access.roles; a claim whose own name has dots is found first.
    name_claim: str = Field(default="sub", min_length=1, max_length=100)
    groups_claim: str = Field(default="groups", min_length=1, max_length=100)

    # Claims that a token has to have with these values, such as {hd: example.com}; paths likewise.
    required_claims: dict[str, str] = Field(default_factory=dict)

    # In front of each name and group. No two issuers have the same.
    prefix: str = Field(
        default="oidc:",
        pattern=r"^[^\s*]{1,50}:$",
        description="a text without spaces and * that ends with a colon",
    )

    # Seconds by which the issuer's clock and this machine's may differ.
    leeway_seconds: float = Field(default=30.0, ge=0, le=300)

    @field_validator("issuer")
    @classmethod
    def _https(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment or parts.username:
            raise ValueError("is no https URL without user, query and fragment")
        return value

    @field_validator("prefix")
    @classmethod
    def _not_of_kubernetes(cls, value: str) -> str:
        if value.startswith(_OF_KUBERNETES):
            raise ValueError(
                f"is Kubernetes' own: {_OF_KUBERNETES} begins the names that an API server vouches for"
            )
        return value


class ServiceAccountTokens(Document):
    """In Kubernetes mode: tokens of ServiceAccounts are taken, and the API server is asked about each
    (TokenReview). The account of the service needs the right to create tokenreviews."""

    # The audience that a token was requested for, as by `kubectl create token NAME --audience hoss`. Tokens
    # for the API server itself are not taken, so nobody has to hand those to HOSS.
    audience: str = Field(default="hoss", min_length=1, max_length=500)

    # Seconds for which an answer is relied on. A token of a ServiceAccount that was deleted is good for so
    # much longer.
    cache_seconds: float = Field(default=60.0, ge=1, le=600)

    # Questions a second to the API server about tokens not seen before; a burst may have ten seconds' worth.
    reviews_per_second: float = Field(default=20.0, ge=0.1, le=10_000)


class AuthenticationConfig(Document):
    """Bearer tokens that the platform has not made itself, and the roles of their users. Tokens of the
    platform's own (`hoss token create`) need nothing here."""

    # OpenID Connect issuers.
    oidc: tuple[OidcIssuer, ...] = Field(default=(), max_length=20)

    # ServiceAccounts of the cluster; left out: their tokens are not taken.
    service_accounts: ServiceAccountTokens | None = None

    # Who may do what; the first rule that is for a user counts. Whom none is for may do nothing.
    rules: tuple[RoleRule, ...] = Field(default=(), max_length=10_000)

    @model_validator(mode="after")
    def _told_apart(self) -> "AuthenticationConfig":
        for what in ("issuer", "prefix"):
            values = [getattr(issuer, what) for issuer in self.oidc]
            if len({*values}) < len(values):
                raise ValueError(f"oidc: two issuers have the same {what}; give each its own")
        return self

    def identity_of(self, user: User) -> Identity:
        """Who a user is here. Raises UnmappedUser where no rule is for it, or its role is none."""
        for rule in self.rules:
            if (tenant := rule.tenant_of(user)) is not None:
                return self._identity(user, rule.role, tenant)
        raise UnmappedUser(
            f"{user.name} is known and has no role here: no rule of the AuthenticationConfig is for this user"
            " or one of its groups; ask who runs this platform"
        )

    @staticmethod
    def _identity(user: User, role: Role, tenant: str) -> Identity:
        if role is Role.NONE:
            raise UnmappedUser(f"{user.name} is known and shut out by a rule of the AuthenticationConfig")
        try:
            return Identity(CallerKind.CLIENT, user.name, role, tenant)
        except InvalidInput as exc:
            raise AccessDenied(
                f"the token is refused: its user's name is none that HOSS takes: {exc.text}"
            ) from exc


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of that name; without one, what the name leads to as a path of dots. None where there is
    nothing."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def text_claims(value: Any) -> Sequence[str]:
    """A claim that is a text or a list of texts; of another one, none."""
    if isinstance(value, str):
        return (value,)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else ()
