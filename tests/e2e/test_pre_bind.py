"""Pods that plugins prepare between their reservation and the moment they are bound: on real processes."""

import contextlib
import os
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, assert_clean, prepare, submit
from waiting import until

from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hoss.wire.columns import U8, decode
from hossctl.endpoints import Clients, clients_of

PODS = 40
SOURCE = '''
    """Prepares pods as the files of a directory say."""

    import time
    from pathlib import Path

    import numpy as np

    from hoss.wire.uids import uid_text
    from scheduler_worker.core.framework.extension_points import PreBindPlugin, Unready


    class Prepares(PreBindPlugin):
        name = "Prepares"

        def __init__(self, directory):
            self._directory = Path(directory)

        def pre_bind(self, pods):
            (self._directory / "asked").touch()
            while (self._directory / "hold").exists():
                time.sleep(0.01)
            if (self._directory / "refuse").exists():
                return Unready("no licence is free", np.ones(len(pods.classes), np.bool_))
            for uid in pods.uids:
                (self._directory / uid_text(uid.tobytes())).touch()

        def unreserve(self, pods):
            for uid in pods.uids:
                (self._directory / uid_text(uid.tobytes())).unlink(missing_ok=True)
'''


class Scene:
    """A platform whose workers have the plugin, and the directory of its files."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.files = directory / "prepared"
        self.files.mkdir()
        self._document = directory / "prepares.yaml"
        self._document.write_text(
            "apiVersion: hoss.dev/v1alpha1\nkind: WorkerConfig\nprofile: prepared\nprofiles:\n  - {name:"
            " prepared, plugins: [{name: NodeResourcesFit}, {name: Prepares, args: {directory:"
            f" {self.files}}}}}]}}\n"
        )

    def start_worker(self, name: str) -> None:
        self.cluster.start_worker(name, options=("--config", str(self._document)))

    def let(self, what: str) -> None:
        (self.files / what).touch()

    def stop(self, what: str) -> None:
        (self.files / what).unlink()

    def asked(self) -> bool:
        return (self.files / "asked").exists()

    def prepared(self) -> int:
        return len(list(self.files.glob("*-*")))


@pytest.fixture
def scene_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site = tmp_path / "site"
    metadata = site / "prepares-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "prepares.py").write_text(textwrap.dedent(SOURCE))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: prepares\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hoss.plugins]\nPrepares = prepares:Prepares\n")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    made: list[Cluster] = []

    def make(**options) -> Scene:
        made.append(Cluster(tmp_path, **options))
        return Scene(tmp_path, made[-1])

    yield make
    for cluster in made:
        cluster.stop()


SceneOf = Callable[..., Scene]


async def states(clients: Clients) -> set[int]:
    """Of all reservations."""
    return {
        state
        async for chunk in clients.resolver.reservations()
        for state in decode(chunk.states, U8, name="states").tolist()
    }


async def phases(clients: Clients) -> set[int]:
    return {pod.phase async for pod in clients.dispatcher.list_pods()}


@contextlib.asynccontextmanager
async def being_prepared(scene_of: SceneOf) -> AsyncIterator[tuple[Scene, Clients]]:
    """The pods of one job are reserved, and the plugin of worker w1 was asked about them and does not
    answer."""
    scene = scene_of()
    scene.let("hold")
    scene.start_worker("w1")
    async with clients_of(scene.cluster.endpoints) as clients:
        await prepare(clients, workers=1)
        await submit(clients, jobs=1, replicas=PODS)
        await until(scene.asked)
        yield scene, clients


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_pod_is_bound_once_it_is_prepared_and_not_before(scene_of: SceneOf, shards: int) -> None:
    scene = scene_of(shards=shards)
    scene.let("hold")
    scene.start_worker("w1")
    async with clients_of(scene.cluster.endpoints) as clients:
        await prepare(clients, workers=1)
        await submit(clients, jobs=2, replicas=PODS // 2, gang_minimum=PODS // 2)
        await until(scene.asked)
        assert await phases(clients) <= {pb.SCHEDULING, pb.QUEUED}
        assert await states(clients) == {resolver_pb2.RESERVATION_PRE_BINDING}
        scene.stop("hold")
        await until(lambda: all_bound(clients, PODS))
        await assert_clean(clients, bound=PODS)
    assert scene.prepared() == PODS


async def test_pods_that_are_not_ready_give_back_their_room_and_are_tried_again(scene_of: SceneOf) -> None:
    scene = scene_of()
    scene.let("refuse")
    scene.start_worker("w1")
    async with clients_of(scene.cluster.endpoints) as clients:
        await prepare(clients, workers=1)
        await submit(clients, jobs=1, replicas=PODS)

        async def told() -> bool:
            pods = [pod async for pod in clients.dispatcher.list_pods()]
            return all(pod.reason == "no licence is free" and pod.attempts > 3 for pod in pods)

        await until(told)

        async def nothing_is_held() -> bool:
            return not (await clients.resolver.status()).reservations

        await until(nothing_is_held)
        scene.stop("refuse")
        await until(lambda: all_bound(clients, PODS))
        await assert_clean(clients, bound=PODS)
    assert scene.prepared() == PODS


async def test_what_a_worker_prepared_when_it_died_goes_back_and_to_another(scene_of: SceneOf) -> None:
    async with being_prepared(scene_of) as (scene, clients):
        scene.cluster.kill("w1")
        scene.stop("hold")
        scene.start_worker("w2")
        await until(lambda: all_bound(clients, PODS))
        assert {
            worker.bound for worker in await clients.dispatcher.list_workers() if worker.name == "w2"
        } == {PODS}
        await assert_clean(clients, bound=PODS)
    assert scene.prepared() == PODS


async def test_a_dispatcher_that_takes_over_does_not_take_them_for_bound(scene_of: SceneOf) -> None:
    async with being_prepared(scene_of) as (scene, clients):
        scene.cluster.kill("dispatcher")
        scene.cluster.kill("w1")
        scene.cluster.start_dispatcher()
        [event] = scene.cluster.events("dispatcher", "unready_pods_released")
        assert event["pods"] == PODS
        assert await phases(clients) == {pb.QUEUED}
        scene.stop("hold")
        scene.start_worker("w2")
        await until(lambda: all_bound(clients, PODS))
        await assert_clean(clients, bound=PODS)
    assert scene.prepared() == PODS


async def test_a_worker_whose_plugin_hangs_names_it_and_gives_its_pods_to_others(scene_of: SceneOf) -> None:
    async with being_prepared(scene_of) as (scene, clients):
        scene.cluster.await_end("w1", seconds=60)
        (ending,) = scene.cluster.events("w1", "worker_ends")
        assert ending["error"].startswith(f"plugin Prepares did not prepare {PODS} pods in 10 s")
        scene.stop("hold")
        scene.start_worker("w2")
        await until(lambda: all_bound(clients, PODS))
        assert not [pod.name async for pod in clients.dispatcher.list_pods() if pod.faults]
        await assert_clean(clients, bound=PODS)
