"""Who answers calls while it is in doubt whether this dispatcher is the active one."""

from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from dispatcher.reception import Reception, Services


@dataclass
class InDoubt:
    """A term that may be over."""

    def certain(self) -> bool:
        return False

    def doubt(self) -> str:
        return "Redis cannot write to its disk"


@pytest.fixture
async def channel():
    """To a dispatcher whose term is in doubt."""
    reception = Reception(["hoss.v1.Dispatcher"])
    reception.open(Services(InDoubt()))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((reception,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as connected:
        yield connected
    await server.stop(None)


@pytest.mark.parametrize(
    ("method", "therefore"),
    [
        ("Submit", "nothing was accepted"),
        ("Delete", "nothing was accepted"),
        ("SetPolicy", "nothing was accepted"),
        ("ListPods", "what this one knows may be out of date"),
        ("GetPolicy", "what this one knows may be out of date"),
        ("Watch", "what this one knows may be out of date"),
    ],
)
async def test_in_doubt_nobody_is_answered_and_each_is_told_what_that_means(channel, method, therefore):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary(f"/hoss.v1.Dispatcher/{method}")(b"")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.details() == (
        f"Redis cannot write to its disk; another dispatcher may be active, so {therefore}: try again"
    )
