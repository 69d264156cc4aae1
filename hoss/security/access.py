"""Who calls a gRPC server or reads metrics, whether he may, and a line in the audit log.

hoss.interceptor asks this for each call before its handler runs. The identity is the certificate's, or, of a
client that sends a bearer token, the token's. Calls of the same certificate cost a look-up."""

import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import grpc.aio

from hoss.errors import AccessDenied, ConfigError, InvalidInput
from hoss.security import rights
from hoss.security.identity import SCHEME, TENANT_METADATA, CallerKind, Identity, tenant_of_metadata
from hoss.security.tokens import RevocationList, TokenVerifier
from hoss.security.transport import fingerprint, uris, validity
from hoss.telemetry import logger

Context = grpc.aio.ServicerContext[Any, Any]

_BEARER = "Bearer "
_REMEMBERED_CERTIFICATES = 10_000
_SHOWN_LETTERS = 100


class _Certificate(NamedTuple):
    identity: Identity
    entry: str  # in the list of what is revoked
    expires: float  # Unix seconds


class Authenticator:
    """Who shows a certificate, and perhaps a token. TLS has checked the certificate; whether it is still good
    is looked at here, each time."""

    def __init__(
        self, revoked: RevocationList, tokens: TokenVerifier, *, unix_clock: Callable[[], float]
    ) -> None:
        self._revoked = revoked
        self._tokens = tokens
        self._unix_clock = unix_clock
        self._known: dict[bytes, _Certificate] = {}

    def table_sizes(self) -> Mapping[str, int]:
        """What is remembered of callers, for the metric of that."""
        return {"door_certificates": len(self._known), **self._tokens.table_sizes()}

    async def identify(self, context: Context) -> Identity:
        """The caller of a gRPC method. Raises AccessDenied, with a sentence for the caller."""
        (certificate,) = context.auth_context().get("x509_pem_cert") or (b"",)
        metadata = dict(context.invocation_metadata() or ())
        found = await self.bearer(certificate, metadata.get("authorization", ""))
        tenant = tenant_of_metadata(metadata.get(TENANT_METADATA, ""))
        return found.limited_to(tenant) if tenant else found

    async def bearer(self, certificate: bytes, authorization: str | bytes) -> Identity:
        """Who shows this certificate, PEM, and sends this header, if any. Raises AccessDenied."""
        known = self._known.get(certificate)
        if known is None:
            known = self._read(certificate)
            if len(self._known) >= _REMEMBERED_CERTIFICATES:
                self._known.pop(next(iter(self._known)))
            self._known[certificate] = known
        identity = known.identity
        if known.entry in self._revoked:
            raise AccessDenied("the certificate was revoked; have a new one issued (`hoss certs issue`)")
        # A handshake looks at it once, and a connection may stand for long afterwards.
        if self._unix_clock() >= known.expires:
            raise AccessDenied(
                "the certificate has expired since it connected; renew it (`hoss certs renew`)"
            )
        token = _bearer_token(authorization) if identity.kind is CallerKind.CLIENT else ""
        return await self._tokens.identify(token) if token else identity

    @staticmethod
    def _read(certificate: bytes) -> "_Certificate":
        try:
            named = [uri for uri in uris(certificate) if uri.startswith(SCHEME)]
            if len(named) != 1:
                raise AccessDenied(
                    "the certificate names no identity of HOSS, as in hoss:worker/w1 among its alternative"
                    " names; `hoss certs issue` makes one that does"
                )
            entry = f"certificate {fingerprint(certificate)}"
            return _Certificate(Identity.from_uri(named[0]), entry, validity(certificate)[1].timestamp())
        except (InvalidInput, ValueError, IndexError) as exc:
            raise AccessDenied(f"the certificate's identity cannot be read: {exc}") from exc


def _bearer_token(value: str | bytes) -> str:
    return value[len(_BEARER) :] if isinstance(value, str) and value.startswith(_BEARER) else ""


class MetricsReaders:
    """Who may read metrics over mutual TLS."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def refusal(self, certificate: bytes, authorization: str) -> str:
        """Why the bearer of a certificate (DER), and of a token in this header, may not; "" if it may."""
        try:
            pem = ssl.DER_cert_to_PEM_cert(certificate).encode()
            who = await self._authenticator.bearer(pem, authorization)
        except (AccessDenied, ConfigError) as exc:
            return str(exc)
        problem = rights.READ_METRICS.refusal(who)
        return f"{who} may not read metrics: {problem}" if problem else ""


class AccessControl:
    """Who may make a call. hoss.interceptor asks it before any handler runs."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def identify(self, context: Context) -> Identity | AccessDenied:
        """Who makes a call, or why nobody knows, in a sentence for the caller."""
        try:
            return await self._authenticator.identify(context)
        except AccessDenied as exc:
            return exc
        except ConfigError as exc:
            return AccessDenied(str(exc))

    def refusal(self, method: str, who: Identity, request: Any, peer: str) -> str:
        """Why this caller may not make this call; "" if it may. The audit log has it."""
        problem = rights.refusal(method, who)
        if rights.is_audited(method, request):
            logger().info(
                "audit",
                caller=str(who),
                role=who.role.value,
                tenant=who.tenant,
                method=method,
                outcome="refused" if problem else "allowed",
                peer=peer,
                request=described(request),
            )
        return f"{who} may not call {method.rpartition('/')[2]}: {problem}" if problem else ""


def described(request: Any) -> dict[str, Any]:
    """The plain fields of a request, and how many of the others: for the audit log. Long texts are cut
    off."""
    shown: dict[str, Any] = {}
    for field, value in request.ListFields() if hasattr(request, "ListFields") else ():
        if isinstance(value, bool | int | float):
            shown[field.name] = value
        elif isinstance(value, str):
            shown[field.name] = value[:_SHOWN_LETTERS]
        elif isinstance(value, bytes) or not hasattr(value, "__len__"):
            shown[field.name] = "given"
        elif value and isinstance(value[0], str):
            shown[field.name] = [text[:_SHOWN_LETTERS] for text in value[:10]]
        else:
            shown[field.name] = f"{len(value)} given"
    return shown
