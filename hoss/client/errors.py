"""How errors cross gRPC: one table for both sides.

    raised by the server          as status              translated by the client to
    InvalidInput and subclasses   INVALID_ARGUMENT       InvalidInput (ALREADY_EXISTS and the like too)
    NotFound                      NOT_FOUND              NotFound
    LedgerUnavailable             UNAVAILABLE, marked    LedgerUnavailable
    OutcomeUnknown                UNAVAILABLE, marked    OutcomeUnknown
    Overloaded                    RESOURCE_EXHAUSTED     Overloaded, by retry-after-ms in the metadata
    (hoss.interceptor)            UNAUTHENTICATED,       AccessDenied
                                  PERMISSION_DENIED
    (gRPC itself)                 any other              TransportError: no connection, broken stream, timeout

A mark in the trailing metadata distinguishes a server's UNAVAILABLE (its ledger does not answer) from gRPC's
own (no server listens)."""

from collections.abc import Mapping
from typing import Any, NoReturn

import grpc
import grpc.aio

from hoss.errors import (
    AccessDenied,
    HossError,
    InvalidInput,
    LedgerUnavailable,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    TransportError,
)

# Trailing metadata of a server's own UNAVAILABLE: the call changed nothing, or may have.
LEDGER_UNAVAILABLE = ("hoss-error", "ledger-unavailable")
OUTCOME_UNKNOWN = ("hoss-error", "outcome-unknown")
_MARKED: Mapping[tuple[str, str], type[LedgerUnavailable]] = {
    LEDGER_UNAVAILABLE: LedgerUnavailable,
    OUTCOME_UNKNOWN: OutcomeUnknown,
}

# Trailing metadata of a server's own RESOURCE_EXHAUSTED. gRPC's, for a message that is too large, has none.
RETRY_AFTER_MS = "retry-after-ms"

# Beginnings of gRPC's own texts without a connection. The texts end with the cause.
_NO_CONNECTION = (
    "connections to all backends failing",
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
)

# Part of gRPC's text about a connection that failed -> what to do. A server says nothing about a client's
# certificate that it refuses: it closes the connection.
_HANDSHAKE: Mapping[str, str] = {
    "WRONG_VERSION_NUMBER": "it speaks no TLS, and this client does; see that it was given --tls-dir",
    "Hostname Verification": (
        "its certificate is that of another kind of service; see that the address is right"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "its certificate is of another authority than this client trusts, or not valid now; see that both "
        "have certificates of one authority (`hoss certs issue`)"
    ),
    "Socket closed": (
        "it may want TLS and a certificate of its authority: give one with --tls-dir (services), "
        "HOSS_TLS_DIR or `hoss login` (it takes none that is self-signed or of another authority); or it is "
        "stopping"
    ),
}
_NOT_THERE = "see that it runs there and that the address is right"

_ACCESS_CODES = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_INPUT_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)


def translate(exc: grpc.aio.AioRpcError, peer: str) -> HossError:
    """The HossError of a failed call, with the server's text. `peer` names the server: "resolver at h:p"."""
    text = exc.details() or exc.code().name
    if exc.code() in _ACCESS_CODES:
        return AccessDenied(f"{peer} refuses: {text}")
    if exc.code() is grpc.StatusCode.NOT_FOUND or exc.code() in _INPUT_CODES:
        return NotFound(text) if exc.code() is grpc.StatusCode.NOT_FOUND else InvalidInput(text)
    if exc.code() is grpc.StatusCode.UNAVAILABLE:
        for mark in set(_pairs(exc.trailing_metadata())) & _MARKED.keys():
            return _MARKED[mark](text)
    retry_after_ms = dict(_pairs(exc.trailing_metadata())).get(RETRY_AFTER_MS)
    if exc.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_ms is not None:
        return Overloaded(text, int(retry_after_ms) / 1000)
    if exc.code() is grpc.StatusCode.UNAVAILABLE and text.startswith(_NO_CONNECTION):
        # Of a handshake gRPC adds that reading went well, and what it says of a name's lookup is in brackets.
        reason = text.removesuffix(": OK").removesuffix("]").rpartition(": ")[2]
        remedy = next((said for part, said in _HANDSHAKE.items() if part in text), _NOT_THERE)
        return TransportError(f"{peer} cannot be reached ({reason}): {remedy}")
    return TransportError(f"{peer}: {exc.code().name}: {text}")


async def refuse(
    context: "grpc.aio.ServicerContext[Any, Any]", error: InvalidInput | LedgerUnavailable | Overloaded
) -> NoReturn:
    """End a call on the server with the status that `translate` turns into the same error."""
    if isinstance(error, LedgerUnavailable):
        mark = OUTCOME_UNKNOWN if isinstance(error, OutcomeUnknown) else LEDGER_UNAVAILABLE
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error), (mark,))
    if isinstance(error, Overloaded):
        retry_after = (RETRY_AFTER_MS, str(int(1000 * error.retry_after_seconds)))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), (retry_after,))
    code = grpc.StatusCode.NOT_FOUND if isinstance(error, NotFound) else grpc.StatusCode.INVALID_ARGUMENT
    await context.abort(code, str(error))
    raise error  # not reached: abort raises, but its type does not say so


def _pairs(metadata: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in metadata or ()]
