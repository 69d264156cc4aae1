"""Rules that cross nodes, on real processes with two workers at once."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.cluster import Cluster

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import HostPort, PodSpec, PodTemplate, Workload
from hoss.model.pod_rules import PodAffinity, PodAffinityTerm, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement
from hossctl.auditing import audit, until_caches_agree
from hossctl.endpoints import Clients, clients_of
from hossctl.nodes import register

NODES = 30
PATIENCE_SECONDS = 60.0

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    """Two workers and NODES nodes in three racks."""
    cluster = Cluster(tmp_path)
    try:
        for name in ("w1", "w2"):
            cluster.start_worker(name)
        async with clients_of(cluster.endpoints) as clients:
            amounts = (("cpu", 64_000), ("memory", 2**36), ("pods", 110))
            nodes = [
                NodeSpec(
                    f"n{i}", labels=(("kubernetes.io/hostname", f"n{i}"), ("rack", f"r{i % 3}")), allocatable=amounts
                )
                for i in range(NODES)
            ]
            await register(clients.resolver, nodes)
            assert await until_caches_agree(clients.dispatcher, clients.resolver, 2)
            yield clients
    finally:
        cluster.stop()


async def test_two_workers_that_want_the_same_port_everywhere_share_the_nodes(clients: Clients) -> None:
    await submit(clients, jobs=10, replicas=5, spec=PodSpec(requests=(("cpu", 10),), host_ports=(HostPort(8080),)))
    await until(lambda: decided(clients, bound=NODES, unschedulable=50 - NODES))
    result = await audit(clients.dispatcher, clients.resolver)
    assert (result.findings, result.unchecked, result.bound) == ([], [], NODES)
    assert list(Counter(await nodes_of_pods(clients)).values()) == [1] * NODES


async def test_two_workers_keep_pods_apart_that_shun_each_other(clients: Clients) -> None:
    db = LabelSelector((Requirement("app", "In", ("db",)),))
    alone = PodAffinity(anti_required=(PodAffinityTerm("kubernetes.io/hostname", db, ("default",)),))
    spec = PodSpec(requests=(("cpu", 10),), labels=(("app", "db"),), pod_affinity=alone)
    await submit(clients, jobs=10, replicas=5, spec=spec)
    await until(lambda: decided(clients, bound=NODES, unschedulable=50 - NODES))
    assert list(Counter(await nodes_of_pods(clients)).values()) == [1] * NODES


async def test_two_workers_spread_pods_over_racks_no_more_unevenly_than_is_allowed(clients: Clients) -> None:
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    spec = PodSpec(requests=(("cpu", 10),), labels=(("app", "web"),), spread=(SpreadConstraint(1, "rack", web),))
    await submit(clients, jobs=10, replicas=10, spec=spec)
    await until(lambda: decided(clients, bound=100, unschedulable=0))
    counts = Counter(node % 3 for node in await nodes_of_pods(clients))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert (await audit(clients.dispatcher, clients.resolver)).findings == []


async def nodes_of_pods(clients: Clients) -> list[int]:
    """Node index of every reservation."""
    chunks = [chunk async for chunk in clients.resolver.reservations()]
    return [node for chunk in chunks for node in np.frombuffer(chunk.nodes, "<u4").tolist()]


async def submit(clients: Clients, *, jobs: int, replicas: int, spec: PodSpec) -> None:
    template = PodTemplate(spec, owner_kind="Job")
    for request in submission([Workload(f"job-{i}", template, replicas) for i in range(jobs)]):
        await clients.dispatcher.submit(request)


async def decided(clients: Clients, *, bound: int, unschedulable: int) -> bool:
    jobs = await clients.dispatcher.list_jobs()
    return (sum(job.bound for job in jobs), sum(job.unschedulable for job in jobs)) == (bound, unschedulable)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await holds():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)
