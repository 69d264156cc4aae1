"""Which calls are answered while the lease is uncertain."""

from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from dispatcher.api.request_router import RequestRouter, Services


@dataclass
class UncertainLease:
    """A leadership that may be over."""

    def lease_valid(self) -> bool:
        return False

    def uncertainty(self) -> str:
        return "Redis cannot write to its disk"


@pytest.fixture
async def channel():
    """To a dispatcher with an uncertain lease."""
    router = RequestRouter(["hoss.v1.Dispatcher"])
    router.open(Services(UncertainLease()))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((router,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as connected:
        yield connected
    await server.stop(None)


OUTDATED = "so what this one knows may be out of date: try again"
MAYBE = (
    "and an earlier attempt of this call may have been accepted: make the same call again, a submission with "
    "the same request id"
)


@pytest.mark.parametrize(
    ("method", "therefore"),
    [
        ("Submit", MAYBE),
        ("Delete", MAYBE),
        ("SetPolicy", MAYBE),
        ("ListPods", OUTDATED),
        ("GetPolicy", OUTDATED),
        ("Watch", OUTDATED),
    ],
)
async def test_with_an_uncertain_lease_calls_are_refused_with_the_consequence(channel, method, therefore):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary(f"/hoss.v1.Dispatcher/{method}")(b"")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.details() == (
        f"Redis cannot write to its disk; another dispatcher may be active, {therefore}"
    )
