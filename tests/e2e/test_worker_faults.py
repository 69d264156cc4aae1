"""Workers that die of a pod, and workers that stall: on real processes."""

import asyncio
import contextlib
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import audited, until_agreed
from waiting import until

from dispatcher.chronicle import INTERVAL_SECONDS
from hoss.client.dispatcher import submission
from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.model.taints import Toleration
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.nodes import register

GIB = 2**30


PLUGIN = """
    import os

    class Poison:
        name = "Poison"
        reason = "node(s) were not asked"

        def admits(self, spec, catalogue, at):
            if any(toleration.key == "poison" for toleration in spec.tolerations):
                os._exit(3)
            return None
"""


@pytest.fixture
def poisonable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a plugin that ends its worker, on the path of every process that is started; the worker's document."""
    package = tmp_path / "package"
    (package / "poison-1.0.dist-info").mkdir(parents=True)
    (package / "poison.py").write_text(textwrap.dedent(PLUGIN))
    (package / "poison-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: poison\nVersion: 1.0\n")
    (package / "poison-1.0.dist-info" / "entry_points.txt").write_text("[hoss.plugins]\nPoison = poison:Poison\n")
    monkeypatch.setenv("PYTHONPATH", f"{package}:{Path(__file__).parents[2]}")
    document = tmp_path / "worker.yaml"
    document.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: WorkerConfig\nprofile: poisoned\n"
        "profiles: [{name: poisoned, plugins: [{name: NodeResourcesFit}, {name: Poison, weight: 1}]}]\n"
    )
    return document


@pytest.fixture
def cluster(tmp_path: Path, poisonable: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


class Supervisor:
    """Starts a worker again whenever it has ended, as a kubelet would."""

    def __init__(self, cluster: Cluster, name: str, config: Path) -> None:
        self._cluster, self._name, self._config = cluster, name, config
        self._stop = threading.Event()
        self.restarts = 0
        cluster.start_worker(name, options=("--config", str(config)))
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            if not self._cluster.runs(self._name):
                self.restarts += 1
                with contextlib.suppress(HossError):  # it may end before it is seen to serve
                    self._cluster.start_worker(self._name, options=("--config", str(self._config)))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


async def test_a_pod_that_kills_its_workers_is_given_up_and_retried_when_mended(
    cluster: Cluster, poisonable: Path
) -> None:
    supervisor = Supervisor(cluster, "w1", poisonable)
    try:
        async with clients_of(cluster.endpoints) as clients:
            await _prepare(clients, workers=1)
            template = PodTemplate(PodSpec(requests=(("cpu", 100),)), owner_kind="Job")
            killer = PodTemplate(
                PodSpec(requests=(("cpu", 100),), tolerations=(Toleration("poison", "Exists"),)), owner_kind="Job"
            )
            jobs = [Workload("good", template, 800), Workload("bad", killer, 1), Workload("fine", template, 800)]
            for request in submission(jobs):
                await clients.dispatcher.submit(request)
            await until(lambda: _counted(clients, bound=1600, failed=1))
            assert supervisor.restarts >= 5
            pod = await clients.dispatcher.get_pod("default", "bad-0")
            assert pod.phase == pb.FAILED
            assert pod.reason.startswith("given up after 5 faults, the last: worker w1 was lost")
            assert [fault.worker for fault in pod.faults] == ["w1"] * 5

            await asyncio.sleep(10 * INTERVAL_SECONDS)  # the journal is told of faults so often
            cluster.kill("dispatcher")
            cluster.start_dispatcher()
            await until(lambda: _counted(clients, bound=1600, failed=1))
            again = await clients.dispatcher.get_pod("default", "bad-0")
            assert (again.reason, again.attempts, list(again.faults)) == (pod.reason, pod.attempts, list(pod.faults))
            await _assert_clean(clients, bound=1600)
    finally:
        supervisor.stop()
    cluster.start_worker("w2")  # of a profile without the plugin
    cluster.kill("w1")
    async with clients_of(cluster.endpoints) as clients:
        assert (await clients.dispatcher.retry("default", every=True)).retried_pods == 1
        await until(lambda: _counted(clients, bound=1601, failed=0))


async def test_what_a_stalled_worker_had_goes_to_another_and_its_late_commits_are_stale(cluster: Cluster) -> None:
    """Frozen in the middle of its work: after two seconds it is lost, fenced, and its pods are with others; when it goes
    on, the ledger refuses what it sends, and it registers anew."""
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await _prepare(clients, workers=1)
        epoch = (await clients.dispatcher.list_workers())[0].epoch
        # Each pair a class of its own, which takes a worker some time: it is frozen with most of them in hand.
        for request in submission([Workload(f"job-{i}", _template(1 + i), 2) for i in range(10_000)]):
            await clients.dispatcher.submit(request)
        await until(lambda: _some_bound(clients))
        cluster.freeze("w1")
        await until(lambda: _worker_is(clients, "w1", "Lost"))
        cluster.start_worker("w2")
        await until(lambda: _counted(clients, bound=20_000, failed=0))
        cluster.thaw("w1")
        await until(lambda: _worker_is(clients, "w1", "Ready"))
        workers = {worker.name: worker for worker in await clients.dispatcher.list_workers()}
        assert workers["w1"].epoch > epoch
        assert workers["w2"].bound > 0
        assert (await clients.resolver.status()).counters["stale_epoch"] > 0, "no late commit came"
        await until_agreed(clients, 2)
        await _assert_clean(clients, bound=20_000)


async def _prepare(clients: Clients, *, workers: int) -> None:
    allocatable = (("cpu", 64_000), ("memory", 256 * GIB), ("pods", 250))
    await register(clients.resolver, [NodeSpec(f"node-{i:04d}", allocatable=allocatable) for i in range(200)])
    await until_agreed(clients, workers)


async def _counted(clients: Clients, *, bound: int, failed: int) -> bool:
    jobs = await clients.dispatcher.list_jobs()
    return (sum(job.bound for job in jobs), sum(job.failed for job in jobs)) == (bound, failed)


def _template(memory_bytes: int) -> PodTemplate:
    return PodTemplate(PodSpec(requests=(("cpu", 10), ("memory", memory_bytes))), owner_kind="Job")


async def _some_bound(clients: Clients) -> bool:
    return any(job.bound for job in await clients.dispatcher.list_jobs())


async def _worker_is(clients: Clients, name: str, state: str) -> bool:
    return any(worker.name == name and worker.state == state for worker in await clients.dispatcher.list_workers())


async def _assert_clean(clients: Clients, *, bound: int) -> None:
    result = await audited(clients)
    assert (result.findings, result.unchecked) == ([], [])
    assert result.bound == result.reservations == bound
