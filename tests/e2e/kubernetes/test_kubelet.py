"""Nodes with real kubelets: pods that HOSS has bound run there, and what two schedulers sell twice is refused
by the kubelet, unless the guard has refused it before."""

import concurrent.futures
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, reserved, run_hoss
from e2e.kubernetes.api import Api, await_reason, node_of, told
from e2e.kubernetes.faulty_api import Fault, FaultyApi
from e2e.kubernetes.guarded import await_guard, install
from e2e.kubernetes.kubelet import IMAGE, KubeletNode, no_kubelet
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane
from hossctl.local.ports import free_ports

pytestmark = pytest.mark.skipif(bool(no_kubelet()), reason=no_kubelet())

KUBE_SCHEDULER = "default-scheduler"
LEAVES_SLOWLY = {"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}


@pytest.fixture
def api(own_control_plane: ControlPlane) -> Api:
    return Api(own_control_plane)


@pytest.fixture
def node(tmp_path: Path, own_control_plane: ControlPlane, api: Api) -> Iterator[KubeletNode]:
    """`n1`, with 1,000 milli of cpu."""
    made = KubeletNode(tmp_path, own_control_plane, "n1")
    try:
        made.await_ready(api)
        yield made
    finally:
        made.stop()


@pytest.fixture
def network(tmp_path: Path, own_control_plane: ControlPlane) -> Iterator[FaultyApi]:
    """Between HOSS and the API server."""
    proxy = FaultyApi(own_control_plane, tmp_path)
    yield proxy
    proxy.stop()


@pytest.fixture
def start(
    tmp_path: Path, api: Api, network: FaultyApi, node: KubeletNode
) -> Iterator[Callable[..., Cluster]]:
    """Starts a platform with a worker that knows the node; with `guard=True` one that guards bindings."""
    made: list[Cluster] = []

    def make(*, guard: bool = False) -> Cluster:
        (port,) = free_ports(1)
        ports = (port,) if guard else ()
        if guard:
            install(api, f"https://127.0.0.1:{port}/bindings", failure_policy="Fail")
        made.append(Cluster(tmp_path, kubeconfig=network.kubeconfig, webhook_ports=ports, workers=["w1"]))
        if guard:
            await_guard(api)
        wait_until(lambda: node.name in run_hoss(made[0], "get", "nodes"), "HOSS knows the node")
        return made[0]

    yield make
    for cluster in made:
        cluster.stop()


def create(api: Api, name: str, *, scheduler: str = "hoss", cpu: str = "600m", **spec: Any) -> None:
    api.create_pod(name, scheduler=scheduler, cpu=cpu, image=IMAGE, **spec)


def status(api: Api, name: str) -> Any:
    return api.pod(name)["status"]


def runs(api: Api, *names: str) -> bool:
    """Whether the kubelet says so."""
    return all(status(api, name).get("phase") == "Running" for name in names)


def rejected(api: Api) -> list[str]:
    """Names of the pods that the kubelet has refused."""
    pods = api("GET", "/api/v1/namespaces/default/pods")["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["status"].get("reason", "").startswith("OutOf")]


def test_pods_run_and_their_room_is_free_when_the_kubelet_has_ended_them(
    api: Api, start: Callable[..., Cluster]
) -> None:
    """Those that end by themselves, those that are deleted, and those that a more urgent one displaces."""
    cluster = start()
    api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 1000})
    create(api, "first", container=LEAVES_SLOWLY)
    wait_until(lambda: runs(api, "first"), "it runs")
    create(api, "second", container={"args": ["1s"]}, restartPolicy="Never")
    wait_until(lambda: "Insufficient cpu" in told(api, "second"), "there is no room for another")
    api("DELETE", "/api/v1/namespaces/default/pods/first")
    wait_until(lambda: status(api, "second").get("phase") == "Succeeded", "another has run, and ended")
    create(api, "third", container=LEAVES_SLOWLY)
    wait_until(lambda: runs(api, "third"), "the room of one that has ended is free")
    create(api, "urgent", priorityClassName="urgent")
    wait_until(lambda: runs(api, "urgent"), "a more urgent one has taken the place of another")
    assert rejected(api) == []
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert "clean" in run_hoss(cluster, "audit")


def bind_late(
    api: Api,
    own_control_plane: ControlPlane,
    network: FaultyApi,
    cluster: Cluster,
    meanwhile: Callable[[], Any],
) -> None:
    """HOSS gives `mine` the only room, and its binding is on its way while kube-scheduler, which does not
    know of it, gets `theirs`; it arrives after `meanwhile`."""
    network.faults = (Fault("/binding", methods=("POST",), hangs=True),)
    create(api, "mine")
    wait_until(lambda: reserved(cluster) and network.struck, "HOSS has placed its pod")
    own_control_plane.start_scheduler()
    create(api, "theirs", scheduler=KUBE_SCHEDULER)
    meanwhile()
    network.faults = ()
    wait_until(lambda: node_of(api, "mine"), "HOSS's binding has arrived")


def test_two_schedulers_sell_the_same_room_and_the_kubelet_rejects_the_second_pod(
    own_control_plane: ControlPlane, api: Api, network: FaultyApi, start: Callable[..., Cluster]
) -> None:
    """Without the guard. HOSS sees it afterwards, and says whose pod took the room."""
    cluster = start()
    bind_late(api, own_control_plane, network, cluster, lambda: wait_until(lambda: runs(api, "theirs")))
    wait_until(lambda: rejected(api) == ["mine"], "the kubelet rejects it")
    assert status(api, "mine")["reason"] == "OutOfcpu"
    reported = wait_until(
        lambda: next((line for line in run_hoss(cluster, "status").splitlines() if "rejected" in line), "")
    )
    assert "default/mine on node n1 (OutOfcpu, overcommitted)" in reported
    wait_until(lambda: reserved(cluster) == assigned(api), "its room is free")
    assert runs(api, "theirs")


def test_with_the_guard_the_second_binding_is_refused_and_the_kubelet_never_sees_the_pod(
    own_control_plane: ControlPlane, api: Api, network: FaultyApi, start: Callable[..., Cluster]
) -> None:
    cluster = start(guard=True)
    denied = 'admission webhook "bindings.hoss.dev" denied the request'
    bind_late(api, own_control_plane, network, cluster, lambda: await_reason(api, "theirs", denied))
    wait_until(lambda: runs(api, "mine"), "HOSS's pod runs")
    assert (node_of(api, "theirs"), rejected(api)) == ("", [])
    api("DELETE", "/api/v1/namespaces/default/pods/mine")
    wait_until(lambda: runs(api, "theirs"), "the other runs when there is room")
    assert rejected(api) == []


def race(api: Api, turn: int) -> None:
    """For a node that has room for 3 of 12, until it is empty again."""
    asked = [
        (f"{scheduler}-{turn}-{n}", scheduler) for n in range(6) for scheduler in ("hoss", KUBE_SCHEDULER)
    ]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as several:
        list(several.map(lambda pod: create(api, pod[0], scheduler=pod[1], cpu="300m"), asked))
    wait_until(lambda: len(assigned(api)) == 3, "the node is full")
    bound = [name for name, _ in asked if node_of(api, name)]
    wait_until(lambda: runs(api, *bound), "all of them run")
    assert rejected(api) == []
    api("DELETE", "/api/v1/namespaces/default/pods")
    wait_until(lambda: not api("GET", "/api/v1/namespaces/default/pods")["items"], "all have ended")


def test_schedulers_that_race_for_a_node_have_no_pod_rejected(
    own_control_plane: ControlPlane, api: Api, start: Callable[..., Cluster]
) -> None:
    cluster = start(guard=True)
    own_control_plane.start_scheduler()
    for turn in range(3):
        race(api, turn)
    wait_until(lambda: reserved(cluster) == {}, "nothing is held")
