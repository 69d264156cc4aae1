"""Rules that cross nodes, on real processes with two workers at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e.cluster import Cluster
from e2e.crashes import interposed_cluster
from e2e.loads import audited, clear, until_agreed
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import (
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodTemplate,
    SpreadConstraint,
    Workload,
)
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1.resolver_pb2 import VerdictBatch
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

NODES = 30


@pytest.fixture(scope="module", params=[1, 4], ids=["one shard", "four shards"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A platform whose ledger has so many shards, for one test after the other."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), shards=request.param, workers=["w1", "w2"])
    yield cluster
    cluster.stop()


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[Clients]:
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients)
        yield clients
        await clear(clients)


async def prepare(clients: Clients) -> None:
    """NODES nodes in three racks, known to two workers."""
    amounts = (("cpu", 64_000), ("memory", 2**36), ("pods", 110))
    nodes = [
        NodeSpec(
            f"n{i}", labels=(("kubernetes.io/hostname", f"n{i}"), ("rack", f"r{i % 3}")), allocatable=amounts
        )
        for i in range(NODES)
    ]
    await register(clients.resolver, nodes)
    await until_agreed(clients, 2)


async def test_two_workers_that_want_the_same_port_everywhere_share_the_nodes(clients: Clients) -> None:
    await submit(
        clients, jobs=10, replicas=5, spec=PodSpec(requests=(("cpu", 10),), host_ports=(HostPort(8080),))
    )
    await until(lambda: decided(clients, bound=NODES, unschedulable=50 - NODES))
    result = await audited(clients)
    assert (result.findings, result.unchecked, result.bound) == ([], [], NODES)
    assert list(Counter(await nodes_of_pods(clients)).values()) == [1] * NODES


async def test_two_workers_keep_pods_apart_that_shun_each_other(clients: Clients) -> None:
    db = LabelSelector((Requirement("app", "In", ("db",)),))
    alone = PodAffinity(anti_required=(PodAffinityTerm("kubernetes.io/hostname", db, ("default",)),))
    spec = PodSpec(requests=(("cpu", 10),), labels=(("app", "db"),), pod_affinity=alone)
    await submit(clients, jobs=10, replicas=5, spec=spec)
    await until(lambda: decided(clients, bound=NODES, unschedulable=50 - NODES))
    assert list(Counter(await nodes_of_pods(clients)).values()) == [1] * NODES


async def test_a_job_with_more_pods_than_there_are_nodes_to_keep_them_apart_has_one_on_every_node(
    clients: Clients,
) -> None:
    db = LabelSelector((Requirement("app", "In", ("db",)),))
    alone = PodAffinity(anti_required=(PodAffinityTerm("kubernetes.io/hostname", db, ("default",)),))
    spec = PodSpec(requests=(("cpu", 10),), labels=(("app", "db"),), pod_affinity=alone)
    await submit(clients, jobs=1, replicas=NODES + 2, spec=spec)
    await until(lambda: decided(clients, bound=NODES, unschedulable=2))
    assert list(Counter(await nodes_of_pods(clients)).values()) == [1] * NODES


async def test_two_workers_spread_pods_over_racks_no_more_unevenly_than_is_allowed(clients: Clients) -> None:
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    spec = PodSpec(
        requests=(("cpu", 10),), labels=(("app", "web"),), spread=(SpreadConstraint(1, "rack", web),)
    )
    await submit(clients, jobs=10, replicas=10, spec=spec)
    await until(lambda: decided(clients, bound=100, unschedulable=0))
    counts = await pods_by_rack(clients)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert (await audited(clients)).findings == []


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_resolver_killed_again_and_again_leaves_pods_no_less_apart_and_no_less_spread(
    tmp_path: Path, shards: int
) -> None:
    """Each time with verdicts under way, which are lost with it: the next one is asked for the same pods
    again."""
    db, web = (LabelSelector((Requirement("app", "In", (app,)),)) for app in ("db", "web"))
    alone = PodAffinity(anti_required=(PodAffinityTerm("kubernetes.io/hostname", db, ("default",)),))
    apart = PodSpec(requests=(("cpu", 10),), labels=(("app", "db"),), pod_affinity=alone)
    spread = PodSpec(
        requests=(("cpu", 10),), labels=(("app", "web"),), spread=(SpreadConstraint(1, "rack", web),)
    )
    options = {"shards": shards, "workers": ["w1", "w2"]}
    async with (
        interposed_cluster(tmp_path, **options) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        await prepare(clients)
        gate, again = between.answered["Propose"], 0
        for number in range(3):
            # Rules are announced before.
            gate.close(lambda message: bool(VerdictBatch.FromString(message).verdicts))
            await submit(clients, jobs=2, replicas=5, spec=apart, name=f"db-{number}")
            await submit(clients, jobs=2, replicas=10, spec=spread, name=f"web-{number}")
            await until(lambda least=30 * number: reserved_more_than(clients, least))
            cluster.kill("resolver")
            await asyncio.to_thread(cluster.start_resolver)
            gate.release()
            await until(lambda all_of=30 * (number + 1): decided(clients, bound=all_of, unschedulable=0))
            again += await asked_again(clients)
        # A commit on several shards that was merely prepared is finished, and not found to be there already.
        assert again, "no new resolver was asked for what the old one had decided"
        result = await audited(clients)
        counts = await pods_by_rack(clients)
        assert (result.findings, result.unchecked) == ([], [])
        assert max(counts.values()) - min(counts.values()) <= 1


async def test_two_workers_gather_pods_with_affinity_to_themselves_in_one_rack(clients: Clients) -> None:
    cache = LabelSelector((Requirement("app", "In", ("cache",)),))
    together = PodAffinity(required=(PodAffinityTerm("rack", cache, ("default",)),))
    spec = PodSpec(requests=(("cpu", 10),), labels=(("app", "cache"),), pod_affinity=together)
    await submit(clients, jobs=10, replicas=5, spec=spec)
    await until(lambda: decided(clients, bound=50, unschedulable=0))
    assert len(await pods_by_rack(clients)) == 1


async def pods_by_rack(clients: Clients) -> Counter[str]:
    """How many pods are in each rack. Indexes of nodes depend on their shards, so it goes by their labels."""
    nodes = {
        node.index: {label.key: label.value for label in node.spec.labels}
        for node in await clients.resolver.list_nodes()
    }
    return Counter(nodes[node]["rack"] for node in await nodes_of_pods(clients))


async def nodes_of_pods(clients: Clients) -> list[int]:
    """Node index of every reservation."""
    chunks = [chunk async for chunk in clients.resolver.reservations()]
    return [node for chunk in chunks for node in np.frombuffer(chunk.nodes, "<u4").tolist()]


async def submit(clients: Clients, *, jobs: int, replicas: int, spec: PodSpec, name: str = "job") -> None:
    template = PodTemplate(spec, owner_kind="Job")
    for request in submission([Workload(f"{name}-{i}", template, replicas) for i in range(jobs)]):
        await clients.dispatcher.submit(request)


async def decided(clients: Clients, *, bound: int, unschedulable: int) -> bool:
    jobs = await clients.dispatcher.list_jobs()
    return (sum(job.bound for job in jobs), sum(job.unschedulable for job in jobs)) == (bound, unschedulable)


async def reserved_more_than(clients: Clients, pods: int) -> bool:
    return (await clients.resolver.status()).reservations > pods


async def asked_again(clients: Clients) -> int:
    """Pods that a resolver since it started was asked for, and found to be reserved already; or that were
    only prepared, and expired before somebody asked."""
    counters = (await until(clients.resolver.status, "an answer of the new resolver")).counters
    return counters["duplicate"] + counters["reaped"]
