"""Kubelets' second opinion: what they reject is counted and looked into, and its room is free. The test says
what kubelets say."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, reserved, run_hoss
from e2e.kubernetes.api import Api
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
def start(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[Callable[..., Cluster]]:
    """Starts a platform with a worker, and a node of one core; arguments are fields of the dispatcher's
    section `kubernetes`."""
    made: list[Cluster] = []

    def make(**fields: Any) -> Cluster:
        document = tmp_path / "dispatcher.yaml"
        section = {"kubeconfig": str(control_plane.kubeconfig), **fields}
        kind = {"apiVersion": "hoss.dev/v1alpha1", "kind": "DispatcherConfig", "kubernetes": section}
        document.write_text(json.dumps(kind))
        flags = ("--config", str(document))
        made.append(Cluster(tmp_path, kubeconfig=control_plane.kubeconfig, dispatcher_flags=flags))
        made[0].start_worker("w1")
        api.create_node("n1", cpu="1")
        return made[0]

    yield make
    for cluster in made:
        cluster.stop()


def reject(api: Api, name: str, *, used: int, capacity: int = 1000) -> None:
    """As kubelet does, with its figures in the words of its lifecycle/predicate.go."""
    figures = f"requested: 800, used: {used}, capacity: {capacity}"
    said = f"Pod was rejected: Node didn't have enough resource: cpu, {figures}"
    status = {"phase": "Failed", "reason": "OutOfcpu", "message": said}
    api("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}, **MERGE)


def status(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_hoss(cluster, "status", "-o", "json"))
    return found


def reported(cluster: Cluster) -> str:
    """What `hoss status` says of rejections; "" for nothing."""
    return next((problem for problem in status(cluster)["problems"] if "rejected" in problem), "")


def test_a_rejected_pod_gives_its_room_back_and_the_wrong_account_is_named(
    api: Api, start: Callable[..., Cluster]
) -> None:
    """A binding past the guard has overcommitted the node, and the kubelet takes only one of the two."""
    cluster = start()
    api.create_pod("mine", scheduler="hoss", cpu="800m")
    wait_until(lambda: api.pod("mine")["spec"].get("nodeName"), "it is bound")
    assert api.bind(api.create_pod("stranger", cpu="400m"), "n1")[0] == 201
    wait_until(lambda: len(reserved(cluster)) == 2, "both are counted")
    reject(api, "mine", used=400)
    wait_until(lambda: reserved(cluster) == assigned(api), "its room is free")
    assert len(reserved(cluster)) == 1
    told = wait_until(lambda: reported(cluster), "it is reported")
    assert (
        "kubelets have rejected 1 pods, the latest default/mine on node n1 (OutOfcpu, overcommitted)" in told
    )
    assert "1 of the others were placed by other schedulers" in told
    counted = status(cluster)["dispatcher"]["counters"]
    assert (counted["pods_rejected"], counted["pods_rejected_OutOfcpu"]) == (1, 1)
    assert counted["pods_rejected_because_overcommitted"] == 1
    assert api.pod("mine")["status"]["phase"] == "Failed", "it is not ours to delete"
    assert "clean" in run_hoss(cluster, "audit")


def test_a_kubelet_that_counts_more_than_the_api_server_has_is_told_of(
    api: Api, start: Callable[..., Cluster]
) -> None:
    cluster = start()
    api.create_pod("mine", scheduler="hoss", cpu="800m")
    wait_until(lambda: api.pod("mine")["spec"].get("nodeName"), "it is bound")
    reject(api, "mine", used=300)
    told = wait_until(lambda: reported(cluster), "it is reported")
    assert "OutOfcpu, unseen" in told
    assert "its kubelet counts 300 of cpu in use" in told


def test_rejected_pods_are_deleted_where_that_is_wished(api: Api, start: Callable[..., Cluster]) -> None:
    """Those that HOSS has placed, and also when a dispatcher finds them where it starts."""
    cluster = start(delete_rejected=True)
    api.create_pod("mine", scheduler="hoss", cpu="800m")
    wait_until(lambda: api.pod("mine")["spec"].get("nodeName"), "it is bound")
    reject(api, "mine", used=300)
    wait_until(lambda: api.request("GET", "/api/v1/namespaces/default/pods/mine")[0] == 404, "it is deleted")
    assert status(cluster)["dispatcher"]["counters"]["rejected_pods_deleted"] == 1
    cluster.kill("dispatcher")
    api.create_pod("old", scheduler="hoss", nodeName="n1", cpu="800m")
    api.create_pod("stranger", nodeName="n1", cpu="800m")
    for name in ("old", "stranger"):
        reject(api, name, used=300)
    cluster.start_dispatcher()
    wait_until(lambda: api.request("GET", "/api/v1/namespaces/default/pods/old")[0] == 404, "it is deleted")
    assert api.pod("stranger")["status"]["phase"] == "Failed", "others' pods are others' to delete"
