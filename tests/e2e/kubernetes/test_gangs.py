"""Gangs of a real cluster: pods come one by one from the API server, and are bound all or none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, await_placed, reserved, run_hoss
from e2e.kubernetes.api import Api, find_events, told
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

GROUP = {"annotations": {"hoss.dev/min-available": "3", "scheduling.k8s.io/group-name": "train"}}
REPLICAS = {
    "annotations": {"hoss.dev/min-available": "3"},
    "ownerReferences": [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "train",
            "uid": "11111111-2222-3333-4444-555555555555",
            "controller": True,
        }
    ],
}


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[Cluster]:
    """A platform with two workers that schedules the API server of the whole run."""
    made = Cluster(tmp_path, kubeconfig=control_plane.kubeconfig)
    made.start_worker("w1")
    made.start_worker("w2")
    yield made
    made.stop()


def create(api: Api, *names: str, metadata: Any = GROUP) -> None:
    for name in names:
        api.create_pod(name, scheduler="hoss", cpu="600m", metadata=metadata)


@pytest.mark.parametrize("metadata", [GROUP, REPLICAS], ids=["of a group", "of a controller"])
def test_a_gang_that_does_not_fit_binds_nobody_and_when_room_comes_all(
    api: Api, cluster: Cluster, metadata: Any
) -> None:
    for name in ("n1", "n2"):
        api.create_node(name, cpu="1")
    create(api, "a", "b", "c", metadata=metadata)
    for name in ("a", "b", "c"):
        wait_until(
            lambda name=name: "2 of the 3 pods it needs fit" in told(api, name), "it says why it waits"
        )
    assert reserved(cluster) == assigned(api) == {}, "nothing is held meanwhile"
    api.create_node("n3", cpu="1")
    await_placed(api, cluster, 3)


def test_pods_of_a_gang_wait_for_each_other_and_are_replaced_one_by_one(api: Api, cluster: Cluster) -> None:
    for number in range(5):
        api.create_node(f"n{number}", cpu="1")
    create(api, "a", "b")
    said = "gang train: 2 of the 3 pods it needs are there"
    for name in ("a", "b"):
        wait_until(lambda name=name: told(api, name) == said, "it says for what it waits")
    why = {"hoss.dev/refused-by": "GangScheduling"}
    wait_until(
        lambda: why in [event["metadata"].get("annotations") for event in find_events(api, "a")],
        "programs can read it",
    )
    create(api, "c")
    await_placed(api, cluster, 3)
    create(api, "d")
    await_placed(api, cluster, 4)
    api.delete_pod("a")
    create(api, "e")
    await_placed(api, cluster, 4)


def test_a_new_dispatcher_waits_for_what_the_old_one_waited_for_and_for_nobody_once_a_gang_has_begun(
    api: Api, cluster: Cluster
) -> None:
    for number in range(5):
        api.create_node(f"n{number}", cpu="1")
    create(api, "a", "b")
    wait_until(lambda: "are there" in told(api, "b"), "they wait")
    cluster.kill("dispatcher")
    cluster.start_dispatcher()
    wait_until(lambda: "are there" in run_hoss(cluster, "get", "pods", "-o", "wide"), "they wait still")
    assert assigned(api) == {}
    create(api, "c")
    await_placed(api, cluster, 3)
    cluster.kill("dispatcher")
    api.delete_pod("a")
    create(api, "d")
    cluster.start_dispatcher()
    await_placed(api, cluster, 3)


def test_a_pod_whose_gang_cannot_be_is_told_so(api: Api, cluster: Cluster) -> None:
    api.create_node("n1")
    create(api, "alone", metadata={"annotations": {"hoss.dev/min-available": "2"}})
    said = (
        "is 2, and the pod has neither a controller nor a PodGroup by which the others of its gang are known"
    )
    wait_until(lambda: said in told(api, "alone"), "it says what is wrong")
    assert assigned(api) == {}
