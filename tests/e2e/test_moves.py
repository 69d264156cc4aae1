"""Moves on a platform of real processes, of which some die amid them. Two shards, so many moves are between shards."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, prepare, submit
from waiting import until

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of

NODES, PODS = 20, 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    # What a dead dispatcher had reserved ends soon; leases are longer than a machine stands still.
    cluster = Cluster(
        tmp_path, shards=2, workers=("w1",), resolver_flags=("--reservation-lease-seconds", "10")
    )
    try:
        yield cluster
    finally:
        cluster.stop()


async def nodes_of_pods(clients: Clients) -> dict[str, str]:
    return {f"{pod.namespace}/{pod.name}": pod.node async for pod in clients.dispatcher.list_pods()}


async def begin(clients: Clients, names: list[str], by: int, rate: float) -> dict[str, str]:
    """Begin to move every pod `by` nodes on. Returns where each is then."""
    placed = await nodes_of_pods(clients)
    targets = {pod: names[(names.index(node) + by) % len(names)] for pod, node in placed.items()}
    digests = (await clients.resolver.audit()).digests
    request = pb.RebalanceRequest(
        action=pb.REBALANCE_START,
        moves=[pb.RebalanceMove(pod=pod, source=placed[pod], target=to) for pod, to in targets.items()],
        seen={digest.shard: digest.seq for digest in digests},
        moves_per_second=rate,
    )
    await clients.dispatcher.rebalance(request)
    return targets


async def status(clients: Clients) -> pb.RebalanceStatus:
    return await clients.dispatcher.rebalance(pb.RebalanceRequest(action=pb.REBALANCE_STATUS))


async def amid(clients: Clients) -> bool:
    """Some moves are made, and many are to come."""
    now = await status(clients)
    return now.moved > 0 and now.waiting > PODS // 4


async def test_invariant_2_each_pod_has_one_place_when_resolver_and_dispatcher_die_amid_moves(
    cluster: Cluster,
):
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=1, nodes=NODES)
        await submit(clients, jobs=1, replicas=PODS)
        await until(lambda: all_bound(clients, PODS), "all pods to be bound")
        names = [node.spec.name for node in await clients.resolver.list_nodes()]
        targets = await begin(clients, names, 1, rate=20)
        await until(lambda: amid(clients), "moves to be under way")
        cluster.kill("resolver")
        await asyncio.to_thread(cluster.start_resolver)
        await until(lambda: done(clients), "the run to end with the next resolver")
        ended = await status(clients)
        assert (ended.moved, ended.refused) == (PODS, 0), {move.text for move in ended.moves}
        assert await nodes_of_pods(clients) == targets
        await assert_clean(clients, bound=PODS)
        before = targets
        targets = await begin(clients, names, 3, rate=20)
        await until(lambda: amid(clients), "moves to be under way again")
        cluster.kill("dispatcher")
        await asyncio.to_thread(cluster.start_dispatcher)
        await until(lambda: all_bound(clients, PODS), "the next dispatcher to know all pods")
        assert not (await status(clients)).state
        places = await nodes_of_pods(clients)
        assert all(places[pod] in (before[pod], targets[pod]) for pod in places)
        assert 0 < sum(places[pod] == targets[pod] for pod in places) < PODS
        await until(lambda: only(clients, PODS), "targets of nobody to end")
        await assert_clean(clients, bound=PODS)


async def done(clients: Clients) -> bool:
    return (await status(clients)).state == "Done"


async def only(clients: Clients, reservations: int) -> bool:
    return (await clients.resolver.status()).reservations == reservations
