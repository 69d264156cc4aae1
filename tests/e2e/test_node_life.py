"""A node's life under a platform of real processes: it comes, changes, shrinks, is closed and opened,
tainted, removed, and comes back."""

import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio
from e2e.cluster import Cluster
from e2e.loads import GIB, assert_clean, audited, clear, some_bound
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.cluster import PodDisruptionBudget, Threshold
from hoss.model.node import NO_EXECUTE, NodeSpec, Taint, Toleration
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

BROKEN = Taint("disk", "broken", NO_EXECUTE)
SHORT_SECONDS, LONGER_SECONDS = 1, 3  # of tolerations


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), shards=2, workers=["w1", "w2"])
    yield made
    made.stop()


@pytest_asyncio.fixture
async def clients(cluster: Cluster) -> AsyncIterator[Clients]:
    async with clients_of(cluster.endpoints) as made:
        yield made
        await clear(made)


def node(name: str, *, cpus: int = 10, taints: tuple[Taint, ...] = (), **labels: str) -> NodeSpec:
    allocatable = (("cpu", cpus * 1000), ("memory", 256 * GIB), ("pods", 250))
    return NodeSpec(name, labels=tuple(sorted(labels.items())), taints=taints, allocatable=allocatable)


def tolerating(seconds: int | None) -> tuple[Toleration, ...]:
    return (Toleration(BROKEN.key, "Exists", "", NO_EXECUTE, seconds),)


async def submit(clients: Clients, name: str, replicas: int, **spec: object) -> None:
    template = PodTemplate(PodSpec(requests=(("cpu", 1000),), **spec), owner_kind="Job")  # type: ignore[arg-type]
    for request in submission([Workload(name, template, replicas)]):
        await clients.dispatcher.submit(request)


async def pods_of(clients: Clients, job: str) -> list[pb.PodInfo]:
    return [pod async for pod in clients.dispatcher.list_pods("default", job=job)]


async def until_pods(clients: Clients, job: str, holds: Callable[[pb.PodInfo], bool]) -> None:
    """Until each of the job's pods is so."""

    async def all_hold() -> bool:
        pods = await pods_of(clients, job)
        return bool(pods) and all(map(holds, pods))

    await until(all_hold)


def bound_to(*nodes: str) -> Callable[[pb.PodInfo], bool]:
    return lambda pod: pod.phase == pb.BOUND and pod.node in nodes


def unschedulable(pod: pb.PodInfo) -> bool:
    return pod.phase == pb.UNSCHEDULABLE


async def test_pods_of_a_removed_node_are_placed_elsewhere_and_one_that_comes_back_has_its_new_size(
    clients: Clients,
):
    await register(clients.resolver, [node("a"), node("b")])
    await submit(clients, "job", 16)
    await until_pods(clients, "job", bound_to("a", "b"))
    on_a = {pod.name for pod in await pods_of(clients, "job") if pod.node == "a"}
    assert 6 <= len(on_a) <= 10
    reply = await clients.resolver.remove_nodes(["a"])
    assert len(reply.released_uids) <= 16 * len(on_a)  # the dispatcher may have been quicker

    async def b_is_full_and_the_others_wait() -> bool:
        pods = await pods_of(clients, "job")
        return sum(map(bound_to("b"), pods)) == 10 and sum(map(unschedulable, pods)) == 6

    await until(b_is_full_and_the_others_wait)
    for pod in await pods_of(clients, "job"):
        assert pod.eviction == ("evicted: node a was removed" if pod.name in on_a else "")
    await assert_clean(clients, bound=10)
    await register(clients.resolver, [node("a", cpus=4)])

    async def room_is_used() -> bool:
        return sum(map(bound_to("a"), await pods_of(clients, "job"))) == 4

    await until(room_is_used)
    await register(clients.resolver, [node("a", cpus=6)])
    await until_pods(clients, "job", bound_to("a", "b"))
    await assert_clean(clients, bound=16)


async def test_nodes_removed_and_added_while_a_load_is_placed_lose_no_pod_and_keep_none(
    clients: Clients,
) -> None:
    nodes = [node(f"n-{i:02}", cpus=60) for i in range(40)]
    await register(clients.resolver, nodes)
    moved = 0
    for i in range(20):
        await submit(clients, f"job-{i}", 60)
        if i == 10:  # on every node are some by then
            await until(lambda: some_bound(clients, 400))
        gone = [nodes[i].name, nodes[i + 20].name]
        moved += len((await clients.resolver.remove_nodes(gone)).released_uids)
        if i % 2:
            await register(clients.resolver, [nodes[i]])
    left = {n.spec.name for n in await clients.resolver.list_nodes()}
    assert len(left) == 10
    assert moved > 0

    async def as_full_as_can_be() -> bool:
        jobs = await clients.dispatcher.list_jobs()
        return sum(job.bound for job in jobs) == 600 and sum(job.unschedulable for job in jobs) == 600

    await until(as_full_as_can_be)
    pods = [pod async for pod in clients.dispatcher.list_pods("default")]
    assert {pod.node for pod in pods if pod.phase == pb.BOUND} <= left
    await assert_clean(clients, bound=600)
    await register(clients.resolver, nodes)

    async def all_have_room() -> bool:
        return sum(job.bound for job in await clients.dispatcher.list_jobs()) == 1200

    await until(all_have_room)
    await assert_clean(clients, bound=1200)


async def test_pods_of_a_node_that_is_removed_while_the_dispatcher_is_away_are_placed_elsewhere(
    cluster: Cluster, clients: Clients
) -> None:
    await register(clients.resolver, [node("gone")])
    await submit(clients, "job", 10)
    await until_pods(clients, "job", bound_to("gone"))
    await register(clients.resolver, [node("left")])
    cluster.kill("dispatcher")
    assert len((await clients.resolver.remove_nodes(["gone"])).released_uids) == 16 * 10
    cluster.start_dispatcher()
    await until_pods(clients, "job", bound_to("left"))
    await assert_clean(clients, bound=10)


async def test_a_node_that_shrinks_below_what_it_holds_is_reported_gets_nothing_and_is_not_mended(
    clients: Clients,
) -> None:
    await register(clients.resolver, [node("a")])
    await submit(clients, "job", 8)
    await until_pods(clients, "job", bound_to("a"))
    reply = await clients.resolver.upsert_nodes([node("a", cpus=5)])
    assert list(reply.overcommitted) == ["a"]
    await submit(clients, "more", 1)
    await until_pods(clients, "more", unschedulable)
    told = (await audited(clients)).reports
    assert any("a" in report and "shr" in report for report in told), told
    await assert_clean(clients, bound=8)
    assert list((await clients.resolver.repair()).changes) == []
    await until_pods(clients, "job", bound_to("a"))
    await clients.dispatcher.delete("default", pods=[f"job-{i}" for i in range(4)])  # 4 of 5 are used now
    await until_pods(clients, "more", bound_to("a"))
    result = await audited(clients)
    assert (result.findings, result.reports) == ([], [])


async def test_a_change_of_labels_or_taints_and_the_end_of_a_cordon_bring_the_pods_that_waited_for_it(
    clients: Clients,
) -> None:
    await register(clients.resolver, [node("a", disk="hdd", taints=(Taint("team", "x"),)), node("b")])
    await clients.resolver.cordon_node("b", True)
    await submit(
        clients, "ssd", 2, node_selector=(("disk", "ssd"),), tolerations=(Toleration("team", "Exists"),)
    )
    await submit(clients, "any", 2)
    await until_pods(clients, "ssd", unschedulable)
    await until_pods(clients, "any", unschedulable)
    await register(clients.resolver, [node("a", disk="ssd", taints=(Taint("team", "x"),))])
    await until_pods(clients, "ssd", bound_to("a"))
    assert all(map(unschedulable, await pods_of(clients, "any")))
    await clients.resolver.cordon_node("b", False)
    await until_pods(clients, "any", bound_to("b"))
    await clients.resolver.cordon_node("b", True)
    await submit(clients, "late", 2)
    await until_pods(clients, "late", unschedulable)
    assert all(map(bound_to("b"), await pods_of(clients, "any")))  # a cordon sends nobody away
    await register(clients.resolver, [node("a", disk="ssd")])
    await until_pods(clients, "late", bound_to("a"))
    await assert_clean(clients, bound=6)


async def test_a_no_execute_taint_sends_away_who_does_not_tolerate_it_and_in_time_who_does_for_a_while(
    clients: Clients,
) -> None:
    await register(clients.resolver, [node("a", room="a")])
    await clients.dispatcher.apply_objects(
        [PodDisruptionBudget("default", "every", LabelSelector(), min_available=Threshold(100, percent=True))]
    )
    for name, tolerations in (
        ("none", ()),
        ("while", tolerating(SHORT_SECONDS)),
        ("ever", tolerating(None)),
    ):
        await submit(clients, name, 2, tolerations=tolerations, node_selector=(("room", "a"),))
        await until_pods(clients, name, bound_to("a"))
    tainted_at = time.monotonic()
    await register(clients.resolver, [node("a", room="a", taints=(BROKEN,)), node("b", room="a")])
    await until_pods(clients, "none", bound_to("b"))
    reason = "evicted: node a has taint disk=broken:NoExecute, which the pod does not tolerate"
    assert {pod.eviction for pod in await pods_of(clients, "none")} == {reason}

    await until_pods(clients, "while", lambda pod: bool(pod.eviction))
    assert time.monotonic() - tainted_at > SHORT_SECONDS - 0.1
    reason = (
        f"evicted: node a has taint disk=broken:NoExecute, which the pod tolerates for {SHORT_SECONDS} s only"
    )
    assert {pod.eviction for pod in await pods_of(clients, "while")} == {reason}
    assert all(map(bound_to("a"), await pods_of(clients, "ever")))


async def test_a_pod_that_may_stay_for_a_time_only_has_it_from_when_it_came(clients: Clients) -> None:
    await register(clients.resolver, [node("a", taints=(Taint(BROKEN.key, BROKEN.value, NO_EXECUTE, 1000),))])
    begun = time.monotonic()
    await submit(clients, "guest", 1, tolerations=tolerating(SHORT_SECONDS))
    await until_pods(clients, "guest", lambda pod: f"tolerates for {SHORT_SECONDS} s only" in pod.eviction)
    assert time.monotonic() - begun > SHORT_SECONDS - 0.1
    await until_pods(clients, "guest", bound_to("a"))  # which still is the only node there is


async def test_the_time_of_a_toleration_goes_on_while_the_dispatcher_is_dead(
    cluster: Cluster, clients: Clients
) -> None:
    """Were it to begin anew with the dispatcher, pods with less time, whose node is tainted after that, would
    leave first."""
    await register(clients.resolver, [node("old", room="old"), node("new", room="new")])
    for name, room, seconds in (
        ("while", "old", LONGER_SECONDS),
        ("ever", "old", 3600),
        ("later", "new", SHORT_SECONDS),
    ):
        await submit(clients, name, 2, tolerations=tolerating(seconds), node_selector=(("room", room),))
        await until_pods(clients, name, bound_to(room))
    await register(clients.resolver, [node("old", room="old", taints=(BROKEN,))])
    tainted_at = time.monotonic()
    cluster.kill("dispatcher")
    await until(lambda: time.monotonic() > tainted_at + LONGER_SECONDS, "the time to be over")
    cluster.start_dispatcher()
    await register(clients.resolver, [node("new", room="new", taints=(BROKEN,))])
    await until_pods(clients, "later", lambda pod: f"{SHORT_SECONDS} s only" in pod.eviction)
    for pod in await pods_of(clients, "while"):
        assert f"tolerates for {LONGER_SECONDS} s only" in pod.eviction
    assert all(map(bound_to("old"), await pods_of(clients, "ever")))
