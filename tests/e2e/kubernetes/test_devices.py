"""HOSS gives pods with resource claims their devices on a real API server. The test publishes devices as a
driver does, and frees them as the resourceclaim controller does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import FOR_DEAF, assigned, counted, reserved, run_hoss, start_deaf_worker
from e2e.kubernetes.api import Api, await_reason, events_of, node_of, placed
from e2e.kubernetes.devices import DRIVER, LEFT_OVER, RESOURCE, Devices, claiming, wanting
from e2e.kubernetes.storage import Storage, mounting
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane


@pytest.fixture
def devices(api: Api) -> Devices:
    made = Devices(api)
    made.clear()
    return made


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, devices: Devices) -> Iterator[Cluster]:
    """A platform with a worker that schedules the API server of the whole run."""
    made = Cluster(tmp_path, kubeconfig=control_plane.kubeconfig)
    made.start_worker("w1")
    yield made
    made.stop()
    devices.clear()


def test_a_pod_goes_where_its_device_is_and_the_claim_says_so_before_the_pod_is_bound(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    for name in ("n1", "n2", "n3"):
        api.create_node(name)
    parameters = {"driver": DRIVER, "parameters": {"mode": "fast"}}
    devices.create_class(config=[{"opaque": parameters}])
    devices.publish("n2", "gpu-0")
    devices.create_claim(
        "mine",
        config=[{"opaque": parameters, "requests": ["one"]}],
        marks={"finalizers": ["example.com/of-its-owner"]},
    )
    api.create_pod("p", scheduler="hoss", resourceClaims=claiming("mine"))
    assert placed(api, "p") == "n2"
    claim = devices.claim("mine")
    assert sorted(claim["metadata"]["finalizers"]) == [
        "example.com/of-its-owner",
        "resource.kubernetes.io/delete-protection",
    ]
    [user] = claim["status"]["reservedFor"]
    assert user == {"resource": "pods", "name": "p", "uid": api.pod("p")["metadata"]["uid"]}
    allocation = claim["status"]["allocation"]
    assert allocation["devices"]["results"] == [
        {"request": "one", "driver": DRIVER, "pool": "n2", "device": "gpu-0"}
    ]
    assert [config["source"] for config in allocation["devices"]["config"]] == ["FromClass", "FromClaim"]
    assert "n2" in str(allocation["nodeSelector"])


def test_a_claim_that_asks_for_nothing_keeps_no_pod_waiting(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    """The API server shows its requests as null."""
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    api("POST", path, {"metadata": {"name": "nothing"}, "spec": {}})
    api.create_node("n1")
    for pod in ("p", "q"):
        api.create_pod(pod, scheduler="hoss", resourceClaims=claiming("nothing"))
        assert placed(api, pod) == "n1"
    assert devices.users_of("nothing") == ["p", "q"]


def test_a_pod_waits_on_its_node_until_its_device_is_ready_and_gets_another_one_where_it_fails(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    conditions = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
    api.create_node("n1")
    devices.create_class()
    devices.publish("n1", *({"name": f"gpu-{i}", "bindsToNode": True, **conditions} for i in (0, 1)))
    devices.create_claim("mine")
    api.create_pod("p", scheduler="hoss", resourceClaims=claiming("mine"))
    await_reason(api, "p", "waiting for binding conditions for device on node n1")
    assert not node_of(api, "p")
    allocation = devices.claim("mine")["status"]["allocation"]
    [result] = allocation["devices"]["results"]
    assert {key: result[key] for key in conditions} == conditions
    assert result["device"] == "gpu-0"
    assert "n1" in str(allocation["nodeSelector"])
    assert allocation["allocationTimestamp"]
    devices.withdraw("n1-slice")
    devices.publish("n1", {"name": "gpu-1", **conditions})
    devices.tell("mine", "Broken")
    await_reason(api, "p", 'device binding failed: claim=mine, reason=Told, message="by the driver"')
    wait_until(lambda: devices.device_of("mine") == "n1/gpu-1", "the pod gets another device")
    devices.tell("mine", "Ready")
    assert placed(api, "p") == "n1"


def test_a_pod_whose_node_is_deleted_while_its_device_is_not_ready_gets_another_device_elsewhere(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    waited_for = {"name": "gpu-0", "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
    api.create_node("n1")
    devices.create_class(extendedResourceName=RESOURCE)
    devices.publish("n1", waited_for)
    api.create_pod("moved", scheduler="hoss", containers=wanting("1"))
    await_reason(api, "moved", "waiting for binding conditions for device on node n1")
    first = devices.extended_claim("moved")["metadata"]["uid"]
    api("DELETE", "/api/v1/nodes/n1")
    devices.withdraw("n1-slice")
    api.create_node("n2")
    devices.publish("n2", "gpu-0")
    assert placed(api, "moved") == "n2"
    assert devices.extended_claim("moved")["metadata"]["uid"] != first


def test_pods_share_a_claim_and_its_device_is_another_pods_once_the_claim_is_free(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    for name in ("n1", "n2"):
        api.create_node(name)
    devices.create_class()
    devices.publish("n1", "gpu-0")
    for name in ("shared", "other"):
        devices.create_claim(name)
    for name in ("a", "b"):
        api.create_pod(name, scheduler="hoss", resourceClaims=claiming("shared"))
    assert [placed(api, name) for name in ("a", "b")] == ["n1", "n1"]
    assert devices.users_of("shared") == ["a", "b"]
    api.create_pod("c", scheduler="hoss", resourceClaims=claiming("other"))
    await_reason(api, "c", "2 cannot allocate all claims")
    for name in ("a", "b"):
        api.delete_pod(name)
    devices.free("shared")
    assert placed(api, "c") == "n1"
    assert devices.device_of("other") == "n1/gpu-0"


def test_two_workers_never_give_one_device_to_two_claims(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    cluster.start_worker("w2")
    devices.create_class()
    for name in ("n1", "n2"):
        api.create_node(name)
        devices.publish(name, "gpu-0", "gpu-1")
    names = [f"p{i}" for i in range(8)]
    for name in names:
        devices.create_claim(name)
        api.create_pod(name, scheduler="hoss", resourceClaims=claiming(name))
    wait_until(lambda: sum(bool(node_of(api, name)) for name in names) == 4, "every device is in use")
    given = {name: devices.device_of(name) for name in names}
    assert sorted(filter(None, given.values())) == ["n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1"]
    for name in names:
        if given[name]:
            assert node_of(api, name) == given[name].partition("/")[0]
        else:
            await_reason(api, name, "2 cannot allocate all claims")


def test_of_two_workers_whose_pods_want_the_last_device_at_once_one_gets_it_and_the_other_is_told(
    api: Api, devices: Devices, storage: Storage, cluster: Cluster, tmp_path: Path
) -> None:
    """The first pod waits for a volume, so that the ledger alone knows of its device."""
    api.create_node("n1")
    wait_until(lambda: "n1" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    start_deaf_worker(cluster, tmp_path)
    devices.create_class()
    devices.publish("n1", "gpu-0", "gpu-1")
    for name in ("earlier", "first", "second"):
        devices.create_claim(name)
    api.create_pod("earlier", scheduler="hoss", resourceClaims=claiming("earlier"), metadata=FOR_DEAF)
    placed(api, "earlier")
    storage.create_class("slow")
    storage.create_claim("slow", storage_class="slow")
    api.create_pod("first", scheduler="hoss", resourceClaims=claiming("first"), volumes=mounting("slow"))
    wait_until(lambda: storage.selected_node("slow"), "the first waits for its volume")
    api.create_pod("second", scheduler="hoss", resourceClaims=claiming("second"), metadata=FOR_DEAF)
    await_reason(api, "second", "1 cannot allocate all claims")
    assert counted(cluster, "conflict_topology") >= 1  # its worker proposed: it could not know
    storage.provision("slow")
    placed(api, "first")
    assert {devices.device_of(name) for name in ("earlier", "first")} == {"n1/gpu-0", "n1/gpu-1"}
    assert devices.device_of("second") == ""


def test_a_pod_waits_in_kube_schedulers_words_and_goes_on_once_what_it_misses_is_there(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    api.create_node("n1")
    template = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    pod = api.create_pod("p", scheduler="hoss", resourceClaims=template)
    await_reason(api, "p", 'pod "default/p": ResourceClaim not created yet')
    devices.create_claim("own", owner=pod)
    devices.name_claim_of("p", "gpu", "own")
    await_reason(api, "p", "request one: device class gpu does not exist")
    devices.create_class()
    devices.publish("n1", "gpu-0")
    assert placed(api, "p") == "n1"


def test_what_cannot_be_used_is_named(api: Api, devices: Devices, cluster: Cluster) -> None:
    api.create_node("n1")
    devices.create_class()
    devices.create_class("broken", 'device.attributes["absent"].x == 1')
    devices.publish("n1", "gpu-0", slices=2)
    api.create_pod("missing", scheduler="hoss", resourceClaims=claiming("nowhere"))
    missing = 'could not find ResourceClaim "default/nowhere"'
    await_reason(api, "missing", missing)
    assert missing in run_hoss(cluster, "describe", "pod", "missing")
    template = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    api.create_pod("stranger", scheduler="hoss", resourceClaims=template)
    devices.create_claim("whole")
    devices.name_claim_of("stranger", "gpu", "whole")
    await_reason(api, "stranger", "ResourceClaim default/whole was not created for Pod default/stranger")
    api.create_pod("incomplete", scheduler="hoss", resourceClaims=claiming("whole"))
    await_reason(api, "incomplete", "1 cannot allocate all claims")
    devices.publish("n2", "gpu-0", "gpu-1")
    api.create_node("n2")
    assert placed(api, "incomplete") == "n2"
    devices.delete_claim("whole")  # its finalizer keeps it
    api.create_pod("late", scheduler="hoss", resourceClaims=claiming("whole"))
    await_reason(api, "late", 'resourceclaim "whole" is being deleted')
    devices.create_claim("twice")
    api.create_pod("doubled", scheduler="hoss", resourceClaims=claiming("twice", "twice"))
    await_reason(api, "doubled", "add reservation to claim default/twice: the pod names it twice")
    devices.create_claim("odd", device_class="broken")
    api.create_pod("failing", scheduler="hoss", resourceClaims=claiming("odd"))
    await_reason(api, "failing", "no such key: x")


def test_a_claim_that_lists_as_many_pods_as_it_may_keeps_others_waiting_in_kube_schedulers_words(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    api.create_node("n1")
    devices.create_class()
    devices.publish("n1", "gpu-0")
    devices.create_claim("full")
    devices.give("full", "n1", "gpu-0", on="n1")
    users = [{"resource": "pods", "name": f"p{number}", "uid": f"uid-{number}"} for number in range(256)]
    devices.list_users("full", users)
    api.create_pod("late", scheduler="hoss", resourceClaims=claiming("full"))
    refused = 'running PreBind plugin "DynamicResources": add reservation to claim default/full: '
    await_reason(api, "late", refused)
    await_reason(api, "late", "status.reservedFor: Too many: 257: must have at most 256 items")
    assert not node_of(api, "late")
    devices.list_users("full", users[1:])
    assert placed(api, "late") == "n1"


def test_slices_that_contradict_each_other_offer_nothing_until_they_agree(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    """Two slices of one pool have a device of the same name. The pod says why it is refused now, and not why
    it was when the second slice was not there."""
    api.create_node("n1")
    devices.create_class()
    devices.create_claim("mine")
    devices.publish("n1", "gpu-0", slices=2)
    api.create_pod("p", scheduler="hoss", resourceClaims=claiming("mine"))
    await_reason(api, "p", "0/1 nodes are available: 1 cannot allocate all claims.")
    devices.publish("n1", "gpu-0", slices=2, name="another")
    reason = "0/1 nodes are available: 1 invalid resource pools were encountered."
    await_reason(api, "p", reason)
    assert reason in run_hoss(cluster, "describe", "pod", "p")
    devices.withdraw("another")
    devices.withdraw("n1-slice")
    devices.publish("n1", "gpu-0")
    assert placed(api, "p") == "n1"


def test_the_next_dispatcher_goes_on_where_the_last_one_was_killed(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    api.create_node("n1")
    devices.create_class()
    devices.publish("n1", *(f"gpu-{i}" for i in range(8)))
    names = [f"p{i}" for i in range(12)]
    for name in names[:8]:
        devices.create_claim(name)
        api.create_pod(name, scheduler="hoss", resourceClaims=claiming(name))
    wait_until(lambda: any(map(devices.users_of, names[:8])), "the first claim has its device")
    cluster.kill("dispatcher")
    for name in names[8:]:
        devices.create_claim(name)
        api.create_pod(name, scheduler="hoss", resourceClaims=claiming(name))
    cluster.start_dispatcher()
    wait_until(lambda: sum(bool(node_of(api, name)) for name in names) == 8, "every device is in use")
    given = [device for name in names if (device := devices.device_of(name))]
    assert sorted(given) == sorted(f"n1/gpu-{i}" for i in range(8))
    assert [name for name in names if node_of(api, name)] == [
        name for name in names if devices.users_of(name)
    ]


def test_an_extended_resource_of_a_class_becomes_devices_of_a_claim_that_goes_with_the_pod(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    for name in ("n1", "n2"):
        api.create_node(name)
    devices.create_class(extendedResourceName=RESOURCE)
    devices.publish("n2", "gpu-0", "gpu-1")
    pod = api.create_pod("p", scheduler="hoss", containers=wanting("2"))
    assert placed(api, "p") == "n2"
    claim = devices.extended_claim("p")
    assert claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
    assert claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [(r["request"], r["device"]) for r in results] == [
        ("container-0-request-1", "gpu-0"),
        ("container-0-request-1", "gpu-1"),
    ]
    assert [user["name"] for user in claim["status"]["reservedFor"]] == ["p"]
    assert api.pod("p")["status"]["extendedResourceClaimStatus"] == {
        "resourceClaimName": claim["metadata"]["name"],
        "requestMappings": [
            {"containerName": "c", "resourceName": RESOURCE, "requestName": "container-0-request-1"}
        ],
    }
    api.create_pod("q", scheduler="hoss", containers=wanting("1"))
    await_reason(api, "q", "2 cannot allocate all claims")
    api.delete_pod("p")
    devices.collect(claim["metadata"]["name"])
    assert placed(api, "q") == "n2"


def test_a_node_that_offers_the_resource_itself_is_used_as_before(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    api.create_node("n1", extended={RESOURCE: "1"})
    api.create_node("n2")
    devices.create_class(extendedResourceName=RESOURCE)
    devices.publish("n2", "gpu-0")
    for name in ("a", "b"):
        api.create_pod(name, scheduler="hoss", containers=wanting("1"))
    nodes = {placed(api, name): name for name in ("a", "b")}
    assert sorted(nodes) == ["n1", "n2"], "one by the node's own amount, one by a device"
    assert devices.extended_claim(nodes["n1"]) is None
    assert devices.extended_claim(nodes["n2"]) is not None
    api.create_pod("c", scheduler="hoss", containers=wanting("1"))
    await_reason(api, "c", "cannot allocate all claims")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert "clean" in run_hoss(cluster, "audit")


def test_a_class_that_comes_after_the_pod_is_taken_into_account(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    api.create_node("n1")
    devices.publish("n1", "gpu-0", "gpu-1")
    api.create_pod("p", scheduler="hoss", containers=wanting("1"))
    await_reason(api, "p", f"1 Insufficient {RESOURCE}")
    devices.create_class(extendedResourceName=RESOURCE)
    assert placed(api, "p") == "n1"
    implicit = "deviceclass.resource.kubernetes.io/gpu"
    api.create_pod("q", scheduler="hoss", containers=wanting("1", implicit))
    assert placed(api, "q") == "n1"
    used = [devices.extended_claim(name)["status"]["allocation"]["devices"]["results"] for name in "pq"]
    assert sorted(result["device"] for results in used for result in results) == ["gpu-0", "gpu-1"]


def test_a_claim_that_a_scheduler_left_for_extended_resources_is_deleted_and_another_one_made(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    """It died between making the claim and binding the pod, and generated a name that is cut."""
    api.create_node("n1")
    devices.publish("n1", "gpu-0")
    pod = api.create_pod("p", scheduler="hoss", containers=wanting("1"))
    await_reason(api, "p", f"1 Insufficient {RESOURCE}")
    devices.create_claim(
        "p-extended-resouabcde",
        owner=pod,
        marks=LEFT_OVER,
    )
    devices.create_class(extendedResourceName=RESOURCE)
    assert placed(api, "p") == "n1"
    claim = devices.extended_claim("p")
    assert (
        claim["metadata"]["name"]
        == api.pod("p")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    )
    events = [text for _, text in events_of(api, "p")]
    assert "deletion of ResourceClaim completed: default/p-extended-resouabcde" in events


def test_a_claim_whose_devices_no_node_has_room_for_gives_them_back_and_gets_others(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    """A scheduler allocated it and died before the pod was bound; the node has filled up since."""
    for name in ("n1", "n2"):
        api.create_node(name)
        devices.publish(name, "gpu-0")
    devices.create_class()
    devices.create_claim("idle")
    devices.give("idle", "n1", "gpu-0", on="n1")
    api.create_pod("full", scheduler="hoss", cpu="4", nodeName="n1")
    wait_until(lambda: reserved(cluster), "the pod that fills n1 is counted")
    api.create_pod("p", scheduler="hoss", resourceClaims=claiming("idle"))
    assert placed(api, "p") == "n2"
    assert devices.device_of("idle") == "n2/gpu-0"
    events = [text for _, text in events_of(api, "p")]
    assert "deallocation of ResourceClaim completed: default/idle" in events


def test_a_claim_that_another_pod_uses_keeps_its_devices(
    api: Api, devices: Devices, cluster: Cluster
) -> None:
    for name in ("n1", "n2"):
        api.create_node(name)
        devices.publish(name, "gpu-0")
    devices.create_class()
    devices.create_claim("shared")
    api.create_pod("first", scheduler="hoss", resourceClaims=claiming("shared"), cpu="3")
    node = placed(api, "first")
    api.create_pod("second", scheduler="hoss", resourceClaims=claiming("shared"), cpu="3")
    await_reason(api, "second", "1 resourceclaim not available on the node")
    assert devices.device_of("shared") == f"{node}/gpu-0"
    assert devices.users_of("shared") == ["first"]
