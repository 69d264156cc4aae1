"""Redis fails over in the middle of a load. Replication is asynchronous, so the new master may lack the last changes: then
the ledger is rebuilt from what the dispatcher knows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, prepare, some_bound, submit, until_agreed
from redis_topologies import SOON_MS, ClusterSetup, SentinelSetup
from waiting import until

from hossctl.endpoints import clients_of

WORKERS = ("w1", "w2")


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[SentinelSetup]:
    setup = SentinelSetup(tmp_path / "redis", silence_ms=SOON_MS)
    yield setup
    setup.stop()


@pytest.fixture
def redis_cluster(tmp_path: Path) -> Iterator[ClusterSetup]:
    setup = ClusterSetup(tmp_path / "redis", replica=True, silence_ms=SOON_MS)
    yield setup
    setup.stop()


async def test_sentinel_promotes_the_replica_in_mid_load_and_no_pod_is_lost(
    tmp_path: Path, sentinel: SentinelSetup
) -> None:
    cluster = Cluster(tmp_path, redis_url=sentinel.url)
    try:
        await _bind_all_through(cluster, sentinel.master.kill)
    finally:
        cluster.stop()


async def test_a_cluster_promotes_a_replica_in_mid_load_and_no_pod_is_lost(
    tmp_path: Path, redis_cluster: ClusterSetup
) -> None:
    cluster = Cluster(tmp_path, redis_url=redis_cluster.url, shards=6)
    try:
        await _bind_all_through(cluster, redis_cluster.servers[0].kill)
    finally:
        cluster.stop()


async def _bind_all_through(cluster: Cluster, fail: Callable[[], None]) -> None:
    for name in WORKERS:
        cluster.start_worker(name)
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=len(WORKERS))
        await submit(clients, jobs=40, replicas=200)
        await until(lambda: some_bound(clients, 500))
        fail()
        await until(lambda: all_bound(clients, 8000))
        await until_agreed(clients, len(WORKERS))
        await assert_clean(clients, bound=8000)
