"""What the client's streams do when the other end breaks off: against a server of the test's that breaks off
when it is told."""
# ruff: noqa: N802 - the server's methods have the contract's names

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import numpy as np
import pytest
from waiting import DEADLINE_SECONDS

from hoss.client import sync
from hoss.client.dispatcher import DispatcherClient
from hoss.client.errors import refuse
from hoss.errors import InvalidInput, OutcomeUnknown, TransportError
from hoss.model.volumes import StorageClass
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherServicer, add_DispatcherServicer_to_server
from hoss.v1.objects_pb2 import StorageChanges
from hoss.wire.convert_storage import storage_to_proto

NONE = 0xFFFFFFFF


def batch(revision: int, pods: dict[int, int], *, node: int = 7, states_end: bool = False) -> pb.WatchBatch:
    """Pods by number with their phases."""
    nodes = [node if phase == pb.BOUND else NONE for phase in pods.values()]
    return pb.WatchBatch(
        revision=revision,
        uids=b"".join(number.to_bytes(16, "big") for number in pods),
        phases=bytes(pods.values()),
        nodes=np.array(nodes, "<u4").tobytes(),
        states_end=states_end,
    )


def told(batch: pb.WatchBatch) -> dict[int, int]:
    numbers = [int.from_bytes(batch.uids[i : i + 16], "big") for i in range(0, len(batch.uids), 16)]
    return dict(zip(numbers, batch.phases, strict=True))


class Scripted(DispatcherServicer):
    """Each watch plays the next script: batches, and how it ends. Submissions are answered until `breaks`
    more were taken in."""

    def __init__(self) -> None:
        self.scripts: list[tuple[list[pb.WatchBatch], grpc.StatusCode]] = []
        self.asked: list[tuple[int, bool]] = []
        self.taken: list[str] = []
        self.breaks_at: set[int] = set()
        self.failures = 0
        self.unknown = 0
        # Of the next submit streams, each once so many messages came after its first.
        self.refusals: list[tuple[grpc.StatusCode, int]] = []
        self.came_together: list[int] = []  # how many came while that was not answered
        # Of the next lists of storage, how each ends after its first message.
        self.breaks: list[grpc.StatusCode] = []

    async def GetStatus(self, request, context):
        return pb.DispatcherStatus(revision=100)

    async def Submit(self, request, context):
        self.taken.append(request.request_id)
        if len(self.taken) <= self.failures:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if len(self.taken) <= self.unknown:
            await refuse(context, OutcomeUnknown("Redis did not answer"))
        return pb.SubmitReply(request_id=request.request_id)

    async def Watch(self, request, context):
        self.asked.append((request.since_revision, request.states))
        batches, end = self.scripts.pop(0)
        for message in batches:
            yield message
        await context.abort(end, "as the script says")

    async def ListStorage(self, request, context):
        for name in "ab":
            yield StorageChanges(objects=[storage_to_proto(StorageClass(name))])
            if self.breaks:
                await context.abort(self.breaks.pop(0), "as the script says")

    async def SubmitStream(self, requests, context):
        async for request in requests:
            if self.refusals:
                code, awaited = self.refusals.pop(0)
                self.came_together.append(await _count(requests, awaited))
                await context.abort(code, f"{request.request_id} is there already")
            self.taken.append(request.request_id)
            if len(self.taken) in self.breaks_at:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
            yield pb.SubmitReply(request_id=request.request_id)


async def _count(requests, awaited: int) -> int:
    """How many messages come: those that are awaited, however long they take, and what else comes until
    nothing has for a while."""
    found = 0
    while True:
        try:
            await asyncio.wait_for(anext(requests), DEADLINE_SECONDS if found < awaited else 0.3)
        except (asyncio.TimeoutError, StopAsyncIteration):
            return found
        found += 1


@pytest.fixture
async def scripted() -> AsyncIterator[tuple[Scripted, DispatcherClient]]:
    servicer, server = Scripted(), grpc.aio.server()
    add_DispatcherServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with DispatcherClient([f"127.0.0.1:{port}"]) as client:
        yield servicer, client
    await server.stop(None)


async def collect(client: DispatcherClient, since: int = 0, *, states: bool = False) -> list[dict[int, int]]:
    """Everything a watch tells until it ends with an error that is no break."""
    seen: list[dict[int, int]] = []

    async def follow() -> None:
        async for message in client.watch(since, states=states):
            seen.append(told(message))  # noqa: PERF401 - what came before the error matters

    with pytest.raises(InvalidInput):
        await follow()
    return seen


async def test_a_watch_that_breaks_off_goes_on_at_its_revision(scripted):
    servicer, client = scripted
    servicer.scripts = [
        ([batch(41, {1: pb.QUEUED})], grpc.StatusCode.UNAVAILABLE),
        ([batch(42, {1: pb.BOUND})], grpc.StatusCode.INVALID_ARGUMENT),
    ]
    assert await collect(client, 40) == [{1: pb.QUEUED}, {1: pb.BOUND}]
    assert servicer.asked == [(40, False), (41, False)]


async def test_a_watch_from_now_that_breaks_off_before_its_first_event_misses_nothing(scripted):
    servicer, client = scripted
    servicer.scripts = [([], grpc.StatusCode.UNAVAILABLE), ([], grpc.StatusCode.INVALID_ARGUMENT)]
    await collect(client)
    assert servicer.asked == [(100, False), (100, False)]


async def test_after_a_takeover_only_what_is_different_is_told_and_what_has_gone(scripted):
    servicer, client = scripted
    before = [batch(41, {1: pb.BOUND, 2: pb.QUEUED, 3: pb.QUEUED, 4: pb.DELETED}), batch(42, {3: pb.BOUND})]
    states = [batch(900, {1: pb.BOUND, 2: pb.BOUND}), batch(900, {5: pb.QUEUED}, states_end=True)]
    servicer.scripts = [
        (before, grpc.StatusCode.UNAVAILABLE),
        ([], grpc.StatusCode.OUT_OF_RANGE),
        ([*states, batch(901, {5: pb.BOUND})], grpc.StatusCode.INVALID_ARGUMENT),
    ]
    seen = await collect(client, 40)
    assert seen[2:] == [{2: pb.BOUND}, {5: pb.QUEUED}, {3: pb.DELETED}, {5: pb.BOUND}]
    assert servicer.asked == [(40, False), (42, False), (42, True)]


async def test_a_pod_on_another_node_than_before_is_different(scripted):
    servicer, client = scripted
    servicer.scripts = [
        ([batch(41, {1: pb.BOUND, 2: pb.BOUND})], grpc.StatusCode.UNAVAILABLE),
        ([], grpc.StatusCode.OUT_OF_RANGE),
        (
            [batch(900, {1: pb.BOUND}), batch(900, {2: pb.BOUND}, node=8, states_end=True)],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ]
    assert (await collect(client, 40))[1:] == [{2: pb.BOUND}]


async def test_a_list_that_breaks_off_is_begun_anew_and_told_once(scripted):
    servicer, client = scripted
    servicer.scripts = [
        ([batch(9, {1: pb.QUEUED})], grpc.StatusCode.UNAVAILABLE),
        (
            [batch(9, {1: pb.QUEUED}), batch(9, {2: pb.QUEUED}, states_end=True)],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ]
    assert await collect(client, states=True) == [{1: pb.QUEUED}, {2: pb.QUEUED}]
    assert servicer.asked == [(0, True), (0, True)]


async def test_a_revision_too_old_at_the_first_call_is_the_callers_to_know(scripted):
    servicer, client = scripted
    servicer.scripts = [([], grpc.StatusCode.OUT_OF_RANGE)]
    assert await collect(client, 3) == []


async def test_a_reader_that_falls_behind_is_told(scripted):
    servicer, client = scripted
    servicer.scripts = [([batch(41, {1: pb.QUEUED})], grpc.StatusCode.OUT_OF_RANGE)]
    assert await collect(client, 40) == [{1: pb.QUEUED}]


async def test_what_a_broken_stream_left_unanswered_is_sent_again_in_order(scripted):
    servicer, client = scripted
    servicer.breaks_at = {3, 9}
    requests = [pb.SubmitRequest(request_id=f"r{number}") for number in range(12)]

    async def outgoing():
        for request in requests:
            yield request

    replies = [reply.request_id async for reply in client.submit_stream(outgoing())]
    assert replies == [request.request_id for request in requests]
    assert len(servicer.taken) > len(requests)


async def test_what_is_sent_again_goes_alone_at_first_so_that_no_write_can_hide_its_refusal(scripted):
    servicer, client = scripted
    # gRPC's own word when a refusal meets a message that is being written.
    servicer.refusals = [(grpc.StatusCode.INTERNAL, 11), (grpc.StatusCode.ALREADY_EXISTS, 0)]

    async def outgoing():
        for number in range(12):
            yield pb.SubmitRequest(request_id=f"r{number}")

    async def submit_all() -> None:
        async for _ in client.submit_stream(outgoing()):
            pass

    with pytest.raises(InvalidInput, match="r0 is there already"):
        await submit_all()
    assert servicer.came_together == [11, 0]


async def test_what_the_callers_iterator_raises_reaches_the_caller(scripted):
    _, client = scripted

    async def outgoing():
        yield pb.SubmitRequest(request_id="r1")
        raise ValueError("mine")

    answered = []

    async def submit_all() -> None:
        async for reply in client.submit_stream(outgoing()):
            answered.append(reply.request_id)  # noqa: PERF401 - what came before the error matters

    with pytest.raises(ValueError, match="mine"):
        await submit_all()
    assert answered == ["r1"]


async def test_a_submission_is_repeated_under_one_id_even_if_it_was_given_none(scripted):
    servicer, client = scripted
    servicer.failures = 2
    reply = await client.submit(pb.SubmitRequest())
    assert servicer.taken == [reply.request_id] * 3
    assert reply.request_id


async def test_a_lone_address_where_nobody_listens_is_said_soon():
    async with DispatcherClient(["127.0.0.1:9"]) as client:
        with pytest.raises(TransportError, match=r"127\.0\.0\.1:9"):
            await anext(client.watch(5))


def test_the_sync_client_says_so_as_well_and_ends_its_thread():
    with sync.BlockingDispatcherClient(["127.0.0.1:9"]) as client:
        with pytest.raises(TransportError, match=r"127\.0\.0\.1:9"):
            client.status()
        with pytest.raises(TransportError):
            next(client.watch(5))
    assert not client._thread.is_alive()
    client.close()


async def test_a_submission_of_unknown_outcome_is_sent_again_with_its_id(scripted) -> None:
    """Oftener than gRPC repeats a call by itself."""
    servicer, client = scripted
    servicer.unknown = 6
    request = pb.SubmitRequest()
    reply = await client.submit(request)
    assert reply.request_id == request.request_id
    assert servicer.taken == [request.request_id] * 7


async def test_a_list_of_storage_that_breaks_off_is_asked_for_again_and_has_everything_once(scripted) -> None:
    servicer, client = scripted
    servicer.breaks = [grpc.StatusCode.UNAVAILABLE] * 2
    assert [item.name for item in (await client.list_storage()).objects] == ["a", "b"]


async def test_a_list_of_storage_that_is_refused_is_not_asked_for_again(scripted) -> None:
    servicer, client = scripted
    servicer.breaks = [grpc.StatusCode.INVALID_ARGUMENT] * 2
    with pytest.raises(InvalidInput, match="as the script says"):
        await client.list_storage()
    assert len(servicer.breaks) == 1
