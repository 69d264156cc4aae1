"""Algorithms of others in workers of a platform: what they place, and what becomes of pods whose algorithm is
wrong or does not answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, audited, prepare, submit
from waiting import until

from hossctl.endpoints import clients_of

_SOURCE = """
import threading

import numpy as np


class Overfills:
    def place(self, batch, snapshot, budget):
        return np.full(batch.pods, int(np.argmax(snapshot.free[0])))


class Hangs:
    def place(self, batch, snapshot, budget):
        threading.Event().wait()
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "wrong_algorithms.py").write_text(_SOURCE)
    (packages / "emptiest_first.py").write_text(
        (Path(__file__).parents[2] / "examples/emptiest_first.py").read_text()
    )
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.syspath_prepend(str(packages))
    with Cluster(tmp_path, shards=2) as cluster:
        yield cluster


def algorithm(name: str) -> tuple[str, str]:
    return "--algorithm", name


async def test_an_algorithm_places_pods_beside_other_workers_and_pods_of_a_wrong_one_go_to_others(
    cluster: Cluster,
) -> None:
    cluster.start_worker("emptiest", options=algorithm("emptiest_first:EmptiestFirst"))
    cluster.start_worker("fitting", options=algorithm("best-fit"))
    cluster.start_worker("wrong", options=algorithm("wrong_algorithms:Overfills"))
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=3, nodes=40, cpus=20)
        await submit(clients, jobs=6, replicas=900)
        await until(lambda: all_bound(clients, 5400))
        assert (await audited(clients)).exit_code == 0
    assert "algorithm wrong_algorithms:Overfills failed: ValueError: overfilled node" in cluster.log("wrong")


@pytest.mark.thorough
async def test_a_worker_whose_algorithm_hangs_gives_its_pods_back_and_ends_with_its_name(
    cluster: Cluster,
) -> None:
    cluster.start_worker("stuck", options=algorithm("wrong_algorithms:Hangs"))
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=1, nodes=40)
        await submit(clients, jobs=1, replicas=100)
        await until(lambda: _ended(cluster))
        cluster.start_worker("w1")
        await until(lambda: all_bound(clients, 100))
        assert (await audited(clients)).exit_code == 0
    assert "algorithm wrong_algorithms:Hangs did not place" in cluster.log("stuck")


async def _ended(cluster: Cluster) -> bool:
    return not cluster.runs("stuck")
