"""The guard judges volumes and devices: of any scheduler on a real API server, and of kube-scheduler beside
HOSS.

A pod of HOSS that waits for a volume holds everything else in the ledger alone, and kube-scheduler cannot
know it. So it tries, and the guard has to say no."""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, counted, reserved
from e2e.kubernetes.api import Api, await_reason, node_of, placed
from e2e.kubernetes.devices import SHAREABLE, Devices, claiming
from e2e.kubernetes.guarded import Guarded, await_guard, install
from e2e.kubernetes.storage import Storage, mounting
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane
from hossctl.local.ports import free_ports

CLAIM_IN_USE = "ReadWriteOncePod access mode already in-use by another pod"


@pytest.fixture
def devices(api: Api) -> Iterator[Devices]:
    made = Devices(api)
    made.clear()
    yield made
    made.clear()


def test_a_claim_for_one_pod_is_denied_to_another_in_kube_schedulers_words(
    guarded: Guarded, api: Api, storage: Storage
) -> None:
    guarded.add_node("n2")
    storage.create_bound_claim("data", modes=("ReadWriteOncePod",))
    first, second = (api.create_pod(name, volumes=mounting("data")) for name in ("first", "second"))
    assert api.bind(first, "n1")[0] == 201
    status, answer = api.bind(second, "n2")
    assert status == 403
    assert answer["message"] == (
        'admission webhook "bindings.hoss.dev" denied the request: node n2 cannot take pod default/second: '
        f"node(s) unavailable due to PersistentVolumeClaim with {CLAIM_IN_USE}"
    )
    assert guarded.holds(first, second) == [True, False]


def test_a_volume_that_was_bound_a_moment_ago_is_judged_by_its_node(
    guarded: Guarded, api: Api, storage: Storage
) -> None:
    guarded.add_node("n2")
    for number in range(5):
        storage.create_bound_claim(f"data-{number}", node="n2")
        pod = api.create_pod(f"p{number}", cpu="10m", volumes=mounting(f"data-{number}"))
        status, answer = api.bind(pod, "n1")
        assert status == 403
        assert "node(s) didn't match PersistentVolume's node affinity" in answer["message"]
        assert api.bind(pod, "n2")[0] == 201


def test_no_scheduler_attaches_more_volumes_than_the_driver_of_a_node_does(
    guarded: Guarded, api: Api, storage: Storage
) -> None:
    storage.limit("n1", 2)
    pods = []
    for name in ("a", "b", "c"):
        storage.create_bound_claim(name)
        pods.append(api.create_pod(name, volumes=mounting(name)))
    answers = [api.bind(pod, "n1") for pod in pods]
    assert [status for status, _ in answers] == [201, 201, 403]
    assert "node(s) exceed max volume count" in answers[2][1]["message"]


def test_a_device_is_denied_to_the_second_claim_that_some_scheduler_gave_it_to(
    guarded: Guarded, api: Api, devices: Devices
) -> None:
    devices.create_class()
    pods = []
    for name in ("a", "b"):
        devices.create_claim(name)
        devices.give(name, "n1", "gpu-0")
        pods.append(api.create_pod(name, resourceClaims=claiming(name)))
    assert api.bind(pods[0], "n1")[0] == 201
    status, answer = api.bind(pods[1], "n1")
    assert status == 403
    expected = "cannot allocate all claims: device gpu.example.com/n1/gpu-0 is given to claim default/a"
    assert expected in answer["message"]


class Beside:
    """HOSS, kube-scheduler, and the guard between them, on two nodes of which `n1` has one device."""

    def __init__(self, api: Api, cluster: Cluster) -> None:
        self.api, self.cluster = api, cluster
        self.storage, self.devices = Storage(api), Devices(api)
        self.storage.create_class("slow", provisioner="slow.example.com")

    def hold_up(self, pod: str, *claims: str, **spec: Any) -> None:
        """A pod of HOSS that has its place in the ledger, and waits for one more volume before it is
        bound."""
        self.storage.create_claim(f"{pod}-slow", storage_class="slow")
        volumes = mounting(*claims, f"{pod}-slow")
        self.api.create_pod(pod, scheduler="hoss", volumes=volumes, **spec)
        wait_until(lambda: self.storage.selected_node(f"{pod}-slow"), f"{pod} waits for its volume")

    def release(self, pod: str) -> None:
        self.storage.provision(f"{pod}-slow")

    def refused(self, verdict: str) -> int:
        """How many bindings the guard has refused for that."""
        return counted(self.cluster, f"guard_{verdict}")


@pytest.fixture
def beside(tmp_path: Path, own_control_plane: ControlPlane) -> Iterator[Beside]:
    api, (port,) = Api(own_control_plane), free_ports(1)
    install(api, f"https://127.0.0.1:{port}/bindings", failure_policy="Fail")
    cluster = Cluster(tmp_path, kubeconfig=own_control_plane.kubeconfig, webhook_ports=(port,))
    await_guard(api)
    for name in ("n1", "n2"):
        api.create_node(name)
    cluster.start_worker("w1")
    own_control_plane.start_scheduler()
    yield Beside(api, cluster)
    cluster.stop()


def test_kube_scheduler_does_not_get_a_claim_for_one_pod_that_a_pod_of_hoss_has_in_the_ledger(
    beside: Beside,
) -> None:
    api = beside.api
    beside.storage.create_bound_claim("data", modes=("ReadWriteOncePod",))
    beside.hold_up("ours", "data")
    api.create_pod("theirs", scheduler="default-scheduler", volumes=mounting("data"))
    await_reason(api, "theirs", CLAIM_IN_USE)
    assert beside.refused("conflict_volume") >= 1  # kube-scheduler tried: it could not know
    beside.release("ours")
    placed(api, "ours")
    assert node_of(api, "theirs") == ""
    api.delete_pod("ours")
    placed(api, "theirs")
    api.create_pod("ours-again", scheduler="hoss", volumes=mounting("data"))
    await_reason(api, "ours-again", CLAIM_IN_USE)


def test_kube_scheduler_does_not_get_a_device_that_a_pod_of_hoss_has_in_the_ledger(beside: Beside) -> None:
    api, devices = beside.api, beside.devices
    devices.create_class()
    devices.publish("n1", "gpu-0")
    for name in ("ours", "theirs"):
        devices.create_claim(name)
    beside.hold_up("ours", resourceClaims=claiming("ours"))
    assert devices.device_of("ours") == ""
    api.create_pod("theirs", scheduler="default-scheduler", resourceClaims=claiming("theirs"))
    await_reason(api, "theirs", "device gpu.example.com/n1/gpu-0 is given to claim default/ours")
    assert devices.device_of("theirs") == "n1/gpu-0"  # kube-scheduler tried, and its claim says so
    beside.release("ours")
    assert placed(api, "ours") == "n1"
    assert node_of(api, "theirs") == ""
    api.delete_pod("ours")
    devices.free("ours")
    assert placed(api, "theirs") == "n1"
    devices.create_claim("ours-again")
    api.create_pod("ours-again", scheduler="hoss", resourceClaims=claiming("ours-again"))
    await_reason(api, "ours-again", "2 cannot allocate all claims")


MOST_OF_IT = {"capacity": {"requests": {"memory": "50Gi"}}}


def test_kube_scheduler_does_not_get_more_of_a_shared_device_than_a_pod_of_hoss_leaves(
    beside: Beside,
) -> None:
    api, devices = beside.api, beside.devices
    devices.create_class()
    devices.publish("n1", SHAREABLE)
    for name in ("ours", "theirs"):
        devices.create_claim(name, **MOST_OF_IT)
    beside.hold_up("ours", resourceClaims=claiming("ours"))
    api.create_pod("theirs", scheduler="default-scheduler", resourceClaims=claiming("theirs"))
    lack = "device gpu.example.com/n1/gpu-0 has 30Gi and not 50Gi left of capacity memory"
    await_reason(api, "theirs", lack)
    assert devices.device_of("theirs") == "n1/gpu-0"  # kube-scheduler tried
    beside.release("ours")
    assert placed(api, "ours") == "n1"
    assert node_of(api, "theirs") == ""
    api.delete_pod("ours")
    devices.free("ours")
    assert placed(api, "theirs") == "n1"


def test_kube_scheduler_does_not_get_a_partition_whose_counters_a_pod_of_hoss_has(beside: Beside) -> None:
    api, devices = beside.api, beside.devices
    devices.create_class("whole", 'device.attributes["gpu.example.com"].whole')
    devices.create_class("part", '!device.attributes["gpu.example.com"].whole')

    def device(name: str, memory: str, *, whole: bool) -> Any:
        used = {"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}
        return {"name": name, "attributes": {"whole": {"bool": whole}}, "consumesCounters": [used]}

    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    offered = device("all", "80Gi", whole=True), device("half", "40Gi", whole=False)
    devices.publish("n1", *offered, counters=counters)
    devices.create_claim("ours", device_class="part")
    devices.create_claim("theirs", device_class="whole")
    beside.hold_up("ours", resourceClaims=claiming("ours"))
    api.create_pod("theirs", scheduler="default-scheduler", resourceClaims=claiming("theirs"))
    await_reason(api, "theirs", "40Gi and not 80Gi of counter gpu-0/memory is left for device")
    beside.release("ours")
    assert placed(api, "ours") == "n1"
    assert node_of(api, "theirs") == ""


def test_of_pods_of_both_schedulers_that_want_one_volume_and_one_device_one_of_each_gets_it(
    beside: Beside,
) -> None:
    """Created side by side, with nothing that holds anybody up."""
    api, devices = beside.api, beside.devices
    devices.create_class()
    pairs = 6
    devices.publish("n1", *(f"gpu-{number}" for number in range(pairs)))
    wanted: list[tuple[str, str, dict[str, Any]]] = []
    for number in range(pairs):
        beside.storage.create_bound_claim(f"data-{number}", modes=("ReadWriteOncePod",))
        for scheduler in ("hoss", "default-scheduler"):
            name = f"{scheduler}-{number}"
            devices.create_claim(name)
            wanted.append((f"m-{name}", scheduler, {"volumes": mounting(f"data-{number}")}))
            wanted.append((f"c-{name}", scheduler, {"resourceClaims": claiming(name)}))
    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(lambda pod: api.create_pod(pod[0], scheduler=pod[1], cpu="10m", **pod[2]), wanted))

    def given() -> dict[str, list[str]]:
        """By volume or device, the bound pods that have it."""
        found: dict[str, list[str]] = {}
        for name, _, spec in wanted:
            if node_of(api, name):
                thing = name.rpartition("-")[2] if "volumes" in spec else devices.device_of(name[2:])
                found.setdefault(thing, []).append(name)
        return found

    wait_until(lambda: len(given()) == 2 * pairs, lambda: f"every volume and device is in use: {given()}")
    assert all(len(pods) == 1 for pods in given().values()), given()
    wait_until(lambda: reserved(beside.cluster) == assigned(api), "the ledger says what the API server says")
