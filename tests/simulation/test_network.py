"""The contract of the simulated network's gRPC: whatever a test here claims holds for grpc.aio as well."""

import asyncio
import functools
import gc

import grpc
import grpc.aio
import pytest
from simulation.grpc_service import SERVICE, Loopback, Service, Simulated, soon, steady

from dispatcher.api.request_router import ACTIVE_ADDRESS, RequestRouter, Services
from hoss.client.errors import LEDGER_UNAVAILABLE, translate
from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable, TransportError
from hoss.v1 import resolver_pb2 as pb
from hoss.v1.resolver_pb2_grpc import add_ResolverServicer_to_server

TRANSPORTS = [Loopback(), *(Simulated(seed) for seed in range(3))]
NAMES = ["grpc", *(f"simulated, seed {seed}" for seed in range(3))]


def on_both(scenario):
    """Run the scenario on real gRPC, and on the simulated one with several orders of events."""

    @functools.wraps(scenario)
    @pytest.mark.parametrize("transport", TRANSPORTS, ids=NAMES)
    def test(transport):
        transport.run(scenario)

    del test.__wrapped__  # pytest would look for the scenario's arguments
    return test


def granting(epoch=7):
    async def grant(request, context):
        return pb.GrantEpochReply(epoch=epoch)

    return grant


def grant(stub, worker="w", **options):
    return stub.GrantEpoch(pb.GrantEpochRequest(worker=worker), **options)


def noting_its_end(seen, *, replies=()):
    """A handler of Feed that sends `replies`, waits for ever, and notes how it ends."""

    async def feed(request, context):
        try:
            for seq in replies:
                yield pb.FeedMessage(seq=seq)
            seen.append("waits")
            await asyncio.Event().wait()
        except BaseException as exc:
            seen.append(type(exc).__name__)
            raise

    return feed


async def error_of(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


async def reply_of(call):
    return await call


async def read_all(call):
    async for _ in call:
        pass


async def echo(requests, context):
    async for batch in requests:
        yield pb.VerdictBatch(batch_id=batch.batch_id)


# -- messages


@on_both
async def test_a_unary_call_is_answered_and_the_two_sides_share_no_object(rpc):
    got = []

    async def handler(request, context):
        got.append(request)
        return pb.GrantEpochReply(epoch=len(request.worker))

    _, address = await rpc.serve(Service(GrantEpoch=handler))
    request = pb.GrantEpochRequest(worker="abc")
    call = rpc.stub(address).GrantEpoch(request)
    assert (await call).epoch == 3
    request.worker = "changed"
    assert got[0].worker == "abc"
    assert await call.code() is grpc.StatusCode.OK


@on_both
async def test_a_handler_reads_the_metadata_of_its_call(rpc):
    async def handler(request, context):
        found = dict(tuple(pair) for pair in context.invocation_metadata())
        return pb.GrantEpochReply(epoch=int(found["number"]))

    _, address = await rpc.serve(Service(GrantEpoch=handler))
    assert (await grant(rpc.stub(address), metadata=(("number", "12"),))).epoch == 12


@on_both
async def test_a_stream_of_replies_keeps_its_order_and_ends(rpc):
    async def handler(request, context):
        for seq in range(200):
            yield pb.FeedMessage(seq=seq)

    _, address = await rpc.serve(Service(Feed=handler))
    call = rpc.stub(address).Feed(pb.FeedRequest())
    assert [message.seq async for message in call] == list(range(200))
    assert await call.code() is grpc.StatusCode.OK
    assert await call.read() is grpc.aio.EOF


@on_both
async def test_a_stream_of_requests_is_read_to_its_end(rpc):
    async def handler(requests, context):
        return pb.RebuildReply(reservations=len([part async for part in requests]))

    _, address = await rpc.serve(Service(Rebuild=handler))
    stub = rpc.stub(address)
    assert (await stub.Rebuild(iter([pb.LedgerPart()] * 50))).reservations == 50

    async def parts():
        for _ in range(3):
            yield pb.LedgerPart()

    assert (await stub.Rebuild(parts())).reservations == 3


@on_both
async def test_both_sides_of_a_stream_write_whenever_they_like(rpc):
    _, address = await rpc.serve(Service(Propose=echo))
    call = rpc.stub(address).Propose()
    await call.write(pb.ProposalBatch(batch_id=1))
    assert (await call.read()).batch_id == 1
    await call.write(pb.ProposalBatch(batch_id=2))
    await call.write(pb.ProposalBatch(batch_id=3))
    await call.done_writing()
    assert [(await call.read()).batch_id for _ in range(2)] == [2, 3]
    assert await call.read() is grpc.aio.EOF
    assert call.done()


@on_both
async def test_a_stream_takes_its_requests_from_an_iterator(rpc):
    _, address = await rpc.serve(Service(Propose=echo))

    async def requests():
        for number in range(5):
            yield pb.ProposalBatch(batch_id=number)

    assert [v.batch_id async for v in rpc.stub(address).Propose(requests())] == list(range(5))


@on_both
async def test_after_the_client_is_done_writing_the_server_goes_on(rpc):
    async def handler(requests, context):
        count = len([batch async for batch in requests])
        for number in range(count):
            await asyncio.sleep(0.01)
            yield pb.VerdictBatch(batch_id=number)

    _, address = await rpc.serve(Service(Propose=handler))
    call = rpc.stub(address).Propose()
    for _ in range(3):
        await call.write(pb.ProposalBatch())
    await call.done_writing()
    assert [verdict.batch_id async for verdict in call] == [0, 1, 2]
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(pb.ProposalBatch())


@on_both
async def test_a_server_waits_with_its_replies_while_the_client_reads_none(rpc):
    sent = []

    async def handler(request, context):
        for seq in range(2000):
            yield pb.FeedMessage(seq=seq, ledger_epoch="x" * 16_384)
            sent.append(seq)

    _, address = await rpc.serve(Service(Feed=handler))
    call = rpc.stub(address).Feed(pb.FeedRequest())
    replies = aiter(call)
    assert (await anext(replies)).seq == 0
    await steady(lambda: len(sent))
    assert len(sent) < 1000
    assert [message.seq async for message in replies] == list(range(1, 2000))


@on_both
async def test_a_client_waits_with_its_requests_while_the_server_reads_none(rpc):
    may_read = asyncio.Event()

    async def handler(requests, context):
        await may_read.wait()
        async for batch in requests:
            yield pb.VerdictBatch(batch_id=batch.batch_id)

    _, address = await rpc.serve(Service(Propose=handler))
    call = rpc.stub(address).Propose()
    written = []

    async def write():
        for number in range(1000):
            await call.write(pb.ProposalBatch(batch_id=number, worker="x" * 16_384))
            written.append(number)
        await call.done_writing()

    writer = asyncio.ensure_future(write())
    await steady(lambda: len(written))
    assert len(written) < 900
    may_read.set()
    assert [verdict.batch_id async for verdict in call] == list(range(1000))
    await writer


# -- how calls end


@on_both
async def test_a_deadline_ends_the_call_on_both_sides(rpc):
    began, seen = [], []

    async def sleeps(request, context):
        began.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("unary")
            raise

    _, address = await rpc.serve(Service(GrantEpoch=sleeps, Feed=noting_its_end(seen, replies=[1])))
    stub = rpc.stub(address)
    assert (await error_of(grant(stub, timeout=0.1))).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    while "waits" not in seen:  # a slow machine may let the time pass before the handler begins
        call = stub.Feed(pb.FeedRequest(), timeout=0.3)
        assert (await error_of(read_all(call))).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await soon(lambda: seen[-1] == "CancelledError")
    await soon(lambda: "unary" in seen or not began)


@on_both
async def test_a_client_that_is_cancelled_cancels_the_handler(rpc):
    seen = []

    async def handler(request, context):
        seen.append("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    _, address = await rpc.serve(Service(GrantEpoch=handler))
    call = grant(rpc.stub(address))
    task = asyncio.ensure_future(reply_of(call))
    await soon(lambda: seen)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.cancelled()
    assert await call.code() is grpc.StatusCode.CANCELLED
    await soon(lambda: seen == ["began", "cancelled"])


@on_both
async def test_a_cancelled_stream_ends_for_its_reader_and_for_the_handler(rpc):
    seen = []
    _, address = await rpc.serve(Service(Feed=noting_its_end(seen, replies=[1])))
    call = rpc.stub(address).Feed(pb.FeedRequest())
    assert (await call.read()).seq == 1
    reader = asyncio.ensure_future(call.read())
    await soon(lambda: seen)
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not call.cancel()
    assert await call.details() == "Locally cancelled by application!"
    await soon(lambda: seen == ["waits", "CancelledError"])


@on_both
async def test_who_reads_requests_beside_a_cancelled_handler_finds_their_end(rpc):
    seen = []

    async def handler(requests, context):
        async def read():
            seen.extend([batch.batch_id async for batch in requests])
            seen.append("no more")

        reader = asyncio.ensure_future(read())
        try:
            yield pb.VerdictBatch()
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(reader, return_exceptions=True)

    _, address = await rpc.serve(Service(Propose=handler))
    call = rpc.stub(address).Propose()
    await call.write(pb.ProposalBatch(batch_id=1))
    await call.read()
    call.cancel()
    await soon(lambda: seen == [1, "no more"])


@on_both
async def test_a_generator_that_is_cancelled_while_it_waits_to_send_is_closed_when_it_is_collected(rpc):
    seen = []

    async def handler(request, context):
        try:
            while True:
                yield pb.FeedMessage(ledger_epoch="x" * 65_536)
                seen.append("sent")
        except BaseException as exc:
            seen.append(type(exc).__name__)
            raise

    _, address = await rpc.serve(Service(Feed=handler))
    call = rpc.stub(address).Feed(pb.FeedRequest())
    await call.read()
    await steady(lambda: len(seen))  # the window is full
    call.cancel()
    await soon(lambda: (gc.collect(), seen[-1])[1] == "GeneratorExit")


@on_both
async def test_an_abort_carries_code_text_and_trailing_metadata(rpc):
    async def unary(request, context):
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such worker", (("hoss-error", "why"),))

    async def stream(request, context):
        for seq in range(3):
            yield pb.FeedMessage(seq=seq)
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "too old", (("seq", "3"),))

    _, address = await rpc.serve(Service(GrantEpoch=unary, Feed=stream))
    stub = rpc.stub(address)
    error = await error_of(grant(stub))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such worker")
    assert dict(error.trailing_metadata()) == {"hoss-error": "why"}

    call = stub.Feed(pb.FeedRequest())
    assert [(await call.read()).seq for _ in range(3)] == [0, 1, 2]
    assert (await error_of(call.read())).details() == "too old"
    assert dict(await call.trailing_metadata()) == {"seq": "3"}


@on_both
async def test_an_exception_of_a_handler_is_an_unknown_error(rpc):
    async def unary(request, context):
        raise ValueError("of the handler")

    async def stream(request, context):
        yield pb.FeedMessage(seq=1)
        raise ValueError("of the handler")

    _, address = await rpc.serve(Service(GrantEpoch=unary, Feed=stream))
    stub = rpc.stub(address)
    error = await error_of(grant(stub))
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Unexpected <class 'ValueError'>: of the handler"
    call = stub.Feed(pb.FeedRequest())
    assert (await call.read()).seq == 1
    assert (await error_of(call.read())).code() is grpc.StatusCode.UNKNOWN


@on_both
async def test_a_handler_that_is_cancelled_by_its_own_process_leaves_the_client_waiting(rpc):
    async def handler(request, context):
        asyncio.current_task().cancel()
        await asyncio.Event().wait()

    _, address = await rpc.serve(Service(GrantEpoch=handler))
    error = await error_of(grant(rpc.stub(address), timeout=0.2))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@on_both
async def test_an_unknown_method_is_unimplemented(rpc):
    _, address = await rpc.serve(None)
    error = await error_of(grant(rpc.stub(address)))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


@on_both
async def test_nothing_is_written_to_a_call_that_has_ended(rpc):
    async def handler(requests, context):
        async for _ in requests:
            await context.abort(grpc.StatusCode.ABORTED, "no")
        yield pb.VerdictBatch()

    _, address = await rpc.serve(Service(Propose=handler))
    call = rpc.stub(address).Propose()
    await call.write(pb.ProposalBatch())
    assert (await error_of(call.read())).code() is grpc.StatusCode.ABORTED
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(pb.ProposalBatch())
    await call.done_writing()  # does nothing


@on_both
async def test_a_writer_that_waits_when_the_server_ends_the_call_can_get_an_internal_error(rpc):
    """gRPC puts it in place of the server's status where the next write comes before that: nearly always, and
    always in the simulation. See hoss.client.resuming."""

    async def handler(requests, context):
        await may_end.wait()
        await context.abort(grpc.StatusCode.ABORTED, "no")
        yield pb.VerdictBatch()

    async def write(call, begun):
        while True:
            begun.append(1)
            await call.write(pb.ProposalBatch(worker="x" * 65_536))

    _, address = await rpc.serve(Service(Propose=handler))
    codes = []
    while grpc.StatusCode.INTERNAL not in codes:
        assert codes == [grpc.StatusCode.ABORTED] * len(codes)
        assert len(codes) < 20
        may_end, call, begun = asyncio.Event(), rpc.stub(address).Propose(), []
        writer = asyncio.ensure_future(write(call, begun))
        await steady(functools.partial(len, begun))
        may_end.set()
        with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)) as found:
            await writer
        codes.append(await call.code())
    assert found.value.code() is grpc.StatusCode.INTERNAL


@on_both
async def test_an_iterator_of_requests_that_raises_cancels_its_call(rpc):
    async def handler(requests, context):
        return pb.RebuildReply(reservations=len([part async for part in requests]))

    def parts():
        yield pb.LedgerPart()
        raise ValueError("of the caller")

    _, address = await rpc.serve(Service(Rebuild=handler))
    with pytest.raises(asyncio.CancelledError):
        await rpc.stub(address).Rebuild(parts())


@on_both
async def test_a_channel_that_closes_cancels_its_calls_and_takes_no_more(rpc):
    seen = []
    _, address = await rpc.serve(Service(Feed=noting_its_end(seen, replies=[1])))
    stub = rpc.stub(address)
    call = stub.Feed(pb.FeedRequest())
    await call.read()
    reader = asyncio.ensure_future(call.read())
    await soon(lambda: seen)
    await rpc.channel.close()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await soon(lambda: seen == ["waits", "CancelledError"])
    with pytest.raises(grpc.aio.UsageError):
        await grant(stub)


# -- servers that are not there


@on_both
async def test_an_address_where_nobody_listens_is_unavailable_in_words_that_the_client_knows(rpc):
    stub = rpc.stub("127.0.0.1:1")
    error = await error_of(grant(stub))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    translated = translate(error, "resolver at 127.0.0.1:1")
    assert isinstance(translated, TransportError)
    assert str(translated).startswith("resolver at 127.0.0.1:1 cannot be reached (Connection refused)")
    assert (await error_of(stub.Propose().read())).code() is grpc.StatusCode.UNAVAILABLE
    assert (await error_of(stub.Propose().write(pb.ProposalBatch()))).code() is grpc.StatusCode.UNAVAILABLE


@on_both
async def test_a_retried_method_fails_where_nobody_has_listened_for_two_seconds(rpc):
    loop = asyncio.get_running_loop()
    began = loop.time()
    error = await error_of(grant(rpc.stub("127.0.0.1:1", service=SERVICE, retried=["GrantEpoch"])))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert loop.time() - began > 1.5


@on_both
async def test_a_call_that_waits_for_a_server_is_answered_once_there_is_one(rpc):
    server, address = await rpc.serve(Service(GrantEpoch=granting()))
    await server.stop(0)
    stub = rpc.stub(address)
    late = await error_of(grant(stub, wait_for_ready=True, timeout=0.2))
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    call = asyncio.ensure_future(reply_of(grant(stub, wait_for_ready=True)))
    await asyncio.sleep(0.1)
    assert not call.done()
    await rpc.serve(Service(GrantEpoch=granting(8)), address)
    assert (await call).epoch == 8


@on_both
async def test_a_server_that_stops_lets_calls_end_within_its_grace_and_refuses_others(rpc):
    ending, began = asyncio.Event(), []

    async def handler(request, context):
        began.append(1)
        await ending.wait()
        return pb.GrantEpochReply(epoch=3)

    server, address = await rpc.serve(Service(GrantEpoch=handler))
    stub = rpc.stub(address)
    running = asyncio.ensure_future(reply_of(grant(stub)))
    await soon(lambda: began)
    stopping = asyncio.ensure_future(server.stop(20))
    await asyncio.sleep(0.1)
    assert (await error_of(grant(stub))).code() is grpc.StatusCode.UNAVAILABLE
    assert began == [1]
    ending.set()
    assert (await running).epoch == 3
    await stopping


@on_both
async def test_a_server_that_stops_ends_what_runs_after_its_grace(rpc):
    seen = []
    server, address = await rpc.serve(Service(Feed=noting_its_end(seen, replies=[1])))
    call = rpc.stub(address).Feed(pb.FeedRequest())
    await call.read()
    await server.stop(0.1)
    error = await error_of(call.read())
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
    await soon(lambda: seen == ["waits", "CancelledError"])


@on_both
async def test_calls_go_to_the_servers_in_turn_and_leave_out_one_that_is_gone(rpc):
    one, first = await rpc.serve(Service(GrantEpoch=granting(1)))
    _, second = await rpc.serve(Service(GrantEpoch=granting(2)))
    stub = rpc.stub(first, second)

    async def answers():
        return [(await grant(stub, wait_for_ready=True)).epoch for _ in range(10)]

    async def from_both():
        return sorted(await answers()) == [1] * 5 + [2] * 5

    async def from_one():
        return await answers() == [2] * 10

    await soon(from_both)
    await one.stop(0)
    await soon(from_one)
    await rpc.serve(Service(GrantEpoch=granting(1)), first)
    await soon(from_both)


@on_both
async def test_only_servers_whose_service_is_healthy_get_calls(rpc):
    one, first = await rpc.serve(Service(GrantEpoch=granting(1)))
    two, second = await rpc.serve(Service(GrantEpoch=granting(2)), serving=False)
    stub = rpc.stub(first, second, service=SERVICE)
    assert [(await grant(stub, wait_for_ready=True)).epoch for _ in range(5)] == [1] * 5
    await two.set_serving(True, SERVICE)
    await one.set_serving(False, SERVICE)

    async def only_the_other():
        return {(await grant(stub, wait_for_ready=True)).epoch for _ in range(5)} == {2}

    await soon(only_the_other)
    await two.set_serving(False, SERVICE)
    errors = []

    async def refused():
        try:
            await grant(stub)
        except grpc.aio.AioRpcError as exc:
            errors.append(exc)
        return errors

    await soon(refused)
    assert errors[0].code() is grpc.StatusCode.UNAVAILABLE
    assert "backend unhealthy" in errors[0].details()


@on_both
async def test_retried_methods_are_repeated_while_the_server_is_unavailable(rpc):
    refused = []

    async def handler(request, context):
        if len(refused) < 3:
            refused.append(1)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return pb.GrantEpochReply(epoch=5)

    _, address = await rpc.serve(Service(GrantEpoch=handler))
    assert (await grant(rpc.stub(address, service=SERVICE, retried=["GrantEpoch"]))).epoch == 5
    assert len(refused) == 3


@on_both
async def test_a_retried_method_fails_after_five_attempts_and_any_other_after_one(rpc):
    attempts = []

    async def handler(request, context):
        attempts.append(1)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "never")

    _, address = await rpc.serve(Service(GrantEpoch=handler))
    assert (
        await error_of(grant(rpc.stub(address, service=SERVICE, retried=["GrantEpoch"])))
    ).details() == "never"
    assert len(attempts) == 5
    assert (await error_of(grant(rpc.stub(address)))).details() == "never"
    assert len(attempts) == 6


@on_both
async def test_retried_methods_wait_for_one_of_several_servers(rpc):
    server, address = await rpc.serve(Service(GrantEpoch=granting()), serving=False)
    stub = rpc.stub(address, "127.0.0.1:1", service=SERVICE, retried=["GrantEpoch"])
    call = asyncio.ensure_future(reply_of(grant(stub)))
    await asyncio.sleep(0.1)
    assert not call.done()
    await server.set_serving(True, SERVICE)
    assert (await call).epoch == 7


# -- connections that are lost


@on_both
async def test_a_connection_that_breaks_ends_its_calls_on_both_sides_and_is_made_again(rpc):
    seen = []
    _, address = await rpc.serve(Service(GrantEpoch=granting(), Feed=noting_its_end(seen, replies=[1])))
    stub = rpc.stub(await rpc.gated(address))
    call = stub.Feed(pb.FeedRequest())
    await call.read()
    await soon(lambda: seen)
    rpc.break_connections()
    error = await error_of(call.read())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "Socket closed" in error.details() or "Connection reset by peer" in error.details()
    await soon(lambda: seen == ["waits", "CancelledError"])
    for left in reversed(range(3)):
        try:
            granted = await grant(stub, wait_for_ready=True)
            break
        except grpc.aio.AioRpcError:  # what is being torn down may take some calls with it
            assert left
    assert granted.epoch == 7


@on_both
async def test_a_failover_channel_leaves_a_server_that_does_not_answer(rpc):
    _, first = await rpc.serve(Service(Feed=noting_its_end([], replies=[1]), GrantEpoch=granting(1)))
    stub = rpc.stub(await rpc.gated(first), "127.0.0.1:1", service=SERVICE, retried=["GrantEpoch"])
    call = stub.Feed(pb.FeedRequest(), wait_for_ready=True)
    await call.read()
    rpc.silence()
    error = await error_of(call.read())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "ping timeout" in error.details()
    late = await error_of(grant(stub, timeout=2))
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED


# -- the dispatcher's router


class HeldLease:
    def lease_valid(self):
        return True


async def routed(rpc, service):
    """A server behind a router that is open, and the router."""
    router = RequestRouter([SERVICE])
    server = rpc.new_server()
    server.grpc.add_generic_rpc_handlers((router,))
    services = Services(HeldLease())
    add_ResolverServicer_to_server(service, services)
    port = await server.start("127.0.0.1:0", [SERVICE])
    router.open(services)
    return f"127.0.0.1:{port}", router


@on_both
async def test_a_closed_router_refuses_calls_of_every_kind_and_names_the_leader(rpc):
    address, router = await routed(rpc, Service(GrantEpoch=granting(), Propose=echo))
    stub = rpc.stub(address)
    assert (await grant(stub)).epoch == 7
    router.close("this one stands by", leader="10.0.0.2:7100")
    for awaitable in (grant(stub), stub.Propose().read(), stub.Rebuild(iter([pb.LedgerPart()]))):
        error = await error_of(awaitable)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "this one stands by; the active one is 10.0.0.2:7100"
        assert dict(error.trailing_metadata()) == {ACTIVE_ADDRESS: "10.0.0.2:7100"}


@on_both
async def test_a_router_that_closes_ends_open_streams_with_its_reason(rpc):
    address, router = await routed(rpc, Service(Feed=noting_its_end([], replies=[1])))
    call = rpc.stub(address).Feed(pb.FeedRequest())
    await call.read()
    router.close("the term is over")
    error = await error_of(call.read())
    assert error.details() == "the term is over"
    assert LEDGER_UNAVAILABLE in list(error.trailing_metadata())
    assert isinstance(translate(error, "dispatcher"), LedgerUnavailable)


@on_both
async def test_a_router_that_closes_while_a_reply_waits_to_be_sent_tells_its_reason_after_that_reply(rpc):
    sent = []

    async def handler(request, context):
        while True:
            yield pb.FeedMessage(ledger_epoch="x" * 65_536)
            sent.append(1)

    address, router = await routed(rpc, Service(Feed=handler))
    call = rpc.stub(address).Feed(pb.FeedRequest())
    await steady(lambda: len(sent))  # the window is full
    router.close("the term is over")
    assert (await error_of(asyncio.wait_for(read_all(call), 20))).details() == "the term is over"


# -- a client's call that nobody reads any more


@on_both
async def test_a_subscription_that_sees_a_gap_ends_its_stream_at_the_resolver(rpc):
    """gRPC itself does not: a call that nobody holds goes on until its channel closes."""
    ended, calls = [], []

    async def feed(request, context):
        calls.append(1)
        try:
            yield pb.FeedMessage(shard=0, seq=5, snapshot=True)
            if len(calls) == 1:
                yield pb.FeedMessage(shard=0, seq=9, previous_seq=7)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(len(calls))
            raise

    _, address = await rpc.serve(Service(Feed=feed))
    client = ResolverClient([address], open_channel=rpc.open_channel)
    following = asyncio.ensure_future(Subscription(client, "w1", [].append).follow())
    await soon(lambda: len(calls) == 2)
    await asyncio.wait_for(soon(lambda: ended), 10)
    following.cancel()


@on_both
async def test_a_reader_of_reservations_that_stops_early_ends_its_call_at_the_resolver(rpc):
    ended = []

    async def reservations(request, context):
        try:
            yield pb.ReservationChunk()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(1)
            raise

    _, address = await rpc.serve(Service(ListReservations=reservations))
    client = ResolverClient([address], open_channel=rpc.open_channel)
    async for _ in client.reservations():
        break
    await asyncio.wait_for(soon(lambda: ended), 10)
