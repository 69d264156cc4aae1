"""Preemption on real processes: urgent pods take the places of others, nobody dies for nothing, nothing is
lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from e2e.cluster import Cluster
from e2e.crashes import interposed_cluster
from e2e.loads import audited, clear, until_agreed
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.cluster import PodDisruptionBudget, Threshold
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

NODES = 20


# Pods that say so go to the one worker or to the other.
POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - {name: first, match: {labels: {matchLabels: {to: w1}}}, workers: {matchLabels: {name: w1}}}
  - {name: second, match: {labels: {matchLabels: {to: w2}}}, workers: {matchLabels: {name: w2}}}
  - {name: rest}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    policy = directory / "policy.yaml"
    policy.write_text(POLICY)
    cluster = Cluster(directory, policy=policy)
    for name in ("w1", "w2"):
        # While one decides, the other takes what it has seen free.
        cluster.start_worker(name, f"name={name}", options=("--decision-job-ms", "50"))
    yield cluster
    cluster.stop()


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[Clients]:
    """Of a platform that all tests share which kill nobody, full at the start of each."""
    async with clients_of(cluster.endpoints) as clients:
        await fill(clients, workers=2)
        yield clients
        await clear(clients)


async def fill(clients: Clients, *, workers: int) -> None:
    """20 nodes full of four pods of one cpu each, priority 0."""
    amounts = (("cpu", 4000), ("memory", 2**36), ("pods", 110))
    await register(clients.resolver, [NodeSpec(f"n{i}", allocatable=amounts) for i in range(NODES)])
    await until_agreed(clients, workers)
    await submit(clients, "low", replicas=4 * NODES, cpu=1000)
    await until(lambda: bound(clients, "low", 4 * NODES))


async def test_an_urgent_pod_takes_the_place_of_one_that_is_queued_again_with_the_reason(clients):
    await submit(clients, "urgent", cpu=500, priority=10)
    await until(lambda: bound(clients, "urgent", 1))
    await until(lambda: unbound(clients, "low", 1))
    (urgent,) = await pods(clients, "urgent")
    (victim,) = [pod for pod in await pods(clients, "low") if pod.eviction]
    assert victim.eviction == f"preempted by default/urgent-0 on node {urgent.node}"
    await until(lambda: phases(clients, "low", "UNSCHEDULABLE", 1))
    await assert_clean(clients, held=4 * NODES)


async def test_two_workers_after_the_same_victims_evict_no_more_than_must_go(clients):
    """Each urgent pod needs a whole node, and every node has four victims: no more may go than the urgent
    pods need."""
    before = await gone(clients)
    for number in (1, 2):
        workers = {f"urgent-{number}-{i}": ("w1", "w2")[i % 2] for i in range(16)}
        await asyncio.gather(
            *(submit(clients, name, cpu=4000, priority=10, to=to) for name, to in workers.items())
        )
        await until(lambda: bound_of_many(clients, "urgent", 16))
        await until(lambda: unbound(clients, "low", 64))
        assert await gone(clients) - before == 64 * number
        assert {name: pod.worker for name in workers for pod in await pods(clients, name)} == workers
        await assert_clean(clients, held=16 + 4 * (NODES - 16))
        await clients.dispatcher.delete("default", jobs=[*workers])
        await until(lambda: bound(clients, "low", 4 * NODES))


async def test_on_several_shards_each_pods_victims_go_on_its_own(tmp_path):
    with Cluster(tmp_path, shards=3, workers=["w1", "w2"]) as cluster:
        async with clients_of(cluster.endpoints) as clients:
            await fill(clients, workers=2)
            await submit(clients, "urgent", replicas=12, cpu=2000, priority=10)
            await until(lambda: bound(clients, "urgent", 12))
            await until(lambda: unbound(clients, "low", 24))
            await assert_clean(clients, held=12 + 4 * NODES - 24)


async def test_a_pod_that_may_not_preempt_waits_and_nobody_goes(clients):
    await submit(clients, "polite", cpu=500, priority=10, may_preempt=False)
    await until(lambda: phases(clients, "polite", "UNSCHEDULABLE", 1))
    (polite,) = await pods(clients, "polite")
    assert (
        polite.reason == "0/20 nodes are available: 20 Insufficient cpu. preemption: not eligible due to"
        " preemptionPolicy=Never."
    )
    await assert_clean(clients, held=4 * NODES)


async def test_a_pod_for_which_nobody_can_go_says_so(clients):
    await submit(clients, "large", cpu=8000, priority=10)
    await submit(clients, "urgent", replicas=4 * NODES, cpu=1000, priority=20)
    await until(lambda: bound(clients, "urgent", 4 * NODES))
    await submit(clients, "late", cpu=1000, priority=10)
    await until(lambda: phases(clients, "late", "UNSCHEDULABLE", 1))
    (late,) = await pods(clients, "late")
    assert late.reason.endswith(
        "preemption: 0/20 nodes are available: 20 No preemption victims found for incoming pod."
    )
    (large,) = await pods(clients, "large")
    assert large.reason.endswith(
        "preemption: 0/20 nodes are available: 20 Preemption is not helpful for scheduling."
    )
    await assert_clean(clients, held=4 * NODES)


async def test_a_budget_protects_its_pods_though_others_are_more_urgent(clients):
    await clients.dispatcher.delete("default", jobs=["low"])
    selector = LabelSelector((Requirement("app", "In", ("kept",)),))
    await clients.dispatcher.apply_objects([PodDisruptionBudget("default", "b", selector, Threshold(40))])
    await submit(clients, "kept", replicas=2 * NODES, cpu=1000)
    await submit(clients, "spare", replicas=2 * NODES, cpu=1000, priority=5, may_preempt=False)
    await until(lambda: bound_of_many(clients, "", 4 * NODES))
    await submit(clients, "urgent", replicas=10, cpu=1000, priority=10)
    await until(lambda: bound(clients, "urgent", 10))
    await until(lambda: unbound(clients, "spare", 10))
    assert not [pod for pod in await pods(clients, "kept") if pod.eviction]
    await assert_clean(clients, held=4 * NODES)


async def test_a_pod_is_bound_where_it_was_nominated_once_its_victims_have_left(clients):
    await clients.dispatcher.delete("default", jobs=["low"])
    await submit(clients, "slow", replicas=4 * NODES, cpu=1000, grace_seconds=1)
    await until(lambda: bound(clients, "slow", 4 * NODES))
    await submit(clients, "urgent", cpu=1000, priority=10)
    await until(lambda: shown_bound(clients, "urgent"))
    (urgent,) = await pods(clients, "urgent")
    (victim,) = await until(lambda: victims(clients, "slow"))
    assert victim.eviction == f"preempted by default/urgent-0 on node {urgent.node}"
    assert (urgent.nominated_node, urgent.reason) == ("", "")
    await assert_clean(clients, held=4 * NODES)


async def test_while_its_victims_leave_a_pod_is_nominated_and_its_room_is_nobody_elses(clients):
    """They have an hour. The deletion of their job ends it, after the test."""
    await clients.dispatcher.delete("default", jobs=["low"])
    await submit(clients, "slow", replicas=4 * NODES, cpu=1000, grace_seconds=3600)
    await until(lambda: bound(clients, "slow", 4 * NODES))
    await submit(clients, "urgent", cpu=1000, priority=10)
    await until(lambda: nominated(clients, "urgent"))
    (urgent,) = await pods(clients, "urgent")
    assert (pb.PodPhase.Name(urgent.phase), urgent.node) == ("SCHEDULING", "")
    assert urgent.reason == "its claim on the node stands; pods that had to go for it are still leaving"
    assert await watched_phase(clients, urgent.uid) == pb.SCHEDULING
    await submit(clients, "other", cpu=100)
    await until(lambda: phases(clients, "other", "UNSCHEDULABLE", 1))
    (victim,) = await until(lambda: victims(clients, "slow"))
    assert victim.eviction == f"preempted by default/urgent-0 on node {urgent.nominated_node}"


@pytest.mark.parametrize("victim", ["w1", "dispatcher"])
async def test_victims_are_queued_again_though_the_worker_or_the_dispatcher_dies_right_after_the_commit(
    tmp_path, victim
):
    """The worker is not told: the verdict is held back until somebody is dead, and what it has done is found
    in the ledger."""
    async with (
        interposed_cluster(tmp_path, workers=["w1"]) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        await fill(clients, workers=1)
        between.answered["Propose"].close()
        await submit(clients, "urgent", replicas=10, cpu=2000, priority=10)
        await until(lambda: evicted(clients, 20), "twenty victims to go")
        assert await bound(clients, "urgent", 0)
        cluster.kill(victim)
        if victim == "dispatcher":
            await asyncio.to_thread(cluster.start_dispatcher)
        else:
            await asyncio.to_thread(cluster.start_worker, "w3")
        await until(lambda: bound(clients, "urgent", 10), "who was reserved to be found")
        between.answered["Propose"].release()
        await until(lambda: unbound(clients, "low", 20))
        await assert_clean(clients, held=10 + 4 * NODES - 20, workers=1)


async def submit(
    clients: Clients,
    name: str,
    *,
    cpu: int,
    priority: int = 0,
    replicas: int = 1,
    grace_seconds: int = 0,
    to: str = "",
    **fields,
) -> None:
    labels = (("app", name), *((("to", to),) if to else ()))
    spec = PodSpec(requests=(("cpu", cpu),), priority=priority, labels=labels, **fields)
    template = PodTemplate(spec, owner_kind="Job", termination_grace_seconds=grace_seconds)
    for request in submission([Workload(name, template, replicas)]):
        await clients.dispatcher.submit(request)


async def pods(clients: Clients, job: str) -> list[pb.PodInfo]:
    return [pod async for pod in clients.dispatcher.list_pods("default", job=job)]


async def jobs(clients: Clients) -> dict[str, pb.JobInfo]:
    return {job.name: job for job in await clients.dispatcher.list_jobs()}


async def bound(clients: Clients, job: str, count: int) -> bool:
    return (await jobs(clients))[job].bound == count


async def unbound(clients: Clients, job: str, count: int) -> bool:
    found = (await jobs(clients))[job]
    return found.replicas - found.bound == count


async def bound_of_many(clients: Clients, prefix: str, count: int) -> bool:
    return sum(job.bound for name, job in (await jobs(clients)).items() if name.startswith(prefix)) == count


async def phases(clients: Clients, job: str, phase: str, count: int) -> bool:
    return sum(pb.PodPhase.Name(pod.phase) == phase for pod in await pods(clients, job)) == count


async def victims(clients: Clients, job: str) -> list[pb.PodInfo]:
    return [pod for pod in await pods(clients, job) if pod.eviction]


async def nominated(clients: Clients, job: str) -> bool:
    return all(pod.nominated_node for pod in await pods(clients, job))


async def shown_bound(clients: Clients, job: str) -> bool:
    return all(pod.node for pod in await pods(clients, job))


async def watched_phase(clients: Clients, uid: bytes) -> int:
    """What a watch says that begins with the present states."""
    async for batch in clients.dispatcher.watch(states=True):
        uids = [batch.uids[at : at + 16] for at in range(0, len(batch.uids), 16)]
        if uid in uids:
            return batch.phases[uids.index(uid)]
    raise AssertionError("the watch ended")


async def evicted(clients: Clients, least: int) -> bool:
    return await gone(clients) >= least


async def gone(clients: Clients) -> int:
    """Pods that went for others: those of whom the feed told, and those looked up where its history was
    missed for a moment."""
    counters = (await clients.dispatcher.status()).counters
    return counters["evicted"] + counters["reservations_lost"]


async def assert_clean(clients: Clients, *, held: int, workers: int = 2) -> None:
    await until_agreed(clients, workers)
    result = await audited(clients)
    assert (result.findings, result.unchecked) == ([], [])
    assert result.bound == result.reservations == held
