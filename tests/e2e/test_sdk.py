"""Schedulers of one's own beside HOSS's workers, on real processes: what they place, and what becomes of pods
whose scheduler answers nonsense, too late, or not at all."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, audited, prepare, submit, until_agreed
from waiting import DEADLINE_SECONDS, until

from hoss import sdk
from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, Requirement
from hoss.sdk.scheduler import SchedulerFailed
from hossctl.endpoints import Clients, clients_of
from hossctl.load.generated import card_request
from hossctl.load.nodes import GIB, register
from scheduler_worker.core.placement.algorithms import BestFitPlacement

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples"))
from emptiest_first import EmptiestFirst  # noqa: E402

HOST = "kubernetes.io/hostname"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, shards=2) as cluster:
        yield cluster


def running(cluster, algorithm, name="mine", **options):
    endpoints = cluster.endpoints
    addresses = {"dispatchers": endpoints.dispatcher.split(","), "resolvers": endpoints.resolver.split(",")}
    return sdk.running(algorithm, name, **addresses, **options)


async def test_it_places_pods_beside_a_worker_of_hoss_and_the_audit_is_clean(cluster: Cluster) -> None:
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients, running(cluster, EmptiestFirst()) as mine:
        await prepare(clients, workers=2, nodes=40, cpus=20)
        await submit(clients, jobs=8, replicas=900)
        await until(lambda: all_bound(clients, 7200))
        assert mine.proposed
        assert (await audited(clients)).exit_code == 0


async def test_the_tutorials_scheduler_runs_as_a_process_and_its_code_is_the_examples(
    cluster: Cluster, tmp_path: Path
) -> None:
    tutorial = (ROOT / "docs/tutorials/scheduler.md").read_text()
    example = ROOT / "examples/emptiest_first.py"
    assert f"```python\n{example.read_text()}```\n" in tutorial
    endpoints = cluster.endpoints
    command = [sys.executable, str(example), "--name", "mine", "--label", "strategy=mine"]
    addresses = ["--dispatcher", endpoints.dispatcher, "--resolver", endpoints.resolver]
    process = await asyncio.create_subprocess_exec(*command, *addresses, env={"PYTHONPATH": str(ROOT)})
    try:
        async with clients_of(endpoints) as clients:
            await prepare(clients, workers=1, nodes=40)
            await submit(clients, jobs=1, replicas=300)
            await until(lambda: all_bound(clients, 300))
            process.terminate()
            assert await process.wait() == 0
            await until(lambda: gone(clients, "mine"))
            assert await all_bound(clients, 300)
    finally:
        if process.returncode is None:
            process.kill()


class Overfilling:
    """Every pod on one node."""

    def place(self, batch, snapshot, budget):
        return np.full(batch.pods, int(np.argmax(batch.runs[0].admitted)))


class Elsewhere:
    """On a node that there is not."""

    def place(self, batch, snapshot, budget):
        return np.full(batch.pods, snapshot.allocatable.shape[1])


class Raising:
    """Has a bug."""

    def place(self, batch, snapshot, budget):
        raise KeyError("zone")


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (Overfilling(), "ValueError: overfilled node "),
        (Elsewhere(), "ValueError: placed pod 0 on node "),
        (Raising(), "KeyError: 'zone'"),
    ],
)
async def test_pods_of_a_scheduler_that_answers_nonsense_say_so_and_wait_for_a_better_one(
    cluster: Cluster, algorithm: object, problem: str
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        async with running(cluster, algorithm) as mine:
            await prepare(clients, workers=1, nodes=40)
            await submit(clients, jobs=1, replicas=500)
            await until(lambda: some_say(clients, f"scheduler mine failed: {problem}"))
            assert not mine.proposed
        async with running(cluster, EmptiestFirst(), "better"):
            await until(lambda: all_bound(clients, 500))
            assert (await audited(clients)).exit_code == 0


async def test_a_scheduler_that_fails_at_everything_is_named_and_others_get_its_pods(
    cluster: Cluster,
) -> None:
    async def failing(clients: Clients) -> str:
        return {worker.name: worker.failing for worker in await clients.dispatcher.list_workers()}["mine"]

    async with clients_of(cluster.endpoints) as clients, running(cluster, Raising(), window=20):
        await prepare(clients, workers=1, nodes=40)
        await submit(clients, jobs=1, replicas=100)
        assert await until(lambda: failing(clients)) == "scheduler mine failed: KeyError: 'zone'"
        async with running(cluster, EmptiestFirst(), "better"):
            await until_agreed(clients, workers=2)
            await submit(clients, jobs=4, replicas=500, name="more")
            await until(lambda: all_bound(clients, 2100))
            given = {worker.name: worker.bound for worker in await clients.dispatcher.list_workers()}
        assert given["better"] == 2100


async def test_a_scheduler_that_never_answers_ends_and_others_place_its_pods(cluster: Cluster) -> None:
    released = threading.Event()

    class Hanging:
        def place(self, batch, snapshot, budget):
            released.wait()

    async def hang(clients: Clients) -> None:
        async with running(cluster, Hanging(), limit_seconds=0.1):
            await prepare(clients, workers=1, nodes=40)
            await submit(clients, jobs=1, replicas=100)
            await asyncio.sleep(DEADLINE_SECONDS)  # ended by the error

    async with clients_of(cluster.endpoints) as clients:
        try:
            with pytest.raises(SchedulerFailed, match="did not place 100 pods"):
                await hang(clients)
        finally:
            released.set()
        cluster.start_worker("w1")
        await until(lambda: all_bound(clients, 100))
        assert (await audited(clients)).exit_code == 0


async def test_a_scheduler_that_lies_about_its_epoch_commits_nothing_until_it_registers_again(
    cluster: Cluster,
) -> None:
    async with clients_of(cluster.endpoints) as clients, running(cluster, EmptiestFirst()) as mine:
        await prepare(clients, workers=1, nodes=40)
        honest = mine._epoch
        mine._epoch += 1000
        await submit(clients, jobs=1, replicas=500)
        await until(lambda: all_bound(clients, 500))
        assert mine._epoch != honest + 1000
        assert (await audited(clients)).exit_code == 0


async def test_a_scheduler_that_answers_twice_changes_nothing_by_its_second_answer(cluster: Cluster) -> None:
    async with clients_of(cluster.endpoints) as clients, running(cluster, EmptiestFirst()) as mine:
        await prepare(clients, workers=1, nodes=40)
        send = mine._link.send

        def twice(message):
            send(message)
            if message.HasField("outcomes"):
                send(message)

        mine._link.send = twice
        await submit(clients, jobs=3, replicas=700)
        await until(lambda: all_bound(clients, 2100))
        assert (await audited(clients)).exit_code == 0


async def test_its_pods_keep_away_from_pods_that_want_them_nowhere_near(cluster: Cluster) -> None:
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    alone = PodAffinity(anti_required=(PodAffinityTerm(HOST, web, ("default",)),))
    async with clients_of(cluster.endpoints) as clients:
        room = (("cpu", 64_000), ("pods", 250))
        nodes = [NodeSpec(f"n{i}", ((HOST, f"n{i}"),), allocatable=room) for i in range(4)]
        await register(clients.resolver, nodes)
        cluster.start_worker("w1")
        await put(clients, "guarded", PodSpec(pod_affinity=alone), 2)
        await until(lambda: all_bound(clients, 2))
        guarded = {pod.node async for pod in clients.dispatcher.list_pods(job="guarded")}
        cluster.end("w1")
        async with running(cluster, EmptiestFirst()):
            await put(clients, "web", PodSpec(labels=(("app", "web"),)), 40)
            await put(clients, "choosy", PodSpec(pod_affinity=alone), 1)
            await until(lambda: all_bound(clients, 42))
            assert guarded.isdisjoint({pod.node async for pod in clients.dispatcher.list_pods(job="web")})
            [choosy] = [pod async for pod in clients.dispatcher.list_pods(job="choosy")]
            assert "does not know about required pod affinity or anti-affinity" in choosy.reason
            assert (await audited(clients)).exit_code == 0


async def put(clients: Clients, name: str, spec: PodSpec, replicas: int) -> None:
    for request in submission([Workload(name, PodTemplate(spec, owner_kind="Job"), replicas)]):
        await clients.dispatcher.submit(request)


async def gone(clients: Clients, name: str) -> bool:
    return all(
        worker.name != name or worker.state in ("Left", "Lost")
        for worker in await clients.dispatcher.list_workers()
    )


async def some_say(clients: Clients, reason: str) -> bool:
    pods = [pod async for pod in clients.dispatcher.list_pods(job="job-0")]
    return any(pod.reason.startswith(reason) for pod in pods)


async def test_a_scheduler_that_places_cards_fills_them_and_overfills_none(cluster: Cluster) -> None:
    """On every node pods with half a card, with two whole ones and with shares of two fill all eight
    cards."""
    allocatable = (("cpu", 64_000), ("memory", 256 * GIB), ("pods", 250), *card_request(8, 1000)[0].items())
    nodes = [NodeSpec(f"node-{i}", allocatable=allocatable, cards=8) for i in range(6)]
    async with clients_of(cluster.endpoints) as clients, running(cluster, BestFitPlacement(), window=30):
        await register(clients.resolver, nodes)
        await until_agreed(clients, workers=1)
        workloads = [
            Workload(f"job-{count}-{milli}", carded(count, milli), replicas)
            for count, milli, replicas in ((1, 500, 24), (2, 1000, 12), (2, 400, 12))
        ]
        for request in submission(workloads):
            await clients.dispatcher.submit(request)
        await until(lambda: all_bound(clients, 48))
        await assert_clean(clients, bound=48)
        full = [list(node.cards_used_milli[:8]) for node in await clients.resolver.list_nodes()]
        assert sum(map(sum, full)) == 12_000 + 24_000 + 9_600


def carded(count: int, milli: int) -> PodTemplate:
    requests, devices = card_request(count, milli)
    spec = PodSpec(requests=(("cpu", 100), *requests.items()), devices=devices)
    return PodTemplate(spec, owner_kind="Job")


async def test_pods_with_cards_come_back_from_a_scheduler_that_does_not_place_them(cluster: Cluster) -> None:
    async with clients_of(cluster.endpoints) as clients, running(cluster, EmptiestFirst()):
        await register(clients.resolver, [NodeSpec("node-0", allocatable=(("cpu", 64_000),), cards=8)])
        await until_agreed(clients, workers=1)
        for request in submission([Workload("job-0", carded(1, 500), 1)]):
            await clients.dispatcher.submit(request)
        await until(lambda: some_say(clients, "scheduler mine does not know about cards"))
