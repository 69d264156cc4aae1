"""The dispatcher as a process, over real gRPC and a real Redis, with workers and a ledger that do what the
test says."""
# ruff: noqa: N802 - a service's methods have the contract's names

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import numpy as np
import pytest
import redis
from fork_server import FORK_SERVER, ForkedProcess
from waiting import DEADLINE_SECONDS, until

from dispatcher.journal.fenced_redis import FORMAT, STATE
from dispatcher.journal.redis_store import DELETIONS, SUBMISSIONS
from hoss import rpc
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.client.errors import translate
from hoss.errors import InvalidInput, LedgerUnavailable, NotFound, OutcomeUnknown
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.model.resources import BASE_RESOURCES
from hoss.tasks import background
from hoss.v1 import common_pb2, resolver_pb2, workerlink_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.resolver_pb2_grpc import add_ResolverServicer_to_server
from hoss.v1.workerlink_pb2_grpc import WorkerLinkStub
from hoss.wire.columns import Uids, decode, decode_uids
from hoss.wire.convert import node_to_proto
from hossctl.local.ports import free_ports
from resolver.api.feed import ShardFeed
from resolver.api.maintenance import Availability
from resolver.api.proposing import ProposeStream
from resolver.api.service import ResolverService
from resolver.core.values import Proposal, Verdict
from resolver.kubernetes.existing_pods import ExistingPodReservations
from resolver.ledger.memory import MemoryLedger
from resolver.messages.nodes import node_change

BOUND, UNSCHEDULABLE, RETURNED = 1, 2, 4
CONFIG = "apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\n"


# Which offer nothing: workers here place unchecked.
NODES = [NodeSpec(f"node-{index}") for index in range(10)]


class PolledLedger(MemoryLedger):
    """News of which are looked for often."""

    async def feed(self, shard, after, wait_ms):
        return await super().feed(shard, after, min(wait_ms, 20))


class ResolverInMemory(ResolverService):
    """What a dispatcher asks of a resolver, answered by the real service over the ledger in memory, which is
    held to the contract of every ledger. `grants` counts the epochs that each worker was given."""

    def __init__(self) -> None:
        self.held = PolledLedger(1, lambda: 0)
        self.news = ShardFeed(self.held, 0)
        self.grants: Counter[str] = Counter()
        never_asked = cast("Any", None)
        available = Availability(self.held, lambda _: None, lambda: None)
        super().__init__(
            self.held,
            [self.news],
            ProposeStream(self.held, [], available, allow_unchecked=False),  # nobody proposes
            available,
            quarantine=never_asked,
            counters=Counter,
            rebuilding=never_asked,
            existing_pods=ExistingPodReservations(self.held, None),
            unix_clock=lambda: 0.0,
        )

    @property
    def reserved(self) -> dict[bytes, int]:
        """Node by UID."""
        return {uid: held.node for uid, held in self.held.arbiters[0].reservations.items()}

    @property
    def assumed(self) -> set[bytes]:
        """UIDs of reservations that nobody has confirmed."""
        arbiter = self.held.arbiters[0]
        return {uid for uid, held in arbiter.reservations.items() if held.seq in arbiter.pending}

    async def GrantEpoch(self, request, context):
        self.grants[request.worker] += 1
        return await super().GrantEpoch(request, context)

    async def GetStatus(self, request, context):
        marks = (await self.held.summary()).marks
        return resolver_pb2.ResolverStatus(
            shards=1,
            serving=True,
            ledger_epoch=self.held.epoch,
            dispatcher_term=marks.term,
            journal_term=marks.journal[0],
            journal_write=marks.journal[1],
        )

    async def commit(self, worker: str, epoch: int, uids: Uids, node: int) -> list[int]:
        """Reserve room for pods, as a proposal would; the commits by which they stand."""
        count = len(uids)
        proposal = Proposal(
            worker=worker,
            epoch=epoch,
            snapshot_seq=await self.held.seq(0),
            uids=uids,
            slots=np.zeros(count, np.uint16),
            nodes=np.full((count, 1), node, np.uint32),
            requests=np.zeros((1, len(BASE_RESOURCES)), np.int64),
            priorities=np.zeros(1, np.int32),
            attempts=np.zeros(1, np.uint16),
            unchecked=True,
        )
        [decision] = await self.held.commit(0, [proposal])
        assert set(decision.verdicts.tolist()) <= {Verdict.COMMITTED, Verdict.DUPLICATE}
        return [seq for seq in {decision.seq, *decision.duplicate_seqs.tolist()} if seq]


class FakeWorker:
    """One worker stream; `work` receives its batches."""

    def __init__(
        self, ledger: ResolverInMemory, address: str, name: str, window: int = 2000, labels=()
    ) -> None:
        self._ledger = ledger
        self._channel = rpc.channel([address])
        self._call = WorkerLinkStub(self._channel).Connect()
        self._register = workerlink_pb2.Register(name=name, window=window, incarnation=1, labels=labels)
        self._writing = asyncio.Lock()  # heartbeats go out while the test says something else
        self.welcome: workerlink_pb2.Welcome | None = None

    async def join(self) -> "FakeWorker":
        await self._write(workerlink_pb2.WorkerMessage(register=self._register))
        self.welcome = (await self.read()).welcome
        await self.beat()
        self._beating = asyncio.create_task(self._beat_on())
        return self

    async def beat(self, **vitals) -> None:
        beat = workerlink_pb2.Heartbeat(ready=True, **vitals)
        await self._write(workerlink_pb2.WorkerMessage(heartbeat=beat))

    async def read(self) -> workerlink_pb2.DispatcherMessage:
        """The next message that is not about surroundings."""
        while (message := await self.read_any()).HasField("surroundings"):
            pass
        return message

    async def read_any(self) -> workerlink_pb2.DispatcherMessage:
        message = await asyncio.wait_for(self._call.read(), DEADLINE_SECONDS)
        assert message is not grpc.aio.EOF, "the stream ended"
        return message

    async def hears_of(self, namespace: str) -> dict[str, str]:
        """Labels of a namespace, once the dispatcher speaks of it."""
        while True:
            for entry in (await self.read_any()).surroundings.namespaces:
                if entry.name == namespace:
                    return {label.key: label.value for label in entry.labels}

    async def take(self, pods: int) -> list[workerlink_pb2.WorkBatch]:
        """Read batches until `pods` pods are here."""
        batches: list[workerlink_pb2.WorkBatch] = []
        while sum(len(batch.uids) // 16 for batch in batches) < pods:
            batches.append((await self.read()).work)
        return batches

    async def reserve(self, batch: workerlink_pb2.WorkBatch, node: int = 3, positions=None) -> list[int]:
        """Commit in the ledger, as a proposal would; the commits."""
        uids = decode_uids(batch.uids)
        there = [position for position in range(len(uids)) if positions is None or position in positions]
        return await self._ledger.commit(self._register.name, self.welcome.epoch, uids[there], node)

    async def answer(self, batch, code: int, *, node: int = 3, reason: str = "", positions=None) -> None:
        positions = np.arange(len(batch.uids) // 16) if positions is None else np.array(positions)
        n = len(positions)
        commits = await self.reserve(batch, node, set(positions.tolist())) if code == BOUND else []
        await self._write(
            workerlink_pb2.WorkerMessage(
                outcomes=workerlink_pb2.Outcomes(
                    batch_id=batch.batch_id,
                    positions=positions.astype("<u4").tobytes(),
                    codes=bytes([code]) * n,
                    nodes=np.full(n, node, "<u4").tobytes(),
                    reasons=np.zeros(n, "<u2").tobytes() if reason else b"",
                    reason_texts=[reason] if reason else [],
                    commits=[workerlink_pb2.CommitRef(shard=0, seq=seq) for seq in commits],
                )
            )
        )

    async def say(self, **kind) -> None:
        await self._write(workerlink_pb2.WorkerMessage(**kind))

    async def die(self) -> None:
        if hasattr(self, "_beating"):
            self._beating.cancel()
        self._call.cancel()
        await self._channel.close()

    async def _write(self, message: workerlink_pb2.WorkerMessage) -> None:
        async with self._writing:
            await self._call.write(message)

    async def _beat_on(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await asyncio.sleep(0.3)
                await self.beat()


class Platform:
    """A dispatcher process with its Redis, and the ledger in the test's process."""

    def __init__(self, folder: Path, redis_url: str, ledger: ResolverInMemory, resolver: str) -> None:
        self._folder, self._redis_url, self.ledger, self._resolver = folder, redis_url, ledger, resolver
        self._process: ForkedProcess | None = None
        self._open: list[FakeWorker | DispatcherClient] = []
        (self.port,) = free_ports(1)  # where it is found again after a restart

    async def start(self, *flags: str) -> DispatcherClient:
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        # Workers live in the test's process, which may be held up, and waits for servers itself. A test's own
        # document replaces this one.
        patient = self._folder / "patient.yaml"
        patient.write_text(f"{CONFIG}worker_timeout_seconds: 60\n")
        arguments = ("--listen", f"127.0.0.1:{self.port}", "--log-level", "error", "--ready-file", str(ready))
        arguments += (
            "--redis-url",
            self._redis_url,
            "--resolver",
            self._resolver,
            "--config",
            str(patient),
            *flags,
        )
        self._process = FORK_SERVER.start("dispatcher", arguments)
        await until(ready.exists)
        client = DispatcherClient([f"127.0.0.1:{self.port}"])
        self._open.append(client)
        # A channel to the same port may remember its last life as unreachable for a moment.
        await asyncio.wait_for(client._channel.channel_ready(), DEADLINE_SECONDS)
        return client

    def exit_code(self) -> int | None:
        """Of the dispatcher, once it has ended."""
        return None if self._process is None else self._process.poll()

    async def worker(self, name: str, **options) -> FakeWorker:
        worker = FakeWorker(self.ledger, f"127.0.0.1:{self.port}", name, **options)
        self._open.append(worker)
        return await worker.join()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    async def stop(self) -> None:
        for peer in self._open:
            await (peer.die() if isinstance(peer, FakeWorker) else peer.close())
        if self._process is None:  # what was to come before its start has failed
            return
        self._process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self._process.wait, DEADLINE_SECONDS) in {0, -signal.SIGKILL}


@pytest.fixture
async def ledger() -> AsyncIterator[tuple[ResolverInMemory, str]]:
    made, server = ResolverInMemory(), grpc.aio.server()
    schema = await made.held.schema()
    await made.held.upsert_nodes(0, [node_change(node_to_proto(node), schema) for node in NODES])
    add_ResolverServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with background(made.news.run()):
        yield made, f"127.0.0.1:{port}"
        await server.stop(None)


@pytest.fixture
async def platform(ledger, redis_server, tmp_path) -> AsyncIterator[Platform]:
    made = Platform(tmp_path, redis_server.url, *ledger)
    yield made
    await made.stop()


async def phases(client: DispatcherClient) -> dict[str, int]:
    counts = (await client.status()).pods_by_phase
    return {phase: count for phase, count in counts.items() if count}


async def until_phases(client: DispatcherClient, **expected: int) -> None:
    seen: dict[str, int] = {}

    async def as_expected() -> bool:
        seen.clear()
        seen.update(await phases(client))
        return seen == expected

    await until(as_expected, lambda: f"{expected}; it is {seen}")


def job(name: str, replicas: int, *, request_id: str | None = None, **spec) -> pb.SubmitRequest:
    template = PodTemplate(PodSpec(**spec), owner_kind="Job")
    (request,) = submission([Workload(name, template, replicas)], request_id)
    return request


async def test_pods_go_from_submit_to_bound_and_everyone_is_told(platform):
    client = await platform.start()
    worker = await platform.worker("w1")
    reply = await client.submit(job("web", 1200, labels=(("app", "web"),)))
    assert (reply.accepted_pods, reply.sets[0].count) == (1200, 1200)
    for batch in await worker.take(1200):
        await worker.answer(batch, BOUND)
    seen, names = 0, {}
    async for events in client.watch(reply.revision):
        seen += len(decode(events.phases, np.dtype("u1"), name="phases"))
        names |= {entry.index: entry.name for entry in events.node_names}
        if seen == 1200:
            break
    assert names == {3: "node-3"}
    pod = await client.get_pod("default", "web-1199")
    assert (pod.phase, pod.node, pod.worker, pod.job, pod.rule) == (
        pb.BOUND,
        "node-3",
        "w1",
        "web",
        "default",
    )
    assert pod.uid == reply.sets[0].uid_prefix + (1199).to_bytes(4, "big")
    listed = [pod async for pod in client.list_pods(label_selector="app=web", node="node-3", page_pods=500)]
    assert len({pod.name for pod in listed}) == 1200
    (counted,) = await client.list_jobs()
    assert (counted.replicas, counted.bound, counted.kind) == (1200, 1200, "Job")
    assert len(platform.ledger.reserved) == 1200
    await until(lambda: not platform.ledger.assumed)


async def test_deleting_gives_reservations_back_and_frees_the_name(platform):
    client = await platform.start()
    worker = await platform.worker("w1")
    await client.submit(job("web", 10))
    (batch,) = await worker.take(10)
    await worker.answer(batch, BOUND)
    await until_phases(client, BOUND=10)
    reply = await client.delete("default", jobs=["web"], pods=["nobody"])
    assert (reply.deleted_pods, list(reply.not_found)) == (10, ["pod nobody"])
    await until(lambda: not platform.ledger.reserved)
    await until_phases(client)  # forgotten altogether
    assert (await client.submit(job("web", 3))).accepted_pods == 3


async def test_the_same_request_again_is_accepted_once_and_answered_alike(platform):
    client = await platform.start()
    request = job("web", 10, request_id="mine")
    first, second = await asyncio.gather(client.submit(request), client.submit(request))
    third = await client.submit(request)
    assert first.sets == second.sets == third.sets
    assert await phases(client) == {"QUEUED": 10}


async def test_a_taken_name_is_refused_with_nothing_of_its_message_accepted(platform):
    client = await platform.start()
    await client.submit(job("web", 10))
    request = job("web", 5)
    request.jobs.insert(0, pb.Job(name="other", template=0, replicas=7))
    with pytest.raises(InvalidInput, match="job 'web' is there already in namespace 'default'"):
        await client.submit(request)
    assert await phases(client) == {"QUEUED": 10}


async def test_a_stream_answers_in_order_and_ends_at_the_first_bad_message(platform):
    client = await platform.start()
    good = [job(f"job-{number}", 5) for number in range(40)]

    async def requests():
        for request in [*good, pb.SubmitRequest(request_id="bad"), job("never", 1)]:
            yield request

    answered = []

    async def submit_all() -> None:
        async for reply in client.submit_stream(requests()):
            answered.append(reply.request_id)  # noqa: PERF401 - what came before the error matters

    with pytest.raises(InvalidInput, match="give jobs, or pods with names"):
        await submit_all()
    assert answered == [request.request_id for request in good]
    assert await phases(client) == {"QUEUED": 200}


async def test_a_taken_name_in_a_stream_is_told_with_what_to_do_and_ends_it_there(platform):
    client = await platform.start()
    await client.submit(job("web", 10))

    async def requests(number: int):
        # Many are on their way when the refusal comes, which is when gRPC may lose it.
        for name in (f"before-{number}", "web", *(f"after-{number}-{i}" for i in range(40))):
            yield job(name, 1)

    async def submit_all(number: int) -> tuple[int, str]:
        answered = 0
        try:
            async for _ in client.submit_stream(requests(number)):
                answered += 1
        except InvalidInput as exc:
            return answered, str(exc)
        return answered, "no refusal"

    told = (
        "jobs.name: job 'web' is there already in namespace 'default'; delete it first, or submit under"
        " another name"
    )
    assert [await submit_all(number) for number in range(20)] == [(1, told)] * 20
    assert await phases(client) == {"QUEUED": 30}


async def test_a_dead_workers_pods_are_bound_if_it_reserved_them_and_go_to_another_if_not(platform):
    client = await platform.start()
    first = await platform.worker("w1")
    await client.submit(job("web", 100))
    (batch,) = await first.take(100)
    await first.reserve(batch, positions=range(30))
    second = await platform.worker("w2")
    await first.die()
    for pods in (64, 6):  # suspects of the first one's death do not travel all at once
        (rest,) = await second.take(pods)
        assert platform.ledger.grants["w1"] == 2
        assert not {u.tobytes() for u in decode_uids(rest.uids)} & platform.ledger.reserved.keys()
        await second.answer(rest, BOUND, node=4)
    await until_phases(client, BOUND=100)
    states = {worker.name: worker.state for worker in await client.list_workers()}
    assert states == {"w1": "Lost", "w2": "Ready"}


async def test_a_silent_worker_is_lost_within_the_timeout(platform, tmp_path):
    config = tmp_path / "dispatcher.yaml"
    config.write_text(f"{CONFIG}worker_timeout_seconds: 4\n")
    client = await platform.start("--config", str(config))
    worker = await platform.worker("w1")
    await client.submit(job("web", 10))
    await worker.take(10)
    worker._beating.cancel()

    async def lost() -> bool:
        return (await client.list_workers())[0].state == "Lost"

    await until(lost)
    await until_phases(client, QUEUED=10)


async def test_a_worker_that_beats_and_answers_nothing_loses_its_pods_and_is_distrusted(platform, tmp_path):
    config = tmp_path / "dispatcher.yaml"
    config.write_text(f"{CONFIG}worker_timeout_seconds: 60\nwork_timeout_seconds: 6\n")
    client = await platform.start("--config", str(config))
    impostor = await platform.worker("impostor")
    await client.submit(job("web", 100))
    await impostor.take(100)
    honest = await platform.worker("honest")
    for pods in (64, 36):  # suspects do not travel all at once
        (batch,) = await honest.take(pods)
        await honest.answer(batch, BOUND)
    await until_phases(client, BOUND=100)
    (told,) = [worker for worker in await client.list_workers(steps=True) if worker.name == "impostor"]
    assert told.state == "Lost"
    assert told.distrusted_until_unix_ms > time.time() * 1000
    assert any("it answered for no pod in" in step.text for step in told.steps)
    assert (await client.status()).counters["taken_back"] == 100


async def test_bad_and_doubtful_workers_are_refused(platform):
    await platform.start()
    twice = [common_pb2.Label(key="role", value=value) for value in ("a", "b")]
    with pytest.raises(grpc.aio.AioRpcError, match=r"'role' is given twice \('a' and 'b'\)") as refused:
        await platform.worker("w1", labels=twice)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await platform.worker("w1")
    with pytest.raises(grpc.aio.AioRpcError, match="worker 'w1' is registered and alive") as refused:
        await platform.worker("w1")
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_a_worker_that_claims_a_label_of_others_is_turned_away(platform, tmp_path):
    config = tmp_path / "dispatcher.yaml"
    config.write_text(f"{CONFIG}worker_labels: {{'gpu-*': {{role: [gpu]}}, '*': {{role: [batch]}}}}\n")
    await platform.start("--config", str(config))
    gpu = [common_pb2.Label(key="role", value="gpu")]
    await platform.worker("gpu-1", labels=gpu)
    with pytest.raises(
        grpc.aio.AioRpcError, match=r"role=gpu is not w1's to claim.*allow role=batch"
    ) as refused:
        await platform.worker("w1", labels=gpu)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_answers_for_pods_never_given_and_answers_given_twice_change_nothing(platform):
    client = await platform.start()
    honest = await platform.worker("honest")
    await client.submit(job("web", 10))
    (batch,) = await honest.take(10)
    liar = await platform.worker("liar")
    stolen = workerlink_pb2.WorkBatch(batch_id=batch.batch_id, uids=bytes(16 * 10))
    await liar.answer(stolen, UNSCHEDULABLE, reason="I had them")
    await liar.answer(
        workerlink_pb2.WorkBatch(batch_id=999, uids=bytes(16 * 3)), UNSCHEDULABLE, reason="these too"
    )
    await honest.answer(batch, BOUND, positions=range(5))
    await honest.answer(batch, RETURNED, positions=[0, 1, 2, 77])
    await honest.answer(batch, BOUND, positions=range(10))
    await until_phases(client, BOUND=10)

    async def all_were_ignored() -> bool:  # what the liar has said comes on a stream of its own
        return (await client.status()).counters["ignored_outcomes"] == 10 + 3 + 4 + 5

    await until(all_were_ignored)
    liars = next(worker for worker in await client.list_workers() if worker.name == "liar")
    assert (liars.bound, liars.outstanding) == (0, 0)


async def test_unstarted_pods_are_recalled_for_an_idle_worker_and_workers_are_shown_with_their_work(platform):
    client = await platform.start()
    slow = await platform.worker("slow")
    await client.submit(job("web", 1000))
    batches = await slow.take(1000)
    slow._beating.cancel()
    quick = await platform.worker("quick")
    vitals = {
        "backlog": 1000,
        "proposed": 200,
        "conflicts": 50,
        "cost_micros": np.array([1500.0], "<f4").tobytes(),
    }
    await slow.beat(cost_classes=np.frombuffer(batches[0].run_classes, "<u4")[:1].tobytes(), **vitals)
    recall = (await slow.read()).recall
    assert set(recall.batch_ids) == {batch.batch_id for batch in batches}
    shown = next(worker for worker in await client.list_workers() if worker.name == "slow")
    assert (shown.estimated_micros, shown.waiting_micros, shown.proposed) == (1_500_000, 1_500_000, 200)
    await slow.answer(batches[-1], RETURNED)
    taken = await quick.take(len(batches[-1].uids) // 16)
    assert {bytes(uid) for b in taken for uid in decode_uids(b.uids)} == {
        bytes(uid) for uid in decode_uids(batches[-1].uids)
    }
    shown = next(worker for worker in await client.list_workers() if worker.name == "slow")
    assert shown.returned == len(batches[-1].uids) // 16


@pytest.mark.parametrize(
    "figures",
    [
        {"cost_classes": np.ones(1, "<u4").tobytes(), "cost_micros": np.array([-1.0], "<f4").tobytes()},
        {"micros_per_pod": float("nan")},
        {"busy_seconds": -1.0},
    ],
)
async def test_a_heartbeat_with_impossible_figures_ends_the_stream_and_harms_nobody_else(platform, figures):
    client = await platform.start()
    liar, honest = await platform.worker("liar"), await platform.worker("honest")
    await liar.beat(**figures)
    with pytest.raises(grpc.aio.AioRpcError, match="negative or no number"):
        await liar.read()
    await client.submit(job("web", 10))
    await honest.take(10)


async def test_a_worker_that_claims_to_need_no_time_gets_its_window_and_no_more(platform):
    client = await platform.start()
    worker = await platform.worker("w1", window=300)
    await worker.beat(seen_micros=1e-300, micros_per_pod=1e-300, first_micros=1e300)
    await client.submit(job("web", 1000))
    await worker.take(300)
    (shown,) = await client.list_workers()
    assert shown.outstanding == 300


async def test_a_policy_for_a_label_no_worker_has_makes_pods_wait_and_say_so(platform, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"
        "rules: [{name: gpu, workers: {matchLabels: {role: gpu}}}]\n"
    )
    client = await platform.start("--policy", str(policy))
    await platform.worker("w1")
    await client.submit(job("web", 10))
    told = "no registered worker matches rule gpu: role=gpu"
    assert (await client.get_pod("default", "web-0")).reason == told
    assert list((await client.status()).problems) == [f"{told}; 10 pods wait"]
    with pytest.raises(InvalidInput, match=r"rules\[0\]\.fallback"):
        await client.set_policy(policy.read_text().replace("}}}]", "}}, fallback: Never}]"))
    assert (await client.get_policy()).version == 1
    gpu = await platform.worker("w2", labels=[common_pb2.Label(key="role", value="gpu")])
    await gpu.take(10)


async def test_an_unschedulable_pod_says_why_and_is_tried_again_when_room_is_given_back(platform):
    client = await platform.start()
    worker = await platform.worker("w1")
    await client.submit(job("first", 1))
    (batch,) = await worker.take(1)
    await worker.answer(batch, BOUND)
    await client.submit(job("second", 1))
    (batch,) = await worker.take(1)
    await worker.answer(batch, UNSCHEDULABLE, reason="0/10 nodes are available: 10 Insufficient cpu.")
    await until_phases(client, BOUND=1, UNSCHEDULABLE=1)
    waiting = await client.get_pod("default", "second-0")
    assert (waiting.reason, waiting.attempts) == ("0/10 nodes are available: 10 Insufficient cpu.", 1)
    await client.delete("default", jobs=["first"])
    (batch,) = await worker.take(1)
    assert list(np.frombuffer(batch.run_attempts, "<u2")) == [1]


async def test_what_was_acknowledged_survives_kill_9_of_the_dispatcher(platform):
    client = await platform.start()
    worker = await platform.worker("w1")
    request = job("web", 100, request_id="mine")
    reply = await client.submit(request)
    (batch,) = await worker.take(100)
    await worker.answer(batch, BOUND, positions=range(40))
    await until_phases(client, BOUND=40, SCHEDULING=60)
    # Committed, and the dispatcher dies before it is told.
    await worker.reserve(batch, positions=range(40, 50))
    await client.delete("default", pods=["web-0", "web-99"])
    await worker.reserve(batch, node=5, positions=[99])  # its release was lost with the process
    assert len(platform.ledger.reserved) >= 50
    platform.kill()
    client = await platform.start()
    await until_phases(client, BOUND=49, QUEUED=49, DELETED=2)
    assert platform.ledger.grants["w1"] == 2, (
        "the old life's worker was not fenced before its pods were queued"
    )
    await until(lambda: len(platform.ledger.reserved) == 49)
    await until(lambda: not platform.ledger.assumed)
    assert (await client.submit(request)).sets == reply.sets
    with pytest.raises(InvalidInput, match="not in the event log any more"):
        await anext(client.watch(reply.revision))
    worker = await platform.worker("w1")
    (rest,) = await worker.take(49)
    await worker.answer(rest, BOUND)
    await until_phases(client, BOUND=98, DELETED=2)


async def test_with_the_journal_away_submit_is_unavailable_and_what_was_accepted_goes_on(
    ledger, own_redis, tmp_path
):
    platform = Platform(tmp_path, own_redis.url, *ledger)
    client = await platform.start()
    worker = await platform.worker("w1")
    await client.submit(job("before", 10))
    port = own_redis.port
    own_redis.stop()
    with pytest.raises(LedgerUnavailable):
        await client.submit(job("during", 10, request_id="again"))
    (batch,) = await worker.take(10)
    await worker.answer(batch, BOUND)
    await until_phases(client, BOUND=10)
    restarted = type(own_redis).start(tmp_path / "redis", port=port, append_only=True)
    try:
        await until(lambda: client.submit(job("during", 10, request_id="again")))
        await worker.take(10)
        await until_phases(client, BOUND=10, SCHEDULING=10)
    finally:
        await platform.stop()
        restarted.kill()


async def test_what_had_an_unknown_outcome_is_settled_by_the_same_calls_after_kill_9(
    ledger, own_redis, tmp_path
):
    """Redis is frozen with the calls in its buffers, and goes on after the dispatcher was killed."""
    platform = Platform(tmp_path, own_redis.url, *ledger)
    client = await platform.start()
    await client.submit(job("before", 10, request_id="before"))
    os.kill(own_redis.pid, signal.SIGSTOP)
    calls = (
        client.stub.Submit(job("during", 10, request_id="again")),
        client.stub.Delete(pb.DeleteRequest(namespace="default", jobs=["before"])),
    )
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(translate(failed, "dispatcher"), OutcomeUnknown)
        assert "make the same call again" in failed.details()
    platform.kill()
    os.kill(own_redis.pid, signal.SIGCONT)
    client = await platform.start()
    try:
        assert (await client.submit(job("during", 10, request_id="again"))).accepted_pods == 10
        await client.delete("default", jobs=["before"])
        await until_phases(client, QUEUED=10)
        assert {pod.job async for pod in client.list_pods()} == {"during"}
    finally:
        await platform.stop()


async def test_a_journal_that_is_lost_alone_is_written_again_and_survives_kill_9(platform, redis_server):
    """The ledger has lost nothing, so that no resolver notices."""
    client = await platform.start()
    await client.submit(job("web", 10))
    await client.submit(job("db", 5))
    await client.delete("default", pods=["web-3"])
    with redis.Redis(port=redis_server.port) as connection:
        connection.delete(SUBMISSIONS)
        await until(lambda: connection.hlen(SUBMISSIONS) == 2, "the submissions to be written again")
        connection.delete(*connection.keys("{hoss}:journal:[sd]*"))  # with the stamp
        await until(lambda: connection.hlen(SUBMISSIONS) == 2, "the journal to be written again")
    platform.kill()
    client = await platform.start()
    await until_phases(client, QUEUED=14, DELETED=1)


async def test_a_dispatcher_that_cannot_read_its_journal_ends_until_the_field_is_removed(
    platform, redis_server
):
    client = await platform.start()
    await client.submit(job("web", 10))
    await client.delete("default", pods=["web-3"])
    platform.kill()
    with redis.Redis(port=redis_server.port) as connection:
        (name,) = connection.hkeys(DELETIONS)
        connection.hset(DELETIONS, name, b"damaged")
        starting = asyncio.ensure_future(platform.start())
        await until(lambda: platform.exit_code() == 1, "it ends by itself")
        starting.cancel()
        connection.hdel(DELETIONS, name)
    client = await platform.start()
    await until_phases(client, QUEUED=10)


async def test_a_dispatcher_that_starts_notices_by_the_ledger_that_the_journal_went_back(
    platform, redis_server
):
    """While no dispatcher ran, the journal alone came back as it was some writes before."""
    client = await platform.start()
    worker = await platform.worker("w1")
    with redis.Redis(port=redis_server.port) as connection:
        await client.submit(job("early", 5))
        before = {key: connection.dump(key) for key in connection.keys("{hoss}:journal:[^l]*")}  # no lease
        await client.submit(job("late", 5))
        for _ in range(2):
            (batch,) = await worker.take(5)
            await worker.answer(batch, BOUND)
        await until(lambda: not platform.ledger.assumed, "all to be confirmed")
        platform.kill()
        for key, content in before.items():
            connection.restore(key, 0, content, replace=True)
        client = await platform.start()
        [problem] = [p for p in (await client.status()).problems if "incomplete" in p]
        assert "the ledger knows of write" in problem
    await until_phases(client, BOUND=5)


async def test_a_dispatcher_with_a_lower_term_than_the_ledger_has_seen_gets_a_higher_one(
    platform, redis_server
):
    """The journal is lost with the number of the term. The ledger would obey no dispatcher any more."""
    client = await platform.start()
    worker = await platform.worker("w1")
    for _ in range(2):  # the ledger is to have seen some terms
        platform.kill()
        client = await platform.start()
    worker = await platform.worker("w1")
    await client.submit(job("lost", 5))
    (batch,) = await worker.take(5)
    await worker.answer(batch, BOUND)
    await until(lambda: not platform.ledger.assumed, "all to be confirmed")
    platform.kill()
    seen = (await platform.ledger.held.summary()).marks.term
    assert seen >= 3
    with redis.Redis(port=redis_server.port) as connection:
        connection.delete(*connection.keys("{hoss}:journal:*"))
    client = await platform.start()
    [problem] = [p for p in (await client.status()).problems if "incomplete" in p]
    assert "the ledger knows of write" in problem
    worker = await platform.worker("w1")
    await client.submit(job("new", 5))
    (batch,) = await worker.take(5)
    await worker.answer(batch, BOUND)
    await until(lambda: not platform.ledger.assumed, "the ledger to obey")
    assert (await platform.ledger.held.summary()).marks.term > seen


async def test_a_journal_of_a_newer_release_ends_the_dispatcher(redis_server):
    with redis.Redis(port=redis_server.port) as connection:
        connection.hset(STATE, "format", FORMAT + 1)
    flags = ("--listen", "127.0.0.1:0", "--redis-url", redis_server.url, "--resolver", "127.0.0.1:9")
    process = FORK_SERVER.start("dispatcher", flags)
    assert await asyncio.to_thread(process.wait, DEADLINE_SECONDS) == 1


async def test_draining_takes_back_what_was_not_started(platform):
    client = await platform.start()
    worker = await platform.worker("w1")
    await client.submit(job("web", 10))
    (batch,) = await worker.take(10)
    assert (await client.set_worker_state("w1", "Draining")).state == "Draining"
    assert (await worker.read()).WhichOneof("kind") == "drain"
    await worker.answer(batch, RETURNED)
    await until_phases(client, QUEUED=10)
    await client.set_worker_state("w1", "Ready")
    await worker.take(10)
    with pytest.raises(NotFound, match="no worker 'w9'"):
        await client.set_worker_state("w9", "Cordoned")
    with pytest.raises(InvalidInput, match="'Gone' is none of Ready, Cordoned, Draining"):
        await client.set_worker_state("w1", "Gone")


async def test_an_audit_gathers_the_views_of_workers_that_answer(platform):
    client = await platform.start()
    worker = await platform.worker("w1")
    await platform.worker("silent")
    await client.submit(job("web", 1))

    async def answer_views() -> None:
        while True:
            message = await worker.read()
            if message.WhichOneof("kind") == "view":
                shards = [workerlink_pb2.ShardView(shard=0, seq=9, digest=2**63 + 1)]
                view = workerlink_pb2.CacheView(id=message.view.id, shards=shards, idle=True)
                await worker.say(view=view)

    async def views() -> list[pb.WorkerView]:
        return list(await client.worker_views(timeout_ms=500))

    answering = asyncio.ensure_future(answer_views())
    [view] = await until(views, "a view that came in time")
    assert (view.worker, view.seq, view.digest, view.idle) == ("w1", 9, 2**63 + 1, True)
    answering.cancel()


async def test_an_audit_of_many_bound_pods_comes_in_pages_and_whole_for_clients_that_ask_for_none(
    platform, monkeypatch
):
    client = await platform.start()
    worker = await platform.worker("w1")
    await client.submit(job("web", 5))
    (batch,) = await worker.take(5)
    await worker.answer(batch, BOUND, node=7)
    await until_phases(client, BOUND=5)
    old = await client.stub.Audit(pb.DispatcherAuditRequest(timeout_ms=1))
    assert (len(old.bound_uids), old.next_page_token) == (5 * 16, "")
    monkeypatch.setattr("hoss.client.dispatcher._AUDITED_PODS", 2)
    paged = await client.audit(timeout_ms=1)
    assert (paged.bound_uids, paged.bound_nodes) == (old.bound_uids, old.bound_nodes)
    page = await client.stub.Audit(pb.DispatcherAuditRequest(limit=2))
    assert (len(page.bound_uids), page.next_page_token) == (2 * 16, "2")
    with pytest.raises(grpc.aio.AioRpcError, match="'x' is not from an earlier reply"):
        await client.stub.Audit(pb.DispatcherAuditRequest(page_token="x"))


async def test_gates_keep_pods_from_workers_and_their_removal_survives_kill_9(platform):
    client = await platform.start()
    await client.submit(job("gated", 4, scheduling_gates=("a.io/quota", "b.io/data")))
    await client.submit(job("free", 1))
    worker = await platform.worker("w1")
    await worker.take(1)
    pod = await client.get_pod("default", "gated-0")
    assert (pod.phase, pod.reason) == (
        pb.UNSCHEDULABLE,
        "SchedulingGated: waits for gates a.io/quota, b.io/data",
    )
    half = await client.remove_gates("default", jobs=["gated"], gates=["a.io/quota"])
    assert (half.changed_pods, half.queued_pods) == (4, 0)
    both = await client.remove_gates("default", pods=["gated-2", "nobody"])
    assert (both.changed_pods, both.queued_pods, list(both.not_found)) == (1, 1, ["pod nobody"])
    (batch,) = await worker.take(1)
    assert not batch.classes, "it is of the free pod's class, which the worker knows"

    platform.kill()
    client = await platform.start()
    pod = await client.get_pod("default", "gated-0")
    assert pod.reason == "SchedulingGated: waits for gates b.io/data"
    assert list(pod.template.spec.scheduling_gates) == ["b.io/data"]
    again = await platform.worker("w1")
    await again.take(2)
    assert await phases(client) == {"UNSCHEDULABLE": 3, "SCHEDULING": 2}
    nothing = await client.remove_gates("default", jobs=["gated"], gates=["a.io/quota"])
    assert nothing.changed_pods == 0
    await client.remove_gates("default", jobs=["gated"])
    await again.take(3)


async def test_a_lone_pod_behind_another_tenants_flood_goes_with_the_next_batch_and_is_told_why_it_waits(
    platform,
):
    client = await platform.start()
    worker = await platform.worker("w1", window=1000)
    await client.submit(job("flood", 200_000, namespace="red", requests=(("cpu", 10),)))
    batches = await worker.take(1000)
    await client.submit(job("next", 10, namespace="red", requests=(("cpu", 10),)))
    reply = await client.submit(job("lone", 1, namespace="blue", requests=(("cpu", 10),)))
    shares = {tenant.name: (tenant.share, tenant.queued) for tenant in await client.list_tenants()}
    assert shares == {
        "red": (1000.0, 199_010),
        "blue": (0.0, 1),
    }  # a cluster whose nodes offer nothing: pods count
    waiting = await client.get_pod("red", "next-0", queue=True)
    assert waiting.queue.behind.startswith("tenant blue, which holds 0.0% of the cluster's pods")
    await worker.answer(batches[0], BOUND)
    (batch,) = await worker.take(500)
    assert reply.sets[0].uid_prefix in batch.uids
