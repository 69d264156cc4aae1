"""Pods of a StatefulSet are spread by default, as kube-scheduler does it, with no Service and no constraint
of theirs."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.api import Api
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

PODS = 6


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[Cluster]:
    """A platform with a worker that schedules the API server of the whole run."""
    made = Cluster(tmp_path, kubeconfig=control_plane.kubeconfig)
    made.start_worker("w1")
    yield made
    made.stop()


@pytest.fixture
def stateful_set(api: Api) -> Iterator[dict[str, object]]:
    """Metadata of its pods: nobody makes them here but the test."""
    path, labels = "/apis/apps/v1/namespaces/default/statefulsets", {"app": "db"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    spec = {"selector": {"matchLabels": labels}, "serviceName": "db", "replicas": PODS, "template": template}
    made = api("POST", path, {"metadata": {"name": "db"}, "spec": spec})
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": made["metadata"]["uid"]}
    yield {"labels": labels, "ownerReferences": [{**owner, "controller": True}]}
    api("DELETE", f"{path}/db")


def places(api: Api, names: list[str]) -> Counter[str]:
    """Pods by node, once all are bound."""
    nodes = {
        name: wait_until(lambda name=name: api.pod(name)["spec"].get("nodeName"), "it is bound")
        for name in names
    }
    return Counter(nodes.values())


def test_pods_of_a_stateful_set_are_spread_over_hosts_though_one_has_more_room(
    api: Api, cluster: Cluster, stateful_set: dict[str, object]
) -> None:
    api.create_node("large", cpu="100", memory="200Gi")
    api.create_node("small", cpu="4", memory="8Gi")

    def spread() -> bool:
        names = [f"db-{number}" for number in range(PODS)]
        for name in names:
            api.create_pod(name, scheduler="hoss", metadata=stateful_set)
        found = places(api, names)
        for name in names:
            api.delete_pod(name)
        return min(found["large"], found["small"]) >= 2

    # Nodes and sets are watched apart from pods, which may come first.
    wait_until(spread, "pods of the set to be spread")
    others = [f"other-{number}" for number in range(PODS)]
    for name in others:
        api.create_pod(name, scheduler="hoss", metadata={"labels": {"app": "other"}})
    assert places(api, others)["large"] == PODS, "without a controller there is nothing to spread by"
