"""Redis fails over in the middle of a load. Replication is asynchronous, so the new master may lack the last changes: then
the resolver says so and nothing more is committed; and restarted services put right what was lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, prepare, some_bound, submit, until
from redis_topologies import ClusterSetup, SentinelSetup

from hoss.errors import LedgerUnavailable
from hossctl.auditing import until_caches_agree
from hossctl.endpoints import Clients, clients_of

pytestmark = pytest.mark.timeout(180)
WORKERS = ("w1", "w2")
LOST = "lost acknowledged changes"


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[SentinelSetup]:
    setup = SentinelSetup(tmp_path / "redis")
    yield setup
    setup.stop()


@pytest.fixture
def redis_cluster(tmp_path: Path) -> Iterator[ClusterSetup]:
    setup = ClusterSetup(tmp_path / "redis", replica=True)
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


async def test_a_redis_that_has_lost_acknowledged_changes_is_noticed_and_gets_no_commit(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.start_worker("w1")
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=1)
            await submit(clients, jobs=1, replicas=100, name="kept")
            await until(lambda: all_bound(clients, 100))
            old = (tmp_path / "redis" / "appendonly.aof").read_bytes()
            await submit(clients, jobs=1, replicas=100, name="lost")
            await until(lambda: all_bound(clients, 200))
            cluster.redis.kill()
            (tmp_path / "redis" / "appendonly.aof").write_bytes(old)
            cluster.start_redis()
            await until(lambda: _says(clients, LOST))
            with pytest.raises(LedgerUnavailable, match=LOST):
                await clients.resolver.grant_epoch("w9")
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
        await until(lambda: _bound_or_lost(clients, 8000))
        if await _says(clients, LOST):
            _restart(cluster)
        await until(lambda: all_bound(clients, 8000))
        await until_caches_agree(clients.dispatcher, clients.resolver, len(WORKERS))
        await assert_clean(clients, bound=8000)


async def _bound_or_lost(clients: Clients, pods: int) -> bool:
    return await _says(clients, LOST) or await all_bound(clients, pods)


async def _says(clients: Clients, text: str) -> bool:
    return text in (await clients.resolver.status()).problem


def _restart(cluster: Cluster) -> None:
    """Every service, as the message asks."""
    for name in ("dispatcher", *WORKERS, "resolver"):
        cluster.kill(name)
    cluster.start_resolver()
    cluster.start_dispatcher()
    for name in WORKERS:
        cluster.start_worker(name)
