"""The door of every gRPC server: who calls, whether he may, and a line in the audit log.

Each call passes through here before its handler runs. The identity is the certificate's, or, of a client that
sends a bearer token, the token's. Calls of the same certificate cost a look-up."""

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from hoss.errors import AccessDenied, ConfigError, InvalidInput
from hoss.security import rights
from hoss.security.identity import SCHEME, CallerKind, Identity, set_caller
from hoss.security.tokens import RevocationList, TokenVerifier
from hoss.security.transport import fingerprint
from hoss.telemetry import logger

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any  # grpc.RpcMethodHandler, which is generic in its stubs alone

_BEARER = "Bearer "
_REMEMBERED_CERTIFICATES = 10_000
_SHOWN_LETTERS = 100


class Authenticator:
    """Who makes a call."""

    def __init__(self, revoked: RevocationList, tokens: TokenVerifier) -> None:
        self._revoked = revoked
        self._tokens = tokens
        self._known: dict[bytes, tuple[Identity, str]] = {}  # by certificate: and its entry in the list

    def identify(self, context: Context) -> Identity:
        """Raises AccessDenied, with a sentence for the caller."""
        of_connection = context.auth_context()
        (certificate,) = of_connection.get("x509_pem_cert") or (b"",)
        known = self._known.get(certificate)
        if known is None:
            known = self._read(certificate, of_connection)
            if len(self._known) >= _REMEMBERED_CERTIFICATES:
                self._known.pop(next(iter(self._known)))
            self._known[certificate] = known
        identity, entry = known
        if entry in self._revoked:
            raise AccessDenied("the certificate was revoked; have a new one issued (`hoss certs issue`)")
        token = _bearer_token(context) if identity.kind is CallerKind.CLIENT else ""
        return self._tokens.identify(token) if token else identity

    @staticmethod
    def _read(certificate: bytes, of_connection: Mapping[str, Any]) -> tuple[Identity, str]:
        names = of_connection.get("x509_subject_alternative_name") or ()
        uris = [name.decode("ascii", "replace") for name in names if name.startswith(SCHEME.encode())]
        if len(uris) != 1:
            raise AccessDenied(
                "the certificate names no identity of HOSS, as in hoss:worker/w1 among its alternative names; "
                "`hoss certs issue` makes one that does"
            )
        try:
            return Identity.from_uri(uris[0]), f"certificate {fingerprint(certificate)}"
        except (InvalidInput, ValueError) as exc:
            raise AccessDenied(f"the certificate's identity cannot be read: {exc}") from exc


def _bearer_token(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith(_BEARER):
            return value[len(_BEARER) :]
    return ""


class AccessControl(grpc.aio.ServerInterceptor):
    """Lets a call pass, or ends it with UNAUTHENTICATED or PERMISSION_DENIED."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        return None if handler is None else self._guarded(handler, handler_call_details.method)

    def _guarded(self, handler: Any, method: str) -> Handler:
        """The same handler. It is not called for whoever may not call it."""
        form = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
        inner: Any = getattr(handler, form)
        make: Any = getattr(grpc, f"{form}_rpc_method_handler")

        async def answer(request: Any, context: Context) -> Any:
            await self._admit(method, request, context)
            return await inner(request, context)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._admit(method, request, context)
            # Closed at once and not when it is collected, as handlers of streams notice their client's end.
            async with contextlib.aclosing(inner(request, context)) as messages:
                async for message in messages:
                    yield message

        guarded: Handler = make(
            # gRPC's health service is a coroutine that writes its stream's messages itself.
            stream if inspect.isasyncgenfunction(inner) else answer,
            handler.request_deserializer,
            handler.response_serializer,
        )
        return guarded

    async def _admit(self, method: str, request: Any, context: Context) -> None:
        try:
            identity = self._authenticator.identify(context)
        except (AccessDenied, ConfigError) as exc:
            logger().warning("caller_refused", method=method, peer=context.peer(), problem=str(exc))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(exc))
        problem = rights.refusal(method, identity)
        if method in rights.AUDITED:
            logger().info(
                "audit",
                caller=str(identity),
                role=identity.role.value,
                tenant=identity.tenant,
                method=method,
                outcome="refused" if problem else "allowed",
                peer=context.peer(),
                request=described(request),
            )
        if problem:
            text = f"{identity} may not call {method.rpartition('/')[2]}: {problem}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        set_caller(identity)


def described(request: Any) -> dict[str, Any]:
    """The plain fields of a request, and how many of the others: for the audit log. Long texts are cut off."""
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
