"""An API server that is slow, refuses, hangs or loses answers: nothing is lost, bound twice or overcommitted,
and the ledger agrees."""

import concurrent.futures
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, overcommitted, reserved, run_hoss
from e2e.kubernetes.api import Api
from e2e.kubernetes.faulty_api import Fault, FaultyApi
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

NODES, PODS = 12, 300  # of 4 cores and 100 milli each: room for them, and for what others bring


@pytest.fixture
def faulty(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[FaultyApi]:
    """Between HOSS and the API server; the test itself asks the latter."""
    proxy = FaultyApi(control_plane, tmp_path)
    for number in range(NODES):
        api.create_node(f"n{number}", cpu="4")
    yield proxy
    proxy.stop()


@pytest.fixture
def cluster(tmp_path: Path, faulty: FaultyApi) -> Iterator[Cluster]:
    made = Cluster(tmp_path, kubeconfig=faulty.kubeconfig)
    made.start_worker("w1")
    yield made
    made.stop()


def create(api: Api, pods: range) -> None:
    """Of ours, and for each ten of them one that is on a node already."""

    def make(number: int) -> None:
        api.create_pod(f"load-{number}", scheduler="hoss")
        if number % 10 == 0:
            api.create_pod(f"static-{number}", nodeName=f"n{number % NODES}")

    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(make, pods))


def assert_all_is_well(api: Api, cluster: Cluster, pods: int) -> None:
    """All of them are bound, once, and everybody agrees where."""
    wait_until(lambda: len(assigned(api)) == pods, f"all {pods} are bound")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert overcommitted(api) == {}
    assert "clean" in run_hoss(cluster, "audit")


LOST_BINDINGS = Fault("/binding", methods=("POST",), share=0.3, loses_answer=True)


@pytest.mark.parametrize(
    "faults",
    [
        (Fault(share=0.5, status=429, retry_after="1"),),
        (Fault(share=0.5, status=503),),
        (Fault(delay_seconds=0.3),),
        (LOST_BINDINGS,),
        (Fault("watch=", ends_after_seconds=0.7),),
        (Fault("watch=", ends_after_seconds=1.1), LOST_BINDINGS, Fault(share=0.2, status=500)),
    ],
    ids=["says 429", "says 503", "is slow", "loses answers of bindings", "cuts watches", "does all that"],
)
def test_an_api_server_that(api: Api, cluster: Cluster, faulty: FaultyApi, faults: tuple[Fault, ...]) -> None:
    """... loses nothing, doubles nothing and overcommits nothing, while it does so and afterwards."""
    faulty.faults = faults
    create(api, range(PODS))
    for number in range(0, PODS, 10):
        api.delete_pod(f"static-{number}")
    assert_all_is_well(api, cluster, PODS)
    assert faulty.struck
    faulty.faults = ()
    create(api, range(PODS, PODS + 50))
    assert_all_is_well(api, cluster, PODS + 55)


def test_bindings_that_arrive_after_they_were_given_up_are_found_out(
    api: Api, cluster: Cluster, faulty: FaultyApi
) -> None:
    """Requests hang for longer than anybody waits for them; their pods keep their room, and those deleted
    meanwhile lose it."""
    faulty.faults = (Fault("/binding", methods=("POST",), hangs=True),)
    create(api, range(40))
    wait_until(lambda: len(reserved(cluster)) == 44, "all are reserved")
    time.sleep(12)  # more than a request's time
    assert len(reserved(cluster)) == 44
    for number in range(5):
        api.delete_pod(f"load-{number}")
    faulty.faults = ()
    assert_all_is_well(api, cluster, 39)


def test_news_that_come_late_are_taken_in_as_they_are_by_then(
    api: Api, cluster: Cluster, faulty: FaultyApi
) -> None:
    create(api, range(50))
    assert_all_is_well(api, cluster, 55)
    faulty.faults = (Fault("watch=", hangs=True),)
    create(api, range(50, 100))
    for number in range(50):
        api.delete_pod(f"load-{number}")
    faulty.faults = ()
    assert_all_is_well(api, cluster, 60)


def test_a_new_leader_commits_nothing_before_its_mirror_is_complete(
    tmp_path: Path, api: Api, faulty: FaultyApi
) -> None:
    """It does not know of a pod that came while nobody watched, and that has taken the room."""
    for number in range(1, NODES):
        api("DELETE", f"/api/v1/nodes/n{number}")
    with Cluster(tmp_path, dispatchers=2, kubeconfig=faulty.kubeconfig) as cluster:
        cluster.start_worker("w1")
        api.create_pod("first", scheduler="hoss", cpu="1")
        wait_until(lambda: assigned(api), "it is bound")
        faulty.faults = (Fault("/api/v1/pods?limit", hangs=True),)
        cluster.kill("dispatcher")
        api.create_pod("static", nodeName="n0", cpu="2500m")
        api.create_pod("late", scheduler="hoss", cpu="2500m")
        wait_until(lambda: "term_begins" in cluster.log("dispatcher-2"), "there is a new leader")
        time.sleep(3)  # ten times what it would take to place it
        assert len(reserved(cluster)) == 1
        assert "mirror_complete" not in cluster.log("dispatcher-2")
        faulty.faults = ()
        wait_until(
            lambda: "Insufficient cpu" in run_hoss(cluster, "get", "pods"), "it says that there is no room"
        )
        api.delete_pod("static")
        wait_until(lambda: "nodeName" in api.pod("late")["spec"], "there is room")
        assert overcommitted(api) == {}
        assert "clean" in run_hoss(cluster, "audit")
