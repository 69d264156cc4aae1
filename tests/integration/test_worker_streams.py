"""The worker's streams against servers that break off, delay and forget."""

import asyncio
import gc
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from waiting import DEADLINE_SECONDS

from hoss import serving
from hoss.client.access import ClientAccess
from hoss.client.proposal_stream import ProposalStream
from hoss.client.resolver import ResolverClient
from hoss.client.worker_link import DispatcherLink
from hoss.errors import AccessDenied, ConfigError
from hoss.host import THIS_HOST
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity
from hoss.security.transport import AUTHORITY_FILE, TlsFiles, server_credentials
from hoss.v1 import resolver_pb2, workerlink_pb2
from hoss.v1.resolver_pb2_grpc import ResolverServicer, add_ResolverServicer_to_server
from hoss.v1.workerlink_pb2_grpc import WorkerLinkServicer, add_WorkerLinkServicer_to_server
from hossctl.local.ports import free_ports

COMMITTED = bytes([resolver_pb2.COMMITTED])


class ScriptedResolver(ResolverServicer):
    """Answers the n-th proposal it sees with the n-th action."""

    def __init__(self, *actions):
        self.actions = list(actions)
        self.seen = []
        self.first_seen = asyncio.Event()

    async def Propose(self, request_iterator, context):  # noqa: N802 - gRPC's name
        async for proposal in request_iterator:
            self.seen.append(proposal)
            self.first_seen.set()
            action = self.actions.pop(0) if self.actions else "commit"
            if action == "break":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
            elif action == "delay":
                yield resolver_pb2.VerdictBatch(
                    batch_id=proposal.batch_id, unavailable="the ledger is away", retry_after_ms=20
                )
            else:
                yield resolver_pb2.VerdictBatch(batch_id=proposal.batch_id, seq=7, verdicts=COMMITTED)


@pytest.fixture
async def serve():
    servers = []

    async def start(add, servicer, address="127.0.0.1:0", credentials=None):
        server = serving.Server(credentials=credentials)
        add(servicer, server.grpc)
        servers.append(server)
        return f"127.0.0.1:{await server.start(address, ())}"

    yield start
    for server in servers:
        await server.stop(0)


@pytest.fixture
async def proposing(serve):
    """A running ProposalStream to a scripted resolver: (stream, queue of (proposal, verdict), resolver)."""
    jobs = []

    async def start(*actions):
        resolver = ScriptedResolver(*actions)
        client = ResolverClient([await serve(add_ResolverServicer_to_server, resolver)])
        verdicts = asyncio.Queue()
        stream = ProposalStream(client, lambda proposal, verdict: verdicts.put_nowait((proposal, verdict)))
        jobs.append((asyncio.create_task(stream.run()), client))
        return stream, verdicts, resolver

    yield start
    for job, client in jobs:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        await client.close()


def proposal(number, sending=0):
    return resolver_pb2.ProposalBatch(batch_id=number, worker="w", uids=bytes(16), sending=sending)


@pytest.mark.parametrize("actions", [("break",), ("delay",), ("break", "delay", "break")])
async def test_an_unanswered_proposal_is_sent_again_and_each_copy_has_a_higher_number(proposing, actions):
    stream, verdicts, resolver = await proposing(*actions)
    await asyncio.sleep(0)  # the stream begins with nothing to send
    stream.send(proposal(1))
    sent, verdict = await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
    assert (sent, verdict.seq) == (proposal(1, sending=len(actions)), 7)
    assert resolver.seen == [proposal(1, sending=copy) for copy in range(len(actions) + 1)]


async def test_the_parts_of_a_proposal_have_the_number_of_the_whole(proposing):
    stream, verdicts, resolver = await proposing("break")
    await asyncio.sleep(0)
    whole = proposal(1)
    whole.parts.append(proposal(2))
    stream.send(whole)
    await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
    assert [(copy.sending, copy.parts[0].sending) for copy in resolver.seen] == [(0, 0), (1, 1)]


async def test_proposals_that_a_stream_leaves_unanswered_are_sent_again_under_one_number(proposing):
    stream, verdicts, resolver = await proposing("delay", "delay", "delay")
    await asyncio.sleep(0)
    for number in range(3):
        stream.send(proposal(number))
    for _ in range(3):
        await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
    assert [copy.sending for copy in resolver.seen] == [0, 0, 0, 1, 1, 1]
    stream.send(proposal(4))
    sent, _ = await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
    assert sent.sending == 1
    stream.abandon()  # another epoch, which counts anew
    stream.send(proposal(5))
    sent, _ = await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
    assert sent.sending == 0


async def test_a_proposal_that_a_resolver_keeps_putting_off_goes_to_the_next_one(serve):
    """One may be cut off from a ledger that the others reach."""
    cut_off, other = ScriptedResolver(*["delay"] * 1000), ScriptedResolver()
    (port,) = free_ports(1)
    addresses = [await serve(add_ResolverServicer_to_server, cut_off), f"127.0.0.1:{port}"]
    client, verdicts = ResolverClient(addresses), asyncio.Queue()
    stream = ProposalStream(client, lambda *answer: verdicts.put_nowait(answer))
    running = asyncio.create_task(stream.run())
    try:
        stream.send(proposal(1))
        await asyncio.wait_for(cut_off.first_seen.wait(), DEADLINE_SECONDS)
        await serve(add_ResolverServicer_to_server, other, f"127.0.0.1:{port}")
        sent, verdict = await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
        assert (sent.batch_id, verdict.seq) == (1, 7)
        assert [(seen.batch_id, seen.sending) for seen in other.seen] == [(1, sent.sending)]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


async def test_several_proposals_are_under_way_and_each_is_answered_once(proposing):
    stream, verdicts, _ = await proposing("commit", "break")
    for number in range(5):
        stream.send(proposal(number))
    answered = [(await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS))[0].batch_id for _ in range(5)]
    assert sorted(answered) == [0, 1, 2, 3, 4]
    assert verdicts.empty()


async def test_an_abandoned_proposal_is_not_sent_again(proposing):
    stream, verdicts, resolver = await proposing("delay")
    stream.send(proposal(1))
    await asyncio.wait_for(resolver.first_seen.wait(), DEADLINE_SECONDS)
    stream.abandon()
    stream.send(proposal(2))
    sent, _ = await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
    assert sent.batch_id == 2
    assert [p.batch_id for p in resolver.seen] == [1, 2]


class ScriptedDispatcher(WorkerLinkServicer):
    """Welcomes every stream, and ends the first ones as it is told."""

    def __init__(self, *endings):
        self.endings = list(endings)
        self.epoch = 0
        self.messages = asyncio.Queue()

    async def Connect(self, request_iterator, context):  # noqa: N802 - gRPC's name
        first = await anext(aiter(request_iterator))
        assert first.HasField("register")
        ending = self.endings.pop(0) if self.endings else None
        if isinstance(ending, grpc.StatusCode):
            await context.abort(ending, "as told")
        self.epoch += 1
        yield workerlink_pb2.DispatcherMessage(
            welcome=workerlink_pb2.Welcome(epoch=self.epoch, heartbeat_ms=20)
        )
        if ending == "end":
            return
        async for message in request_iterator:
            self.messages.put_nowait(message)


class RecordedDuties:
    def __init__(self):
        self.epochs = asyncio.Queue()

    def welcomed(self, welcome):
        self.epochs.put_nowait(welcome.epoch)

    def received(self, message):
        raise AssertionError(message)

    def heartbeat(self):
        return workerlink_pb2.Heartbeat(backlog=3)


@pytest.fixture
async def linked(serve):
    jobs = []

    async def start(*endings):
        dispatcher, duties = ScriptedDispatcher(*endings), RecordedDuties()
        address = await serve(add_WorkerLinkServicer_to_server, dispatcher)
        link = DispatcherLink([address], workerlink_pb2.Register(name="w"), duties)
        job = asyncio.create_task(link.run())
        jobs.append(job)
        return dispatcher, duties, link, job

    yield start
    for job in jobs:
        job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


@pytest.mark.parametrize("ending", ["end", grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNAVAILABLE])
async def test_after_a_break_the_worker_registers_anew(linked, ending):
    dispatcher, duties, _, _ = await linked(ending)
    expected = [1, 2] if ending == "end" else [1]
    assert [await asyncio.wait_for(duties.epochs.get(), DEADLINE_SECONDS) for _ in expected] == expected
    heartbeat = await asyncio.wait_for(dispatcher.messages.get(), DEADLINE_SECONDS)
    assert heartbeat.heartbeat.backlog == 3


async def test_streams_that_the_other_side_ends_leave_no_task_behind(linked, proposing):
    complaints = []

    def complain(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if (
            "handle" not in context
        ):  # of a callback, such as gRPC's own, whose socket another thread has read already
            complaints.append(context["message"])

    asyncio.get_running_loop().set_exception_handler(complain)
    _, duties, _, _ = await linked("end", "end")
    assert [await asyncio.wait_for(duties.epochs.get(), DEADLINE_SECONDS) for _ in range(3)] == [1, 2, 3]
    stream, verdicts, _ = await proposing("break", "break")
    stream.send(proposal(1))
    await asyncio.wait_for(verdicts.get(), DEADLINE_SECONDS)
    gc.collect()  # where a task that waits for ever is found, and complained of
    assert complaints == []


async def test_a_registration_that_is_wrong_in_itself_ends_the_worker(linked):
    _, _, _, job = await linked(grpc.StatusCode.INVALID_ARGUMENT)
    with pytest.raises(ConfigError, match="registration of w: as told"):
        await asyncio.wait_for(job, DEADLINE_SECONDS)


async def test_what_was_sent_before_the_goodbye_arrives(linked):
    dispatcher, duties, link, _ = await linked()
    await asyncio.wait_for(duties.epochs.get(), DEADLINE_SECONDS)
    link.send(workerlink_pb2.WorkerMessage(outcomes=workerlink_pb2.Outcomes(batch_id=9)))
    await asyncio.wait_for(link.leave(), DEADLINE_SECONDS)
    received = []
    while not dispatcher.messages.empty():
        received.append(dispatcher.messages.get_nowait())
    assert [m.outcomes.batch_id for m in received if m.HasField("outcomes")] == [9]


class RefusingDispatcher(WorkerLinkServicer):
    """Welcomes a worker `welcomes` times, and then answers as a door that does not know it."""

    def __init__(self, code, welcomes=0):
        self.code, self.welcomes, self.refused = code, welcomes, 0

    async def Connect(self, request_iterator, context):  # noqa: N802 - gRPC's name
        await anext(request_iterator)
        if self.welcomes:
            self.welcomes -= 1
            yield workerlink_pb2.DispatcherMessage(welcome=workerlink_pb2.Welcome(heartbeat_ms=60_000))
            return
        self.refused += 1
        await context.abort(self.code, "the certificate was revoked")


class Listener:
    """A worker that only listens."""

    def welcomed(self, welcome):
        pass

    def received(self, message):
        pass

    def heartbeat(self):
        return workerlink_pb2.Heartbeat()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_a_worker_that_is_not_let_in_ends_and_says_why(serve, code):
    address = await serve(add_WorkerLinkServicer_to_server, RefusingDispatcher(code))
    link = DispatcherLink((address,), workerlink_pb2.Register(name="w1"), Listener())
    with pytest.raises(AccessDenied, match=f"dispatcher at {address} refuses: the certificate was revoked"):
        await asyncio.wait_for(link.run(), DEADLINE_SECONDS)


async def test_a_worker_that_was_welcome_before_waits_for_its_new_certificate(serve):
    dispatcher = RefusingDispatcher(grpc.StatusCode.UNAUTHENTICATED, welcomes=1)
    address = await serve(add_WorkerLinkServicer_to_server, dispatcher)
    link = DispatcherLink((address,), workerlink_pb2.Register(name="w1"), Listener())
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(link.run())
        try:
            for _ in range(int(DEADLINE_SECONDS / 0.01)):
                if dispatcher.refused >= 2 or running.done():
                    break
                await asyncio.sleep(0.01)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})
    assert any("refuses: the certificate was revoked" in line.get("error", "") for line in lines)


async def first_problem(addresses, access=None) -> str:
    """What a worker that these dispatchers do not let in says of it. It goes on trying."""
    opened = {} if access is None else {"open_channel": access.channel}
    link = DispatcherLink(addresses, workerlink_pb2.Register(name="w1"), Listener(), **opened)
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(link.run())
        try:
            for _ in range(int(DEADLINE_SECONDS / 0.01)):
                if lines or running.done():
                    break
                await asyncio.sleep(0.01)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})
    return str(lines[0]["error"])


@pytest.mark.parametrize("dispatchers", [1, 2])
async def test_a_worker_without_a_dispatcher_says_what_to_look_at(dispatchers):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(dispatchers)]
    assert "see that it runs there" in await first_problem(addresses)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> dict[str, Path]:
    """Directories: `dispatcher` of the platform's authority, and what workers have that it does not know."""
    place, now = tmp_path_factory.mktemp("certificates"), THIS_HOST.utc_now()
    ours, others = (Authority.create(place / name, now=now) for name in ("ours", "others"))
    foreign = others.issue(Identity(CallerKind.WORKER, "w1"), now=now).directory
    trusting = shutil.copytree(
        foreign, place / "trusting"
    )  # it takes the dispatcher's, and not the other way
    shutil.copy(ours.directory / AUTHORITY_FILE, trusting)
    dispatcher = ours.issue(Identity(CallerKind.DISPATCHER), now=now).directory
    return {"dispatcher": dispatcher, "foreign": foreign, "trusting": trusting}


@pytest.mark.parametrize("dispatchers", [1, 2])
@pytest.mark.parametrize(
    ("shown", "remedy"),
    [
        (None, "it may want TLS and a certificate of its authority: give one with --tls-dir"),
        ("foreign", "its certificate is of another authority than this client trusts"),
        ("trusting", "it may want TLS and a certificate of its authority: give one with --tls-dir"),
    ],
)
async def test_a_worker_whose_certificate_no_dispatcher_knows_says_so(
    serve, certificates, shown, remedy, dispatchers
):
    addresses = []
    for _ in range(dispatchers):
        credentials = server_credentials(TlsFiles(certificates["dispatcher"]))
        dispatcher = ScriptedDispatcher()
        address = await serve(add_WorkerLinkServicer_to_server, dispatcher, credentials=credentials)
        addresses.append(address)
    problem = await first_problem(addresses, ClientAccess(certificates.get(shown)))
    assert problem.startswith(f"dispatcher at {','.join(addresses)} cannot be reached (")
    assert remedy in problem
    assert "(OK)" not in problem
