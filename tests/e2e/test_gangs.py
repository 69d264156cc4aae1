"""Gangs on real processes, on a ledger of one shard and of three: all or none, and never in each other's
way."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.crashes import PODS, REPLICAS, Moment, pods_under_way
from e2e.loads import audited, clear, until_agreed
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import GangSpec, PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

NODES, CPUS = 12, 8
HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules:\n"


@pytest.fixture(scope="module", params=[1, 3], ids=["one shard", "three shards"])
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), shards=request.param)
    cluster.start_worker("w1", "of=a")
    cluster.start_worker("w2", "of=b")
    yield cluster
    cluster.stop()


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[Clients]:
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        yield clients
        await clients.dispatcher.set_policy(HEAD + "  - {name: all}\n")
        await clear(clients)


async def test_of_two_gangs_that_each_fit_alone_one_is_placed_and_the_other_when_it_has_gone(
    clients: Clients,
) -> None:
    await _route_by_scheduler(clients)
    # Eight whole nodes each, of twelve, and each on a worker of its own: both place theirs at the same
    # moment.
    for _ in range(2):
        await asyncio.gather(_gang(clients, "a", 8, cpus=CPUS), _gang(clients, "b", 8, cpus=CPUS))
        await until(lambda: _bound_are(clients, [0, 8]))
        (waiting,) = [job for job in await clients.dispatcher.list_jobs() if not job.bound]
        # Four fit; a loser that looked while the winner's shards came in one by one saw room for some more.
        reason = rf"gang {waiting.name}: [4-7] of the 8 pods it needs fit"
        await until(lambda name=waiting.name, told=reason: _waits_for(clients, name, told))
        await _assert_clean(clients)
        winner = "b" if waiting.name == "a" else "a"
        await clients.dispatcher.delete("default", jobs=[winner])
        await until(lambda name=waiting.name: _has_bound(clients, name, 8))
        await clients.dispatcher.delete("default", jobs=[waiting.name])
        await until(lambda: _no_jobs(clients))


@pytest.mark.parametrize("moment", [Moment.PROPOSED, Moment.RESERVED], ids=["proposed", "reserved"])
@pytest.mark.parametrize("victim", ["a worker", "dispatcher", "resolver"])
async def test_invariant_5_gangs_are_all_or_nothing_when_who_has_them_in_hand_is_killed(
    tmp_path: Path, victim: str, moment: Moment
) -> None:
    """On three shards. Whoever looks sees all of a gang bound or none, and in the ledger none has a part
    without the rest."""
    async with pods_under_way(tmp_path, moment, shards=3, gangs=True) as scene:
        if victim == "a worker":
            worker = await scene.laden()
            scene.cluster.kill(worker.name)
            pods = worker.outstanding
            assert await scene.fenced(worker.name) == ((0, pods) if moment is Moment.PROPOSED else (pods, 0))
        else:
            scene.cluster.kill(victim)
            await scene.start(victim)
        scene.gate.release()

        async def all_bound_by_whole_gangs() -> bool:
            jobs = await scene.clients.dispatcher.list_jobs()
            assert {job.bound for job in jobs} <= {0, REPLICAS}, jobs
            return all(job.bound for job in jobs)

        await until(all_bound_by_whole_gangs)
        if victim == "dispatcher":
            found = scene.cluster.events("dispatcher", "recovered")[-1]["bound"]
            assert found == (0 if moment is Moment.PROPOSED else PODS)
        if victim == "resolver" and moment is Moment.RESERVED:
            status = await until(scene.clients.resolver.status, "the new resolver to answer")
            assert status.counters["duplicate"] > 0
        await scene.all_come_through(workers=1 if victim == "a worker" else 2)


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [1, 3])
async def test_invariant_5_gangs_are_all_or_nothing_while_everything_is_killed(
    tmp_path: Path, shards: int
) -> None:
    """More gangs than there is room for, beside ordinary pods; what is bound makes room, until every gang was
    served. Killed at moments that chance has."""
    with Cluster(tmp_path, shards=shards, workers=["w1", "w2", "w3"]) as cluster:
        async with clients_of(cluster.endpoints) as clients:
            await _prepare(clients, workers=3)
            for number in range(15):
                await _gang(clients, f"gang-{number}", 3 + number % 5, cpus=1 + number % 4, extra=number % 3)
                await _gang(clients, f"single-{number}", 0, cpus=1, extra=2)
            served: set[str] = set()
            again = {"w1": partial(cluster.start_worker, "w1"), "dispatcher": cluster.start_dispatcher}
            again["resolver"] = cluster.start_resolver
            for name, start in again.items():
                await until(lambda: _serves_more(clients, served))
                cluster.kill(name)
                start()
            while len(served) < 30:
                await until(lambda: _serves_more(clients, served), lambda: f"more than {sorted(served)}")
            await until_agreed(clients, 3)
            await _assert_clean(clients)


async def test_a_gang_takes_several_shards_and_all_of_it_is_confirmed(clients: Clients) -> None:
    await _gang(clients, "all", NODES, cpus=CPUS)
    await until(lambda: _has_bound(clients, "all", NODES))
    await until(lambda: _all_confirmed(clients, NODES))
    await _assert_clean(clients)


async def _serves_more(clients: Clients, served: set[str]) -> bool:
    """Delete the jobs that have their minimum bound, and note their names. Whether there were any new
    ones."""
    before = len(served)
    for job in await clients.dispatcher.list_jobs():
        assert not job.min_available or job.bound == 0 or job.bound >= job.min_available, job
        if job.bound:
            served.add(job.name)
            await clients.dispatcher.delete("default", jobs=[job.name])
    return len(served) > before


async def _prepare(clients: Clients, *, workers: int) -> None:
    amounts = (("cpu", CPUS * 1000), ("memory", 64 * 2**30), ("pods", 110))
    await register(clients.resolver, [NodeSpec(f"node-{i:03}", allocatable=amounts) for i in range(NODES)])
    await until_agreed(clients, workers)


async def _route_by_scheduler(clients: Clients) -> None:
    rules = "".join(
        f"  - {{name: {name}, match: {{schedulerNames: [{name}]}}, workers: {{matchLabels: {{of:"
        f" {name}}}}}}}\n"
        for name in ("a", "b")
    )
    await clients.dispatcher.set_policy(HEAD + rules)


async def _gang(clients: Clients, name: str, minimum: int, *, cpus: int, extra: int = 0) -> None:
    spec = PodSpec(requests=(("cpu", cpus * 1000), ("memory", 2**20)), nonzero_cpu_milli=cpus * 1000)
    template = PodTemplate(spec, scheduler_name=name, owner_kind="Job")
    gang = GangSpec("default", name, minimum) if minimum else None
    for request in submission([Workload(name, template, minimum + extra, gang=gang)]):
        await clients.dispatcher.submit(request)


async def _bound_are(clients: Clients, expected: list[int]) -> bool:
    return sorted(job.bound for job in await clients.dispatcher.list_jobs()) == expected


async def _has_bound(clients: Clients, name: str, pods: int) -> bool:
    return any(job.name == name and job.bound == pods for job in await clients.dispatcher.list_jobs())


async def _no_jobs(clients: Clients) -> bool:
    return not await clients.dispatcher.list_jobs()


async def _waits_for(clients: Clients, name: str, reason: str) -> bool:
    pods = [pod async for pod in clients.dispatcher.list_pods("default", job=name)]
    return all(pod.phase == pb.UNSCHEDULABLE and re.search(reason, pod.reason) for pod in pods)


async def _all_confirmed(clients: Clients, pods: int) -> bool:
    chunks = [chunk async for chunk in clients.resolver.reservations()]
    return sum(len(chunk.assumed) for chunk in chunks) == pods and not any(
        any(chunk.assumed) for chunk in chunks
    )


async def _assert_clean(clients: Clients) -> None:
    result = await audited(clients)
    assert (result.findings, result.unchecked) == ([], [])
