"""A worker's stream as the dispatcher serves it: when it is over, whatever gRPC does with the handler."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from waiting import until

from dispatcher.allowances import LabelAllowances
from dispatcher.audit import Views
from dispatcher.core import messages as m
from dispatcher.decisions import Decisions
from dispatcher.link import WorkerLinks
from hoss.v1 import workerlink_pb2 as pb


class Noting:
    """What a stream asks of the runtime."""

    def __init__(self) -> None:
        self.links: dict[int, Any] = {}
        self.traces = None
        self.told: list[Any] = []

    def tell(self, event: Any) -> None:
        self.told.append(event)


async def test_a_worker_that_is_gone_is_told_though_nobody_resumes_or_closes_the_handler() -> None:
    """As gRPC leaves it when a call is cancelled while a message is on its way: suspended at its yield, for the collector."""
    noting, gone = Noting(), asyncio.Event()

    async def requests() -> AsyncIterator[pb.WorkerMessage]:
        yield pb.WorkerMessage(register=pb.Register(name="w1", window=10))
        await gone.wait()
        raise asyncio.CancelledError

    links = WorkerLinks(noting, Views(), None, Decisions(), heartbeat_ms=100, allowed_labels=LabelAllowances({}))
    handler = links.Connect(requests(), None)
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
