"""Errors keep their kind across gRPC."""

import asyncio

import grpc
import grpc.aio
import pytest

from hoss.client.errors import refuse, translate
from hoss.errors import (
    ConfigError,
    InvalidInput,
    LedgerUnavailable,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    TransportError,
)


class Context:
    """What a servicer's context does with abort."""

    async def abort(self, code, details="", trailing_metadata=()):
        metadata = grpc.aio.Metadata(*trailing_metadata)
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=details)


@pytest.mark.parametrize(
    ("raised", "read"),
    [
        (InvalidInput("bad", where="uids"), InvalidInput),
        (ConfigError("bad"), InvalidInput),
        (NotFound("no node"), NotFound),
        (LedgerUnavailable("Redis is away"), LedgerUnavailable),
        (OutcomeUnknown("Redis did not answer"), OutcomeUnknown),
        (Overloaded("1000 pods wait", 1.5), Overloaded),
    ],
)
def test_what_a_service_raises_its_client_reads_with_the_same_text(raised, read):
    with pytest.raises(grpc.aio.AioRpcError) as status:
        asyncio.run(refuse(Context(), raised))
    error = translate(status.value, "resolver at h:1")
    assert type(error) is read
    assert str(error) == str(raised)


def test_how_long_to_wait_crosses_grpc_and_a_message_too_large_is_no_full_queue():
    with pytest.raises(grpc.aio.AioRpcError) as status:
        asyncio.run(refuse(Context(), Overloaded("full", 1.5)))
    assert translate(status.value, "dispatcher at h:1").retry_after_seconds == 1.5
    too_large = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(),
        details="larger than max",
    )
    assert type(translate(too_large, "dispatcher at h:1")) is TransportError


def test_a_peer_that_cannot_be_reached_is_named():
    status = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="connection refused"
    )
    error = translate(status, "resolver at h:1")
    assert isinstance(error, TransportError)
    assert str(error) == "resolver at h:1: UNAVAILABLE: connection refused"


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (
            (
                "connections to all backends failing; last error: ipv4:1.2.3.4:1: Failed to connect:"
                " Connection refused"
            ),
            "Connection refused",
        ),
        (
            (
                "errors resolving h:1: [field:hostname lookup error:address lookup failed for h:1: Domain name"
                " not found]"
            ),
            "Domain name not found",
        ),
        ("DNS resolution failed for h:1: C-ares status is not ARES_SUCCESS: Timeout", "Timeout"),
    ],
)
def test_where_nobody_listens_the_error_says_why_and_what_to_look_at(details, reason):
    status = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details
    )
    assert str(translate(status, "dispatcher h:1")) == (
        f"dispatcher h:1 cannot be reached ({reason}): see that it runs there and that the address is right"
    )
