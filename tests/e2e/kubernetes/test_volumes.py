"""HOSS schedules pods with claims on a real API server. The test binds and provisions volumes, as a
controller manager and a driver do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import FOR_DEAF, assigned, counted, reserved, run_hoss, start_deaf_worker
from e2e.kubernetes.api import Api, await_reason, node_of, placed
from e2e.kubernetes.storage import Storage, mounting
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane


@pytest.fixture
def storage(api: Api) -> Storage:
    made = Storage(api)
    made.clear()
    return made


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, storage: Storage) -> Iterator[Cluster]:
    """A platform with a worker that schedules the API server of the whole run."""
    made = Cluster(tmp_path, kubeconfig=control_plane.kubeconfig)
    made.start_worker("w1")
    yield made
    made.stop()
    storage.clear()


def test_a_pod_goes_where_its_bound_volume_can_be_mounted(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    for name in ("n1", "n2", "n3"):
        api.create_node(name)
    storage.create_volume("pv", node="n2")
    storage.create_claim("data")
    storage.bind("data", "pv")
    api.create_pod("db", scheduler="hoss", volumes=mounting("data"))
    assert placed(api, "db") == "n2"


def test_a_pod_waits_for_its_claim_in_kube_schedulers_words_and_goes_on_once_it_is_bound(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    api.create_node("n1")
    api.create_pod("db", scheduler="hoss", volumes=mounting("data"))
    await_reason(api, "db", 'persistentvolumeclaim "data" not found')
    storage.create_class("now", waits=False)
    storage.create_volume("pv", storage_class="now")
    storage.create_claim("data", storage_class="now")
    await_reason(api, "db", "pod has unbound immediate PersistentVolumeClaims")
    storage.bind("data", "pv")
    assert placed(api, "db") == "n1"


def test_a_node_gets_no_more_volumes_than_its_driver_attaches(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    api.create_node("n1")
    storage.limit("n1", 1)
    for name in ("a", "b"):
        storage.create_volume(f"pv-{name}")
        storage.create_claim(name)
        storage.bind(name, f"pv-{name}")
    api.create_pod("first", volumes=mounting("a"), nodeName="n1")
    wait_until(lambda: reserved(cluster) == assigned(api), "the first is in the ledger")
    api.create_pod("second", scheduler="hoss", volumes=mounting("b"))
    await_reason(api, "second", "1 node(s) exceed max volume count")
    api.delete_pod("first")
    assert placed(api, "second") == "n1"


def test_a_claim_for_one_pod_is_given_to_the_next_once_the_first_is_gone(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    api.create_node("n1")
    storage.create_volume("pv")
    storage.create_claim("mine", modes=("ReadWriteOncePod",))
    storage.bind("mine", "pv")
    api.create_pod("first", scheduler="hoss", volumes=mounting("mine"))
    placed(api, "first")
    api.create_pod("second", scheduler="hoss", volumes=mounting("mine"))
    await_reason(api, "second", "ReadWriteOncePod access mode already in-use by another pod")
    api.delete_pod("first")
    placed(api, "second")


def test_the_pod_that_uses_a_claim_for_one_pod_goes_for_a_more_urgent_one(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    for name in ("n1", "n2"):
        api.create_node(name)
    for name, value in (("low", 1), ("high", 1000)):
        body = {"metadata": {"name": name}, "value": value}
        api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)  # it may be there already
    storage.create_volume("pv")
    storage.create_claim("mine", modes=("ReadWriteOncePod",))
    storage.bind("mine", "pv")
    leaving = {"priorityClassName": "low", "terminationGracePeriodSeconds": 0}
    api.create_pod("user", scheduler="hoss", volumes=mounting("mine"), **leaving)
    api.create_pod("other", scheduler="hoss", **leaving)
    placed(api, "user")
    placed(api, "other")
    api.create_pod("urgent", scheduler="hoss", volumes=mounting("mine"), priorityClassName="high")
    placed(api, "urgent")
    assert api.request("GET", "/api/v1/namespaces/default/pods/user")[0] == 404
    assert node_of(api, "other")


def test_claims_that_cannot_be_used_are_named_in_kube_schedulers_words(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    api.create_node("n1")
    storage.create_class("by-hand", provisioner="kubernetes.io/no-provisioner")
    storage.create_claim("no-volume", storage_class="by-hand")
    storage.create_claim("no-class", storage_class="nowhere")
    storage.create_claim("going", storage_class="by-hand")
    storage.delete_claim("going")  # its finalizer keeps it
    expected = {
        "no-volume": "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
        "no-class": "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "going": '0/1 nodes are available: persistentvolumeclaim "going" is being deleted.',
        "nowhere": '0/1 nodes are available: persistentvolumeclaim "nowhere" not found.',
    }
    for claim, reason in expected.items():
        api.create_pod(claim, scheduler="hoss", volumes=mounting(claim))
        await_reason(api, claim, reason)
        assert reason in run_hoss(cluster, "describe", "pod", claim)


def test_the_claim_of_an_ephemeral_volume_must_have_been_made_for_the_pod(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    api.create_node("n1")
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    pod = api.create_pod("job", scheduler="hoss", volumes=volumes)
    await_reason(
        api,
        "job",
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "job-scratch"',
    )
    storage.create_volume("pv")
    storage.create_claim("job-scratch", owner=pod)
    storage.bind("job-scratch", "pv")
    assert placed(api, "job") == "n1"


def test_a_claim_that_waits_for_its_consumer_gets_the_smallest_volume_on_the_pods_node(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    api.create_node("n1", unschedulable=True)
    api.create_node("n2")
    storage.create_class("disks", provisioner="kubernetes.io/no-provisioner")
    for name, node, gib in (("small", "n1", 1), ("large", "n2", 9), ("fitting", "n2", 3)):
        storage.create_volume(name, node=node, gib=gib)
    storage.create_claim("data", gib=2)
    api.create_pod("db", scheduler="hoss", volumes=mounting("data"))
    wait_until(lambda: storage.claim_of("fitting") == "data", "the volume is reserved for the claim")
    assert not node_of(api, "db")
    storage.bind("data", "fitting")
    assert placed(api, "db") == "n2"
    assert not storage.claim_of("large")


def test_the_pods_of_a_stateful_set_get_provisioned_volumes_on_their_nodes(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    for name in ("n1", "n2", "n3"):
        api.create_node(name, pods=1)
    storage.create_class("disks")
    for name in ("db-0", "db-1", "db-2"):
        storage.create_claim(f"data-{name}")
        api.create_pod(name, scheduler="hoss", volumes=mounting(f"data-{name}"))
        node = wait_until(lambda claim=f"data-{name}": storage.selected_node(claim), "a node is selected")
        assert not node_of(api, name)
        storage.provision(f"data-{name}")
        assert placed(api, name) == node
    assert {node_of(api, f"db-{i}") for i in range(3)} == {"n1", "n2", "n3"}


def test_a_pod_whose_volume_cannot_be_provisioned_is_placed_anew(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    api.create_node("n1")
    storage.create_class("disks")
    storage.create_claim("data")
    api.create_pod("db", scheduler="hoss", volumes=mounting("data"))
    assert wait_until(lambda: storage.selected_node("data"), "a node is selected") == "n1"
    storage.unselect("data")
    await_reason(
        api,
        "db",
        'running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "data"',
    )
    assert wait_until(lambda: storage.selected_node("data"), "a node is selected again") == "n1"
    storage.provision("data")
    assert placed(api, "db") == "n1"


def test_what_takes_too_long_to_provision_is_taken_back(
    tmp_path: Path, control_plane: ControlPlane, api: Api, storage: Storage
) -> None:
    document = tmp_path / "dispatcher.yaml"
    document.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\n"
        f"kubernetes: {{kubeconfig: {control_plane.kubeconfig}, volume_bind_timeout_seconds: 1}}\n"
    )
    cluster = Cluster(
        tmp_path, kubeconfig=control_plane.kubeconfig, dispatcher_flags=("--config", str(document))
    )
    try:
        cluster.start_worker("w1")
        api.create_node("n1")
        storage.create_class("disks")
        storage.create_claim("data")
        api.create_pod("db", scheduler="hoss", volumes=mounting("data"))
        wait_until(lambda: storage.selected_node("data"), "a node is selected")
        timed_out = 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'
        await_reason(api, "db", timed_out)
        wait_until(lambda: not storage.selected_node("data"), "the node is no longer selected")
        wait_until(lambda: storage.selected_node("data"), "the pod is placed anew")
    finally:
        cluster.stop()
        storage.clear()


def test_two_workers_never_give_one_volume_to_two_claims(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    cluster.start_worker("w2")
    for name in ("n1", "n2"):
        api.create_node(name)
    storage.create_class("disks", provisioner="kubernetes.io/no-provisioner")
    names = [f"p{i}" for i in range(8)]
    for name in names[:4]:
        storage.create_volume(f"pv-{name}")
    for name in names:
        storage.create_claim(name)
        api.create_pod(name, scheduler="hoss", volumes=mounting(name))

    def reserved() -> dict[str, str]:
        return {claim: f"pv-{name}" for name in names[:4] if (claim := storage.claim_of(f"pv-{name}"))}

    wait_until(lambda: len(reserved()) == 4, "all volumes are taken, each for another claim")
    chosen = reserved()
    for claim, volume in chosen.items():
        storage.bind(claim, volume)
    for claim in chosen:
        placed(api, claim)
    for name in set(names) - set(chosen):
        await_reason(api, name, "2 node(s) didn't find available persistent volumes to bind")


def test_of_two_workers_whose_pods_want_one_claim_for_one_pod_at_once_one_gets_it_and_the_other_is_told(
    api: Api, storage: Storage, cluster: Cluster, tmp_path: Path
) -> None:
    api.create_node("n1")
    wait_until(lambda: "n1" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    start_deaf_worker(cluster, tmp_path)
    for name in ("earlier", "mine"):
        storage.create_volume(f"pv-{name}")
        storage.create_claim(name, modes=("ReadWriteOncePod",))
        storage.bind(name, f"pv-{name}")
    api.create_pod("earlier", scheduler="hoss", volumes=mounting("earlier"), metadata=FOR_DEAF)
    placed(api, "earlier")
    api.create_pod("first", scheduler="hoss", volumes=mounting("mine"))
    placed(api, "first")
    api.create_pod("second", scheduler="hoss", volumes=mounting("mine"), metadata=FOR_DEAF)
    await_reason(api, "second", "ReadWriteOncePod access mode already in-use by another pod")
    assert counted(cluster, "conflict_topology") >= 1  # its worker proposed: it could not know
    assert reserved(cluster) == assigned(api)
    api.delete_pod("first")
    placed(api, "second")


def test_the_next_dispatcher_binds_a_pod_whose_volume_was_still_being_provisioned(
    api: Api, storage: Storage, cluster: Cluster
) -> None:
    for name in ("n1", "n2"):
        api.create_node(name)
    storage.create_class("disks")
    storage.create_claim("data")
    api.create_pod("db", scheduler="hoss", volumes=mounting("data"))
    node = wait_until(lambda: storage.selected_node("data"), "a node is selected")
    cluster.kill("dispatcher")
    storage.provision("data")
    cluster.start_dispatcher()
    assert placed(api, "db") == node
