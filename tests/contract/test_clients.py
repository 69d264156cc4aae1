"""What commands rely on of a dispatcher's and a resolver's client, held against those of real services and
those in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients_in_memory import DispatcherInMemory, ResolverInMemory

from hoss.client.access import ClientAccess
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput, NotFound
from hoss.model.cluster import Namespace, ObjectKey, PodDisruptionBudget, Service, StorageUpdate, Threshold
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hoss.wire.convert import node_to_proto, template_to_proto
from hossctl.local import platform

NODES = [NodeSpec(name, allocatable=(("cpu", 4000), ("pods", 10))) for name in ("n1", "n2")]


@dataclass
class Clients:
    """`jobs(namespace, {name: replicas})` makes jobs of pods that are queued, labelled by their job."""

    dispatcher: Any
    resolver: Any
    jobs: Callable[[str, dict[str, int]], Awaitable[None]]


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, str]]:
    """Addresses of a dispatcher and a resolver for the whole module; each test has a namespace of its own."""
    with platform.temporary(platform.PlatformOptions(workers=())) as starter:
        addresses = {record.name: record.address for record in starter.state.living()}
        yield addresses | {"tls_dir": starter.state.tls_dir}


@pytest.fixture(params=["services", "memory"])
async def clients(request: pytest.FixtureRequest) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        if request.param == "services":
            addresses = request.getfixturevalue("services")
            opened = ClientAccess(Path(addresses["tls_dir"])).channel
            dispatcher = await stack.enter_async_context(
                DispatcherClient([addresses["dispatcher"]], open_channel=opened)
            )
            resolver = ResolverClient([addresses["resolver-1"]], open_channel=opened)
            stack.push_async_callback(resolver.close)
            await resolver.upsert_nodes(NODES)
            yield Clients(dispatcher, resolver, lambda *wanted: _submit(dispatcher, *wanted))
        else:
            known = DispatcherInMemory()
            nodes = [resolver_pb2.NodeInfo(spec=node_to_proto(node)) for node in NODES]
            yield Clients(known, ResolverInMemory(nodes=nodes), lambda *wanted: _tell(known, *wanted))


def _template(namespace: str, job: str) -> PodTemplate:
    return PodTemplate(PodSpec(namespace=namespace, labels=(("app", job),)), owner_kind="Job")


async def _submit(dispatcher: DispatcherClient, namespace: str, replicas: dict[str, int]) -> None:
    for name, count in replicas.items():
        for request in submission([Workload(name, _template(namespace, name), count)]):
            await dispatcher.submit(request)


async def _tell(dispatcher: DispatcherInMemory, namespace: str, replicas: dict[str, int]) -> None:
    for name, count in replicas.items():
        dispatcher.jobs.append(pb.JobInfo(namespace=namespace, name=name, replicas=count))
        for number in range(count):
            info = pb.PodInfo(name=f"{name}-{number}", namespace=namespace, job=name, phase=pb.QUEUED)
            info.template.CopyFrom(template_to_proto(_template(namespace, name)))
            dispatcher.pods.append(info)


async def names(clients: Clients, namespace: str, **wanted: Any) -> list[str]:
    return sorted([pod.name async for pod in clients.dispatcher.list_pods(namespace, **wanted)])


async def test_pods_are_found_by_namespace_job_phase_node_and_label(clients):
    await clients.jobs("found", {"web": 2, "db": 1})
    await clients.jobs("found-too", {"web": 1})
    assert await names(clients, "found") == ["db-0", "web-0", "web-1"]
    assert await names(clients, "found", job="web") == ["web-0", "web-1"]
    assert await names(clients, "found", label_selector="app=db") == ["db-0"]
    assert await names(clients, "found", label_selector="app!=db") == ["web-0", "web-1"]
    assert await names(clients, "found", phases=[pb.QUEUED]) == ["db-0", "web-0", "web-1"]
    assert await names(clients, "found", phases=[pb.BOUND]) == []
    assert await names(clients, "found", node="n1") == []
    assert await names(clients, "nowhere") == []
    everywhere = await names(clients, "")
    assert everywhere.count("web-0") == 2


async def test_a_selector_that_is_none_is_refused_by_its_name(clients):
    with pytest.raises(InvalidInput, match="label_selector"):
        await names(clients, "", label_selector="a b c")


async def test_a_pod_is_found_by_its_name_and_one_that_is_not_there_is_said_to_be_not_there(clients):
    await clients.jobs("by-name", {"web": 1})
    assert (await clients.dispatcher.get_pod("by-name", "web-0")).job == "web"
    with pytest.raises(NotFound, match="no pod 'web-0' in namespace 'other'"):
        await clients.dispatcher.get_pod("other", "web-0")


async def test_jobs_are_found_by_namespace_and_name(clients):
    await clients.jobs("jobs", {"web": 2, "db": 1})
    found = {job.name: job.replicas for job in await clients.dispatcher.list_jobs("jobs")}
    assert found == {"web": 2, "db": 1}
    assert [job.name for job in await clients.dispatcher.list_jobs("jobs", "db")] == ["db"]
    assert await clients.dispatcher.list_jobs("jobs", "nobody") == []


async def test_of_pods_to_be_deleted_those_that_are_not_there_are_named(clients):
    await clients.jobs("deleting", {"web": 2})
    reply = await clients.dispatcher.delete("deleting", pods=["web-1", "nobody"])
    assert (reply.deleted_pods, list(reply.not_found)) == (1, ["pod nobody"])


async def test_a_worker_or_a_node_that_nobody_knows_is_said_to_be_not_there(clients):
    with pytest.raises(NotFound, match="'w9'"):
        await clients.dispatcher.set_worker_state("w9", "Cordoned")
    with pytest.raises(NotFound, match="nowhere"):
        await clients.resolver.cordon_node("nowhere", True)


async def test_objects_are_created_configured_or_left_as_they_are_and_listed_by_kind_and_namespace(clients):
    budget = PodDisruptionBudget("shop", "web", LabelSelector(), max_unavailable=Threshold(1))
    objects = [Namespace("shop", (("team", "a"),)), budget, Service("shop", (("app", "web"),), "web")]
    apply, listed = clients.dispatcher.apply_objects, clients.dispatcher.list_objects
    assert await apply(objects) == ["created"] * 3
    assert await apply([Namespace("shop", (("team", "b"),)), budget]) == ["configured", "unchanged"]
    assert await listed("PodDisruptionBudget", "shop") == [budget]
    assert await listed("Service", "else") == []
    assert Namespace("shop", (("team", "b"),)) in await listed()
    assert [found for found, _ in await clients.dispatcher.list_budgets("shop")] == [budget]
    keys = [ObjectKey("Service", "shop", "web"), ObjectKey("Service", "shop", "nobody")]
    assert await clients.dispatcher.delete_objects(keys) == keys[1:]
    assert await listed("Service", "shop") == []


async def test_a_platform_without_a_cluster_has_no_storage_objects(clients):
    assert await clients.dispatcher.list_storage() == StorageUpdate(complete=True)


async def test_what_steers_nothing_is_refused_with_the_words_that_do(clients):
    with pytest.raises(InvalidInput, match="'none' is none of auto, shared, shuffled, soft-partition"):
        await clients.dispatcher.steer("none")
    steering = await clients.dispatcher.steer("shuffled", "3")
    assert (steering.overlap, steering.workers, steering.overlap_fixed) == ("shuffled", 3, True)


async def test_a_policy_that_is_set_is_in_force_under_the_next_version(clients):
    version = (await clients.dispatcher.get_policy()).version
    text = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules: [{name: all}]\n"
    reply = await clients.dispatcher.set_policy(text, if_version=version)
    policy = await clients.dispatcher.get_policy()
    assert (reply.version, policy.version, policy.yaml) == (version + 1, version + 1, text)


async def test_nodes_are_listed_by_name_cordoned_and_opened(clients):
    assert [node.spec.name for node in await clients.resolver.list_nodes(["n2"])] == ["n2"]
    assert sorted(node.spec.name for node in await clients.resolver.list_nodes()) == ["n1", "n2"]
    for wanted in (True, False):
        assert (await clients.resolver.cordon_node("n1", wanted)).node.unschedulable == wanted
        [node] = await clients.resolver.list_nodes(["n1"])
        assert node.spec.unschedulable == wanted


async def test_upserted_nodes_have_an_index_each_and_both_say_that_they_serve(clients):
    assert len((await clients.resolver.upsert_nodes(NODES)).indexes) == 2
    status = await clients.resolver.status()
    assert (status.serving, status.shards) == (True, 1)
    assert (await clients.dispatcher.status()).version
