"""Streams end with what their callers were let in by, over real gRPC."""
# ruff: noqa: N802 - the server's methods have the contract's names

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from waiting import DEADLINE_SECONDS, until

from hoss import serving
from hoss.errors import AccessDenied
from hoss.interceptor import CallInterceptor
from hoss.limits.callers import CallerLimits, CallerLimitsConfig
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.users import UncheckedToken
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherServicer, DispatcherStub, add_DispatcherServicer_to_server


class Silent(DispatcherServicer):
    """A watch is told one thing, and then nothing; a stream of submissions is answered one by one."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def Watch(self, request, context) -> AsyncIterator[pb.WatchBatch]:
        try:
            yield pb.WatchBatch(revision=1)
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def SubmitStream(self, request_iterator, context) -> AsyncIterator[pb.SubmitReply]:
        async for request in request_iterator:
            yield pb.SubmitReply(request_id=request.request_id)


class Known:
    """Callers by the name that they give; `now` says who they are by now."""

    def __init__(self) -> None:
        self.now: dict[str, Identity | AccessDenied] = {}
        self.asked = 0

    async def identify(self, context):
        self.asked += 1
        (name,) = (value for key, value in context.invocation_metadata() if key == "authorization")
        return self.now.get(name, Identity(CallerKind.CLIENT, name, Role.SUBMIT))

    def refusal(self, method, who, request, peer):
        return ""


@pytest.fixture
async def served():
    known, service = Known(), Silent()
    interceptor = CallInterceptor(CallerLimits(CallerLimitsConfig(), clock=lambda: 0.0), recheck_seconds=0.01)
    interceptor.guard_by(known)
    server = serving.Server(interceptors=(interceptor,))
    add_DispatcherServicer_to_server(service, server.grpc)
    port = await server.start("127.0.0.1:0", ())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield DispatcherStub(channel), known, service
    await server.stop(0)


def by(name: str) -> dict:
    return {"metadata": (("authorization", name),), "timeout": DEADLINE_SECONDS}


async def checks(known: Known, times: int) -> None:
    """Return when callers were identified so many times more."""
    most = known.asked + times

    async def asked() -> bool:
        return known.asked >= most

    await until(asked, "callers to be identified again")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (AccessDenied("the token was revoked"), "the stream ends: the token was revoked"),
        (Identity(CallerKind.CLIENT, "ana", Role.VIEW), "the stream ends: client/ana has other rights now"),
    ],
    ids=["refused", "of another role"],
)
async def test_a_stream_ends_soon_after_its_caller_would_not_be_let_in_any_more(served, now, said):
    """Also one that is silent. With UNAVAILABLE, by which clients come to the door again."""
    stub, known, service = served
    anas, bens = stub.Watch(pb.WatchRequest(), **by("ana")), stub.Watch(pb.WatchRequest(), **by("ben"))
    for watch in (anas, bens):
        assert (await watch.read()).revision == 1
    await checks(known, 4)
    assert not anas.done()
    known.now["ana"] = now
    assert await anas.code() is grpc.StatusCode.UNAVAILABLE
    assert await anas.details() == said
    await asyncio.wait_for(service.ended.wait(), DEADLINE_SECONDS)  # its handler has ended, too
    await checks(known, 4)
    assert not bens.done()
    bens.cancel()


async def test_a_stream_of_requests_ends_as_well(served):
    stub, known, _ = served
    call = stub.SubmitStream(**by("ana"))
    await call.write(pb.SubmitRequest(request_id="a"))
    assert (await call.read()).request_id == "a"
    known.now["ana"] = AccessDenied("the certificate has expired")
    assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_goes_on_while_nobody_can_say_whether_its_token_is_good(served):
    """An issuer or an API server that is away does not end the watches of everybody."""
    stub, known, _ = served
    watch = stub.Watch(pb.WatchRequest(), **by("ana"))
    await watch.read()
    known.now["ana"] = UncheckedToken("the API server does not answer")
    await checks(known, 4)
    assert not watch.done()
    watch.cancel()


async def test_nobody_is_asked_for_when_no_stream_is_open(served):
    stub, known, service = served
    watch = stub.Watch(pb.WatchRequest(), **by("ana"))
    await watch.read()
    watch.cancel()
    await asyncio.wait_for(service.ended.wait(), DEADLINE_SECONDS)
    await asyncio.sleep(0.1)  # for a check that was under way
    asked = known.asked
    await asyncio.sleep(0.1)
    assert known.asked == asked
