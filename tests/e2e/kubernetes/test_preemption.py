"""Less urgent pods of a real API server go for more urgent ones: deleted there, and gone before the others
are bound."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, overcommitted, requested, reserved, run_hoss
from e2e.kubernetes.api import Api, await_reason, events_of, node_of, resize, told
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[Cluster]:
    made = Cluster(tmp_path, kubeconfig=control_plane.kubeconfig)
    made.start_worker("w1")
    for name, value in (("low", 1), ("high", 1000)):
        api.request("POST", CLASSES, {"metadata": {"name": name}, "value": value})  # it may be there already
    api.create_node("n1", cpu="1")
    yield made
    made.stop()


def there(api: Api, name: str) -> bool:
    return api.request("GET", f"/api/v1/namespaces/default/pods/{name}")[0] == 200


def low_pod(api: Api, *, grace: int, scheduler: str = "hoss") -> None:
    pod = api.create_pod(
        "low", cpu="800m", scheduler=scheduler, priorityClassName="low", terminationGracePeriodSeconds=grace
    )
    if scheduler != "hoss":
        assert api.bind(pod, "n1")[0] == 201
    wait_until(lambda: node_of(api, "low"), "the less urgent pod is bound")


def high_pod(api: Api) -> None:
    api.create_pod("high", cpu="800m", scheduler="hoss", priorityClassName="high")


@pytest.mark.parametrize("scheduler", ["hoss", "somebody-else"])
def test_a_less_urgent_pod_goes_whoever_has_placed_it(api: Api, cluster: Cluster, scheduler: str) -> None:
    low_pod(api, grace=0, scheduler=scheduler)
    wait_until(lambda: reserved(cluster) == assigned(api), "it is counted")
    high_pod(api)
    assert wait_until(lambda: node_of(api, "high"), "the more urgent pod is bound") == "n1"
    assert not there(api, "low")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert "clean" in run_hoss(cluster, "audit")


def test_the_preemptor_is_nominated_and_bound_only_when_its_victim_has_left(
    api: Api, cluster: Cluster
) -> None:
    low_pod(api, grace=300)
    high_pod(api)
    wait_until(lambda: "deletionTimestamp" in api.pod("low")["metadata"], "the victim is asked to leave")
    wait_until(
        lambda: api.pod("high")["status"].get("nominatedNodeName") == "n1", "the preemptor is nominated"
    )
    waits = "waiting for 1 less urgent pod to leave node n1"
    assert told(api, "high") == waits
    await_reason(api, "high", waits)
    conditions = {c["type"]: c.get("reason") for c in api.pod("low")["status"]["conditions"]}
    assert conditions["DisruptionTarget"] == "PreemptionByScheduler"
    preempted = ("Preempted", f"Preempted by pod {api.pod('high')['metadata']['uid']} on node n1")
    wait_until(lambda: preempted in events_of(api, "low"), "there is an event for the victim")
    assert not node_of(api, "high")
    assert "clean" in run_hoss(cluster, "audit")
    api.delete_pod("low")
    wait_until(lambda: node_of(api, "high"), "the preemptor is bound")
    assert told(api, "high") == ""
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")


def test_a_preemptor_whose_node_goes_before_it_is_bound_is_placed_on_another(
    api: Api, cluster: Cluster
) -> None:
    low_pod(api, grace=300)
    high_pod(api)
    wait_until(
        lambda: api.pod("high")["status"].get("nominatedNodeName") == "n1",
        "it has its place and waits for it",
    )
    api("DELETE", "/api/v1/nodes/n1")
    api.delete_pod("low")
    wait_until(lambda: "n1" not in run_hoss(cluster, "get", "nodes"), "nothing holds the node any more")
    assert not node_of(api, "high")
    api.create_node("n2", cpu="1")
    assert wait_until(lambda: node_of(api, "high"), "it is placed anew") == "n2"
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")


def test_a_preemptor_that_changes_before_it_is_bound_is_placed_as_it_is_by_then(
    api: Api, cluster: Cluster
) -> None:
    low_pod(api, grace=300)
    high_pod(api)
    wait_until(
        lambda: api.pod("high")["status"].get("nominatedNodeName") == "n1",
        "it has its place and waits for it",
    )
    resize(api, "high", "2")
    wait_until(lambda: set(reserved(cluster)) <= set(assigned(api)), "its place is given back")
    api.delete_pod("low")
    api.create_node("n2", cpu="4")
    assert wait_until(lambda: node_of(api, "high"), "it is placed anew") == "n2"
    wait_until(lambda: requested(cluster, "n2")["cpu"] == 2000, "it is counted as it is")
    assert overcommitted(api) == {}


@pytest.mark.parametrize("moment", ["the preemptor has come", "a victim leaves"])
def test_a_worker_that_dies_while_it_preempts_costs_nobody_else_a_place(
    api: Api, cluster: Cluster, moment: str
) -> None:
    api.create_node("n2", cpu="1")
    lows = ["low-0", "low-1"]
    for name in lows:
        api.create_pod(
            name, cpu="800m", scheduler="hoss", priorityClassName="low", terminationGracePeriodSeconds=300
        )
    wait_until(lambda: all(node_of(api, name) for name in lows), "the less urgent pods are bound")

    def leaving() -> list[str]:
        return [name for name in lows if "deletionTimestamp" in api.pod(name)["metadata"]]

    high_pod(api)
    if moment == "a victim leaves":
        wait_until(leaving, "a victim is asked to leave")
    cluster.kill("w1")
    cluster.start_worker("w2")
    (victim,) = wait_until(leaving, "a victim is asked to leave")
    node = node_of(api, victim)
    wait_until(
        lambda: api.pod("high")["status"].get("nominatedNodeName") == node, "the preemptor has its place"
    )
    assert not node_of(api, "high")
    api.delete_pod(victim)
    assert wait_until(lambda: node_of(api, "high"), "the preemptor is bound") == node
    (left,) = {*lows} - {victim}
    assert "deletionTimestamp" not in api.pod(left)["metadata"], "nobody else had to go"
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert overcommitted(api) == {}


def test_a_dispatcher_that_dies_while_a_victim_leaves_overcommits_nothing(api: Api, cluster: Cluster) -> None:
    low_pod(api, grace=300)
    high_pod(api)
    wait_until(lambda: "deletionTimestamp" in api.pod("low")["metadata"], "the victim is asked to leave")
    cluster.kill("dispatcher")
    cluster.start_dispatcher()
    wait_until(lambda: set(reserved(cluster)) >= set(assigned(api)), "what stands is counted")
    assert not node_of(api, "high")
    api.delete_pod("low")
    wait_until(lambda: node_of(api, "high"), "the preemptor is bound")
    assert overcommitted(api) == {}


def test_a_pod_that_a_disruption_budget_protects_is_not_the_one_that_goes(api: Api, cluster: Cluster) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    api.create_node("n2", cpu="1")
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "800m"}}}
    spec = {
        "schedulerName": "hoss",
        "priorityClassName": "low",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    api(
        "POST",
        budgets,
        {
            "metadata": {"name": "keep"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        },
    )
    try:
        for name in ("kept", "free"):
            pod = {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
            api("POST", "/api/v1/namespaces/default/pods", pod)
            wait_until(lambda name=name: node_of(api, name), "it is bound")
        high_pod(api)
        wait_until(lambda: node_of(api, "high"), "the more urgent pod is bound")
        assert there(api, "kept")
        assert not there(api, "free")
    finally:
        api("DELETE", f"{budgets}/keep")


def test_room_that_kube_scheduler_made_for_a_pod_is_left_to_it_by_pods_that_are_no_more_urgent(
    tmp_path: Path, own_control_plane: ControlPlane
) -> None:
    """kube-scheduler is gone when the victim leaves, so nobody else takes the room first."""
    api = Api(own_control_plane)
    for name, value in (("low", 1), ("high", 1000), ("urgent", 2000)):
        api("POST", CLASSES, {"metadata": {"name": name}, "value": value})
    api.create_node("n1", cpu="1")
    own_control_plane.start_scheduler()
    cluster = Cluster(tmp_path, kubeconfig=own_control_plane.kubeconfig, workers=["w1"])
    try:
        api.create_pod(
            "low",
            cpu="800m",
            scheduler="default-scheduler",
            priorityClassName="low",
            terminationGracePeriodSeconds=300,
        )
        wait_until(lambda: node_of(api, "low"), "kube-scheduler binds the less urgent pod")
        api.create_pod("high", cpu="800m", scheduler="default-scheduler", priorityClassName="high")
        wait_until(lambda: nominated_node(api, "high") == "n1", "kube-scheduler preempts for it")
        api.create_pod("equal", cpu="800m", scheduler="hoss", priorityClassName="high")
        await_reason(api, "equal", "Insufficient cpu")
        own_control_plane.kill("kube-scheduler")
        api.delete_pod("low")
        wait_until(lambda: reserved(cluster) == {}, "its room is free")
        api.create_pod("beside", cpu="200m", scheduler="hoss", priorityClassName="high")
        wait_until(lambda: node_of(api, "beside"), "what is left beside it may be taken")
        assert not node_of(api, "equal")
        api.create_pod("urgent", cpu="300m", scheduler="hoss", priorityClassName="urgent")
        wait_until(lambda: node_of(api, "urgent"), "a more urgent pod may have its room")
        api.delete_pod("urgent")
        own_control_plane.start_scheduler()
        wait_until(lambda: node_of(api, "high"), "kube-scheduler binds its pod")
        assert not node_of(api, "equal")
        api.delete_pod("high")
        wait_until(lambda: node_of(api, "equal"), "nobody waits for the room any more")
        assert overcommitted(api) == {}
    finally:
        cluster.stop()


def nominated_node(api: Api, name: str) -> str:
    return str(api.pod(name)["status"].get("nominatedNodeName", ""))
