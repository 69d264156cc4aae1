"""Workers that hear of the ledger in other ways than by the feed, on real processes: no invariant depends on
the mode."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, audited, clear, some_bound, submit
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

GIB = 2**30
PUSH, PULL = ("--sync", "push"), ("--sync", "pull", "--pull-interval-ms", "200")
REFUSAL = ("--sync", "refusal", "--pull-interval-ms", "50")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without workers: each test starts its own, and ends them."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def nodes(count: int, *, first: int = 0) -> list[NodeSpec]:
    amounts = (("cpu", 8000), ("memory", 64 * GIB), ("pods", 110))
    names = [f"n{i}" for i in range(first, first + count)]
    return [NodeSpec(name, labels=(("kubernetes.io/hostname", name),), allocatable=amounts) for name in names]


@asynccontextmanager
async def serving(cluster: Cluster, count: int, *flags: tuple[str, ...]) -> AsyncIterator[Clients]:
    """Nodes first, then a worker for each of `flags`: one that hears of refusals alone knows what was there
    before it."""
    async with clients_of(cluster.endpoints) as clients:
        await register(clients.resolver, nodes(count))
        for number, given in enumerate(flags, 1):
            cluster.start_worker(f"w{number}", options=given)

        async def filled() -> bool:
            return sum(worker.fill_seconds > 0 for worker in await serving_workers(clients)) == len(flags)

        try:
            await until(filled)
            yield clients
        finally:
            await clear(clients)
            for number in range(1, len(flags) + 1):
                cluster.end(f"w{number}")


async def serving_workers(clients: Clients) -> list[pb.WorkerInfo]:
    """Those of this test, by name."""
    workers = [worker for worker in await clients.dispatcher.list_workers() if worker.state == "Ready"]
    return sorted(workers, key=lambda worker: worker.name)


@pytest.mark.parametrize(
    "flags",
    [(PULL, PULL), (REFUSAL, REFUSAL), (PUSH, PULL, REFUSAL)],
    ids=["pull", "refusal", "one of each"],
)
async def test_invariant_1_workers_with_stale_views_fill_every_node_and_overcommit_none(
    cluster: Cluster, flags: tuple[tuple[str, ...], ...]
) -> None:
    async with serving(cluster, 40, *flags) as clients:
        await submit(clients, jobs=16, replicas=20, cpu_milli=1000)
        await until(lambda: all_bound(clients, 320))
        await assert_clean(clients, bound=320)
        workers = await serving_workers(clients)
        assert [worker.synchronisation for worker in workers] == [given[1] for given in flags]


async def test_invariant_6_a_view_that_is_pulled_is_the_ledgers_after_the_next_pull(cluster: Cluster) -> None:
    async with serving(cluster, 10, PULL) as clients:
        await submit(clients, jobs=4, replicas=10)
        await until(lambda: all_bound(clients, 40))
        result = await audited(clients)
        assert (result.findings, result.unchecked, result.reports) == ([], [], [])


async def test_the_audit_says_whose_cache_it_does_not_compare(cluster: Cluster) -> None:
    async with serving(cluster, 10, REFUSAL) as clients:
        await submit(clients, jobs=1, replicas=10)
        await until(lambda: all_bound(clients, 10))
        result = await audited(clients)
        assert result.exit_code == 0
        assert result.reports == ["worker w1 hears of the ledger by refusals only: its cache is not compared"]


async def test_workers_tell_how_far_they_are_behind_what_they_have_heard_of(cluster: Cluster) -> None:
    """What the one commits, the other hears of by the numbers of its own commits, which are later."""
    async with serving(cluster, 10, PUSH, REFUSAL) as clients:
        for number, (idle, at_work) in enumerate((("w2", "w1"), ("w1", "w2")), 1):
            await clients.dispatcher.set_worker_state(idle, "Cordoned")
            await submit(clients, jobs=5, replicas=10, name=at_work)
            await until(lambda pods=50 * number: all_bound(clients, pods))
            await clients.dispatcher.set_worker_state(idle, "Ready")

        async def told() -> bool:
            following, refused = ({lag.shard: lag for lag in w.lags} for w in await serving_workers(clients))
            return (
                following[0].seqs == following[0].seconds == 0
                and refused[0].seqs > 0
                and refused[0].seconds > 0
            )

        await until(told)


async def test_who_hears_of_refusals_alone_finds_new_nodes_and_room_given_back_when_pods_need_it(
    cluster: Cluster,
) -> None:
    async with serving(cluster, 1, REFUSAL) as clients:
        await submit(clients, jobs=1, replicas=8, name="first", cpu_milli=1000)
        await until(lambda: all_bound(clients, 8))
        await register(clients.resolver, nodes(1, first=1))
        await submit(clients, jobs=1, replicas=8, name="second", cpu_milli=1000)
        await until(lambda: all_bound(clients, 16))
        await clients.dispatcher.delete("default", jobs=["first-0"])
        await submit(clients, jobs=1, replicas=8, name="third", cpu_milli=1000)

        async def third() -> bool:
            return any(j.name == "third-0" and j.bound == 8 for j in await clients.dispatcher.list_jobs())

        await until(third)
        await assert_clean(clients, bound=16)


async def test_rules_about_other_pods_hold_between_workers_that_hear_of_refusals_alone(
    cluster: Cluster,
) -> None:
    db = LabelSelector((Requirement("app", "In", ("db",)),))
    alone = PodAffinity(anti_required=(PodAffinityTerm("kubernetes.io/hostname", db, ("default",)),))
    spec = PodSpec(requests=(("cpu", 10),), labels=(("app", "db"),), pod_affinity=alone)
    async with serving(cluster, 12, REFUSAL, REFUSAL) as clients:
        template = PodTemplate(spec, owner_kind="Job")
        for request in submission([Workload(f"job-{i}", template, 3) for i in range(4)]):
            await clients.dispatcher.submit(request)
        await until(lambda: all_bound(clients, 12))
        held = [chunk async for chunk in clients.resolver.reservations()]
        placed = b"".join(chunk.nodes for chunk in held)
        assert len({placed[at : at + 4] for at in range(0, len(placed), 4)}) == 12
        await assert_clean(clients, bound=12)


async def test_a_worker_that_comes_back_is_up_to_date_while_the_others_go_on(cluster: Cluster) -> None:
    async with serving(cluster, 500, PUSH, PUSH) as clients:
        await submit(clients, jobs=5, replicas=200, cpu_milli=100)
        await until(lambda: all_bound(clients, 1000))
        cluster.kill("w2")
        await submit(clients, jobs=20, replicas=200, name="more", cpu_milli=100)
        await until(lambda: some_bound(clients, 1100))
        cluster.start_worker("w2", options=PUSH)

        async def back() -> bool:
            workers = {worker.name: worker for worker in await serving_workers(clients)}
            return "w2" in workers and workers["w2"].fill_seconds > 0

        await until(back)
        await submit(clients, jobs=5, replicas=200, name="late", cpu_milli=100)
        await until(lambda: all_bound(clients, 6000))
        await assert_clean(clients, bound=6000)
