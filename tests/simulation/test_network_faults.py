"""The faults of the simulated network, and that equal seeds give equal events."""

import asyncio
import collections
import random

import grpc
import grpc.aio
import pytest
from simulation.grpc_service import SERVICE, Service

from hoss.v1 import resolver_pb2 as pb
from hoss.v1.resolver_pb2_grpc import ResolverStub, add_ResolverServicer_to_server
from tools.simulation.loop import SimulationLoop
from tools.simulation.network import KINDS, Network

ONE, TWO = "one:7000", "two:7000"


class World:
    """A loop, a network on it, and processes by name that serve or call."""

    def __init__(self, seed=7, **options):
        self.events = []
        self.loop = SimulationLoop(random.Random(seed))
        self.network = Network(random.Random(seed), loop=self.loop, observe=self.events.append, **options)
        self.processes = {}

    def serve(self, name, service, *, address=None):
        """Start a process that serves."""

        async def start():
            server = self.network.server(name)
            add_ResolverServicer_to_server(service, server.grpc)
            await server.start(address or f"{name}:7000", [SERVICE])
            return server

        return self.play(name, start())

    def call(self, name, *addresses, service="", retried=()):
        """A stub of a process."""

        async def connect():
            return ResolverStub(self.network.channel(name, addresses, service=service, retried=retried))

        return self.play(name, connect())

    def play(self, name, coroutine):
        """Run the coroutine in the process, to its end."""
        return self.loop.run_until_complete(self.start(name, coroutine))

    def start(self, name, coroutine):
        process = self.processes.get(name)
        if process is None or not process.alive:
            process = self.processes[name] = self.loop.process(name)
        return self.loop.spawn(process, coroutine)

    def kill(self, name):
        self.loop.kill(self.processes[name])
        self.network.killed(name)

    def freeze(self, name):
        self.loop.freeze(self.processes[name])
        self.network.frozen(name)

    def thaw(self, name):
        self.loop.thaw(self.processes[name])
        self.network.thawed(name)

    def count(self, kind):
        return sum(event.kind == kind for event in self.events)


@pytest.fixture
def world():
    made = World()
    yield made
    made.loop.close()


class Counting(Service):
    """Grants its own number, and counts what it did. Its Feed says one message and waits."""

    def __init__(self, epoch=1):
        self.epoch = epoch
        self.granted = []
        self.ended = []

    async def GrantEpoch(self, request, context):  # noqa: N802
        self.granted.append(request.worker)
        if request.worker == "nobody":
            await context.abort(grpc.StatusCode.NOT_FOUND, "nobody")
        return pb.GrantEpochReply(epoch=self.epoch)

    async def Feed(self, request, context):  # noqa: N802
        try:
            yield pb.FeedMessage(seq=1)
            await asyncio.Event().wait()
        except BaseException as exc:
            self.ended.append(type(exc).__name__)
            raise


async def grant(stub, worker="w", **options):
    """The epoch, or the code and text of the error."""
    try:
        return (await stub.GrantEpoch(pb.GrantEpochRequest(worker=worker), **options)).epoch
    except grpc.aio.AioRpcError as exc:
        return exc.code().name, exc.details()


async def follow(stub, got):
    """Note each message, and how the stream ends."""
    try:
        async for message in stub.Feed(pb.FeedRequest()):
            got.append(message.seq)
        got.append("end")
    except grpc.aio.AioRpcError as exc:
        got.append((exc.code().name, exc.details()))


def following(world, stub, client="client"):
    """A stream that has begun, and what its reader got."""
    got = []
    world.start(client, follow(stub, got))
    world.loop.run_for(1)
    assert got == [1]
    return got


# -- processes


def test_the_peers_of_a_killed_process_see_its_connections_close(world):
    world.serve("one", Counting())
    got = following(world, world.call("client", ONE))
    world.kill("one")
    world.loop.run_for(0.2)
    assert got == [1, ("UNAVAILABLE", "Socket closed")]


def test_a_handler_ends_when_its_client_is_killed(world):
    service = Counting()
    world.serve("one", service)
    got = following(world, world.call("client", ONE))
    world.kill("client")
    world.loop.run_for(0.2)
    assert service.ended == ["CancelledError"]
    assert got == [1]  # the client does not learn that it is dead


def test_a_server_that_was_killed_is_found_again_where_it_starts_anew(world):
    world.serve("one", Counting(1))
    stub = world.call("client", ONE)
    assert world.play("client", grant(stub)) == 1
    world.kill("one")
    world.loop.run_for(0.2)
    code, text = world.play("client", grant(stub))
    assert code == "UNAVAILABLE"
    assert text.endswith("Connection refused")
    world.serve("one", Counting(2))
    assert world.play("client", grant(stub, wait_for_ready=True)) == 2


def test_a_retried_method_gives_up_after_about_two_seconds_without_a_server(world):
    stub = world.call("client", ONE, service=SERVICE, retried=["GrantEpoch"])
    began = world.loop.time()
    assert world.play("client", grant(stub))[0] == "UNAVAILABLE"
    assert 1.5 < world.loop.time() - began < 2.5


def test_a_frozen_server_answers_when_it_is_thawed(world):
    world.serve("one", Counting())
    stub = world.call("client", ONE)
    world.play("client", grant(stub))
    world.freeze("one")
    answer = world.start("client", grant(stub))
    world.loop.run_for(9)
    assert not answer.done()
    world.thaw("one")
    assert world.loop.run_until_complete(answer) == 1


def test_a_failover_channel_leaves_a_frozen_server_within_four_seconds_and_any_other_in_a_minute(world):
    world.serve("one", Counting())
    world.serve("two", Counting(2))
    quick = following(world, world.call("quick", ONE, service=SERVICE), "quick")
    stub = world.call("client", ONE, TWO, service=SERVICE)
    got = []
    for _ in range(4):  # in turn: some go to one
        world.start("client", follow(stub, got))
        world.loop.run_for(0.1)
    world.freeze("one")
    world.loop.run_for(4.1)
    assert ("UNAVAILABLE", "ping timeout") in got
    assert {world.play("client", grant(stub, wait_for_ready=True)) for _ in range(5)} == {2}
    assert quick == [1]  # one address: no failover
    world.loop.run_for(70)
    assert quick == [1, ("UNAVAILABLE", "ping timeout")]


def test_a_server_that_was_left_while_it_was_frozen_ends_its_handlers_when_it_is_thawed(world):
    service = Counting()
    world.serve("one", service)
    world.serve("two", Counting(2))
    stub = world.call("client", ONE, TWO, service=SERVICE)
    world.start("client", follow(stub, []))
    world.start("client", follow(stub, []))
    world.loop.run_for(1)
    world.freeze("one")
    world.loop.run_for(10)
    assert not service.ended
    world.thaw("one")
    world.loop.run_for(0.2)
    assert set(service.ended) == {"CancelledError"}


# -- lines


def test_a_short_partition_only_delays(world):
    world.serve("one", Counting())
    stub = world.call("client", ONE)
    got = following(world, stub)
    world.network.partition("client", "one")
    answer = world.start("client", grant(stub))
    world.loop.run_for(3)
    assert not answer.done()
    world.network.heal()
    assert world.loop.run_until_complete(answer) == 1
    assert got == [1]
    assert world.count("stalled")


def test_a_long_partition_ends_connections_on_both_sides_and_heals(world):
    service = Counting()
    world.serve("one", service)
    stub = world.call("client", ONE)
    got = following(world, stub)
    world.network.partition("client", "one")
    world.loop.run_for(20)
    assert got == [1, ("UNAVAILABLE", "ping timeout")]
    assert service.ended == ["CancelledError"]
    code, text = world.play("client", grant(stub))
    assert (code, text.endswith("Connection timed out")) == ("UNAVAILABLE", True)
    world.network.heal("client", "one")
    assert world.play("client", grant(stub, wait_for_ready=True)) == 1


def test_a_one_way_cut_lets_the_work_be_done_and_the_answer_wait(world):
    service = Counting()
    world.serve("one", service)
    stub = world.call("client", ONE)
    world.play("client", grant(stub))
    world.network.cut("one", "client")
    assert world.play("client", grant(stub, timeout=2))[0] == "DEADLINE_EXCEEDED"
    assert service.granted == ["w", "w"]


def test_a_deadline_holds_at_a_server_that_hears_nothing_more(world):
    service = Counting()
    world.serve("one", service)
    stub = world.call("client", ONE)

    async def feed():
        call = stub.Feed(pb.FeedRequest(), timeout=2)
        await call.read()

    world.play("client", feed())
    world.network.cut("client", "one")
    world.loop.run_for(2.1)
    assert service.ended == ["CancelledError"]


def test_a_partition_concerns_no_others(world):
    world.serve("one", Counting())
    world.serve("two", Counting(2))
    stub = world.call("client", TWO)
    world.network.partition("client", "one")
    world.network.partition("two", "one")
    assert world.play("client", grant(stub)) == 2


def test_a_broken_connection_ends_its_calls_on_both_sides_and_is_made_again(world):
    service = Counting()
    world.serve("one", service)
    stub = world.call("client", ONE)
    got = following(world, stub)
    world.network.break_connections("client", "one")
    world.loop.run_for(0.2)
    assert got[-1][0] == "UNAVAILABLE"
    assert service.ended == ["CancelledError"]
    assert world.play("client", grant(stub)) == 1


# -- messages


def test_a_dropped_reply_is_work_that_was_done_and_an_error_at_the_client(world):
    service = Counting()
    world.serve("one", service)
    stub = world.call("client", ONE)
    world.network.faults.drop_reply = 1.0
    answers = {world.play("client", grant(stub, timeout=2))[0] for _ in range(20)}
    assert answers == {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert len(service.granted) == 20


def test_a_request_is_repeated_only_where_grpc_may_retry_it(world):
    service = Counting()
    world.serve("one", service)
    plain = world.call("client", ONE, service=SERVICE)
    retrying = world.call("client", ONE, service=SERVICE, retried=["GrantEpoch"])
    world.network.faults.repeat_request = 0.5
    for number in range(20):
        world.play("client", grant(plain, f"plain {number}"))
        world.play("client", grant(retrying, f"retried {number}"))
    world.loop.run_for(2)
    times = collections.Counter(service.granted)
    assert {times[f"plain {number}"] for number in range(20)} == {1}
    assert max(times[f"retried {number}"] for number in range(20)) > 1
    assert min(times[f"retried {number}"] for number in range(20)) == 1


def test_connections_that_break_at_random_lose_and_repeat_no_message_of_a_stream(world):
    async def count(request, context):
        for seq in range(100):
            yield pb.FeedMessage(seq=seq)

    world.serve("one", Service(Feed=count))
    stub = world.call("client", ONE)
    world.network.faults.break_connection = 0.02
    lengths = set()
    for _ in range(20):
        got = []
        world.play("client", follow(stub, got))
        *numbers, last = got
        assert numbers == list(range(len(numbers)))
        assert (last == "end") == (len(numbers) == 100)
        lengths.add(len(numbers))
    assert len(lengths) > 5


def test_streams_overtake_each_other_and_frames_of_one_stream_do_not(world):
    arrived = []

    async def note(requests, context):
        async for batch in requests:
            arrived.append((batch.shard, batch.batch_id))  # noqa: PERF401 - in the order in which they come
        yield pb.VerdictBatch()

    world.serve("one", Service(Propose=note))
    stub = world.call("client", ONE)

    async def write(shard):
        call = stub.Propose()
        for number in range(20):
            await call.write(pb.ProposalBatch(shard=shard, batch_id=number))
        await call.done_writing()
        await call.read()

    async def both():
        await asyncio.gather(write(1), write(2))

    world.play("client", both())
    assert arrived != sorted(arrived)
    for shard in (1, 2):
        assert [number for s, number in arrived if s == shard] == list(range(20))


def test_two_servers_cannot_have_one_address(world):
    world.serve("one", Counting())
    with pytest.raises(Exception, match="the port is in use"):
        world.serve("two", Counting(), address=ONE)


# -- replay


def storm(world, services, rng):
    """Twenty times something happens, in a few seconds."""
    for _ in range(20):
        world.loop.run_for(rng.uniform(0, 0.5))
        match rng.randrange(5):
            case 0:
                world.kill("one")
                world.loop.run_for(0.3)
                world.serve("one", services["one"])
            case 1:
                world.freeze("two")
                world.loop.run_for(rng.uniform(0, 5))
                world.thaw("two")
            case 2:
                world.network.partition("red", "one")
            case 3:
                world.network.cut("two", "blue")
            case 4:
                world.network.heal()


def stormy_life(seed):
    """Two servers and two clients in a storm of faults, and what was seen."""
    world, seen = World(seed), []
    services = {"one": Counting(1), "two": Counting(2)}
    for name, service in services.items():
        world.serve(name, service)
    faults = world.network.faults
    faults.drop_reply = faults.repeat_request = 0.1
    faults.break_connection = 0.01

    async def client(name, stub):
        for number in range(30):
            seen.append((name, number, await grant(stub, f"{name} {number}", timeout=1)))
            await grant(stub, "nobody", timeout=1)
            got = []
            await asyncio.wait([asyncio.ensure_future(follow(stub, got))], timeout=0.05)
            seen.append((name, number, *got))

    for name in ("red", "blue"):
        stub = world.call(name, ONE, TWO, service=SERVICE, retried=["GrantEpoch"])
        world.start(name, client(name, stub))
    storm(world, services, random.Random(seed))
    world.network.heal()
    world.loop.run_for(100)
    errors = [str(context) for context in world.loop.errors]
    world.loop.close()
    return [tuple(event) for event in world.events], seen, errors


@pytest.mark.parametrize("seed", range(5))
def test_equal_seeds_give_equal_events_in_a_storm_and_nothing_is_left_unhandled(seed):
    events, seen, errors = stormy_life(seed)
    assert (events, seen, errors) == stormy_life(seed)
    assert errors == []
    assert len(seen) == 2 * 2 * 30
    assert {event[1] for event in events} <= set(KINDS)


def test_other_seeds_give_other_events_and_all_kinds_are_reached():
    lives = [stormy_life(seed)[0] for seed in range(12)]
    assert len({tuple(life) for life in lives}) == 12
    reached = {event[1] for life in lives for event in life}
    assert reached >= set(KINDS) - {"goaway", "refused stream", "handler failed", "half close"}
