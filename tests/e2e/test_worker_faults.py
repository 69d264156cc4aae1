"""Workers that die of a pod, and workers that stall: on real processes."""

import contextlib
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from e2e import slow_plugin
from e2e.cluster import Cluster
from e2e.crashes import PODS, WORKERS, Moment, pods_under_way
from e2e.loads import all_bound, assert_clean, prepare, submit
from waiting import DEADLINE_SECONDS, until

from dispatcher.journal.records import decompress
from dispatcher.journal.redis_store import ATTEMPTS, FAULTS
from hoss.client.dispatcher import submission
from hoss.errors import HossError
from hoss.model.node import Toleration
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of

UID_PREFIX_BYTES = 12  # the rest numbers the pods of a set


PLUGIN = """
    import os

    from scheduler_worker.core.framework.extension_points import FilterPlugin, Reads

    class Poison(FilterPlugin):
        name = "Poison"
        filter_reads = Reads.SPECS

        def filter(self, pod, nodes):
            if any(toleration.key == "poison" for toleration in pod.spec.tolerations):
                os._exit(3)
            return None
"""


@pytest.fixture
def poisonable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a plugin that ends its worker, on the path of every process that is started; the
    worker's document."""
    package = tmp_path / "package"
    (package / "poison-1.0.dist-info").mkdir(parents=True)
    (package / "poison.py").write_text(textwrap.dedent(PLUGIN))
    (package / "poison-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: poison\nVersion: 1.0\n"
    )
    (package / "poison-1.0.dist-info" / "entry_points.txt").write_text(
        "[hoss.plugins]\nPoison = poison:Poison\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{package}:{Path(__file__).parents[2]}")
    document = tmp_path / "worker.yaml"
    document.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: WorkerConfig\nprofile: poisoned\n"
        "profiles: [{name: poisoned, plugins: [{name: NodeResourcesFit}, {name: Poison, weight: 1}]}]\n"
    )
    return document


@pytest.fixture
def cluster(tmp_path: Path, poisonable: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


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
            await prepare(clients, workers=1)
            template = PodTemplate(PodSpec(requests=(("cpu", 100),)), owner_kind="Job")
            killer = PodTemplate(
                PodSpec(requests=(("cpu", 100),), tolerations=(Toleration("poison", "Exists"),)),
                owner_kind="Job",
            )
            jobs = [
                Workload("good", template, 200),
                Workload("bad", killer, 1),
                Workload("fine", template, 200),
            ]
            for request in submission(jobs):
                await clients.dispatcher.submit(request)
            await until(lambda: _counted(clients, bound=400, failed=1))
            await until(lambda: supervisor.restarts >= 5, "the worker to be started after its last death")
            pod = await clients.dispatcher.get_pod("default", "bad-0")
            assert pod.phase == pb.FAILED
            assert pod.reason.startswith("given up after 5 faults, the last: worker w1 was lost")
            assert [fault.worker for fault in pod.faults] == ["w1"] * 5

            await until(lambda: _written_down(cluster, pod), "the journal to be told of faults and attempts")
            cluster.kill("dispatcher")
            cluster.start_dispatcher()
            await until(lambda: _counted(clients, bound=400, failed=1))
            again = await clients.dispatcher.get_pod("default", "bad-0")
            assert (again.reason, again.attempts, list(again.faults)) == (
                pod.reason,
                pod.attempts,
                list(pod.faults),
            )
            await assert_clean(clients, bound=400)
    finally:
        supervisor.stop()
    cluster.start_worker("w2")  # of a profile without the plugin
    cluster.kill("w1")
    async with clients_of(cluster.endpoints) as clients:
        assert (await clients.dispatcher.retry("default", every=True)).retried_pods == 1
        await until(lambda: _counted(clients, bound=401, failed=0))


async def test_a_worker_whose_plugin_hangs_names_it_and_gives_its_pods_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_plugin.install(tmp_path, monkeypatch)
    with Cluster(tmp_path) as cluster:
        cluster.start_worker("w1", options=("--config", str(slow_plugin.document(tmp_path, 600_000))))
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=1)
            await submit(clients, jobs=4, replicas=100)
            cluster.await_end("w1", seconds=DEADLINE_SECONDS)
            assert [event["plugin"] for event in cluster.events("w1", "plugin_stuck")] == ["Slow"]
            (ending,) = cluster.events("w1", "worker_ends")
            assert ending["error"].startswith("plugin Slow has not answered for 1 s")
            await until(lambda: _worker_is(clients, "w1", "Left"))
            (left,) = await clients.dispatcher.list_workers(steps=True)
            texts = [step.text for step in left.steps]
            assert any(text.startswith("it is about to stop: plugin Slow failed") for text in texts), texts
            had = {pod.attempts async for pod in clients.dispatcher.list_pods()}
            assert had == {1}, "w1 tried each pod and gave it back"
            cluster.start_worker("w2")
            await until(lambda: all_bound(clients, 400))
            assert (await _worker(clients, "w2")).bound == 400
            assert not [pod.name async for pod in clients.dispatcher.list_pods() if pod.faults]
            await assert_clean(clients, bound=400)


async def test_what_a_stalled_worker_had_goes_to_another_and_its_late_commits_are_stale(
    tmp_path: Path,
) -> None:
    """Frozen with its proposals under way: it is lost, fenced, and its pods are with others; when the ledger
    hears what it had proposed, it refuses all of it, and the worker registers anew."""
    async with pods_under_way(tmp_path, Moment.PROPOSED, worker_timeout_seconds=4) as scene:
        clients = scene.clients
        before = await scene.laden()
        (other,) = set(WORKERS) - {before.name}
        scene.cluster.freeze(before.name)
        assert await scene.fenced(before.name) == (0, before.outstanding)
        scene.gate.release()
        await until(lambda: all_bound(clients, PODS))
        assert (await _worker(clients, other)).bound == PODS
        assert await scene.refused_as_stale() >= before.outstanding
        scene.cluster.thaw(before.name)
        await until(lambda: _worker_is(clients, before.name, "Ready"))
        assert (await _worker(clients, before.name)).epoch > before.epoch
        await scene.all_come_through()


async def _counted(clients: Clients, *, bound: int, failed: int) -> bool:
    jobs = await clients.dispatcher.list_jobs()
    return (sum(job.bound for job in jobs), sum(job.failed for job in jobs)) == (bound, failed)


def _written_down(cluster: Cluster, pod: pb.PodInfo) -> bool:
    """Whether the journal has the pod's faults, and how often it was tried."""
    with redis.Redis(port=cluster.redis.port) as connection:
        tried = connection.hget(ATTEMPTS, pod.uid[:UID_PREFIX_BYTES]) or b""
        return connection.hlen(FAULTS) >= len(pod.faults) and decompress(tried) == pod.attempts.to_bytes(
            2, "little"
        )


async def _worker(clients: Clients, name: str) -> pb.WorkerInfo:
    return next(worker for worker in await clients.dispatcher.list_workers() if worker.name == name)


async def _worker_is(clients: Clients, name: str, state: str) -> bool:
    return (await _worker(clients, name)).state == state
