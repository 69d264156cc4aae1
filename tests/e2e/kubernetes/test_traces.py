"""A pod's trace in Kubernetes mode goes on until its Binding is posted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import run_hoss
from e2e.kubernetes.api import Api
from e2e.test_tracing import Traced
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[Traced]:
    made = Traced(tmp_path, 1.0, kubeconfig=control_plane.kubeconfig)
    yield made
    made.stop()


def _bound(api: Api, name: str) -> str:
    node: str = api.pod(name)["spec"].get("nodeName", "")
    return node


def test_hoss_trace_shows_how_a_pod_was_bound_at_the_api_server(cluster: Traced, api: Api) -> None:
    cluster.start_worker("w1")
    api.create_node("n1")
    uids = {}
    for name in ("a", "b"):
        uids[name] = api.create_pod(name, scheduler="hoss")["metadata"]["uid"]
        wait_until(lambda name=name: _bound(api, name) == "n1", "it is bound")
    cluster.stopped()
    told = _trace(cluster, uids["b"])
    spans = {span["name"]: span for span in told["spans"]}
    assert list(spans) == [
        "work batch", "place", "propose", "commit", "confirm", "confirm commits", "bind", "post bindings",
    ]  # fmt: skip
    assert spans["bind"]["parent"] == spans["work batch"]["spanId"]
    assert spans["post bindings"]["parent"] == spans["bind"]["spanId"]
    assert (spans["bind"]["service"], spans["post bindings"]["service"]) == ("dispatcher", "resolver")
    (event,) = spans["bind"]["events"]
    assert (event["name"], event["node"], event["result"]) == ("binding", "n1", "BIND_DONE")
    assert spans["post bindings"]["attributes"] == {"pods": 1, "results.BIND_DONE": 1}


def _trace(cluster: Cluster, uid: str) -> dict:
    return json.loads(run_hoss(cluster, "trace", uid, "--file", str(cluster.file), "-o", "json"))
