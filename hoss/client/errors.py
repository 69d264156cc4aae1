"""How errors cross gRPC: one table for the side that raises and the side that reads.

    InvalidInput and its kinds   INVALID_ARGUMENT     read back as InvalidInput (so are ALREADY_EXISTS and the like)
    NotFound                     NOT_FOUND            read back as NotFound
    LedgerUnavailable            UNAVAILABLE, marked  read back as LedgerUnavailable
    Overloaded                   RESOURCE_EXHAUSTED, with retry-after-ms in the trailing metadata
    TransportError               none                 what gRPC itself reports: no connection, broken off, too late

gRPC's own UNAVAILABLE (nobody listens) and a server's (it answers, its ledger does not) are told apart by a mark in the
trailing metadata.
"""

from typing import Any, NoReturn

import grpc
import grpc.aio

from hoss.errors import HossError, InvalidInput, LedgerUnavailable, NotFound, Overloaded, TransportError

# Trailing metadata of a server's own UNAVAILABLE.
LEDGER_UNAVAILABLE = ("hoss-error", "ledger-unavailable")

# Trailing metadata of RESOURCE_EXHAUSTED; gRPC's own, for messages too large, has none.
RETRY_AFTER_MS = "retry-after-ms"

# How gRPC's own words begin where it has no connection; the cause stands at their end.
_NO_CONNECTION = ("connections to all backends failing", "failed to connect to all addresses")

_INPUT_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)


def translate(exc: grpc.aio.AioRpcError, peer: str) -> HossError:
    """The HossError a failed call stands for, with the server's text. `peer` names the other side, as "resolver at h:p"."""
    text = exc.details() or exc.code().name
    if exc.code() is grpc.StatusCode.NOT_FOUND:
        return NotFound(text)
    if exc.code() in _INPUT_CODES:
        return InvalidInput(text)
    if exc.code() is grpc.StatusCode.UNAVAILABLE and LEDGER_UNAVAILABLE in _pairs(exc.trailing_metadata()):
        return LedgerUnavailable(text)
    retry_after_ms = dict(_pairs(exc.trailing_metadata())).get(RETRY_AFTER_MS)
    if exc.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_ms is not None:
        return Overloaded(text, int(retry_after_ms) / 1000)
    if exc.code() is grpc.StatusCode.UNAVAILABLE and text.startswith(_NO_CONNECTION):
        reason = text.rpartition(": ")[2]
        return TransportError(
            f"{peer} cannot be reached ({reason}): see that it runs there and that the address is right"
        )
    return TransportError(f"{peer}: {exc.code().name}: {text}")


async def refuse(
    context: "grpc.aio.ServicerContext[Any, Any]", error: InvalidInput | LedgerUnavailable | Overloaded
) -> NoReturn:
    """End a call on the server's side with the status that `translate` reads back as the same error."""
    if isinstance(error, LedgerUnavailable):
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error), (LEDGER_UNAVAILABLE,))
    if isinstance(error, Overloaded):
        retry_after = (RETRY_AFTER_MS, str(int(1000 * error.retry_after_seconds)))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), (retry_after,))
    code = grpc.StatusCode.NOT_FOUND if isinstance(error, NotFound) else grpc.StatusCode.INVALID_ARGUMENT
    await context.abort(code, str(error))
    raise error  # abort has raised already; this tells the type checker so


def _pairs(metadata: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in metadata or ()]
