"""Moves on a platform of real processes, of which one dies amid them: at the moment of the kill targets are
reserved, and the request to confirm them is held up. Two shards, so many moves are between shards."""

import asyncio
from pathlib import Path

import pytest
from e2e.crashes import interposed_cluster
from e2e.interposed import Gate
from e2e.loads import GIB, all_bound, assert_clean, prepare, submit
from waiting import until

from hoss.model.node import NO_EXECUTE, NodeSpec, Taint
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hoss.wire.uids import UID_BYTES
from hossctl.endpoints import Clients, clients_of

NODES, PODS = 20, 100
# What a dead dispatcher had reserved ends soon; leases are longer than a machine stands still.
LEASE = ("--reservation-lease-seconds", "10")


async def nodes_of_pods(clients: Clients) -> dict[str, str]:
    return {f"{pod.namespace}/{pod.name}": pod.node async for pod in clients.dispatcher.list_pods()}


async def begin(clients: Clients, names: list[str], by: int, rate: float) -> dict[str, str]:
    """Begin to move every pod `by` nodes on. Returns where each is then."""
    placed = await nodes_of_pods(clients)
    targets = {pod: names[(names.index(node) + by) % len(names)] for pod, node in placed.items()}
    # A channel may not have noticed yet that a resolver is back.
    digests = (await until(clients.resolver.audit, "the resolver")).digests
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


async def begin_and_hold(
    clients: Clients, gate: Gate, names: list[str], by: int
) -> tuple[dict[str, str], int]:
    """Begin to move every pod `by` nodes on. When some moves are made, the next request to confirm some is
    held. Returns where each pod is in the end, and how many targets are reserved and not confirmed: the
    witness is the ledger's own count."""
    held_before = len(gate.held)
    gate.close(_AllButTheFirstConfirmation())
    targets = await begin(clients, names, by, rate=20)

    async def held() -> bool:
        return len(gate.held) > held_before and (await status(clients)).moved > 0

    await until(held, "a request to confirm moves")
    under_way = len(resolver_pb2.MoveRequest.FromString(gate.held[-1]).uids) // UID_BYTES
    assert under_way > 0
    # A source on another shard may be on its way out, of a move before.
    await until(lambda: holds(clients, PODS + under_way), "the targets to be all that is reserved twice")
    return targets, under_way


class _AllButTheFirstConfirmation:
    """What a gate holds, which is closed before a run begins: to close it amid the run would come too late
    where the machine holds a test up."""

    def __init__(self) -> None:
        self._first: bytes | None = None

    def __call__(self, request: bytes) -> bool:
        if not _confirms(request):
            return False
        if self._first is None:
            self._first = request
        return request != self._first


def _confirms(request: bytes) -> bool:
    return resolver_pb2.MoveRequest.FromString(request).step == resolver_pb2.MOVE_CONFIRM


async def test_invariant_2_a_run_of_moves_survives_a_resolver_and_a_dispatcher_that_die_amid_its_steps(
    tmp_path: Path,
):
    options = {"shards": 2, "workers": ("w1",), "resolver_flags": LEASE}
    async with (
        interposed_cluster(tmp_path, **options) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        gate = between.asked["Move"]
        await prepare(clients, workers=1, nodes=NODES)
        await submit(clients, jobs=1, replicas=PODS)
        await until(lambda: all_bound(clients, PODS), "all pods to be bound")
        names = [node.spec.name for node in await clients.resolver.list_nodes()]
        targets, _ = await begin_and_hold(clients, gate, names, 1)
        cluster.kill("resolver")
        gate.release()
        await asyncio.to_thread(cluster.start_resolver)
        await until(lambda: done(clients), "the run to end with the next resolver")
        ended = await status(clients)
        assert (ended.moved, ended.refused) == (PODS, 0), {move.text for move in ended.moves}
        assert await nodes_of_pods(clients) == targets
        await assert_clean(clients, bound=PODS)
        before = targets
        targets, under_way = await begin_and_hold(clients, gate, names, 3)
        cluster.kill("dispatcher")
        # None of what was reserved has ended by its lease yet, and nobody is there to confirm it.
        assert (await clients.resolver.status()).reservations == PODS + under_way
        await asyncio.to_thread(cluster.start_dispatcher)
        gate.release()  # what the dead dispatcher had asked for comes late, if it comes
        await until(lambda: all_bound(clients, PODS), "the next dispatcher to know all pods")
        taken_over = await status(clients)
        assert (taken_over.state, len(taken_over.moves)) in {("Running", PODS), ("Done", PODS)}
        places = await nodes_of_pods(clients)
        assert all(node in ("", before[pod], targets[pod]) for pod, node in places.items())
        await until(lambda: done(clients), "the next dispatcher to end the run")
        ended = await status(clients)
        assert (ended.moved, ended.refused) == (PODS, 0), {move.text for move in ended.moves}
        assert await nodes_of_pods(clients) == targets
        await assert_clean(clients, bound=PODS)


async def prepare_twelve_bound_pods(clients: Clients) -> None:
    """On six nodes, by one worker."""
    await prepare(clients, workers=1, nodes=6)
    await submit(clients, jobs=1, replicas=12)
    await until(lambda: all_bound(clients, 12), "all pods to be bound")


async def test_invariant_2_moves_whose_answer_is_lost_with_a_resolver_or_a_dispatcher_are_made_once(
    tmp_path: Path,
):
    """One shard, so a move is one step. The ledger has made it, and nobody has been told."""
    async with (
        interposed_cluster(tmp_path, shards=1, workers=("w1",)) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        gate = between.answered["Move"]
        await prepare_twelve_bound_pods(clients)
        names = [node.spec.name for node in await clients.resolver.list_nodes()]

        async def moved_unheard(by: int) -> dict[str, str]:
            held_before = len(gate.held)
            gate.close()
            targets = await begin(clients, names, by, rate=20)
            await until(lambda: len(gate.held) > held_before, "the answer that moves are made")
            reply = resolver_pb2.MoveReply.FromString(gate.held[-1])
            assert resolver_pb2.MOVED in reply.results
            assert (await status(clients)).moved == 0
            return targets

        targets = await moved_unheard(1)
        cluster.kill("resolver")
        gate.release()
        await asyncio.to_thread(cluster.start_resolver)
        await until(lambda: done(clients), "the run to end with the next resolver")
        assert (await status(clients)).moved == 12, {move.text for move in (await status(clients)).moves}
        assert await nodes_of_pods(clients) == targets
        targets = await moved_unheard(2)
        cluster.kill("dispatcher")
        gate.release()
        await asyncio.to_thread(cluster.start_dispatcher)
        await until(lambda: all_bound(clients, 12), "the next dispatcher to know all pods")
        await until(lambda: done(clients), "the next dispatcher to end the run")
        assert (await status(clients)).moved == 12, {move.text for move in (await status(clients)).moves}
        assert await nodes_of_pods(clients) == targets
        await assert_clean(clients, bound=12)


@pytest.mark.parametrize("loss", ["the node is removed", "the node is tainted"])
async def test_invariant_2_a_pod_that_loses_its_node_amid_a_move_between_shards_is_not_placed_twice(
    tmp_path: Path, loss: str
):
    """The confirmation is under way when the source goes. It still makes the target the pod's place, so the
    pod must not be placed anew meanwhile."""
    async with (
        interposed_cluster(tmp_path, shards=2, workers=("w1",)) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        gate = between.asked["Move"]
        await prepare_twelve_bound_pods(clients)
        indexes = {node.spec.name: node.index for node in await clients.resolver.list_nodes()}
        pod, source = min((await nodes_of_pods(clients)).items())
        target = next(name for name, index in indexes.items() if (index - indexes[source]) % 2)
        gate.close(_confirms)
        await begin_move(clients, pod, source, target)
        await until(lambda: bool(gate.held), "the request to confirm the move")
        for name, index in indexes.items():
            if (index - indexes[source]) % 2:  # so that what is placed anew is not on the target's shard
                await clients.resolver.cordon_node(name, unschedulable=True)
        if loss == "the node is removed":
            await clients.resolver.remove_nodes([source])
        else:
            taint = Taint("disk", "broken", NO_EXECUTE)
            allocatable = (("cpu", 64_000), ("memory", 256 * GIB), ("pods", 250))
            await clients.resolver.upsert_nodes([NodeSpec(source, taints=(taint,), allocatable=allocatable)])

        async def others_are_elsewhere() -> bool:
            placed = await nodes_of_pods(clients)
            return all(node not in ("", source) for name, node in placed.items() if name != pod)

        await until(others_are_elsewhere, "the other pods of the node to be placed anew")
        gate.release()
        await until(lambda: done(clients), "the run to end")
        assert cluster.events("dispatcher", "pods_reserved_twice") == []
        await assert_clean(clients, bound=12)
        assert (await nodes_of_pods(clients))[pod] == target


async def begin_move(clients: Clients, pod: str, source: str, target: str) -> None:
    # A channel may not have noticed yet that a resolver is back.
    digests = (await until(clients.resolver.audit, "the resolver")).digests
    request = pb.RebalanceRequest(
        action=pb.REBALANCE_START,
        moves=[pb.RebalanceMove(pod=pod, source=source, target=target)],
        seen={digest.shard: digest.seq for digest in digests},
        moves_per_second=50,
    )
    await clients.dispatcher.rebalance(request)


async def done(clients: Clients) -> bool:
    return (await status(clients)).state == "Done"


async def holds(clients: Clients, reservations: int) -> bool:
    return (await clients.resolver.status()).reservations == reservations
