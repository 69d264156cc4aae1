"""Moves of pods with claims on a real API server: a plan knows where their volumes can be mounted, and the
successor of a StatefulSet's pod gets its new place with the volume. The test plays controllers and
drivers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, reserved, run_hoss
from e2e.kubernetes.api import Api, placed
from e2e.kubernetes.moves import NO_GRACE, begin, run_status
from e2e.kubernetes.storage import Storage, mounting
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

SETS = "/apis/apps/v1/namespaces/default/statefulsets"
SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db-uid", "controller": True}


@pytest.fixture
def storage(api: Api) -> Iterator[Storage]:
    made = Storage(api)
    made.clear()
    labels = {"app": "db"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"serviceName": "db", "selector": {"matchLabels": labels}, "template": template}
    api.request("POST", SETS, {"metadata": {"name": "db"}, "spec": spec})
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, storage: Storage) -> Iterator[Cluster]:
    with Cluster(tmp_path, kubeconfig=control_plane.kubeconfig) as made:
        made.start_worker("w1")
        yield made


def create_db(api: Api, claim: str, number: int = 0) -> None:
    """A pod of the StatefulSet, with its claim."""
    api.create_pod(
        f"db-{number}",
        scheduler="hoss",
        metadata={"ownerReferences": [SET], "labels": {"app": "db"}},
        terminationGracePeriodSeconds=NO_GRACE,
        volumes=mounting(claim),
    )


def add_node(api: Api, cluster: Cluster, name: str) -> None:
    api.create_node(name)
    wait_until(lambda: name in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")


def drained(cluster: Cluster, node: str) -> Any:
    """The plan to drain this node."""
    return json.loads(run_hoss(cluster, "rebalance", "plan", "--drain", node, "-o", "json"))


def test_the_successor_of_a_stateful_sets_pod_gets_the_planned_place_and_mounts_the_same_claim(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    """The claim waited for its first consumer, one pod alone may use it, and n2 attaches no more volumes."""
    add_node(api, cluster, "n1")
    storage.create_class("disks")
    storage.create_claim("data", modes=("ReadWriteOncePod",))
    create_db(api, "data")
    wait_until(lambda: storage.selected_node("data") == "n1", "a volume is to be provisioned")
    storage.create_volume("pv")
    storage.bind("data", "pv")
    assert placed(api, "db-0") == "n1"
    for name in ("n2", "n3"):
        add_node(api, cluster, name)
    for name in ("n2", "n3"):
        storage.limit(name, 1)
    storage.create_volume("other")
    storage.attach("other", "n2")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    wait_until(
        lambda: (
            [(move["pod"], move["to"]) for move in drained(cluster, "n1")["moves"]]
            == [("default/db-0", "n3")]
        ),
        "the dispatcher knows what n2 has attached",
    )
    begin(cluster, ("db-0", "n1", "n3"))
    wait_until(lambda: run_status(cluster)["evicted"] == 1, lambda: f"evicted: {run_status(cluster)}")
    create_db(api, "data")
    assert placed(api, "db-0") == "n3"
    wait_until(lambda: run_status(cluster)["state"] == "Done", "the move has ended")
    assert run_status(cluster)["moves"][0]["text"] == "its successor is default/db-0"
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert run_hoss(cluster, "audit")


def test_a_local_volume_keeps_its_pod_and_plan_and_dispatcher_say_why(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    for name in ("n1", "n2"):
        add_node(api, cluster, name)
    storage.create_volume("pv", node="n1")
    storage.create_claim("data")
    storage.bind("data", "pv")
    create_db(api, "data")
    assert placed(api, "db-0") == "n1"
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    plan = drained(cluster, "n1")
    assert plan["moves"] == []
    [left] = plan["impossible"]
    assert left["subject"] == "default/db-0 on n1"
    assert "1 node(s) didn't match PersistentVolume's node affinity" in left["why"]
    begin(cluster, ("db-0", "n1", "n2"))
    wait_until(lambda: run_status(cluster)["refused"] == 1, "the move is refused")
    assert run_status(cluster)["moves"][0]["text"] == (
        "the volume pv cannot be mounted on n2: node(s) didn't match PersistentVolume's node affinity"
    )
    assert placed(api, "db-0") == "n1"


def test_a_pod_whose_claim_is_not_bound_any_more_stays(api: Api, storage: Storage, cluster: Cluster) -> None:
    for name in ("n1", "n2"):
        add_node(api, cluster, name)
    storage.create_volume("pv")
    storage.create_claim("data")
    storage.bind("data", "pv")
    create_db(api, "data")
    source = placed(api, "db-0")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    storage.clear()

    def why() -> str:
        left = drained(cluster, source)["impossible"]
        return str(left[0]["why"]) if left else ""

    wait_until(lambda: why() == "its claim data does not exist", why)
