"""Two dispatchers on real processes: who is active, and what becomes of clients, workers and pods when that
one dies or stalls."""

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
import redis
from e2e.cluster import Cluster
from e2e.crashes import PODS, Moment, pods_under_way
from e2e.loads import all_bound, assert_clean, healed, until_agreed
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import DEADLINE_SECONDS, until

from dispatcher.api.request_router import ACTIVE_ADDRESS
from dispatcher.leader.lease import LEASE
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherStub
from hoss.wire.columns import U8, decode, decode_uids
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

GIB = 2**30
POLICY = """apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules: [{name: anyone}]
tenants: {by: {label: team}, defaultWeight: 2}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, dispatchers=2) as cluster:
        yield cluster


async def test_one_of_two_serves_and_the_other_says_who_and_takes_over_once_that_one_is_stopped(
    tmp_path: Path,
) -> None:
    """Whoever is told to stop gives its lease up: nobody waits until it has run out."""
    with Cluster(tmp_path, dispatchers=2, dispatcher_flags=("--lease-seconds", "60")) as cluster:
        assert await _serves(cluster, "dispatcher")
        assert not await _serves(cluster, "dispatcher-2")
        async with grpc.aio.insecure_channel(cluster.address("dispatcher-2")) as channel:
            refused = await until(lambda: _refusal(channel), "the standby to know who is active")
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert (ACTIVE_ADDRESS, cluster.address("dispatcher")) in [
            (k, v) for k, v in refused.trailing_metadata()
        ]
        async with clients_of(cluster.endpoints) as clients:
            status = await clients.dispatcher.status()
            assert status.address == cluster.address("dispatcher")
            cluster.freeze("dispatcher-2")  # so that it does not take what is to be seen
            cluster.end("dispatcher")
            with redis.Redis(port=cluster.redis.port) as connection:
                assert not connection.exists(LEASE)
            cluster.thaw("dispatcher-2")
            await until(lambda: _term_is(clients, status.term + 1))


async def test_a_killed_dispatcher_is_replaced_and_neither_pods_nor_its_policy_are_lost(
    tmp_path: Path,
) -> None:
    async with pods_under_way(tmp_path, Moment.PROPOSED, dispatchers=2) as scene:
        clients = scene.clients
        await clients.dispatcher.set_policy(POLICY)
        before = await clients.dispatcher.get_policy()
        term = (await clients.dispatcher.status()).term
        scene.cluster.kill("dispatcher")
        await until(lambda: _term_is(clients, term + 1))
        after = await clients.dispatcher.get_policy()
        assert (after.yaml, after.version, after.source) == (POLICY, before.version, before.source)
        for request in _jobs("after", 1, replicas=10):
            await clients.dispatcher.submit(request)
        scene.gate.release()
        await until(scene.refused_as_stale, "late proposals to be refused")
        await scene.all_come_through(pods=PODS + 10)
        assert [(t.name, t.weight) for t in await clients.dispatcher.list_tenants()] == [("", 2.0)]
        assert {pod.rule async for pod in clients.dispatcher.list_pods()} == {"anyone"}
        await asyncio.to_thread(scene.cluster.start_standby, "dispatcher")
        async with grpc.aio.insecure_channel(scene.cluster.address("dispatcher")) as channel:
            await until(lambda: _refusal(channel), "who was killed to stand by")


async def test_submissions_in_flight_are_answered_by_the_successor_and_accepted_once(
    cluster: Cluster,
) -> None:
    """The dispatcher is frozen when some were answered, so the next ones are in flight when it is killed."""
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        requests = _jobs("streamed", 60, replicas=10)
        sent: list[str] = []
        answered: list[str] = []
        some_answered, dead = asyncio.Event(), asyncio.Event()

        async def in_parts():
            for number, request in enumerate(requests):
                if number == 20:
                    await some_answered.wait()
                if number == 40:
                    await dead.wait()
                sent.append(request.request_id)
                yield request

        async def submit_all() -> None:
            async for reply in clients.dispatcher.submit_stream(in_parts()):
                answered.append(reply.request_id)  # noqa: PERF401 - looked at meanwhile

        streaming = asyncio.ensure_future(submit_all())
        await until(lambda: len(answered) == 20)
        cluster.freeze("dispatcher")
        some_answered.set()
        await until(lambda: len(sent) == 40)
        assert len(answered) == 20
        cluster.kill("dispatcher")
        dead.set()
        singles = [clients.dispatcher.submit(request) for request in _jobs("single", 20, replicas=10)]
        await asyncio.gather(streaming, *singles)
        assert answered == [request.request_id for request in requests]
        await until(lambda: all_bound(clients, 800))
        await assert_clean(clients, bound=800)


async def test_a_watch_misses_no_final_state_through_a_takeover(cluster: Cluster) -> None:
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        told: dict[bytes, int] = {}

        async def watch() -> None:
            async for batch in clients.dispatcher.watch(states=True):
                phases = decode(batch.phases, U8, name="phases").tolist()
                told.update(zip(map(bytes, decode_uids(batch.uids)), phases, strict=True))

        watching = asyncio.ensure_future(watch())
        for request in _jobs("early", 4, replicas=100):
            await clients.dispatcher.submit(request)
        await until(lambda: _count(told, pb.BOUND) == 400)
        term = (await clients.dispatcher.status()).term
        cluster.kill("dispatcher")
        # While the watch is broken: a job goes altogether, and another comes and is bound.
        await clients.dispatcher.delete("default", jobs=["early-0"])
        for request in _jobs("late", 1, replicas=100):
            await clients.dispatcher.submit(request)
        await until(lambda: all_bound(clients, 400))
        assert await _term_is(clients, term + 1)
        await until(lambda: (_count(told, pb.BOUND), _count(told, pb.DELETED)) == (400, 100))
        watching.cancel()


async def test_a_dispatcher_that_was_frozen_can_do_nothing_when_it_goes_on(tmp_path: Path) -> None:
    async with pods_under_way(tmp_path, Moment.PROPOSED, dispatchers=2) as scene:
        cluster, clients = scene.cluster, scene.clients
        async with DispatcherClient([cluster.address("dispatcher")]) as old:
            await old.status()  # so that there is a connection
            cluster.freeze("dispatcher")
            # Sent to the frozen one, which reads it only when it goes on.
            late = asyncio.ensure_future(_outcome(old, _jobs("late", 1, replicas=10)[0]))
            await until(lambda: _serves(cluster, "dispatcher-2"))
            scene.gate.release()
            await until(
                lambda: all_bound(clients, PODS),
                "clients and workers to leave a dispatcher that says nothing",
            )
            await clients.dispatcher.delete("default", jobs=["job-0"])
            cluster.thaw("dispatcher")
            assert isinstance(await late, Exception), (
                "a dispatcher that had lost its lease acknowledged a submission"
            )
        await until(lambda: cluster.events("dispatcher", "term_over"), "the old term to end")
        assert not await _serves(cluster, "dispatcher")
        assert await scene.refused_as_stale() > 0
        for request in _jobs("after", 1, replicas=100):
            await clients.dispatcher.submit(request)
        await until(lambda: all_bound(clients, PODS))
        assert not [job for job in await clients.dispatcher.list_jobs() if job.name.startswith("late")]
        await scene.all_come_through()


async def test_a_redis_that_comes_back_from_older_files_is_left_to_the_active_dispatcher(
    tmp_path: Path,
) -> None:
    """The lease in the files has run out, and the standby is the first to ask. Only the active dispatcher
    knows what was accepted and deleted since."""
    cluster = Cluster(tmp_path, dispatchers=2, dispatcher_flags=("--lease-seconds", "20"))
    files, copy = tmp_path / "redis", tmp_path / "older"
    try:
        cluster.start_worker("w1")
        async with clients_of(cluster.endpoints) as clients:
            await _prepare(clients, workers=1)
            for request in _jobs("early", 2, replicas=10):
                await clients.dispatcher.submit(request)
            await until(lambda: all_bound(clients, 20))
            term = (await clients.dispatcher.status()).term
            for name in ("dispatcher-2", "dispatcher"):
                cluster.freeze(name)
            with redis.Redis(port=cluster.redis.port) as connection:
                connection.delete(LEASE)
            shutil.copytree(files, copy)
            for name in ("dispatcher", "dispatcher-2"):
                cluster.thaw(name)
            for request in _jobs("late", 2, replicas=10):
                await clients.dispatcher.submit(request)
            await clients.dispatcher.delete("default", jobs=["early-0"])
            await until(lambda: all_bound(clients, 30))
            cluster.redis.kill()
            cluster.freeze("dispatcher")
            shutil.rmtree(files)
            shutil.copytree(copy, files)
            cluster.start_redis()
            with redis.Redis(port=cluster.redis.port) as connection:
                await until(lambda: connection.exists(LEASE), "the standby to ask for the lease")
                cluster.thaw("dispatcher")
                await until(lambda: healed(clients, 30))
                assert await _term_is(clients, term)
            assert await _bound_jobs(clients) == {"early-1", "late-0", "late-1"}
            await until_agreed(clients, 1)
            await assert_clean(clients, bound=30)
            cluster.kill("dispatcher")
            await until(lambda: _serves(cluster, "dispatcher-2"))
            await until(lambda: all_bound(clients, 30))
            assert await _bound_jobs(clients) == {"early-1", "late-0", "late-1"}
    finally:
        cluster.stop()


async def _serves(cluster: Cluster, name: str) -> bool:
    """Whether both of its services do. Asked one after the other, so while that changes they may differ."""
    async with grpc.aio.insecure_channel(cluster.address(name)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        told = [
            (
                await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_SECONDS)
            ).status
            for service in ("hoss.v1.Dispatcher", "hoss.v1.WorkerLink")
        ]
    return told == [health_pb2.HealthCheckResponse.SERVING] * 2


async def _outcome(
    client: DispatcherClient, request: pb.SubmitRequest
) -> pb.SubmitReply | grpc.aio.AioRpcError:
    try:
        return await client.stub.Submit(request, timeout=30)
    except grpc.aio.AioRpcError as exc:
        return exc


async def _prepare(clients: Clients, *, workers: int) -> None:
    allocatable = (("cpu", 64_000), ("memory", 256 * GIB), ("pods", 250))
    await register(clients.resolver, [NodeSpec(f"node-{i:04d}", allocatable=allocatable) for i in range(200)])
    await until_agreed(clients, workers)


def _jobs(name: str, count: int, *, replicas: int) -> list[pb.SubmitRequest]:
    """A message for each job."""
    template = PodTemplate(PodSpec(requests=(("cpu", 100), ("memory", GIB // 8))), owner_kind="Job")
    workloads = [Workload(f"{name}-{i}", template, replicas) for i in range(count)]
    return [next(submission([workload])) for workload in workloads]


def _count(told: dict[bytes, int], phase: int) -> int:
    return int(np.count_nonzero(np.array(list(told.values())) == phase))


async def _bound_jobs(clients: Clients) -> set[str]:
    return {job.name for job in await clients.dispatcher.list_jobs() if job.bound}


async def _term_is(clients: Clients, term: int) -> bool:
    return (await clients.dispatcher.status()).term == term


async def _refusal(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError | None:
    """How a standby refuses a call, once it knows who is active."""
    try:
        await DispatcherStub(channel).ListJobs(pb.ListJobsRequest(), timeout=DEADLINE_SECONDS)
    except grpc.aio.AioRpcError as refused:
        return refused if "stands by; the active one is" in (refused.details() or "") else None
    raise AssertionError("a standby has answered")


async def test_of_a_client_that_vanishes_in_mid_stream_what_was_acknowledged_stays_and_nothing_is_half_there(
    tmp_path: Path,
) -> None:
    """With submissions in flight: the dispatcher is frozen until the client has sent more than was answered,
    and died."""
    script = (
        "import os, sys\n"
        "from hoss.client.dispatcher import submission\n"
        "from hoss.client.sync import BlockingDispatcherClient\n"
        "from hoss.model.pod import PodSpec, PodTemplate, Workload\n"
        "template = PodTemplate(PodSpec(), owner_kind='Job')\n"
        "def say(*words):\n"
        "    os.write(1, ' '.join((*words, '\\n')).encode())\n"  # of two threads, so whole lines at once
        "def requests():\n"
        "    for i in range(100_000):\n"
        "        say('sends', f'job-{i}')\n"
        "        yield next(submission([Workload(f'job-{i}', template, 7)]))\n"
        "with BlockingDispatcherClient(sys.argv[1].split(',')) as dispatcher:\n"
        "    for reply in dispatcher.submit_stream(requests()):\n"
        "        say('acknowledged', reply.sets[0].name)\n"
    )
    with Cluster(tmp_path) as cluster:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, cluster.endpoints.dispatcher, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        told: dict[str, list[str]] = {"sends": [], "acknowledged": []}

        async def hear_until(enough: Callable[[], bool]) -> None:
            while not enough():
                word, job = (await client.stdout.readline()).decode().split()
                told[word].append(job)

        await hear_until(lambda: len(told["acknowledged"]) == 50)
        cluster.freeze("dispatcher")
        await hear_until(lambda: len(told["sends"]) > len(told["acknowledged"]) + 1)
        client.kill()
        for line in (await client.stdout.read()).decode().split("\n")[:-1]:
            word, job = line.split()
            told[word].append(job)
        await client.wait()
        assert set(told["sends"]) > set(told["acknowledged"])
        cluster.thaw("dispatcher")
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        async with clients_of(cluster.endpoints) as clients:
            jobs = {job.name: job for job in await until(clients.dispatcher.list_jobs)}
        assert set(told["acknowledged"]) <= jobs.keys() <= set(told["sends"])
        assert {(job.replicas, job.queued) for job in jobs.values()} == {(7, 7)}
