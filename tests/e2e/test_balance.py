"""Work goes to those who can do it: measured costs, work stealing, and workers that leave, on real processes.

A plugin that sleeps stands for workers that are slow for whatever reason: it holds a worker up by the clock,
and takes no CPU."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import slow_plugin
from e2e.cluster import Cluster
from e2e.loads import audited, until_agreed
from waiting import DEADLINE_SECONDS, until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

GIB = 2**30
# A worker's first word on a slow class comes with a heartbeat, and what it gives back takes as long as it is
# in a step: a second on a quiet machine. Who keeps what was sent at a guess is busy for longer than this.
SETTLING_SECONDS = 10.0
# Workers that the machine holds up for some seconds are not what is tested. Heartbeats come four times as
# often.
TIMEOUT_SECONDS = 6


SKEWED = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - name: hot
    match: {labels: {matchLabels: {app: hot}}}
    workers: {matchLabels: {tier: batch}}
  - name: rest
"""
HASHED = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - name: hashed
    balance: {algorithm: ConsistentHash}
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    slow_plugin.install(tmp_path, monkeypatch)
    config = tmp_path / "dispatcher.yaml"
    config.write_text(
        f"apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\nworker_timeout_seconds: {TIMEOUT_SECONDS}\n"
    )
    with Cluster(tmp_path, dispatcher_flags=("--config", str(config))) as cluster:
        yield cluster


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path):
    """Start a worker that takes so many milliseconds for each look at nodes."""

    def start(name: str, *labels: str, milliseconds: float = 0.0) -> None:
        document = slow_plugin.document(tmp_path, milliseconds)
        cluster.start_worker(name, *labels, options=("--config", str(document)))

    return start


async def test_a_worker_that_is_held_up_is_busy_though_it_takes_no_cpu(cluster: Cluster, start) -> None:
    start("slow", milliseconds=100.0)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        await _submit(clients, "load", classes=1000, replicas=1)

        async def busy() -> bool:
            (worker,) = await clients.dispatcher.list_workers()
            return worker.busy_share > 0.8

        await until(busy, "the worker to be busy")


async def test_pods_not_started_leave_a_slow_worker_for_an_idle_one(cluster: Cluster, start) -> None:
    start("quick", milliseconds=0.2)
    start("slow", milliseconds=200.0)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        await _submit(clients, "load", classes=200, replicas=2)
        await _until_bound(clients, 400)  # half of them would keep the slow one busy for 20 s
        workers = {worker.name: worker for worker in await clients.dispatcher.list_workers()}
        assert workers["slow"].returned > 0
        assert workers["quick"].bound > workers["slow"].bound > 0
        assert await _attempts(clients) == {0}, "giving back counts as an attempt"
        await _assert_clean(clients, workers=2, bound=400)


async def test_a_slow_worker_is_not_taken_for_dead(cluster: Cluster, start) -> None:
    """Its heartbeats get through between its outcomes, however long each pod takes."""
    start("slow", milliseconds=100.0)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        (registered,) = await clients.dispatcher.list_workers()
        pods = 12 * TIMEOUT_SECONDS
        await _submit(clients, "load", classes=pods, replicas=1)
        await _until_bound(clients, pods)
        (worker,) = await clients.dispatcher.list_workers()
        assert (worker.state, worker.epoch) == ("Ready", registered.epoch)
        assert worker.micros_per_pod > 20_000


@pytest.mark.thorough
async def test_under_a_skewed_load_no_eligible_worker_idles_beside_a_second_of_work(
    cluster: Cluster, start
) -> None:
    """90 % of the pods may go to two of four workers only."""
    for name, labels in (("b1", ["tier=batch"]), ("b2", ["tier=batch"]), ("o1", []), ("o2", [])):
        start(name, *labels, milliseconds=20.0)  # so much that the machine's load makes little difference
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=4)
        await clients.dispatcher.set_policy(SKEWED)
        await _submit(clients, "hot", classes=600, replicas=2, app="hot")
        await _submit(clients, "rest", classes=100, replicas=2)
        await _until_bound_and_nobody_idles(clients, 1400)
        hot = {pod.worker async for pod in clients.dispatcher.list_pods("default", label_selector="app=hot")}
        assert hot == {"b1", "b2"}
        bound = {worker.name: worker.bound for worker in await clients.dispatcher.list_workers()}
        # A second of work is 50 pods: had each the pace of the other, they would be hardly further apart.
        assert min(bound["b1"], bound["b2"]) > 400, bound


async def test_a_consistently_hashed_class_stays_with_its_worker(cluster: Cluster, start) -> None:
    for name in ("w1", "w2", "w3"):
        start(name)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=3)
        await clients.dispatcher.set_policy(HASHED)
        for turn in range(4):
            await _submit(clients, f"turn-{turn}", classes=30, replicas=3)
            await _until_bound(clients, 90 * (turn + 1))
        workers_of: dict[str, set[str]] = {}
        async for pod in clients.dispatcher.list_pods("default"):
            workers_of.setdefault(pod.job.rpartition("-")[2], set()).add(pod.worker)
        strays = {number: workers for number, workers in workers_of.items() if len(workers) > 1}
        assert len(strays) <= 2, strays
        assert set.union(*workers_of.values()) == {"w1", "w2", "w3"}


async def test_a_worker_that_is_told_to_stop_hands_back_what_it_has_not_started(
    cluster: Cluster, start
) -> None:
    # So slow that it has not started most of them when it is told, though the machine may hold that up.
    start("slow", milliseconds=100.0)
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        await _submit(clients, "load", classes=400, replicas=1)
        await _until_bound(clients, 5)
        start("other")
        cluster.terminate("slow")
        await _until_bound(clients, 400)
        assert await _attempts(clients) == {0}, "it was fenced instead of handing back"
        assert any(
            worker.name == "other" and worker.bound for worker in await clients.dispatcher.list_workers()
        )
        cluster.await_end("slow", seconds=DEADLINE_SECONDS)
        await _assert_clean(clients, workers=1, bound=400)


async def test_a_drained_worker_s_pods_go_to_others_and_a_cordoned_one_gets_none(
    cluster: Cluster, start
) -> None:
    # So slow that it binds few until it is told, though the machine may hold that up.
    start("slow", milliseconds=100.0)
    start("closed")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=2)
        await clients.dispatcher.set_worker_state("closed", "Cordoned")
        await _submit(clients, "load", classes=400, replicas=1)
        await _until_bound(clients, 5)
        assert (await clients.dispatcher.set_worker_state("slow", "Draining")).state == "Draining"
        start("other")
        await _until_bound(clients, 400)
        bound = {worker.name: worker.bound for worker in await clients.dispatcher.list_workers()}
        assert bound["other"] > 300
        assert bound["closed"] == 0
        assert await _attempts(clients) == {0}
        await clients.dispatcher.set_worker_state("slow", "Ready")
        await clients.dispatcher.set_worker_state("other", "Cordoned")
        await _submit(clients, "more", classes=10, replicas=1)
        await _until_bound(clients, 410)
        workers = {worker.name: worker for worker in await clients.dispatcher.list_workers()}
        assert workers["slow"].bound == bound["slow"] + 10


async def _prepare(clients: Clients, *, workers: int) -> None:
    room = (("cpu", 64_000), ("memory", 256 * GIB), ("pods", 500))
    await register(clients.resolver, [NodeSpec(f"node-{i}", allocatable=room) for i in range(50)])
    await until_agreed(clients, workers)


async def _submit(clients: Clients, name: str, *, classes: int, replicas: int, app: str = "any") -> None:
    labels = (("app", app),)
    specs = [PodSpec(labels=labels, requests=(("cpu", 10 + number),)) for number in range(classes)]
    works = [
        Workload(f"{name}-{i}", PodTemplate(spec, owner_kind="Job"), replicas) for i, spec in enumerate(specs)
    ]
    for request in submission(works):
        await clients.dispatcher.submit(request)


async def _until_bound(clients: Clients, pods: int) -> None:
    async def bound() -> bool:
        return (await clients.dispatcher.status()).pods_by_phase["BOUND"] >= pods

    await until(bound, f"{pods} pods to be bound")


async def _until_bound_and_nobody_idles(clients: Clients, pods: int) -> None:
    """Sample the workers until all is bound: nobody had nothing to do for long beside one of its kind with
    much to do."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    idle_since: float | None = None
    while (await clients.dispatcher.status()).pods_by_phase["BOUND"] < pods:
        now = time.monotonic()
        assert now < deadline, "the pods were not bound in time"
        if _idles_beside_work(await clients.dispatcher.list_workers()):
            idle_since = idle_since or now
            assert now - idle_since < SETTLING_SECONDS, await clients.dispatcher.list_workers()
        else:
            idle_since = None
        await asyncio.sleep(0.02)


def _idles_beside_work(workers: list[pb.WorkerInfo]) -> bool:
    """Whether of workers with equal labels one has nothing and another over a second of work that it has not
    started."""
    return any(
        idle.outstanding == 0 and laden.waiting_micros > 1_000_000 and list(idle.labels) == list(laden.labels)
        for idle in workers
        for laden in workers
    )


async def _attempts(clients: Clients) -> set[int]:
    return {pod.attempts async for pod in clients.dispatcher.list_pods("default")}


async def _assert_clean(clients: Clients, *, workers: int, bound: int) -> None:
    await until_agreed(clients, workers)
    result = await audited(clients)
    assert (result.findings, result.unchecked) == ([], [])
    assert result.bound == result.reservations == bound
