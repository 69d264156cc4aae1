"""Two dispatchers on real processes: who is active, and what becomes of clients, workers and pods when that one dies or stalls."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from e2e.cluster import Cluster
from e2e.loads import audited, until_agreed
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import DEADLINE_SECONDS, until

from dispatcher.reception import ACTIVE_ADDRESS
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import DispatcherStub
from hoss.wire.columns import U8, decode, decode_uids
from hossctl.endpoints import Clients, clients_of
from hossctl.nodes import register

GIB = 2**30
STARTED = {"dispatcher": 1, "dispatcher-2": 2}
POLICY = """apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules: [{name: anyone}]
tenants: {by: {label: team}, defaultWeight: 2}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, dispatchers=2)
    try:
        yield cluster
    finally:
        for name in STARTED:
            with contextlib.suppress(Exception):
                cluster.thaw(name)
        cluster.stop()


async def test_one_of_two_serves_and_the_other_says_who(cluster: Cluster) -> None:
    assert await _serves(cluster, "dispatcher")
    assert not await _serves(cluster, "dispatcher-2")
    async with grpc.aio.insecure_channel(cluster.address("dispatcher-2")) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="stands by; the active one is") as refused:
            await DispatcherStub(channel).ListJobs(pb.ListJobsRequest(), timeout=DEADLINE_SECONDS)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (ACTIVE_ADDRESS, cluster.address("dispatcher")) in [(k, v) for k, v in refused.value.trailing_metadata()]
    async with clients_of(cluster.endpoints) as clients:
        status = await clients.dispatcher.status()
        assert (status.address, status.term) == (cluster.address("dispatcher"), 1)


async def test_a_killed_dispatcher_is_replaced_and_nothing_is_lost(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        for request in _jobs("before", 40, replicas=200):
            await clients.dispatcher.submit(request)
        cluster.kill("dispatcher")
        killed = time.monotonic()
        await until(lambda: _term_is(clients, 2))
        record_property("takeover_seconds", time.monotonic() - killed)
        for request in _jobs("after", 1, replicas=100):
            await clients.dispatcher.submit(request)
        await until(lambda: _bound(clients, 8100))
        cluster.start_dispatcher()
        assert not await _serves(cluster, "dispatcher")
        await _assert_clean(clients, bound=8100)


async def test_submissions_in_flight_are_answered_by_the_successor_and_accepted_once(cluster: Cluster) -> None:
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        requests = _jobs("streamed", 300, replicas=10)
        answered: list[str] = []

        async def slowly():
            for request in requests:
                yield request
                await asyncio.sleep(0.002)

        async def submit_all() -> None:
            async for reply in clients.dispatcher.submit_stream(slowly()):
                answered.append(reply.request_id)  # noqa: PERF401 - looked at meanwhile

        streaming = asyncio.ensure_future(submit_all())
        await until(lambda: len(answered) > 50)
        cluster.kill("dispatcher")
        singles = [clients.dispatcher.submit(request) for request in _jobs("single", 20, replicas=10)]
        await asyncio.gather(streaming, *singles)
        assert answered == [request.request_id for request in requests]
        await until(lambda: _bound(clients, 3200))
        await _assert_clean(clients, bound=3200)


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
        cluster.kill("dispatcher")
        # While the watch is broken: a job goes altogether, and another comes and is bound.
        await clients.dispatcher.delete("default", jobs=["early-0"])
        for request in _jobs("late", 1, replicas=100):
            await clients.dispatcher.submit(request)
        await until(lambda: _bound(clients, 400))
        await until(lambda: (_count(told, pb.BOUND), _count(told, pb.DELETED)) == (400, 100))
        watching.cancel()


async def test_a_dispatcher_that_was_frozen_can_do_nothing_when_it_goes_on(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients, DispatcherClient([cluster.address("dispatcher")]) as old:
        await _prepare(clients, workers=2)
        for request in _jobs("before", 20, replicas=200):
            await clients.dispatcher.submit(request)
        cluster.freeze("dispatcher")
        # Sent to the frozen one, which reads it only when it goes on.
        late = asyncio.ensure_future(_outcome(old, _jobs("late", 1, replicas=10)[0]))
        await until(lambda: _serves(cluster, "dispatcher-2"))
        await until(lambda: _bound(clients, 4000), "clients and workers to leave a dispatcher that says nothing")
        await clients.dispatcher.delete("default", jobs=["before-0"])
        cluster.thaw("dispatcher")
        assert isinstance(await late, Exception), "a dispatcher that had lost its lease acknowledged a submission"
        await until(lambda: "term_over" in cluster.log("dispatcher"))
        assert not await _serves(cluster, "dispatcher")
        for request in _jobs("after", 1, replicas=100):
            await clients.dispatcher.submit(request)
        await until(lambda: _bound(clients, 3900))
        assert not [job for job in await clients.dispatcher.list_jobs() if job.name.startswith("late")]
        await _assert_clean(clients, bound=3900)


async def test_a_dispatcher_that_is_stopped_does_not_leave_its_lease_to_run_out(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, dispatchers=2, dispatcher_flags=("--lease-seconds", "60"))
    try:
        async with clients_of(cluster.endpoints) as clients:
            cluster.end("dispatcher")
            await until(lambda: _term_is(clients, 2), seconds=50)
    finally:
        cluster.stop()


async def _serves(cluster: Cluster, name: str) -> bool:
    """Whether both of its services do. Asked one after the other, so while that changes they may differ."""
    async with grpc.aio.insecure_channel(cluster.address(name)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        told = [
            (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_SECONDS)).status
            for service in ("hoss.v1.Dispatcher", "hoss.v1.WorkerLink")
        ]
    return told == [health_pb2.HealthCheckResponse.SERVING] * 2


async def _outcome(client: DispatcherClient, request: pb.SubmitRequest) -> pb.SubmitReply | grpc.aio.AioRpcError:
    try:
        return await client.stub.Submit(request, timeout=30)
    except grpc.aio.AioRpcError as exc:
        return exc


async def test_a_policy_set_by_command_stands_after_a_takeover_and_its_tenants_too(cluster: Cluster) -> None:
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        await clients.dispatcher.set_policy(POLICY)
        before = await clients.dispatcher.get_policy()
        cluster.kill("dispatcher")
        await until(lambda: _term_is(clients, 2))
        after = await clients.dispatcher.get_policy()
        assert (after.yaml, after.version, after.source) == (POLICY, before.version, before.source)
        for request in _jobs("after", 1, replicas=10):
            await clients.dispatcher.submit(request)
        await until(lambda: _bound(clients, 10))
        assert [(t.name, t.weight) for t in await clients.dispatcher.list_tenants()] == [("", 2.0)]
        pod = await anext(clients.dispatcher.list_pods())
        assert pod.rule == "anyone"


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


async def _term_is(clients: Clients, term: int) -> bool:
    return (await clients.dispatcher.status()).term == term


async def _bound(clients: Clients, pods: int) -> bool:
    return sum(job.bound for job in await clients.dispatcher.list_jobs()) == pods


async def _assert_clean(clients: Clients, *, bound: int) -> None:
    result = await audited(clients)
    assert (result.findings, result.unchecked) == ([], [])
    assert result.bound == result.reservations == bound


async def test_of_a_client_that_vanishes_in_mid_stream_what_was_acknowledged_stays_and_nothing_is_half_there(
    cluster: Cluster,
) -> None:
    script = (
        "import sys\n"
        "from hoss.client.dispatcher import submission\n"
        "from hoss.client.sync import DispatcherClient\n"
        "from hoss.model.pod import PodSpec, PodTemplate, Workload\n"
        "template = PodTemplate(PodSpec(), owner_kind='Job')\n"
        "requests = (next(submission([Workload(f'job-{i}', template, 7)])) for i in range(100_000))\n"
        "with DispatcherClient(sys.argv[1].split(',')) as dispatcher:\n"
        "    for reply in dispatcher.submit_stream(requests):\n"
        "        print(reply.sets[0].name, flush=True)\n"
    )
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cluster.endpoints.dispatcher, stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    acknowledged = [(await client.stdout.readline()).decode().strip() for _ in range(50)]
    client.kill()
    acknowledged += (await client.stdout.read()).decode().split("\n")[:-1]
    await client.wait()
    async with clients_of(cluster.endpoints) as clients:
        cluster.kill("dispatcher")
        await until(lambda: _term_is(clients, 2))
        jobs = {job.name: job for job in await clients.dispatcher.list_jobs()}
        assert set(acknowledged) <= jobs.keys()
        assert {(job.replicas, job.queued) for job in jobs.values()} == {(7, 7)}
