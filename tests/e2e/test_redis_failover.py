"""Redis fails over in the middle of a load. Replication is asynchronous, so the new master may lack the last
changes: then the ledger is rebuilt from what the dispatcher knows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.crashes import Moment, pods_under_way
from redis_topologies import SOON_MS, ClusterSetup, ComposedSentinels, SentinelSetup
from waiting import until

from hoss.redis.url import PASSWORD_VARIABLE


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[SentinelSetup]:
    setup = SentinelSetup(tmp_path / "redis", silence_ms=SOON_MS)
    yield setup
    setup.stop()


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComposedSentinels]:
    monkeypatch.setenv(PASSWORD_VARIABLE, "lettersAnd1234")
    setup = ComposedSentinels(tmp_path / "redis")
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
    await _bind_all_through(tmp_path, sentinel.url, sentinel.master.kill)


async def test_the_composed_sentinels_promote_the_replica_in_mid_load_and_no_pod_is_lost(
    tmp_path: Path, composed: ComposedSentinels
) -> None:
    assert composed.url("dispatcher") == composed.url("resolver")
    await _bind_all_through(tmp_path, composed.url("resolver"), composed.kill_master)


async def test_a_cluster_promotes_a_replica_in_mid_load_and_no_pod_is_lost(
    tmp_path: Path, redis_cluster: ClusterSetup
) -> None:
    await _bind_all_through(tmp_path, redis_cluster.url, redis_cluster.servers[0].kill, shards=6)


async def _bind_all_through(
    directory: Path, redis_url: str, fail: Callable[[], None], *, shards: int = 1
) -> None:
    """The pods are proposed when the master has died: they are refused until there is another."""
    async with pods_under_way(directory, Moment.PROPOSED, redis_url=redis_url, shards=shards) as scene:
        fail()
        scene.gate.release()

        async def refused() -> int:
            return (await scene.clients.resolver.status()).counters["unavailable"]

        await until(refused, "proposals to be refused for want of a master")
        await scene.all_come_through()
