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
from hoss.v1 import workerlink_pb2 as pb
from hoss.v1.workerlink_pb2_grpc import WorkerLinkStub, add_WorkerLinkServicer_to_server


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
