"""HOSS and other schedulers on the same nodes, with the guard between them."""

import concurrent.futures
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, overcommitted, reserved, run_hoss
from e2e.kubernetes.api import Api, await_reason, events_of
from e2e.kubernetes.guarded import await_guard, install
from waiting import DEADLINE_SECONDS, wait_until

from hoss.kube.api import BINDING_REQUEST_SECONDS
from hossctl.local.control_plane import ControlPlane
from hossctl.local.ports import free_ports


@pytest.fixture
def guarded_cluster(
    tmp_path: Path, own_control_plane: ControlPlane
) -> Iterator[Callable[..., tuple[Api, Cluster]]]:
    """Starts a platform whose resolver guards the bindings: `guarded_cluster("--reservation-lease-seconds",
    "2")`."""
    made: list[Cluster] = []

    def make(*flags: str, failure_policy: str = "Fail") -> tuple[Api, Cluster]:
        api, (port,) = Api(own_control_plane), free_ports(1)
        install(api, f"https://127.0.0.1:{port}/bindings", failure_policy=failure_policy)
        where = own_control_plane.kubeconfig
        made.append(Cluster(tmp_path, kubeconfig=where, webhook_ports=(port,), resolver_flags=flags))
        await_guard(api)
        return api, made[0]

    yield make
    for cluster in made:
        cluster.stop()


def test_kube_scheduler_and_hoss_fill_the_same_nodes_and_overcommit_none(
    guarded_cluster: Callable[..., tuple[Api, Cluster]], own_control_plane: ControlPlane
) -> None:
    api, cluster = guarded_cluster()
    for number in range(20):
        api.create_node(f"n{number}", cpu="2")
    for number in range(2):
        cluster.start_worker(f"w{number}")
    own_control_plane.start_scheduler()
    # 6 of them fit on a node, 120 in all: with 116 there is hardly a choice left at the end.
    names = [
        (f"{scheduler}-{number}", scheduler)
        for number in range(58)
        for scheduler in ("hoss", "default-scheduler")
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(lambda pod: api.create_pod(pod[0], cpu="300m", scheduler=pod[1]), names))
    wait_until(lambda: len(assigned(api)) == len(names), "all pods of both are bound")
    assert overcommitted(api) == {}
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert "clean (20 nodes, 116 reservations, 116 bound, 2 caches)" in run_hoss(cluster, "audit")


def test_what_the_guard_reserved_stays_once_the_pod_is_seen_and_ends_with_it(
    guarded_cluster: Callable[..., tuple[Api, Cluster]],
) -> None:
    lease_seconds = 1.0
    api, cluster = guarded_cluster("--reservation-lease-seconds", f"{lease_seconds}")
    api.create_node("n1", cpu="1")
    wait_until(lambda: "n1" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    pod, another = (api.create_pod(name, cpu="800m") for name in ("pod", "another"))
    assert api.bind(pod, "n1")[0] == 201
    time.sleep(3 * lease_seconds)  # the claim is that nothing happens meanwhile
    assert reserved(cluster) == {pod["metadata"]["uid"]: "n1"}
    assert api.bind(another, "n1")[0] == 403
    api.delete_pod("pod")
    wait_until(lambda: api.bind(another, "n1")[0] == 201, "its room is free again")


def test_a_binding_that_comes_to_nothing_gives_its_room_back_once_it_cannot_take_effect_any_more(
    guarded_cluster: Callable[..., tuple[Api, Cluster]],
) -> None:
    """A second webhook, which runs beside ours, says no. The lease is renewed until then."""
    api, cluster = guarded_cluster("--reservation-lease-seconds", "1")
    api.create_node("n1", cpu="1")
    wait_until(lambda: "n1" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    (port,) = free_ports(1)
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"]}
    hook = {
        "name": "nobody.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    api("POST", path, {"metadata": {"name": "nobody"}, "webhooks": [hook]})
    pod = api.create_pod("pod", cpu="800m")
    wait_until(lambda: "nobody.example.com" in str(api.bind(pod, "n1")), "the other webhook is in force")
    wait_until(
        lambda: reserved(cluster) == {},
        "the room is given back",
        seconds=BINDING_REQUEST_SECONDS + DEADLINE_SECONDS,
    )
    api("DELETE", f"{path}/nobody")
    wait_until(lambda: api.bind(pod, "n1")[0] == 201, "there is room")


def test_a_binding_that_passed_a_guard_that_was_down_is_counted_and_told_of_within_seconds(
    guarded_cluster: Callable[..., tuple[Api, Cluster]],
) -> None:
    """And nothing is told of bindings that were reviewed, nor of those in exempt namespaces."""
    api, cluster = guarded_cluster(failure_policy="Ignore")
    api.create_node("n1", cpu="1")
    api.create_namespace("free", **{"hoss.dev/binding-guard": "off"})
    wait_until(lambda: "n1" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    assert api.bind(api.create_pod("reviewed", cpu="100m"), "n1")[0] == 201
    assert api.bind(api.create_pod("exempt", cpu="100m", namespace="kube-system"), "n1")[0] == 201
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    cluster.kill("resolver")
    unseen = [api.create_pod(f"unseen-{number}", cpu="700m") for number in range(2)]
    of_exempt = api.create_pod("free", cpu="100m", namespace="free")
    for pod in (*unseen, of_exempt):
        wait_until(lambda pod=pod: api.bind(pod, "n1")[0] == 201, "Ignore lets it pass")
    cluster.start_resolver()
    for pod in unseen:
        await_reason(api, pod["metadata"]["name"], "Bound to node n1 without a review by HOSS")
    assert [reason for reason, _ in events_of(api, "unseen-0")] == ["BindingNotReviewed"]
    assert events_of(api, "reviewed") == []
    status = json.loads(run_hoss(cluster, "status", "-o", "json"))
    assert status["dispatcher"]["counters"]["bindings_unreviewed"] == 2
    told = "2 bindings of other schedulers passed the binding webhook unreviewed"
    assert any(told in problem for problem in status["problems"]), status["problems"]
    assert "n1" in run_hoss(cluster, "audit"), "the node is overcommitted, and the audit says so"
    assert api.bind(api.create_pod("next", cpu="100m"), "n1")[0] == 403


def test_pods_that_were_there_before_hoss_are_not_told_of(
    own_control_plane: ControlPlane, guarded_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    api = Api(own_control_plane)
    api.create_node("n1", cpu="1")
    old = api.create_pod("old", cpu="100m")
    assert api.bind(old, "n1")[0] == 201
    _, cluster = guarded_cluster()
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    cluster.kill("dispatcher")
    unseen = api.create_pod("unseen", cpu="100m", nodeName="n1")  # past every webhook
    cluster.start_dispatcher()
    await_reason(api, "unseen", "Bound to node n1 without a review by HOSS")
    assert events_of(api, "old") == []
    assert unseen["spec"]["nodeName"] == "n1"
