"""Leader election by a Lease of a real API server, in front of the lease in a real Redis whose term
fences."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, reserved, run_hoss
from e2e.kubernetes.api import Api
from e2e.kubernetes.faulty_api import Fault, FaultyApi
from waiting import DEADLINE_SECONDS, until, wait_until

from dispatcher.leader.kubernetes_lease import KubernetesLease
from dispatcher.leader.lease import Granted, LeaseHeld, RedisLease
from hoss.errors import LedgerUnavailable
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi
from hossctl.local.control_plane import ControlPlane
from hossctl.local.redis_server import RedisServer

NAME = "default/hoss"
PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/hoss"
SECONDS = 5  # of the Lease: longer than a busy machine keeps its holder from renewing it
STORE_SECONDS = 4.0  # of the lease in Redis, which is given half of that to answer; shorter than the Lease


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer.start(tmp_path / "redis")
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def _no_lease(api: Api) -> None:
    api.request("DELETE", PATH)


@asynccontextmanager
async def candidates(
    redis: RedisServer, kubeconfigs: list[Path], *, skew: timedelta = timedelta()
) -> AsyncIterator[list[KubernetesLease]]:
    """One for each kubeconfig; the clock of the first is wrong by `skew`."""
    made = [
        KubernetesLease(
            KubeApi(load_access(path)),
            NAME,
            RedisLease(redis.url, STORE_SECONDS),
            duration_seconds=SECONDS,
            utc_now=lambda late=number == 0: datetime.now(timezone.utc) + (skew if late else timedelta()),
        )
        for number, path in enumerate(kubeconfigs)
    ]
    try:
        yield made
    finally:
        for lease in made:
            await lease.close()


async def granted(lease: KubernetesLease, address: str) -> Granted:
    """Ask until it is."""

    async def asked() -> Granted | bool:
        answer = await lease.acquire(address)
        return isinstance(answer, Granted) and answer

    return await until(asked, f"{address} to be granted it")


def test_one_of_two_holds_it_and_the_cluster_sees_who(
    api: Api, control_plane: ControlPlane, redis: RedisServer
) -> None:
    async def run() -> None:
        async with candidates(redis, [control_plane.kubeconfig] * 2) as (first, second):
            term = (await granted(first, "a:1")).term
            assert await second.acquire("b:2") == LeaseHeld(0, "a:1")
            spec = api("GET", PATH)["spec"]
            assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (
                "a:1",
                SECONDS,
                0,
            )
            await first.release(term)
            assert api("GET", PATH)["spec"].get("holderIdentity", "") == ""
            assert (await granted(second, "b:2")).term > term
            assert api("GET", PATH)["spec"]["leaseTransitions"] > 0

    asyncio.run(run())


@pytest.mark.parametrize("hours", [-24, 24], ids=["behind", "ahead"])
def test_a_holder_whose_clock_is_wrong_keeps_it_as_long_as_it_renews_and_no_longer(
    control_plane: ControlPlane, redis: RedisServer, hours: int
) -> None:
    async def run() -> None:
        async with candidates(redis, [control_plane.kubeconfig] * 2, skew=timedelta(hours=hours)) as (
            first,
            second,
        ):
            term = (await granted(first, "a:1")).term
            renewed = time.monotonic()
            until_then = renewed + 2 * SECONDS
            while (asked := time.monotonic()) < until_then:
                with suppress(LedgerUnavailable):  # an answer that the machine held up is none
                    assert await first.renew(term, "a:1")
                    renewed = asked
                    assert isinstance(await second.acquire("b:2"), LeaseHeld)
                await asyncio.sleep(0.1)
            assert (await granted(second, "b:2")).term > term
            assert time.monotonic() - renewed > SECONDS / 2
            assert not await _until_over(first, term)

    asyncio.run(run())


async def _until_over(lease: KubernetesLease, term: int) -> bool:
    """What a renewal says that is answered; one that is too late is none."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        try:
            if not await lease.renew(term, "a:1"):
                return False
        except LedgerUnavailable:
            pass
        await asyncio.sleep(0.1)
    return True


def test_a_holder_that_cannot_reach_the_api_server_gives_way_to_one_that_can(
    tmp_path: Path, api: Api, control_plane: ControlPlane, redis: RedisServer
) -> None:
    proxy = FaultyApi(control_plane, tmp_path)

    async def run() -> None:
        async with candidates(redis, [proxy.kubeconfig, control_plane.kubeconfig]) as (first, second):
            term = (await granted(first, "a:1")).term
            proxy.faults = (Fault(hangs=True),)
            taking = asyncio.ensure_future(granted(second, "b:2"))
            while not taking.done():
                with suppress(LedgerUnavailable):
                    await first.renew(term, "a:1")
                await asyncio.sleep(0.1)
            assert (await taking).term > term
            proxy.faults = ()
            assert not await _until_over(first, term)
            assert api("GET", PATH)["spec"]["holderIdentity"] == "b:2"

    try:
        asyncio.run(run())
    finally:
        proxy.stop()


def test_the_next_dispatcher_takes_the_lease_of_one_that_was_killed_and_loses_nothing(
    tmp_path: Path, api: Api, control_plane: ControlPlane
) -> None:
    api.create_node("n1")
    with Cluster(
        tmp_path, dispatchers=2, kubeconfig=control_plane.kubeconfig, dispatcher_flags=("--kube-lease", NAME)
    ) as cluster:
        cluster.start_worker("w1")
        assert api("GET", PATH)["spec"]["holderIdentity"] == cluster.address("dispatcher")
        api.create_pod("first", scheduler="hoss")
        wait_until(lambda: len(assigned(api)) == 1, "it is bound")
        cluster.kill("dispatcher")
        api.create_pod("second", scheduler="hoss")
        wait_until(lambda: len(assigned(api)) == 2, "it is bound too")
        assert api("GET", PATH)["spec"]["holderIdentity"] == cluster.address("dispatcher-2")
        wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
        assert "clean" in run_hoss(cluster, "audit")
