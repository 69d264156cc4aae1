"""HOSS schedules a real API server: pods that name it are bound, all others are counted where they are."""

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, overcommitted, requested, reserved, run_hoss
from e2e.kubernetes.api import Api, await_reason, events_of, find_events, node_of, patch_pod, resize, told
from redis import Redis
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

CHART_WITH_POOLS = Path(__file__).parents[3] / "deploy/helm/hoss/values-pools.yaml"


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[Cluster]:
    """A platform with a worker that schedules the API server of the whole run."""
    made = Cluster(tmp_path, kubeconfig=control_plane.kubeconfig)
    made.start_worker("w1")
    yield made
    made.stop()


def create(api: Api, names: list[str], **spec: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(lambda name: api.create_pod(name, scheduler="hoss", **spec), names))


def await_agreement(api: Api, cluster: Cluster) -> None:
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")


def test_pods_that_name_hoss_are_bound_and_others_are_left_alone(api: Api, cluster: Cluster) -> None:
    api.create_node("n1")
    api.create_pod("others")
    api.create_pod("mine", scheduler="hoss")
    assert wait_until(lambda: node_of(api, "mine"), "it is bound") == "n1"
    assert not node_of(api, "others")
    await_agreement(api, cluster)


def test_a_policy_gives_each_pod_to_the_pool_of_workers_that_is_for_it(
    api: Api, cluster: Cluster, tmp_path: Path
) -> None:
    pools = {"s1": "service", "s2": "service", "b1": "batch", "d1": "default"}
    for worker, pool in pools.items():
        cluster.start_worker(worker, f"pool={pool}")
    cluster.end("w1")
    (tmp_path / "policy.yaml").write_text(yaml.safe_load(CHART_WITH_POOLS.read_text())["policy"])
    run_hoss(cluster, "policy", "set", "-f", str(tmp_path / "policy.yaml"))
    api.create_node("n1")
    wanted = {}
    for number in range(4):
        for kind, version, pool in (("ReplicaSet", "apps/v1", "service"), ("Job", "batch/v1", "batch")):
            owner = {"apiVersion": version, "kind": kind, "name": "o", "uid": kind, "controller": True}
            name = f"{kind.lower()}-{number}"
            api.create_pod(name, scheduler="hoss", metadata={"ownerReferences": [owner]})
            wanted[name] = pool
    api.create_pod("bare", scheduler="hoss")
    wanted["bare"] = "default"
    for name in wanted:
        wait_until(lambda name=name: node_of(api, name), f"{name} is bound")  # type: ignore[misc]
    pods = json.loads(run_hoss(cluster, "get", "pods", "-o", "json"))["items"]
    assert {pod["name"]: pools[pod["worker"]] for pod in pods} == wanted
    await_agreement(api, cluster)


def test_a_pod_that_asks_for_more_than_hoss_counts_is_told_so(api: Api, cluster: Cluster) -> None:
    api.create_node("n1")
    api.create_pod("huge", scheduler="hoss", memory="1Ei")
    why = (
        "spec.containers[0].resources.requests.memory: is 1Ei, 1152921504606846976 whole units; HOSS counts"
        " up to"
    )
    wait_until(lambda: told(api, "huge").startswith(why), lambda: f"it is told: {told(api, 'huge')}")
    await_reason(api, "huge", why)
    assert why in run_hoss(cluster, "get", "pod", "huge", "-o", "json")
    assert why in run_hoss(cluster, "get", "pods", "-o", "json")
    assert "counts up to" in run_hoss(cluster, "describe", "pod", "huge")


def test_a_pod_that_must_be_beside_another_is_bound_when_another_scheduler_has_placed_that(
    api: Api, cluster: Cluster
) -> None:
    """Without a wake it would be tried again after five minutes."""
    for number in (1, 2):
        api.create_node(f"n{number}", labels={"kubernetes.io/hostname": f"n{number}"})
    term = {
        "labelSelector": {"matchLabels": {"app": "database"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    api.create_pod("beside", scheduler="hoss", affinity=affinity)
    await_reason(api, "beside", "didn't match pod affinity rules")
    database = api.create_pod("database", metadata={"labels": {"app": "database"}})
    assert api.bind(database, "n2")[0] == 201
    assert wait_until(lambda: node_of(api, "beside"), "it is bound") == "n2"


def test_a_pod_that_was_created_on_its_node_is_in_the_ledger_too(api: Api, cluster: Cluster) -> None:
    api.create_node("n1", cpu="1")
    api.create_pod("static", cpu="800m", nodeName="n1")
    await_agreement(api, cluster)
    api.create_pod("mine", scheduler="hoss", cpu="300m")
    wait_until(lambda: "Insufficient cpu" in run_hoss(cluster, "get", "pods"), "HOSS says why it waits")
    api.delete_pod("static")
    assert wait_until(lambda: node_of(api, "mine"), "there is room now") == "n1"
    await_agreement(api, cluster)


def test_what_others_overcommit_is_counted_and_reported_and_gets_nothing_more(
    api: Api, cluster: Cluster
) -> None:
    api.create_node("n1", cpu="1")
    for name in ("a", "b"):
        assert api.bind(api.create_pod(name, cpu="800m"), "n1")[0] == 201
    await_agreement(api, cluster)
    assert "node n1: cpu requested 1600 > allocatable 1000" in run_hoss(cluster, "audit")
    api.create_pod("mine", scheduler="hoss", cpu="1m")
    wait_until(lambda: "Unschedulable" in run_hoss(cluster, "get", "pods"), "there is no room")


def test_a_pod_of_ours_that_somebody_else_has_bound_stays_where_it_is(api: Api, cluster: Cluster) -> None:
    cluster.end("w1")
    for name in ("n1", "n2"):
        api.create_node(name)
    pod = api.create_pod("mine", scheduler="hoss")
    wait_until(lambda: "mine" in run_hoss(cluster, "get", "pods"), "HOSS has seen it")
    assert api.bind(pod, "n2")[0] == 201
    await_agreement(api, cluster)
    cluster.start_worker("w2")
    api.create_pod("next", scheduler="hoss")
    wait_until(lambda: node_of(api, "next"), "work goes on")
    assert node_of(api, "mine") == "n2"


def test_a_pod_that_has_ended_gives_its_room_back(api: Api, cluster: Cluster) -> None:
    api.create_node("n1", cpu="1")
    create(api, ["first"], cpu="800m")
    wait_until(lambda: node_of(api, "first"), "it is bound")
    merge = {"Content-Type": "application/merge-patch+json"}
    api("PATCH", "/api/v1/namespaces/default/pods/first/status", {"status": {"phase": "Succeeded"}}, **merge)
    create(api, ["second"], cpu="800m")
    wait_until(lambda: node_of(api, "second"), "there is room")
    await_agreement(api, cluster)


def test_a_name_that_comes_again_is_another_pod(api: Api, cluster: Cluster) -> None:
    api.create_node("n1", cpu="1")
    create(api, ["web-0", "web-1"], cpu="400m")
    wait_until(lambda: node_of(api, "web-0") and node_of(api, "web-1"), "they are bound")
    api.delete_pod("web-0")
    create(api, ["web-0"], cpu="400m")
    wait_until(lambda: node_of(api, "web-0"), "the next of its name is bound")
    await_agreement(api, cluster)


def test_a_node_that_goes_under_its_pods_gets_nothing_more_and_is_counted_until_they_are_gone(
    api: Api, cluster: Cluster
) -> None:
    api.create_node("n1")
    create(api, ["mine"])
    wait_until(lambda: node_of(api, "mine"), "it is bound")
    api("DELETE", "/api/v1/nodes/n1")
    create(api, ["waits"])
    wait_until(lambda: "Unschedulable" in run_hoss(cluster, "get", "pods"), "no node takes it")
    assert reserved(cluster) == assigned(api)
    api.create_node("n1")
    assert wait_until(lambda: node_of(api, "waits"), "the node is back") == "n1"
    api("DELETE", "/api/v1/nodes/n1")
    for name in ("mine", "waits"):
        api.delete_pod(name)
    wait_until(lambda: "n1" not in run_hoss(cluster, "get", "nodes"), "nothing holds it any more")
    assert not reserved(cluster)


def test_a_gated_pod_waits_until_the_last_gate_is_removed(api: Api, cluster: Cluster) -> None:
    api.create_node("n1")
    api.create_pod("gated", scheduler="hoss", schedulingGates=[{"name": "example.com/wait"}])
    create(api, ["free"])
    wait_until(lambda: node_of(api, "free"), "others are bound")
    assert not node_of(api, "gated")
    merge = {"Content-Type": "application/merge-patch+json"}
    api("PATCH", "/api/v1/namespaces/default/pods/gated", {"spec": {"schedulingGates": None}}, **merge)
    wait_until(lambda: node_of(api, "gated"), "it is bound")


def test_a_pod_with_a_resource_claim_is_not_placed_by_rules_that_hoss_does_not_know(
    api: Api, cluster: Cluster
) -> None:
    api.create_node("n1")
    claim = {"name": "gpu", "resourceClaimName": "gpu"}
    api.create_pod("claims", scheduler="hoss", resourceClaims=[claim])
    create(api, ["free"])
    wait_until(lambda: node_of(api, "free"), "others are bound")
    assert not node_of(api, "claims")


def test_what_hoss_is_told_to_ignore_keeps_no_pod_waiting(
    tmp_path: Path, control_plane: ControlPlane, api: Api
) -> None:
    document = tmp_path / "dispatcher.yaml"
    document.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\n"
        f"kubernetes: {{kubeconfig: {control_plane.kubeconfig}, ignored: [persistent volume claims]}}\n"
    )
    api.create_node("n1")
    with Cluster(
        tmp_path, kubeconfig=control_plane.kubeconfig, dispatcher_flags=("--config", str(document))
    ) as cluster:
        cluster.start_worker("w1")
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        api.create_pod("claims", scheduler="hoss", volumes=volumes)
        devices = [{"name": "gpu", "resourceClaimName": "gpu"}]
        api.create_pod("both", scheduler="hoss", volumes=volumes, resourceClaims=devices)
        wait_until(lambda: node_of(api, "claims"), "it is bound")
        condition = wait_until(lambda: condition_of(api, "both"), "it is told why it waits")
        assert 'could not find ResourceClaim "default/gpu"' in condition["message"]


def test_a_pod_that_is_resized_in_place_is_counted_as_it_is_now(api: Api, cluster: Cluster) -> None:
    api.create_node("n1", cpu="1")
    api.create_pod("static", cpu="200m", nodeName="n1")
    create(api, ["small"], cpu="400m")
    wait_until(lambda: node_of(api, "small"), "it is bound")
    resize(api, "static", "600m")
    wait_until(lambda: requested(cluster, "n1")["cpu"] == 1000, "it is counted as it has grown")
    create(api, ["waits"], cpu="300m")
    wait_until(lambda: "Insufficient cpu" in run_hoss(cluster, "get", "pods"), "there is no room")
    resize(api, "small", "100m")
    wait_until(lambda: node_of(api, "waits"), "there is room")
    assert requested(cluster, "n1")["cpu"] == 1000
    await_agreement(api, cluster)
    assert "clean" in run_hoss(cluster, "audit")


def test_a_pod_that_is_resized_while_no_dispatcher_looks_is_counted_as_it_is_by_the_next(
    api: Api, cluster: Cluster
) -> None:
    api.create_node("n1", cpu="1")
    api.create_pod("static", cpu="200m", nodeName="n1")
    create(api, ["mine"], cpu="400m")
    wait_until(lambda: requested(cluster, "n1").get("cpu") == 600, "both are reserved")
    cluster.kill("dispatcher")
    resize(api, "static", "100m")
    resize(api, "mine", "800m")
    cluster.start_dispatcher()
    wait_until(lambda: requested(cluster, "n1")["cpu"] == 900, "they are counted as they are now")
    await_agreement(api, cluster)
    assert "clean" in run_hoss(cluster, "audit")


def test_a_pod_that_changes_while_it_waits_is_tried_again_as_it_is(api: Api, cluster: Cluster) -> None:
    """Long before the five minutes are over: nothing else happens in this cluster."""
    api.create_node("n1", cpu="1", taints=[{"key": "maintenance", "effect": "NoSchedule"}])
    create(api, ["shrinks"], cpu="2", tolerations=[{"operator": "Exists"}])
    create(api, ["tolerates"])
    for name in ("shrinks", "tolerates"):
        wait_until(lambda name=name: condition_of(api, name), "it is told why it waits")
    resize(api, "shrinks", "500m")
    assert wait_until(lambda: node_of(api, "shrinks"), "it fits now") == "n1"
    patch_pod(
        api,
        "tolerates",
        {"spec": {"tolerations": [{"operator": "Exists"}, *api.pod("tolerates")["spec"]["tolerations"]]}},
    )
    assert wait_until(lambda: node_of(api, "tolerates"), "it may go there now") == "n1"
    await_agreement(api, cluster)
    assert requested(cluster, "n1")["cpu"] == 600


def test_a_gated_pod_may_change_before_its_gate_goes(api: Api, cluster: Cluster) -> None:
    for name in ("n1", "n2"):
        api.create_node(name)
    api.create_pod("gated", scheduler="hoss", schedulingGates=[{"name": "example.com/wait"}])
    wait_until(lambda: "gated" in run_hoss(cluster, "get", "pods"), "HOSS has seen it")
    patch_pod(
        api, "gated", {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n2"}, "schedulingGates": None}}
    )
    assert wait_until(lambda: node_of(api, "gated"), "it is bound") == "n2"


def test_pods_that_a_taint_sends_away_are_left_to_the_clusters_own_controllers(
    api: Api, cluster: Cluster
) -> None:
    api.create_node("n1")
    create(api, ["stays"])
    wait_until(lambda: node_of(api, "stays"), "it is bound")
    merge = {"Content-Type": "application/merge-patch+json"}
    taint = {"key": "maintenance", "effect": "NoExecute"}
    api("PATCH", "/api/v1/nodes/n1", {"spec": {"taints": [taint]}}, **merge)
    wait_until(
        lambda: "maintenance" in run_hoss(cluster, "get", "nodes", "-o", "wide"),
        "the ledger knows of the taint",
    )
    assert "clean" in run_hoss(cluster, "audit")  # so the workers' views agree with it
    create(api, ["waits"])
    wait_until(lambda: "untolerated taint" in run_hoss(cluster, "get", "pods"), "it is turned away")
    assert "deletionTimestamp" not in api.pod("stays")["metadata"]
    await_agreement(api, cluster)


@pytest.mark.parametrize("part", ["dispatcher", "resolver", "w1", "redis"])
def test_whoever_is_killed_under_load_no_pod_is_lost_or_bound_twice(
    api: Api, cluster: Cluster, part: str
) -> None:
    for number in range(20):
        api.create_node(f"n{number}", cpu="4")
    names = [f"load-{number}" for number in range(700)]
    create(api, names[:300])
    starts = {
        "dispatcher": cluster.start_dispatcher,
        "resolver": cluster.start_resolver,
        "w1": lambda: cluster.start_worker("w1"),
        "redis": cluster.start_redis,
    }
    if part == "redis" and cluster.redis is not None:
        cluster.redis.kill()  # its file has all but the last second
    else:
        cluster.kill(part)
    create(api, names[300:])
    starts[part]()
    wait_until(lambda: len(assigned(api)) == len(names), "all are bound")
    await_agreement(api, cluster)
    assert overcommitted(api) == {}
    assert "clean" in run_hoss(cluster, "audit")


def test_an_api_server_that_is_away_for_a_while_loses_nothing(
    tmp_path: Path, own_control_plane: ControlPlane
) -> None:
    api = Api(own_control_plane)
    for number in range(10):
        api.create_node(f"n{number}", cpu="4")
    with Cluster(tmp_path, kubeconfig=own_control_plane.kubeconfig) as cluster:
        cluster.start_worker("w1")
        create(api, [f"early-{number}" for number in range(150)])
        own_control_plane.kill("kube-apiserver")
        wait_until(lambda: "do not come" in run_hoss(cluster, "status"), "HOSS says that news do not come")
        own_control_plane.start_apiserver()
        create(api, [f"late-{number}" for number in range(150)])
        wait_until(lambda: len(assigned(api)) == 300, "all are bound")
        await_agreement(api, cluster)
        assert overcommitted(api) == {}


def test_a_lost_ledger_is_rebuilt_once_the_api_server_says_which_pods_are_bound(
    tmp_path: Path, own_control_plane: ControlPlane
) -> None:
    api = Api(own_control_plane)
    for number in range(5):
        api.create_node(f"n{number}", cpu="4")
    with Cluster(tmp_path, kubeconfig=own_control_plane.kubeconfig) as cluster:
        cluster.start_worker("w1")
        create(api, [f"early-{number}" for number in range(50)])
        wait_until(lambda: len(assigned(api)) == 50, "all are bound")
        await_agreement(api, cluster)
        own_control_plane.kill("kube-apiserver")
        assert cluster.redis is not None
        with Redis(port=cluster.redis.port) as redis:
            redis.flushall()
        said = "the ledger is rebuilt once the API server has said which pods are bound"
        wait_until(lambda: said in run_hoss(cluster, "status"), "HOSS says what it waits for")
        own_control_plane.start_apiserver()
        wait_until(lambda: said not in run_hoss(cluster, "status"), "it waits no more")
        create(api, [f"late-{number}" for number in range(50)])
        wait_until(lambda: len(assigned(api)) == 100, "all are bound")
        await_agreement(api, cluster)
        assert overcommitted(api) == {}
        assert "clean" in run_hoss(cluster, "audit")


def test_pods_are_made_and_deleted_where_the_cluster_keeps_them(api: Api, cluster: Cluster) -> None:
    api.create_node("n1")
    create(api, ["mine"])
    wait_until(lambda: node_of(api, "mine"), "it is bound")
    assert "this platform schedules a Kubernetes cluster; delete pods with kubectl" in run_hoss(
        cluster, "delete", "pod", "mine"
    )


def condition_of(api: Api, name: str) -> dict[str, str]:
    conditions = api.pod(name)["status"].get("conditions", [])
    return next((c for c in conditions if c["type"] == "PodScheduled"), {})


def test_users_see_what_kube_scheduler_would_tell_them(api: Api, cluster: Cluster) -> None:
    api.create_node("n1", cpu="1")
    wait_until(lambda: "n1" in run_hoss(cluster, "get", "nodes"), "the node is known")
    create(api, ["told"], cpu="2")
    said = "0/1 nodes are available: 1 Insufficient cpu."
    wait_until(lambda: condition_of(api, "told").get("message") == said, "it is told why it waits")
    condition = condition_of(api, "told")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    wait_until(lambda: ("FailedScheduling", said) in events_of(api, "told"), "there is an event")
    annotations = [event["metadata"]["annotations"] for event in find_events(api, "told")]
    assert {"hoss.dev/refused-by": "NodeResourcesFit"} in annotations, "programs need not parse the message"
    api.create_node("n2", cpu="4")
    wait_until(
        lambda: condition_of(api, "told").get("status") == "True", "the API server says that it is scheduled"
    )
    wait_until(
        lambda: ("Scheduled", "Successfully assigned default/told to n2") in events_of(api, "told"),
        "so does an event",
    )


def test_a_pod_that_hoss_cannot_place_is_told_so(api: Api, cluster: Cluster) -> None:
    api.create_pod("gang", scheduler="hoss", metadata={"annotations": {"hoss.dev/min-available": "2"}})
    condition = wait_until(lambda: condition_of(api, "gang"), "it is told why it waits")
    assert "the pod has neither a controller nor a PodGroup" in condition["message"]


def test_pods_deleted_while_they_are_being_bound_leave_nothing_behind(api: Api, cluster: Cluster) -> None:
    for number in range(5):
        api.create_node(f"n{number}", cpu="4")
    names = [f"short-{number}" for number in range(200)]

    def create_and_delete(name: str) -> None:
        api.create_pod(name, scheduler="hoss")
        if not name.endswith("7"):
            api.delete_pod(name)

    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(create_and_delete, names))
    wait_until(lambda: len(assigned(api)) == 20, "the others are bound")
    await_agreement(api, cluster)


def test_a_binding_that_the_api_server_refuses_is_given_back_told_and_tried_again(
    api: Api, cluster: Cluster
) -> None:
    """Refused by a policy of somebody else's, until it is gone."""
    policy = {
        "metadata": {"name": "nobody"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods/binding"],
                    }
                ]
            },
            "validations": [{"expression": "false", "message": "nobody is bound today"}],
        },
    }
    kind = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    binding = {
        "metadata": {"name": "nobody"},
        "spec": {"policyName": "nobody", "validationActions": ["Deny"]},
    }
    api.create_node("n1", cpu="1")
    api("POST", kind, policy)
    api("POST", f"{kind[:-3]}ybindings", binding)
    try:
        refused = api.create_pod("probe")
        wait_until(lambda: api.bind(refused, "n1")[0] == 422, "the policy is in force")
        create(api, ["mine"], cpu="800m")
        condition = wait_until(lambda: condition_of(api, "mine"), "it is told")
        assert "nobody is bound today" in condition["message"]
    finally:
        api("DELETE", f"{kind[:-3]}ybindings/nobody")
        api("DELETE", f"{kind}/nobody")
    wait_until(lambda: node_of(api, "mine"), "it is bound in the end")
    await_agreement(api, cluster)
