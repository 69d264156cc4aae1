"""Identities: who a caller is, as its certificate or its token says.

A certificate carries its identity as a URI among its alternative names: `hoss:dispatcher`, `hoss:resolver`,
`hoss:worker/NAME`, or `hoss:client/NAME?role=ROLE&tenant=TENANT`. A worker's NAME may end in `*`: the workers
of a Deployment share a certificate, because nobody knows their names beforehand. The identity of the present
call is in a context variable, which the interceptor sets."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from urllib.parse import parse_qs, quote, unquote, urlencode

from hoss.errors import AccessDenied, InvalidInput

SCHEME = "hoss:"
# Metadata of a call that its client wants limited to a tenant, as the dashboard does for that tenant's
# viewers. The name is quoted as in a URL, because metadata are ASCII.
TENANT_METADATA = "hoss-tenant"
_ANY = "*"
_LONGEST_NAME = 253  # as names of Kubernetes objects


class CallerKind(str, Enum):
    """What a caller is."""

    DISPATCHER = "dispatcher"
    RESOLVER = "resolver"
    WORKER = "worker"
    CLIENT = "client"


class Role(str, Enum):
    """What a client may do. Each role includes those before it."""

    NONE = "none"  # nothing by itself: the certificate under which clients with tokens connect
    METRICS = "metrics"  # read the metrics of services, and nothing over gRPC
    VIEW = "view"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Whether who has this role may do what `other` may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls. Services have no role. `tenant`: the only tenant whose pods a client sees and changes; "":
    all of them."""

    kind: CallerKind
    name: str = ""
    role: Role = Role.NONE
    tenant: str = ""

    def __post_init__(self) -> None:
        needs_name = self.kind in (CallerKind.WORKER, CallerKind.CLIENT)
        if self.name and not needs_name:
            raise InvalidInput(
                f"{self.kind.value}/{self.name[:100]}: a {self.kind.value} has no name;"
                f" write {self.kind.value}",
                where="identity",
            )
        if (needs_name and not self.name) or len(self.name) > _LONGEST_NAME or not self.name.isprintable():
            raise InvalidInput(
                f"a {self.kind.value} has a name of at most {_LONGEST_NAME} printable characters",
                where="identity",
            )
        if len(self.tenant) > _LONGEST_NAME or not self.tenant.isprintable():
            raise InvalidInput(f"has at most {_LONGEST_NAME} printable characters", where="tenant")
        if self.tenant and self.role not in (Role.VIEW, Role.SUBMIT):
            raise InvalidInput(
                "only the roles view and submit can be limited to a tenant; operate and admin are for the "
                "whole platform",
                where="tenant",
            )

    def may_be(self, name: str) -> bool:
        """Whether a worker with this certificate may have that name: its own, or, where the certificate's
        name ends in `*`, any that begins as it does."""
        prefix = self.name.removesuffix(_ANY)
        return name == self.name if prefix == self.name else name.startswith(prefix) and name != prefix

    def limited_to(self, tenant: str) -> "Identity":
        """This client with no more rights than a client of that tenant. Raises AccessDenied for a service,
        and for a client of another tenant."""
        if self.kind is not CallerKind.CLIENT or self.tenant not in ("", tenant):
            raise AccessDenied(f"{self} cannot call for tenant {tenant[:100]!r}")
        if not self.role.includes(Role.VIEW):
            return self
        role = Role.SUBMIT if self.role.includes(Role.SUBMIT) else self.role
        try:
            return Identity(self.kind, self.name, role, tenant)
        except InvalidInput as exc:
            raise AccessDenied(f"{self} cannot call for tenant {tenant[:100]!r}: {exc.text}") from exc

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.name}" if self.name else self.kind.value

    @property
    def uri(self) -> str:
        """The name in a certificate."""
        path = f"{SCHEME}{self.kind.value}" + (f"/{quote(self.name, safe='')}" if self.name else "")
        query = {"role": self.role.value} if self.kind is CallerKind.CLIENT else {}
        query |= {"tenant": self.tenant} if self.tenant else {}
        return f"{path}?{urlencode(query)}" if query else path

    @classmethod
    def from_uri(cls, uri: str) -> "Identity":
        """The identity of a certificate. Raises InvalidInput for a URI that is none."""
        path, _, query = uri.removeprefix(SCHEME).partition("?")
        kind, _, name = path.partition("/")
        given = parse_qs(query, keep_blank_values=True)
        role, tenant = given.pop("role", [Role.NONE.value]), given.pop("tenant", [""])
        kinds, roles = {k.value: k for k in CallerKind}, {r.value: r for r in Role}
        single = len(role) == len(tenant) == 1 and not given
        if not uri.startswith(SCHEME) or kind not in kinds or role[0] not in roles or not single:
            raise InvalidInput("is no identity of HOSS", where="certificate")
        if kinds[kind] is not CallerKind.CLIENT and (query or roles[role[0]] is not Role.NONE):
            raise InvalidInput("gives a service a role or a tenant", where="certificate")
        return cls(kinds[kind], unquote(name), roles[role[0]], tenant[0])


# None: the service runs without TLS and asks nobody who he is.
_caller: ContextVar["Identity | None"] = ContextVar("hoss-caller", default=None)


def metadata_of_tenant(tenant: str) -> tuple[tuple[str, str], ...]:
    """What a call sends that is to be limited to a tenant; nothing for ""."""
    return ((TENANT_METADATA, quote(tenant, safe="")),) if tenant else ()


def tenant_of_metadata(value: str | bytes) -> str:
    """The tenant that such a value names."""
    return unquote(value) if isinstance(value, str) else ""


def caller() -> Identity | None:
    """Who makes the present call; None where the service asks nobody."""
    return _caller.get()


def set_caller(identity: Identity) -> None:
    """For the rest of the present task, which is the call's."""
    _caller.set(identity)


def callers_tenant() -> str:
    """The tenant to which the present call is limited; "" for none."""
    identity = _caller.get()
    return "" if identity is None else identity.tenant
