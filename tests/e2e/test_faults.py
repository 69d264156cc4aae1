"""What dies and what is kept: every process killed with -9 in the middle of a load, on real processes.

Invariant 3 (nothing lost) is what each test ends with: every accepted pod is bound, and the audit, which also checks
1, 2 and 6, finds nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster

from hoss.client.dispatcher import submission
from hoss.errors import LedgerUnavailable, TransportError
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.auditing import audit, until_caches_agree
from hossctl.endpoints import Clients, clients_of
from hossctl.nodes import register

GIB = 2**30
NODES = 200
PATIENCE_SECONDS = 60.0

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


async def test_killing_a_worker_in_the_middle_of_a_load_loses_no_pod(cluster: Cluster) -> None:
    for name in ("w1", "w2", "w3"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=3)
        await _submit(clients, jobs=40, replicas=200)
        await _until(lambda: _some_bound(clients, 500))
        cluster.kill("w2")
        await _until(lambda: _all_bound(clients, 8000))
        await _assert_clean(clients, bound=8000)


async def test_invariant_4_a_killed_workers_pods_are_bound_once_each(cluster: Cluster) -> None:
    """Fencing before the pods go to others: without it the late commits of the dead would stand beside the new ones."""
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        for round_number in range(3):
            await _submit(clients, jobs=10, replicas=200, name=f"round-{round_number}")
            await _until(lambda least=round_number * 2000 + 200: _some_bound(clients, least))
            cluster.kill("w1")
            await _until(lambda total=(round_number + 1) * 2000: _all_bound(clients, total))
            cluster.start_worker("w1")
        await _assert_clean(clients, bound=6000)


async def test_killing_the_dispatcher_loses_no_accepted_pod(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        await _submit(clients, jobs=40, replicas=200)
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        await _until(lambda: _all_bound(clients, 8000))
        await until_caches_agree(clients.dispatcher, clients.resolver, 2)
        await _assert_clean(clients, bound=8000)


async def test_deletions_survive_the_dispatcher(cluster: Cluster) -> None:
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        await _submit(clients, jobs=2, replicas=50)
        await _until(lambda: _all_bound(clients, 100))
        await clients.dispatcher.delete("default", jobs=["job-0"], pods=["job-1-7"])
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        await _until(lambda: _all_bound(clients, 49))
        await _assert_clean(clients, bound=49)


async def test_killing_the_resolver_delays_and_loses_nothing(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        await _submit(clients, jobs=40, replicas=200)
        await _until(lambda: _some_bound(clients, 500))
        cluster.kill("resolver")
        cluster.start_resolver()
        await _until(lambda: _all_bound(clients, 8000))
        await _assert_clean(clients, bound=8000)


async def test_redis_killed_and_back_with_its_file_delays_and_loses_nothing(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        await _submit(clients, jobs=40, replicas=200)
        cluster.redis.kill()
        with pytest.raises(LedgerUnavailable):
            await _submit(clients, jobs=1, replicas=1, name="too-late")
        cluster.start_redis()
        await _until(lambda: _all_bound(clients, 8000))
        await _submit(clients, jobs=1, replicas=10, name="after")
        await _until(lambda: _all_bound(clients, 8010))
        await _assert_clean(clients, bound=8010)


async def test_four_workers_on_a_nearly_full_cluster_conflict_and_all_is_resolved(cluster: Cluster) -> None:
    """4,000 nodes with room for one pod each, 4,000 pods: workers meet on the same nodes, ever more as these get few."""
    for number in range(4):
        cluster.start_worker(f"w{number}")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=4, nodes=4000, cpus=1)
        await _submit(clients, jobs=400, replicas=10, cpu_milli=1000)
        await _until(lambda: _all_bound(clients, 4000))
        counters = (await clients.resolver.status()).counters
        conflicts = sum(count for name, count in counters.items() if "conflict" in name)
        assert conflicts > 0
        await _assert_clean(clients, bound=4000)


async def _prepare(clients: Clients, *, workers: int, nodes: int = NODES, cpus: int = 64) -> None:
    allocatable = (("cpu", cpus * 1000), ("memory", 256 * GIB), ("pods", 250))
    await register(clients.resolver, [NodeSpec(f"node-{i:04d}", allocatable=allocatable) for i in range(nodes)])
    assert await until_caches_agree(clients.dispatcher, clients.resolver, workers)


async def _submit(clients: Clients, *, jobs: int, replicas: int, name: str = "job", cpu_milli: int = 100) -> None:
    spec = PodSpec(requests=(("cpu", cpu_milli), ("memory", GIB // 8)))
    template = PodTemplate(spec, owner_kind="Job")
    for request in submission([Workload(f"{name}-{i}", template, replicas) for i in range(jobs)]):
        await clients.dispatcher.submit(request)


async def _counts(clients: Clients) -> list[pb.JobInfo]:
    return await clients.dispatcher.list_jobs()


async def _some_bound(clients: Clients, least: int) -> bool:
    return sum(job.bound for job in await _counts(clients)) >= least


async def _all_bound(clients: Clients, pods: int) -> bool:
    return sum(job.bound for job in await _counts(clients)) == pods


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(TransportError):  # a killed service is back, and the channel has not noticed yet
            if await holds():
                return
        assert time.monotonic() < deadline, "the pods were not bound in time"
        await asyncio.sleep(0.02)


async def _assert_clean(clients: Clients, *, bound: int) -> None:
    result = await audit(clients.dispatcher, clients.resolver)
    assert (result.findings, result.unchecked) == ([], [])
    assert result.bound == result.reservations == bound
