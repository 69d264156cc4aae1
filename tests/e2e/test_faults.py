"""What dies and what is kept: every process killed with -9 in the middle of a load, on real processes.

Invariant 3 (nothing lost) is what each test ends with: every accepted pod is bound, and the audit, which also checks
1, 2 and 6, finds nothing.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, prepare, some_bound, submit, until_agreed
from waiting import until

from hoss.errors import LedgerUnavailable
from hossctl.endpoints import clients_of


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
        await prepare(clients, workers=3)
        await submit(clients, jobs=40, replicas=200)
        await until(lambda: some_bound(clients, 500))
        cluster.kill("w2")
        await until(lambda: all_bound(clients, 8000))
        await assert_clean(clients, bound=8000)


async def test_invariant_4_a_killed_workers_pods_are_bound_once_each(cluster: Cluster) -> None:
    """Fencing before the pods go to others: without it the late commits of the dead would stand beside the new ones."""
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        for round_number in range(3):
            await submit(clients, jobs=10, replicas=200, name=f"round-{round_number}")
            await until(lambda least=round_number * 2000 + 200: some_bound(clients, least))
            cluster.kill("w1")
            await until(lambda total=(round_number + 1) * 2000: all_bound(clients, total))
            cluster.start_worker("w1")
        await assert_clean(clients, bound=6000)


async def test_killing_the_dispatcher_loses_no_accepted_pod(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=40, replicas=200)
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        await until(lambda: all_bound(clients, 8000))
        await until_agreed(clients, 2)
        await assert_clean(clients, bound=8000)


async def test_deletions_survive_the_dispatcher(cluster: Cluster) -> None:
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=1)
        await submit(clients, jobs=2, replicas=50)
        await until(lambda: all_bound(clients, 100))
        await clients.dispatcher.delete("default", jobs=["job-0"], pods=["job-1-7"])
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        await until(lambda: all_bound(clients, 49))
        await assert_clean(clients, bound=49)


async def test_killing_the_resolver_delays_and_loses_nothing(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=40, replicas=200)
        await until(lambda: some_bound(clients, 500))
        cluster.kill("resolver")
        cluster.start_resolver()
        await until(lambda: all_bound(clients, 8000))
        await assert_clean(clients, bound=8000)


async def test_redis_killed_and_back_with_its_file_delays_and_loses_nothing(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=40, replicas=200)
        cluster.redis.kill()
        with pytest.raises(LedgerUnavailable):
            await submit(clients, jobs=1, replicas=1, name="too-late")
        cluster.start_redis()
        await until(lambda: all_bound(clients, 8000))
        await submit(clients, jobs=1, replicas=10, name="after")
        await until(lambda: all_bound(clients, 8010))
        await assert_clean(clients, bound=8010)


async def test_four_workers_on_a_nearly_full_cluster_conflict_and_all_is_resolved(cluster: Cluster) -> None:
    """4,000 nodes with room for one pod each, 4,000 pods: workers meet on the same nodes, ever more as these get few."""
    for number in range(4):
        cluster.start_worker(f"w{number}")
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=4, nodes=4000, cpus=1)
        await submit(clients, jobs=400, replicas=10, cpu_milli=1000)
        await until(lambda: all_bound(clients, 4000))
        counters = (await clients.resolver.status()).counters
        conflicts = sum(count for name, count in counters.items() if "conflict" in name)
        assert conflicts > 0
        await assert_clean(clients, bound=4000)
