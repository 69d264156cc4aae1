"""Following the feed through interruptions, against streams made by hand."""

import asyncio

import grpc
import grpc.aio
import pytest
from waiting import DEADLINE_SECONDS

from hoss.client.feed import Subscription
from hoss.errors import InvalidInput
from hoss.v1 import resolver_pb2 as pb

SNAPSHOT = pb.FeedMessage(shard=0, seq=5, snapshot=True, ledger_epoch="e")


def delta(seq, previous):
    return pb.FeedMessage(shard=0, seq=seq, previous_seq=previous)


def broken(code, text=""):
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=text)


class Call:
    """A stream of replies, as gRPC returns it."""

    def __init__(self, messages):
        self._messages = messages

    def __aiter__(self):
        return self._messages

    def cancel(self):
        """Nobody is there to be told: tests/simulation/test_network.py has this with a server."""


class Resolver:
    """Plays one list of messages (or an error) a stream, and keeps the requests; then it stays silent."""

    peer = "resolver at nowhere"

    def __init__(self, *streams):
        self.stub = self
        self.requests = []
        self._streams = list(streams)
        self.done = asyncio.Event()

    def Feed(self, request):  # noqa: N802 - gRPC's name
        return Call(self._messages(request))

    async def _messages(self, request):
        self.requests.append(request)
        if not self._streams:
            self.done.set()
            await asyncio.Event().wait()
        for step in self._streams.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step


async def followed(resolver):
    applied = []
    task = asyncio.ensure_future(Subscription(resolver, "test", applied.append).follow())
    await asyncio.wait_for(resolver.done.wait(), DEADLINE_SECONDS)
    task.cancel()
    return [message.seq for message in applied]


async def test_a_broken_stream_is_resumed_after_the_last_message_applied():
    resolver = Resolver([SNAPSHOT, delta(6, 5), broken(grpc.StatusCode.UNAVAILABLE)], [delta(7, 6)])
    assert await followed(resolver) == [5, 6, 7]
    assert [(p.shard, p.seq) for p in resolver.requests[1].resume] == [(0, 6)]
    assert resolver.requests[1].ledger_epoch == "e"


async def test_a_gap_is_not_applied_and_a_snapshot_is_asked_for():
    resolver = Resolver([SNAPSHOT, delta(8, 7)], [pb.FeedMessage(shard=0, seq=9, snapshot=True)])
    assert await followed(resolver) == [5, 9]
    assert list(resolver.requests[1].resume) == []


async def test_a_request_the_resolver_refuses_is_not_repeated():
    resolver = Resolver([broken(grpc.StatusCode.INVALID_ARGUMENT, "no such field")])
    with pytest.raises(InvalidInput, match="no such field"):
        await Subscription(resolver, "test", lambda _: None).follow()


async def test_who_catches_up_returns_at_the_streams_end_and_resumes_the_next_time():
    resolver = Resolver([SNAPSHOT, delta(6, 5)], [delta(7, 6)])
    applied = []
    subscription = Subscription(resolver, "test", applied.append)
    await subscription.catch_up()
    await subscription.catch_up()
    assert [message.seq for message in applied] == [5, 6, 7]
    assert [request.as_of_now for request in resolver.requests] == [True, True]
    assert [(p.shard, p.seq) for p in resolver.requests[1].resume] == [(0, 6)]


async def test_who_catches_up_anew_asks_for_snapshots():
    resolver = Resolver([SNAPSHOT], [SNAPSHOT])
    subscription = Subscription(resolver, "test", lambda _: None)
    await subscription.catch_up()
    await subscription.catch_up(anew=True)
    assert list(resolver.requests[1].resume) == []


async def test_who_catches_up_is_not_done_when_the_stream_breaks_or_has_a_gap():
    resolver = Resolver(
        [SNAPSHOT, broken(grpc.StatusCode.UNAVAILABLE)],
        [delta(8, 7)],
        [pb.FeedMessage(shard=0, seq=9, snapshot=True)],
    )
    applied = []
    await asyncio.wait_for(Subscription(resolver, "test", applied.append).catch_up(), DEADLINE_SECONDS)
    assert [message.seq for message in applied] == [5, 9]


class Slow:
    """Takes each message in once it is told to."""

    def __init__(self):
        self.begun, self.applied, self.may_end = asyncio.Event(), [], asyncio.Event()

    async def __call__(self, message):
        self.begun.set()
        await self.may_end.wait()
        self.applied.append(message.seq)


async def test_a_message_that_arrives_or_a_stream_that_ends_while_one_is_taken_in_comes_after_it():
    resolver, slow = Resolver([SNAPSHOT, delta(6, 5), broken(grpc.StatusCode.UNAVAILABLE)]), Slow()
    task = asyncio.ensure_future(Subscription(resolver, "test", slow).follow())
    await asyncio.wait_for(slow.begun.wait(), DEADLINE_SECONDS)
    slow.may_end.set()
    await asyncio.wait_for(resolver.done.wait(), DEADLINE_SECONDS)
    task.cancel()
    assert slow.applied == [5, 6]
    assert [(p.shard, p.seq) for p in resolver.requests[1].resume] == [(0, 6)]


async def test_who_was_cut_off_while_a_message_was_taken_in_asks_for_a_snapshot():
    resolver, slow = Resolver([delta(6, 5)], []), Slow()
    subscription = Subscription(resolver, "test", slow)
    subscription._position.advance(SNAPSHOT)
    reading = asyncio.ensure_future(subscription.catch_up())
    await asyncio.wait_for(slow.begun.wait(), DEADLINE_SECONDS)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await subscription.catch_up()
    assert list(resolver.requests[1].resume) == []
