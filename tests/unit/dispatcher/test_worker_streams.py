"""A worker's stream as the dispatcher serves it: when it is over, whatever gRPC does with the handler."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
import structlog
from waiting import until

from dispatcher.core import messages as m
from dispatcher.workers.link import AllowedLabels, WorkerLinks
from dispatcher.workers.queries import CacheViewQueries, DecisionQueries
from hoss import rpc, serving
from hoss.client.worker_link import DispatcherLink
from hoss.errors import ConfigError
from hoss.v1 import workerlink_pb2 as pb
from hoss.v1.workerlink_pb2_grpc import WorkerLinkStub, add_WorkerLinkServicer_to_server
from hoss.wire import PROTOCOL_VERSION


class Noting:
    """What a stream asks of the runtime."""

    def __init__(self) -> None:
        self.links: dict[int, Any] = {}
        self.traces = None
        self.told: list[Any] = []

    def handle(self, event: Any) -> None:
        self.told.append(event)


def links_of(noting: Noting) -> WorkerLinks:
    return WorkerLinks(
        noting,
        CacheViewQueries(),
        None,
        DecisionQueries(),
        heartbeat_ms=100,
        allowed_labels=AllowedLabels({}),
    )


async def test_a_worker_that_is_gone_is_told_though_nobody_resumes_or_closes_the_handler() -> None:
    """As gRPC leaves it when a call is cancelled while a message is on its way: suspended at its yield, for
    the collector."""
    noting, gone = Noting(), asyncio.Event()

    async def requests() -> AsyncIterator[pb.WorkerMessage]:
        yield pb.WorkerMessage(register=pb.Register(name="w1", window=10))
        await gone.wait()
        raise asyncio.CancelledError

    handler = links_of(noting).Connect(requests(), None)
    first = asyncio.ensure_future(anext(handler))
    await until(lambda: noting.links, "the worker to be registered")
    ((number, stream),) = noting.links.items()
    stream.put(pb.DispatcherMessage())
    await first
    gone.set()
    await until(lambda: m.LinkClosed(number) in noting.told, "the end of the stream to be told")
    assert noting.links == {}
    await handler.aclose()
    assert noting.told.count(m.LinkClosed(number)) == 1


@pytest.mark.parametrize(("taken", "code"), [(False, "ABORTED"), (True, "ALREADY_EXISTS")])
async def test_a_stream_that_the_dispatcher_ends_is_one_line_at_info_with_the_reason(
    taken: bool, code: str
) -> None:
    noting, server = Noting(), serving.Server()
    add_WorkerLinkServicer_to_server(links_of(noting), server.grpc)
    port = await server.start("127.0.0.1:0", ())
    with structlog.testing.capture_logs() as lines:
        async with rpc.channel([f"127.0.0.1:{port}"]) as channel:
            call = WorkerLinkStub(channel).Connect()
            await call.write(pb.WorkerMessage(register=pb.Register(name="w1", window=10)))
            await until(lambda: noting.links, "the worker to be registered")
            ((number, stream),) = noting.links.items()
            stream.close("it was silent", taken=taken)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
        assert (ended.value.code().name, ended.value.details()) == (code, "it was silent")
        await until(lambda: m.LinkClosed(number) in noting.told, "the end of the stream to be told")
        await server.stop(0)
    assert [(line["event"], line["log_level"], line.get("reason")) for line in lines] == [
        ("worker_stream_ended", "info", "it was silent")
    ]


@pytest.mark.parametrize("protocol", [0, 1, PROTOCOL_VERSION, PROTOCOL_VERSION + 1])
async def test_a_worker_of_a_newer_protocol_is_refused_with_the_versions_and_what_to_do(
    protocol: int,
) -> None:
    noting, server = Noting(), serving.Server()
    add_WorkerLinkServicer_to_server(links_of(noting), server.grpc)
    port = await server.start("127.0.0.1:0", ())
    async with rpc.channel([f"127.0.0.1:{port}"]) as channel:
        call = WorkerLinkStub(channel).Connect()
        register = pb.Register(name="w1", window=10, protocol=protocol)
        await call.write(pb.WorkerMessage(register=register))
        if protocol <= PROTOCOL_VERSION:
            await until(lambda: noting.links, "the worker to be registered")
            call.cancel()
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (
                refused.value.details()
                == "register.protocol: 3: the worker speaks a newer protocol than this dispatcher, which"
                " knows versions 1 to 2; upgrade resolvers and dispatchers before workers, or use an older"
                " worker"
            )
            assert not noting.links
    await server.stop(0)


async def test_the_client_library_says_its_protocol_and_ends_where_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As HOSS's own workers and the SDK do, against a dispatcher of an older release."""
    monkeypatch.setattr("dispatcher.workers.link.PROTOCOL_VERSION", PROTOCOL_VERSION - 1)
    server = serving.Server()
    add_WorkerLinkServicer_to_server(links_of(Noting()), server.grpc)
    port = await server.start("127.0.0.1:0", ())
    link = DispatcherLink((f"127.0.0.1:{port}",), pb.Register(name="w1", window=10), None)
    with pytest.raises(
        ConfigError, match=r"registration of w1: register\.protocol: 2: the worker speaks a newer"
    ):
        await link.run()
    await server.stop(0)
