"""A reservation that nobody has confirmed goes for a much more urgent pod; its pod is told why, and is placed
again.

The moment is made, not met: an interposed server holds back the one message that would have ended it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.crashes import interposed_cluster
from e2e.interposed import Interposed
from e2e.loads import assert_clean
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.explain.live import explain_live
from hossctl.kinds import Kind, Query
from hossctl.load.nodes import register
from hossctl.views.describing import describe

CPU = 1000
POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - name: urgent
    match: {priority: {min: 1000}}
    workers: {matchLabels: {for: urgent}}
    conflicts: {displace: {minPriorityGap: 500}}
  - name: others
    workers: {matchLabels: {for: others}}
"""
# It hears of refusals alone: to it the node is empty, and it proposes what the ledger has no room for.
UNAWARE = ("--sync", "refusal", "--pull-interval-ms", "60000")


@asynccontextmanager
async def platform(directory: Path, *, gap: int = 500) -> AsyncIterator[tuple[Cluster, Clients, Interposed]]:
    """A node for one pod, a worker for urgent pods, one for others. The dispatcher, and the others' worker,
    reach the resolver through the interposed server."""
    policy = directory / "policy.yaml"
    policy.write_text(POLICY.replace("500", str(gap)))
    async with (
        interposed_cluster(directory, policy=policy) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        amounts = (("cpu", CPU), ("memory", 2**30), ("pods", 10))
        await register(clients.resolver, [NodeSpec("n0", allocatable=amounts)])
        direct = ("--resolver", cluster.address("resolver"))
        await asyncio.to_thread(cluster.start_worker, "w-urgent", "for=urgent", options=(*direct, *UNAWARE))
        await asyncio.to_thread(cluster.start_worker, "w-others", "for=others")

        async def filled() -> bool:
            workers = await clients.dispatcher.list_workers()
            return sum(worker.fill_seconds > 0 for worker in workers) == 2

        await until(filled)
        yield cluster, clients, between


async def submit(clients: Clients, name: str, *, priority: int) -> None:
    spec = PodSpec(requests=(("cpu", CPU),), priority=priority)
    for request in submission([Workload(name, PodTemplate(spec), 1)]):
        await clients.dispatcher.submit(request)


async def pod(clients: Clients, name: str) -> pb.PodInfo:
    return await clients.dispatcher.get_pod("default", name)


async def reserved(clients: Clients, state: int) -> bool:
    """Whether the ledger holds one reservation, assumed (1) or confirmed (0)."""
    return [chunk.assumed async for chunk in clients.resolver.reservations()] == [bytes([state])]


async def is_bound(clients: Clients, name: str) -> bool:
    return (await pod(clients, name)).phase == pb.BOUND


async def waits_for_room(clients: Clients, name: str) -> bool:
    return (await pod(clients, name)).phase == pb.UNSCHEDULABLE


@pytest.mark.parametrize("held", ["the verdict to its worker", "the dispatcher's confirmation"])
async def test_an_unconfirmed_reservation_goes_for_an_urgent_pod_and_its_pod_is_told_why_and_placed_later(
    tmp_path: Path, held: str
) -> None:
    async with platform(tmp_path) as (cluster, clients, between):
        gate = between.answered["Propose"] if held.startswith("the verdict") else between.asked["Confirm"]
        gate.close()
        await submit(clients, "modest", priority=0)
        await until(lambda: reserved(clients, 1))
        if held.startswith("the verdict"):
            assert not await is_bound(clients, "modest")
        else:
            await until(lambda: is_bound(clients, "modest"))

        await submit(clients, "urgent", priority=1000)
        await until(lambda: is_bound(clients, "urgent"))
        assert (await clients.resolver.status()).counters["displaced"] == 1
        gate.release()

        why = "preempted by default/urgent on node n0"
        await until(lambda: waits_for_room(clients, "modest"))
        described = await describe(cluster.endpoints, Query(Kind.PODS, ("modest",)))
        assert (described["eviction"], described["node"]) == (why, "")
        explained = await explain_live(cluster.endpoints, "default", "modest")
        assert explained["eviction"] == why
        assert explained["queue"]["name"] == "unschedulable"
        assert (await clients.dispatcher.status()).counters["evicted"] == 1
        await until(lambda: reserved(clients, 0))

        await clients.dispatcher.delete("default", pods=["urgent"])
        await until(lambda: is_bound(clients, "modest"))
        await until(lambda: reserved(clients, 0))
        await assert_clean(clients, bound=1)


async def test_who_is_more_urgent_by_less_than_the_gap_displaces_nobody(tmp_path: Path) -> None:
    async with platform(tmp_path, gap=1001) as (_, clients, between):
        between.answered["Propose"].close()
        await submit(clients, "modest", priority=0)
        await until(lambda: reserved(clients, 1))
        await submit(clients, "urgent", priority=1000)
        await until(lambda: waits_for_room(clients, "urgent"))
        assert await reserved(clients, 1)
        between.answered["Propose"].release()
        await until(lambda: reserved(clients, 0))
        assert await is_bound(clients, "modest")
        assert (await clients.resolver.status()).counters["displaced"] == 0
