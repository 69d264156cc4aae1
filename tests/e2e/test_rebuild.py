"""Redis loses the ledger, or a part of it, while the dispatcher lives: the platform heals by itself, on real
processes.

What each test ends with is held against a record of the test's own: which pod was told to be bound where,
before. That the ledger was lost is told by its epoch, which is another afterwards, and by what the dispatcher
says that it has rebuilt."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.crashes import PODS, WORKERS, Moment, pods_under_way
from e2e.loads import all_bound, assert_clean, healed, prepare, submit, until_agreed
from waiting import until

from hossctl.endpoints import Clients, clients_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, shards=2, workers=WORKERS) as cluster:
        yield cluster


async def test_redis_that_comes_back_empty_is_given_all_again_and_no_bound_pod_moves(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The journal too, whatever its kinds of records."""
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=2, replicas=50)
        await submit(clients, jobs=1, replicas=10, name="vast", cpu_milli=10**6)
        await until(lambda: all_bound(clients, 100))
        await clients.dispatcher.delete("default", pods=["job-1-7"])
        before = await _where(clients)
        was = await _epoch(clients)
        cluster.redis.kill()
        _empty(tmp_path)
        cluster.start_redis()
        await until(lambda: healed(clients, 99))
        assert await _epoch(clients) != was
        assert [told["reservations"] for told in cluster.events("dispatcher", "ledger_rebuilt")] == [99]
        assert await _where(clients) == before
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        await until(lambda: all_bound(clients, 99))
        # The new dispatcher has the nodes' names from the feed, a moment later.
        await until(lambda: _all_named(clients, 99))
        assert await _where(clients) == before
        jobs = {job.name: job for job in await clients.dispatcher.list_jobs()}
        assert (jobs["job-1"].deleted, jobs["vast-0"].queued + jobs["vast-0"].unschedulable) == (1, 10)
        await submit(clients, jobs=1, replicas=100, name="after")
        await until(lambda: all_bound(clients, 199))
        await until_agreed(clients, 2)
        await assert_clean(clients, bound=199)
        assert {uid: node for uid, node in (await _where(clients)).items() if uid in before} == before


async def test_redis_emptied_with_reservations_that_nobody_knows_of_yet_loses_no_accepted_pod(
    tmp_path: Path,
) -> None:
    """The verdicts that say so come late, and are true no more."""
    async with pods_under_way(tmp_path, Moment.RESERVED, shards=2) as scene:
        scene.cluster.redis.kill()
        _empty(tmp_path)
        await scene.start("redis")
        rebuilt = await until(
            lambda: scene.cluster.events("dispatcher", "ledger_rebuilt"), "the ledger to be rebuilt"
        )
        assert [told["reservations"] for told in rebuilt] == [0]
        await scene.all_come_through()
        assert (await scene.clients.dispatcher.status()).counters["requeued"] == PODS


async def test_a_resolver_that_is_started_on_the_empty_redis_is_noticed_by_the_ledgers_epoch(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=5, replicas=100)
        await until(lambda: all_bound(clients, 500))
        before = await _where(clients)
        was = await _epoch(clients)
        cluster.kill("resolver")
        cluster.redis.kill()
        _empty(tmp_path)
        cluster.start_redis()
        cluster.start_resolver()
        await until(lambda: healed(clients, 500))
        assert await _epoch(clients) != was
        assert await _where(clients) == before
        await until_agreed(clients, 2)
        await assert_clean(clients, bound=500)


async def test_a_redis_with_an_older_file_is_brought_up_to_date(cluster: Cluster, tmp_path: Path) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=1, replicas=100, name="kept")
        await until(lambda: all_bound(clients, 100))
        await clients.dispatcher.delete("default", jobs=["kept-0"])
        await until(lambda: healed(clients, 0))
        shutil.copytree(tmp_path / "redis", tmp_path / "older")
        await submit(clients, jobs=1, replicas=300, name="late")
        await until(lambda: all_bound(clients, 300))
        before = await _where(clients)
        cluster.redis.kill()
        _empty(tmp_path)
        (tmp_path / "older").rename(tmp_path / "redis")
        cluster.start_redis()
        await until(lambda: healed(clients, 300))
        assert len(cluster.events("dispatcher", "ledger_rebuilt")) == 1
        assert await _where(clients) == before
        await until_agreed(clients, 2)
        await assert_clean(clients, bound=300)


async def test_with_a_dispatcher_that_starts_on_the_empty_redis_nothing_is_known_and_all_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=1, replicas=100)
        await until(lambda: all_bound(clients, 100))
        cluster.kill("dispatcher")
        cluster.redis.kill()
        _empty(tmp_path)
        cluster.start_redis()
        cluster.start_dispatcher()
        await until(lambda: healed(clients, 0))
        await prepare(clients, workers=2)
        await submit(clients, jobs=1, replicas=100, name="new")
        await until(lambda: all_bound(clients, 100))
        await assert_clean(clients, bound=100)


async def test_a_standby_that_finds_the_lease_gone_with_redis_does_not_take_the_ledger_for_empty(
    tmp_path: Path,
) -> None:
    """The active dispatcher has the newest term that anybody knows of, and takes its lease up again."""
    with Cluster(tmp_path, shards=2, dispatchers=2, workers=WORKERS) as cluster:
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=2)
            await submit(clients, jobs=5, replicas=100)
            await until(lambda: all_bound(clients, 500))
            before = await _where(clients)
            cluster.redis.kill()
            _empty(tmp_path)
            cluster.start_redis()
            await until(lambda: healed(clients, 500))
            assert [told["reservations"] for told in cluster.events("dispatcher", "ledger_rebuilt")] == [500]
            assert not cluster.events("dispatcher-2", "ledger_rebuilt")
            assert await _where(clients) == before
            await submit(clients, jobs=1, replicas=100, name="after")
            await until(lambda: all_bound(clients, 600))
            await until_agreed(clients, 2)
            await assert_clean(clients, bound=600)


def _empty(directory: Path) -> None:
    shutil.rmtree(directory / "redis")


async def _epoch(clients: Clients) -> str:
    """Of the ledger, which a rebuilt one does not share."""
    return (await clients.resolver.status()).ledger_epoch


async def _all_named(clients: Clients, pods: int) -> bool:
    return len(await _where(clients)) == pods


async def _where(clients: Clients) -> dict[bytes, str]:
    """The node of every bound pod, as clients are told."""
    return {pod.uid: pod.node async for pod in clients.dispatcher.list_pods("default") if pod.node}
