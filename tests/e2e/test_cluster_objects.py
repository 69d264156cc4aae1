"""Rules that look at namespaces and services, on a live platform whose dispatcher dies."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from e2e.cluster import Cluster
from e2e.loads import clear, until_agreed
from waiting import until

from hoss.client.dispatcher import DispatcherClient, submission
from hoss.errors import TransportError
from hoss.manifests.documents import read_manifest
from hoss.model.cluster import Namespace, Service
from hoss.model.node import NodeSpec
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

NODES = 6
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
TEAM_A = LabelSelector((Requirement("team", "In", ("a",)),))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), workers=["w1"])
    yield cluster
    cluster.stop()


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[Clients]:
    """Of one worker and NODES nodes in two zones; the first node is by far the largest."""
    async with clients_of(cluster.endpoints) as clients:
        await register(clients.resolver, [node(i) for i in range(NODES)])
        await until_agreed(clients, 1)
        yield clients
        await clear(clients)


def node(number: int) -> NodeSpec:
    labels = (("kubernetes.io/hostname", f"n{number}"), ("topology.kubernetes.io/zone", f"z{number % 2}"))
    cpu, memory = (1_000_000, 2**42) if number == 0 else (10_000, 2**36)
    return NodeSpec(
        f"n{number}", labels=labels, allocatable=(("cpu", cpu), ("memory", memory), ("pods", 110))
    )


async def test_anti_affinity_by_namespace_labels_holds_follows_changes_and_survives_the_dispatcher(
    cluster: Cluster, clients: Clients
):
    await clients.dispatcher.apply_objects([Namespace("shop", (("team", "a"),))])
    web = PodSpec(namespace="shop", labels=(("app", "web"),), requests=(("cpu", 10),))
    for i in range(NODES):
        await submit(clients.dispatcher, f"web-{i}", replace(web, node_name=f"n{i}"))
    await until(lambda: bound(clients.dispatcher, "shop", NODES))
    term = PodAffinityTerm("kubernetes.io/hostname", WEB, (), TEAM_A)
    shy = PodSpec(requests=(("cpu", 10),), pod_affinity=PodAffinity(anti_required=(term,)))
    await submit(clients.dispatcher, "shy", shy)
    await until(lambda: is_in(clients.dispatcher, "shy", pb.UNSCHEDULABLE))
    cluster.kill("dispatcher")
    cluster.start_dispatcher()
    await until(lambda: reachable(clients.dispatcher))
    await until(lambda: is_in(clients.dispatcher, "shy", pb.UNSCHEDULABLE))
    # The other direction of time: what it must not see came before it.
    await submit(clients.dispatcher, "shy-2", shy)
    await until(lambda: is_in(clients.dispatcher, "shy-2", pb.UNSCHEDULABLE))
    await clients.dispatcher.apply_objects([Namespace("shop", (("team", "b"),))])
    await until(lambda: is_in(clients.dispatcher, "shy", pb.BOUND))
    await until(lambda: is_in(clients.dispatcher, "shy-2", pb.BOUND))


async def test_pods_that_others_keep_away_by_namespace_labels_come_in_when_the_labels_change(
    clients: Clients,
):
    await clients.dispatcher.apply_objects([Namespace("shop", (("team", "a"),))])
    term = PodAffinityTerm("kubernetes.io/hostname", WEB, (), TEAM_A)
    jealous = PodSpec(requests=(("cpu", 10),), pod_affinity=PodAffinity(anti_required=(term,)))
    for i in range(NODES):
        await submit(clients.dispatcher, f"jealous-{i}", replace(jealous, node_name=f"n{i}"))
    await until(lambda: bound(clients.dispatcher, "default", NODES))
    await submit(clients.dispatcher, "web", PodSpec(namespace="shop", labels=(("app", "web"),)))
    await until(lambda: is_in(clients.dispatcher, "web", pb.UNSCHEDULABLE, "shop"))
    await clients.dispatcher.apply_objects([Namespace("shop")])
    await until(lambda: is_in(clients.dispatcher, "web", pb.BOUND, "shop"))


async def test_pods_of_a_deployment_and_of_a_service_are_spread_and_others_follow_the_room(clients: Clients):
    # Room alone would send all of them to the largest node.
    await submit(clients.dispatcher, "plain", small(app="plain"), replicas=NODES, kind="Job")
    await until(lambda: bound(clients.dispatcher, "default", NODES))
    assert set((await nodes_of(clients, "plain")).values()) == {NODES}
    deployment = """
        {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 6,
         selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}}
    """
    for request in submission(read_manifest(f"---\n{deployment}", where="test").workloads):
        await clients.dispatcher.submit(request)
    await until(lambda: bound(clients.dispatcher, "default", 2 * NODES))
    assert set((await nodes_of(clients, "web")).values()) == {1}
    await clients.dispatcher.apply_objects([Service("default", (("app", "api"),), "api")])
    await submit(clients.dispatcher, "api", small(app="api"), replicas=NODES, kind="Job")
    await until(lambda: bound(clients.dispatcher, "default", 3 * NODES))
    assert set((await nodes_of(clients, "api")).values()) == {1}


def small(*, app: str) -> PodSpec:
    return PodSpec(
        labels=(("app", app),), requests=(("cpu", 10),), nonzero_cpu_milli=10, nonzero_memory_bytes=2**20
    )


async def submit(
    client: DispatcherClient, name: str, spec: PodSpec, *, replicas: int = 1, kind: str = ""
) -> None:
    for request in submission([Workload(name, PodTemplate(spec, owner_kind=kind), replicas)]):
        await client.submit(request)


async def nodes_of(clients: Clients, job: str) -> Counter[str]:
    return Counter([pod.node async for pod in clients.dispatcher.list_pods(job=job)])


async def bound(client: DispatcherClient, namespace: str, count: int) -> bool:
    return len([pod async for pod in client.list_pods(namespace, phases=[pb.BOUND])]) == count


async def is_in(client: DispatcherClient, name: str, phase: pb.PodPhase, namespace: str = "default") -> bool:
    pod = await client.get_pod(namespace, name)
    return pod.phase == phase and (phase != pb.UNSCHEDULABLE or "anti-affinity" in pod.reason)


async def reachable(client: DispatcherClient) -> bool:
    """A channel whose peer died connects again a moment after the peer is back."""
    try:
        await client.status()
    except TransportError:
        return False
    return True
