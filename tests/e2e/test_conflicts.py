"""Whatever a policy takes as a conflict, two workers that race for the same room fill it, and nothing is
lost."""

from collections import Counter
from collections.abc import Iterator

import pytest
from e2e.cluster import Cluster
from e2e.loads import clear, until_agreed
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

GIB = 2**30
NODES, PODS_A_NODE = 4, 25
JOBS = 5
RULES = [
    "{criteria: Version}",
    "{criteria: Strict}",
    "{commit: AllOrNothing}",
    "{criteria: Version, displace: {minPriorityGap: 10}}",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=["w1", "w2"]) as cluster:
        yield cluster


@pytest.mark.parametrize("rule", RULES)
async def test_a_full_cluster_is_filled_to_the_last_pod_by_two_workers_whatever_counts_as_a_conflict(
    cluster: Cluster, rule: str
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        head = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"
        await clients.dispatcher.set_policy(f"{head}rules: [{{name: all, conflicts: {rule}}}]\n")
        allocatable = (("cpu", 100 * PODS_A_NODE), ("memory", 64 * GIB), ("pods", 1000))
        await register(clients.resolver, [NodeSpec(f"n{i}", allocatable=allocatable) for i in range(NODES)])
        await until_agreed(clients, 2)
        pods = NODES * PODS_A_NODE // JOBS
        for message in submission([Workload(f"job-{i}", _template(10 * i), pods) for i in range(JOBS)]):
            await clients.dispatcher.submit(message)
        await _all_bound(clients, NODES * PODS_A_NODE)
        await until_agreed(clients, 2)
        audit = await clients.resolver.audit()
        assert list(audit.violations) == []
        assert audit.reservations == NODES * PODS_A_NODE
        await clear(clients)


def _template(priority: int) -> PodTemplate:
    requests = (("cpu", 100), ("memory", GIB // 64))
    spec = PodSpec(
        requests=requests, priority=priority, nonzero_cpu_milli=100, nonzero_memory_bytes=GIB // 64
    )
    return PodTemplate(spec, owner_kind="Job")


async def _all_bound(clients: Clients, wanted: int) -> None:
    async def so_it_is() -> bool:
        return Counter([pod.phase async for pod in clients.dispatcher.list_pods()]) == {pb.BOUND: wanted}

    await until(so_it_is, f"{wanted} pods to be bound")
