"""What dies and what is kept: every process killed with -9 while it has pods in hand, on real processes.

Invariant 3 (nothing lost) is what each test ends with: every accepted pod is bound, and the audit, which also
checks 1, 2 and 6, finds nothing. Before that each asserts what tells that the fault hit pods, and which."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.crashes import PODS, WORKERS, Moment, Scene, interposed_cluster, pods_under_way, proposed
from e2e.loads import all_bound, assert_clean, prepare, some_bound, submit, until_agreed
from integration.proposing import Stream
from waiting import until

from hoss.errors import LedgerUnavailable
from hoss.v1 import resolver_pb2
from hossctl.endpoints import clients_of
from resolver.core.values import Verdict


@dataclass(frozen=True)
class Crash:
    """Who is killed at which moment and starts again, and what then tells that it hit pods."""

    victims: tuple[str, ...]
    moment: Moment
    witness: Callable[[Scene], Awaitable[None]]


async def late_proposals_are_stale(scene: Scene) -> None:
    """Of workers that the new dispatcher has fenced before it queued their pods again."""
    scene.gate.release()
    await until(scene.refused_as_stale, "proposals of before to be refused")


async def found_in_the_ledger(scene: Scene) -> None:
    """What the new dispatcher finds it need not bind."""
    await until(lambda: all_bound(scene.clients, PODS))
    assert (await scene.clients.dispatcher.status()).counters["bound"] == 0


async def asked_again(scene: Scene) -> None:
    """The verdicts went with the resolver: the next one is asked for the same pods, and finds them
    reserved."""
    scene.gate.release()

    async def duplicates() -> bool:
        return (await scene.clients.resolver.status()).counters["duplicate"] == PODS

    await until(duplicates, "the same proposals to come again")


CRASHES = {
    "the dispatcher, with proposals under way": Crash(
        ("dispatcher",), Moment.PROPOSED, late_proposals_are_stale
    ),
    "the dispatcher, with pods reserved": Crash(("dispatcher",), Moment.RESERVED, found_in_the_ledger),
    "the dispatcher, with pods not confirmed": Crash(("dispatcher",), Moment.BOUND, found_in_the_ledger),
    "the resolver, with verdicts under way": Crash(("resolver",), Moment.RESERVED, asked_again),
    "everybody, with pods reserved": Crash(
        (*WORKERS, "dispatcher", "resolver", "redis"), Moment.RESERVED, found_in_the_ledger
    ),
}


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES.keys())
async def test_invariant_3_whoever_is_killed_with_pods_in_hand_no_pod_is_lost(
    tmp_path: Path, crash: Crash
) -> None:
    async with pods_under_way(tmp_path, crash.moment, shards=2, fsync="always") as scene:
        for name in crash.victims:
            scene.cluster.redis.kill() if name == "redis" else scene.cluster.kill(name)
        for name in reversed(crash.victims):  # Redis first
            await scene.start(name)
        await crash.witness(scene)
        await scene.all_come_through()


@pytest.mark.parametrize("moment", [Moment.PROPOSED, Moment.RESERVED], ids=["proposed", "reserved"])
async def test_invariant_3_of_a_killed_workers_pods_those_reserved_stay_and_the_others_go_to_another(
    tmp_path: Path, moment: Moment
) -> None:
    async with pods_under_way(tmp_path, moment, shards=2) as scene:
        victim = await scene.laden()
        scene.cluster.kill(victim.name)
        pods = victim.outstanding
        assert await scene.fenced(victim.name) == ((0, pods) if moment is Moment.PROPOSED else (pods, 0))
        await scene.all_come_through(workers=1)


async def test_invariant_4_a_killed_workers_pods_are_bound_once_each(tmp_path: Path) -> None:
    """What it had proposed arrives when its pods are bound elsewhere: the ledger refuses all of it. Without
    fencing it would stand beside the new reservations, on another shard."""
    async with pods_under_way(tmp_path, Moment.PROPOSED, shards=2) as scene:
        victim = await scene.laden()
        messages = map(resolver_pb2.ProposalBatch.FromString, scene.gate.held)
        late = [message for message in messages if message.worker == victim.name and message.uids]
        scene.cluster.kill(victim.name)
        assert await scene.fenced(victim.name) == (0, victim.outstanding)
        scene.gate.release()
        await until(lambda: all_bound(scene.clients, PODS))
        stream = Stream(scene.clients.resolver)
        verdicts = b"".join([(await stream.ask(proposal)).verdicts for proposal in late])
        assert verdicts == bytes([Verdict.STALE_EPOCH]) * victim.outstanding
        await scene.all_come_through(workers=1)


async def test_redis_killed_and_back_with_its_file_delays_and_loses_nothing(tmp_path: Path) -> None:
    async with pods_under_way(tmp_path, Moment.PROPOSED) as scene:
        scene.cluster.redis.kill()
        scene.gate.release()

        async def refused() -> int:
            return (await scene.clients.resolver.status()).counters["unavailable"]

        await until(refused, "proposals to be refused for want of Redis")
        with pytest.raises(LedgerUnavailable):
            await submit(scene.clients, jobs=1, replicas=1, name="too-late")
        await scene.start("redis")
        await until(lambda: all_bound(scene.clients, PODS))
        await submit(scene.clients, jobs=1, replicas=10, name="after")
        await scene.all_come_through(pods=PODS + 10)


async def test_deletions_survive_the_dispatcher(tmp_path: Path) -> None:
    """It dies before the ledger hears of them: the next one finds reservations of pods that are deleted, and
    gives them back."""
    async with (
        interposed_cluster(tmp_path, workers=["w1"]) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        await prepare(clients, workers=1)
        await submit(clients, jobs=2, replicas=50)
        await until(lambda: all_bound(clients, 100))
        gate = between.asked["Release"]
        gate.close()
        await clients.dispatcher.delete("default", jobs=["job-0"], pods=["job-1-7"])
        await until(lambda: gate.held, "the dispatcher to give back reservations")
        cluster.kill("dispatcher")
        await asyncio.to_thread(cluster.start_dispatcher)
        assert (await clients.resolver.status()).reservations == 100
        gate.release()
        await until(lambda: all_bound(clients, 49))
        await assert_clean(clients, bound=49)


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["w2", "dispatcher", "resolver"])
async def test_who_is_killed_in_the_middle_of_a_load_loses_no_pod(tmp_path: Path, victim: str) -> None:
    """At whatever moments chance has it, three times."""
    cluster = Cluster(tmp_path, workers=["w1", "w2", "w3"])
    start = {"dispatcher": cluster.start_dispatcher, "resolver": cluster.start_resolver}
    try:
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=3)
            for number in range(1, 4):
                await submit(clients, jobs=40, replicas=200, name=f"round-{number}")
                await until(lambda least=(number - 1) * 8000 + 500: some_bound(clients, least))
                cluster.kill(victim)
                await asyncio.to_thread(start.get(victim, lambda: cluster.start_worker(victim)))
                await until(lambda total=number * 8000: all_bound(clients, total))
            await until_agreed(clients, 3)
            await assert_clean(clients, bound=24_000)
    finally:
        cluster.stop()


async def test_invariant_1_four_workers_that_propose_the_same_nodes_at_once_conflict_and_overcommit_none(
    tmp_path: Path,
) -> None:
    """Nodes with room for one pod each, and as many pods: all are proposed before one is decided, so nobody
    knows of the others."""
    nodes, workers = 400, ["w1", "w2", "w3", "w4"]
    async with (
        interposed_cluster(tmp_path, workers=workers) as (cluster, between),
        clients_of(cluster.endpoints) as clients,
    ):
        await prepare(clients, workers=len(workers), nodes=nodes, cpus=1)
        gate = between.asked["Propose"]
        gate.close()
        await submit(clients, jobs=40, replicas=nodes // 40, cpu_milli=1000)
        await until(lambda: len(proposed(gate)) == nodes, "all pods to be proposed")
        gate.release()
        await until(lambda: all_bound(clients, nodes))
        counters = (await clients.resolver.status()).counters
        assert sum(count for name, count in counters.items() if "conflict" in name) > 0
        await assert_clean(clients, bound=nodes)
