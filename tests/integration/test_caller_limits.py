"""What one caller may do to a real server, over real gRPC."""
# ruff: noqa: N802 - the server's methods have the contract's names

import asyncio
import gc
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from waiting import DEADLINE_SECONDS, until

from hoss import interceptor, rpc, serving
from hoss.client.dispatcher import DispatcherClient
from hoss.client.resolver import ResolverClient
from hoss.errors import AccessDenied, InvalidInput, Overloaded
from hoss.interceptor import CallInterceptor
from hoss.limits.callers import CallerLimits, CallerLimitsConfig
from hoss.security.identity import CallerKind, Identity, Role
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherServicer, DispatcherStub, add_DispatcherServicer_to_server

WATCH = "/hoss.v1.Dispatcher/Watch"
LARGE = 2**20  # more than gRPC takes for a reader that does not read


class Endless(DispatcherServicer):
    """Watches are told large batches without end."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def GetStatus(self, request, context):
        return pb.DispatcherStatus(revision=1)

    async def Watch(self, request, context) -> AsyncIterator[pb.WatchBatch]:
        self.asked.append(request.since_revision)
        revision = request.since_revision
        while True:
            revision += 1
            yield pb.WatchBatch(revision=revision, reason_texts=["x" * LARGE])

    async def SubmitStream(self, request_iterator, context):
        async for request in request_iterator:
            yield pb.SubmitReply(request_id=request.request_id)


@pytest.fixture
async def serve():
    servers = []

    async def start(*, service=None, **limits):
        held = CallerLimits(CallerLimitsConfig(**limits), clock=asyncio.get_running_loop().time)
        server = serving.Server(interceptors=(CallInterceptor(held, [WATCH]),))
        service = service or Endless()
        add_DispatcherServicer_to_server(service, server.grpc)
        servers.append(server)
        return f"127.0.0.1:{await server.start('127.0.0.1:0', ())}", held, service

    yield start
    for server in servers:
        await server.stop(0)


async def test_a_caller_beyond_its_rate_is_refused_and_the_service_answers_on(serve):
    address, limits, _ = await serve(calls_per_second=0.5)  # a burst of five
    client = DispatcherClient([address])
    for _ in range(5):
        assert (await client.status()).revision == 1
    with pytest.raises(Overloaded, match=r"127\.0\.0\.1 makes more calls") as refused:
        await client.status()
    assert 0 < refused.value.retry_after_seconds <= 2
    assert limits.refused == {"calls": 1}
    await client.close()


async def test_a_caller_has_so_many_streams_and_gets_another_when_one_has_ended(serve):
    address, limits, _ = await serve(streams=1)
    async with rpc.channel([address]) as channel:
        stub = DispatcherStub(channel)
        first = stub.Watch(pb.WatchRequest())
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError, match="1 streams open") as refused:
            await stub.Watch(pb.WatchRequest()).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert limits.refused == {"streams": 1}
        first.cancel()

        async def allowed():
            try:
                call = stub.Watch(pb.WatchRequest())
                await call.read()
            except grpc.aio.AioRpcError:
                return False
            call.cancel()
            return True

        await until(allowed, "the first stream to be counted out")


async def test_streams_that_are_begun_and_taken_back_at_once_leave_nothing_and_hold_up_nobody(serve):
    """As an attack that resets HTTP/2 streams as quickly as it opens them."""
    address, limits, _ = await serve()
    other = DispatcherClient([address])
    async with rpc.channel([address]) as channel:
        stub = DispatcherStub(channel)
        for _ in range(10):
            calls = [stub.Watch(pb.WatchRequest()) for _ in range(100)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            assert (await other.status()).revision == 1
    await until(lambda: limits.table_sizes()["callers_with_streams"] == 0, "all streams to be counted out")
    await other.close()


async def test_headers_beyond_the_limit_are_refused_before_anything_reads_them(serve):
    address, limits, service = await serve()
    async with rpc.channel([address]) as channel:
        stub = DispatcherStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="metadata size exceeds") as refused:
            await stub.Watch(pb.WatchRequest(), metadata=[(f"x{i}", "y" * 1000) for i in range(30)]).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert service.asked == []
        assert limits.refused == {}


class Deaf(DispatcherServicer):
    """Reads no submission of a stream."""

    async def SubmitStream(self, request_iterator, context) -> AsyncIterator[pb.SubmitReply]:
        yield pb.SubmitReply(request_id="1")


async def test_a_stream_whose_handler_ends_without_a_request_leaves_no_coroutine_behind(serve, recwarn):
    address, limits, _ = await serve(service=Deaf())
    async with rpc.channel([address]) as channel:
        call = DispatcherStub(channel).SubmitStream()
        assert (await call.read()).request_id == "1"
        assert await call.read() is grpc.aio.EOF
    await until(lambda: limits.table_sizes()["callers_with_streams"] == 0, "the stream to be counted out")
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []


async def _read_on(call):
    while await call.read():
        pass


async def test_a_slow_reader_of_a_watch_is_cut_and_one_that_reads_is_not(serve):
    address, limits, _ = await serve(slow_reader_seconds=0.5)
    async with rpc.channel([address]) as channel:
        call = DispatcherStub(channel).Watch(pb.WatchRequest())
        for revision in range(1, 20):
            assert (await call.read()).revision == revision
        assert not limits.refused
        await until(lambda: limits.refused == {"slow_reader": 1}, "the reader to be cut")
        with pytest.raises(grpc.aio.AioRpcError, match="resume where it was") as cut:
            await _read_on(call)
        assert cut.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_client_resumes_a_watch_that_was_cut_where_it_was(serve):
    address, limits, service = await serve(slow_reader_seconds=0.5)
    client = DispatcherClient([address])
    told = []
    async for batch in client.watch(since_revision=7):
        told.append(batch.revision)
        if len(told) == 1:
            await until(lambda: limits.refused["slow_reader"], "the reader to be cut")
        if len(service.asked) > 1 and batch.revision > service.asked[1] + 1:
            break
    assert service.asked[0] == 7
    assert service.asked[1] > 7
    assert told == list(range(8, told[-1] + 1)), "a revision is missing, or was told twice"
    await client.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_bytes_that_are_no_message_are_refused_by_name(serve, streamed):
    address, limits, _ = await serve()
    async with grpc.aio.insecure_channel(address) as channel:
        if streamed:
            answer = channel.stream_stream("/hoss.v1.Dispatcher/SubmitStream")(iter([b"\xff\xff"])).read()
        else:
            answer = channel.unary_unary("/hoss.v1.Dispatcher/GetStatus")(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError, match="request: is no message") as refused:
            await asyncio.wait_for(answer, DEADLINE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert limits.refused == {"malformed": 1}


async def test_epochs_are_granted_to_one_name_at_a_rate_and_a_refused_grant_fences_nobody(
    redis_server, start_resolver
):
    client = ResolverClient([start_resolver(redis_server.url)])
    answers = await asyncio.gather(*(client.grant_epoch("w1") for _ in range(490)), return_exceptions=True)
    granted = sorted(answer for answer in answers if isinstance(answer, int))
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert len(granted) + len(refused) == 490
    assert "'w1' or 127.0.0.1 gets more epochs than the resolver's grants_per_second" in str(refused[0])
    assert len(granted) >= 50
    assert len(refused) > 300
    assert await client.grant_epoch("w2") == granted[-1] + 1
    await client.close()


async def test_a_name_of_a_megabyte_is_not_echoed(redis_server, start_resolver):
    client = ResolverClient([start_resolver(redis_server.url)])
    with pytest.raises(InvalidInput) as refused:
        await client.cordon_node("n" * 10**6, unschedulable=True)
    assert "(1,000,000 characters)" in str(refused.value)
    assert len(str(refused.value)) < 250
    await client.close()


class ByToken:
    """Who calls is what the token says; "nobody" is nobody."""

    async def identify(self, context):
        (token,) = (value for key, value in context.invocation_metadata() if key == "authorization")
        return AccessDenied("unknown") if token == "nobody" else Identity(CallerKind.CLIENT, token, Role.VIEW)

    def refusal(self, method, who, request, peer):
        return ""


async def test_identities_of_one_address_have_limits_of_their_own_and_nobodies_share_theirs():
    limits = CallerLimits(CallerLimitsConfig(calls_per_second=0.1, streams=1), clock=lambda: 0.0)
    interceptor = CallInterceptor(limits, [WATCH])
    interceptor.guard_by(ByToken())
    server = serving.Server(interceptors=(interceptor,))
    add_DispatcherServicer_to_server(Endless(), server.grpc)
    address = f"127.0.0.1:{await server.start('127.0.0.1:0', ())}"

    async def code(bearer: str) -> str:
        call = DispatcherStub(channel).GetStatus(pb.StatusRequest(), metadata=(("authorization", bearer),))
        return (await call.code()).name

    try:
        async with grpc.aio.insecure_channel(address) as channel:
            codes = [await code(bearer) for bearer in ("ana", "ben", "ana", "nobody", "nobody", "cleo")]
    finally:
        await server.stop(0)
    assert codes == ["OK", "OK", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "OK"]


async def test_who_is_nobody_does_not_fill_the_log(capsys):
    """A flood of bad tokens is counted, and told by a line a second."""
    now = [0.0]
    limits = CallerLimits(CallerLimitsConfig(), clock=lambda: now[0])
    interceptor = CallInterceptor(limits, [WATCH])
    interceptor.guard_by(ByToken())
    server = serving.Server(interceptors=(interceptor,))
    add_DispatcherServicer_to_server(Endless(), server.grpc)
    address = f"127.0.0.1:{await server.start('127.0.0.1:0', ())}"
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = DispatcherStub(channel)

            async def refused() -> None:
                call = stub.GetStatus(pb.StatusRequest(), metadata=(("authorization", "nobody"),))
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED

            for _ in range(50):
                await refused()
            lines = capsys.readouterr().out.count("caller_refused")
            now[0] = 1.0
            await refused()
            last = capsys.readouterr().out
    finally:
        await server.stop(0)
    assert lines == 20
    assert last.count("caller_refused") == 1
    assert "unlogged=30" in last or '"unlogged": 30' in last
    assert limits.refused["identity"] == 51


class ViewersAlone(ByToken):
    """Who is known may not call what is a stream of requests."""

    def refusal(self, method, who, request, peer):
        return f"{who} may not"


@pytest.mark.parametrize(("bearer", "code"), [("ana", "PERMISSION_DENIED"), ("nobody", "UNAUTHENTICATED")])
async def test_a_stream_is_refused_after_its_first_request_and_without_one_a_little_later(
    bearer, code, monkeypatch
):
    """Python's client makes INTERNAL of a refusal that crosses a request on its way."""
    is_refused, wait = asyncio.Event(), interceptor._first_of

    async def first_of(requests):
        is_refused.set()
        await wait(requests)

    monkeypatch.setattr(interceptor, "_first_of", first_of)
    door = CallInterceptor(CallerLimits(CallerLimitsConfig(), clock=lambda: 0.0), [WATCH])
    door.guard_by(ViewersAlone())
    server = serving.Server(interceptors=(door,))
    add_DispatcherServicer_to_server(Endless(), server.grpc)
    address = f"127.0.0.1:{await server.start('127.0.0.1:0', ())}"
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            metadata = (("authorization", bearer),)
            monkeypatch.setattr(interceptor, "_FIRST_REQUEST_SECONDS", DEADLINE_SECONDS)
            asking = DispatcherStub(channel).SubmitStream(metadata=metadata)
            await asyncio.wait_for(is_refused.wait(), DEADLINE_SECONDS)
            assert not asking.done()
            await asking.write(pb.SubmitRequest(request_id="a"))
            assert (await asking.code()).name == code
            monkeypatch.setattr(interceptor, "_FIRST_REQUEST_SECONDS", 0.01)
            silent = DispatcherStub(channel).SubmitStream(metadata=metadata)
            assert (await silent.code()).name == code
    finally:
        await server.stop(0)
