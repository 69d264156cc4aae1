"""Redis loses the ledger, or a part of it, while the dispatcher lives: the platform heals by itself, on real processes.

What each test ends with is held against a record of the test's own: which pod was told to be bound where, before.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, healed, prepare, some_bound, submit, until_agreed
from waiting import until

from hossctl.endpoints import Clients, clients_of

WORKERS = ("w1", "w2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, shards=2)
    try:
        for name in WORKERS:
            cluster.start_worker(name)
        yield cluster
    finally:
        cluster.stop()


async def test_redis_that_comes_back_empty_is_given_all_again_and_no_bound_pod_moves(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=10, replicas=200)
        await until(lambda: all_bound(clients, 2000))
        before = await _where(clients)
        cluster.redis.kill()
        _empty(tmp_path)
        cluster.start_redis()
        await until(lambda: healed(clients, 2000))
        assert await _where(clients) == before
        await submit(clients, jobs=5, replicas=200, name="after")
        await until(lambda: all_bound(clients, 3000))
        await until_agreed(clients, 2)
        await assert_clean(clients, bound=3000)
        assert {uid: node for uid, node in (await _where(clients)).items() if uid in before} == before


async def test_redis_emptied_in_mid_load_loses_no_accepted_pod(cluster: Cluster, tmp_path: Path) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=40, replicas=200)
        await until(lambda: some_bound(clients, 500))
        cluster.redis.kill()
        _empty(tmp_path)
        cluster.start_redis()
        await until(lambda: all_bound(clients, 8000))
        await until_agreed(clients, 2)
        await assert_clean(clients, bound=8000)


async def test_what_was_given_again_survives_the_dispatcher(cluster: Cluster, tmp_path: Path) -> None:
    """The journal too, whatever its kinds of records: the next dispatcher knows all that the last one did."""
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=2, replicas=50)
        await submit(clients, jobs=1, replicas=10, name="vast", cpu_milli=10**6)
        await until(lambda: all_bound(clients, 100))
        await clients.dispatcher.delete("default", pods=["job-1-7"])
        before = await _where(clients)
        cluster.redis.kill()
        _empty(tmp_path)
        cluster.start_redis()
        await until(lambda: healed(clients, 99))
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        await until(lambda: all_bound(clients, 99))
        assert await _where(clients) == before
        jobs = {job.name: job for job in await clients.dispatcher.list_jobs()}
        assert (jobs["job-1"].deleted, jobs["vast-0"].queued + jobs["vast-0"].unschedulable) == (1, 10)
        await until_agreed(clients, 2)
        await assert_clean(clients, bound=99)


async def test_a_resolver_that_is_started_on_the_empty_redis_is_noticed_by_the_ledgers_epoch(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=2)
        await submit(clients, jobs=5, replicas=100)
        await until(lambda: all_bound(clients, 500))
        before = await _where(clients)
        cluster.kill("resolver")
        cluster.redis.kill()
        _empty(tmp_path)
        cluster.start_redis()
        cluster.start_resolver()
        await until(lambda: healed(clients, 500))
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


async def test_with_every_process_killed_at_once_all_that_was_acknowledged_is_there(tmp_path: Path) -> None:
    """`appendfsync always`."""
    cluster = Cluster(tmp_path, shards=2, fsync="always")
    try:
        for name in WORKERS:
            cluster.start_worker(name)
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=2)
            await submit(clients, jobs=20, replicas=200)
            await until(lambda: some_bound(clients, 500))
            for name in ("dispatcher", "resolver", *WORKERS):
                cluster.kill(name)
            cluster.redis.kill()
            cluster.start_redis()
            cluster.start_resolver()
            cluster.start_dispatcher()
            for name in WORKERS:
                cluster.start_worker(name)
            await until(lambda: all_bound(clients, 4000))
            await until_agreed(clients, 2)
            await assert_clean(clients, bound=4000)
    finally:
        cluster.stop()


async def test_a_standby_that_finds_the_lease_gone_with_redis_does_not_take_the_ledger_for_empty(
    tmp_path: Path,
) -> None:
    """The active dispatcher has the newest term that anybody knows of, and takes its lease up again."""
    cluster = Cluster(tmp_path, shards=2, dispatchers=2)
    try:
        for name in WORKERS:
            cluster.start_worker(name)
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=2)
            await submit(clients, jobs=5, replicas=100)
            await until(lambda: all_bound(clients, 500))
            before = await _where(clients)
            cluster.redis.kill()
            _empty(tmp_path)
            cluster.start_redis()
            await until(lambda: healed(clients, 500))
            assert await _where(clients) == before
            await submit(clients, jobs=1, replicas=100, name="after")
            await until(lambda: all_bound(clients, 600))
            await until_agreed(clients, 2)
            await assert_clean(clients, bound=600)
    finally:
        cluster.stop()


def _empty(directory: Path) -> None:
    shutil.rmtree(directory / "redis")


async def _where(clients: Clients) -> dict[bytes, str]:
    """The node of every bound pod, as clients are told."""
    return {pod.uid: pod.node async for pod in clients.dispatcher.list_pods("default") if pod.node}
