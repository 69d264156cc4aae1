"""Gangs as clusters write them: the PodGroups of the scheduler-plugins, of Volcano and of Kubernetes
itself."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, await_placed, reserved, run_hoss
from e2e.kubernetes.api import Api, events_of, patch_pod, told
from e2e.kubernetes.pod_groups import COSCHEDULING, KINDS, VOLCANO, WORKLOAD, Groups, Kind
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[Callable[[Path], Cluster]]:
    """Starts a platform with a worker that schedules the API server of a kubeconfig."""
    made: list[Cluster] = []

    def start(kubeconfig: Path) -> Cluster:
        made.append(Cluster(tmp_path, kubeconfig=kubeconfig))
        made[0].start_worker("w1")
        return made[0]

    yield start
    for cluster in made:
        cluster.stop()


@pytest.fixture
def cluster(control_plane: ControlPlane, api: Api, start_cluster: Callable[[Path], Cluster]) -> Cluster:
    """Of the API server of the whole run, which has all three kinds."""
    for kind in KINDS:
        Groups(api, kind).install()
    return start_cluster(control_plane.kubeconfig)


@pytest.fixture(params=KINDS, ids=["scheduler-plugins", "volcano", "kubernetes"])
def groups(request: pytest.FixtureRequest, api: Api, cluster: Cluster) -> Groups:
    """Of each kind."""
    kind: Kind = request.param
    return Groups(api, kind)


def await_told(api: Api, text: str, *names: str) -> None:
    for name in names:
        wait_until(lambda name=name: text in told(api, name), lambda name=name: f"{name}: {told(api, name)}")


def await_condition(groups: Groups, kind: str, status: str, message: str) -> None:
    """Where the kind has conditions."""
    if groups.kind is COSCHEDULING:
        return
    wait_until(
        lambda: (found := groups.condition("train"))[:2] == (kind, status) and message in found[2],
        lambda: f"the condition {kind} is {status}: {groups.condition('train')}",
    )


def await_phase(groups: Groups, **phases: str) -> None:
    """By kind; where it has phases."""
    expected = {COSCHEDULING: phases["coscheduling"], VOLCANO: phases["volcano"]}.get(groups.kind)
    if expected is not None:
        wait_until(
            lambda: groups.status("train").get("phase") == expected,
            lambda: f"the phase is {expected}: {groups.status('train')}",
        )


def unscheduled(groups: Groups) -> str:
    """The type of the condition that says so."""
    return "Unschedulable" if groups.kind is VOLCANO else "PodGroupScheduled"


def run_pod(api: Api, name: str, phase: str) -> None:
    """As its kubelet reports."""
    headers = {"Content-Type": "application/merge-patch+json"}
    api("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"phase": phase}}, **headers)


def test_a_gang_with_too_little_room_binds_nobody_says_so_on_its_group_and_starts_as_a_whole(
    api: Api, cluster: Cluster, groups: Groups
) -> None:
    for name in ("n1", "n2"):
        api.create_node(name, cpu="1")
    groups.create("train", 3)
    groups.create_pods("train", "a", "b")
    await_told(api, "gang train: 2 of the 3 pods it needs are there", "a", "b")
    await_phase(groups, coscheduling="Pending", volcano="Pending")
    waits = unscheduled(groups), "True" if groups.kind is VOLCANO else "False"
    await_condition(groups, *waits, "2 of the 3 pods it needs are there")
    assert "2 of the 3 pods it needs are there" in run_hoss(cluster, "describe", "pod", "a")
    groups.create_pods("train", "c")
    await_told(api, "2 of the 3 pods it needs fit", "a", "b", "c")
    await_phase(groups, coscheduling="Scheduling", volcano="Inqueue")
    await_condition(groups, *waits, "2 of the 3 pods it needs fit")
    assert reserved(cluster) == assigned(api) == {}, "nothing is held meanwhile"
    api.create_node("n3", cpu="1")
    await_placed(api, cluster, 3)
    await_phase(groups, coscheduling="Scheduling", volcano="Running")
    await_condition(groups, "Scheduled" if groups.kind is VOLCANO else "PodGroupScheduled", "True", "")
    for name in ("a", "b", "c"):
        run_pod(api, name, "Running")
    await_phase(groups, coscheduling="Running", volcano="Running")
    if groups.kind is not WORKLOAD:
        wait_until(lambda: groups.status("train").get("running") == 3, "it counts the pods that run")


def test_a_group_that_comes_later_changes_and_goes_is_followed_until_its_gang_has_begun(
    api: Api, cluster: Cluster, groups: Groups
) -> None:
    for number in range(6):
        api.create_node(f"n{number}", cpu="1")
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    groups.create("train", 1, namespace="elsewhere")
    groups.create_pods("train", "a", "b", "c")
    missing = "gang train: PodGroup default/train does not exist"
    await_told(api, missing, "a", "b", "c")
    assert missing in run_hoss(cluster, "describe", "pod", "a")
    groups.create("train", 5)
    await_told(api, "gang train: 3 of the 5 pods it needs are there", "a", "b", "c")
    groups.delete("train")
    await_told(api, missing, "a", "b", "c")
    groups.create("train", 5)
    assert assigned(api) == {}
    groups.change("train", 3)
    await_placed(api, cluster, 3)
    groups.delete("train")
    api.delete_pod("a")
    groups.create_pods("train", "d", "e")
    await_placed(api, cluster, 4)


def test_a_new_dispatcher_waits_for_a_group_as_the_old_one_did_and_needs_none_for_a_gang_that_has_begun(
    api: Api, cluster: Cluster
) -> None:
    for number in range(3):
        api.create_node(f"n{number}", cpu="1")
    groups = Groups(api, WORKLOAD)
    groups.create_pods("train", "a", "b")
    missing = "gang train: PodGroup default/train does not exist"
    await_told(api, missing, "a", "b")
    cluster.kill("dispatcher")
    cluster.start_dispatcher()
    wait_until(lambda: missing in run_hoss(cluster, "get", "pods", "-o", "wide"), "they wait still")
    groups.create("train", 2)
    await_placed(api, cluster, 2)
    await_condition(groups, "PodGroupScheduled", "True", "")
    before = groups.status("train")
    cluster.kill("dispatcher")
    groups.create_pods("train", "c")
    cluster.start_dispatcher()
    await_placed(api, cluster, 3)
    assert groups.status("train") == before, "the next one has nothing to add"
    cluster.kill("dispatcher")
    groups.delete("train")
    api.delete_pod("a")
    groups.create_pods("train", "d")
    cluster.start_dispatcher()
    await_placed(api, cluster, 3)


def test_a_gang_that_waits_longer_than_its_group_allows_is_reported_there_once_and_goes_on_waiting(
    api: Api, cluster: Cluster
) -> None:
    api.create_node("n1", cpu="1")
    groups = Groups(api, COSCHEDULING)
    groups.create("train", 2, scheduleTimeoutSeconds=1)
    groups.create_pods("train", "a", "b")
    said = "not scheduled within 1 s (scheduleTimeoutSeconds): gang train: 1 of the 2 pods it needs fit"
    overdue = lambda: [text for reason, text in events_of(api, "train") if reason == "FailedScheduling"]  # noqa: E731
    wait_until(lambda: any(text.startswith(said) for text in overdue()), lambda: f"it is said: {overdue()}")
    api.create_node("n2", cpu="1")
    await_placed(api, cluster, 2)
    assert len(overdue()) == 1


def test_pods_with_gates_are_left_alone_until_they_are_released_and_then_start_as_a_gang(
    api: Api, cluster: Cluster
) -> None:
    for number in range(3):
        api.create_node(f"n{number}", cpu="1")
    groups = Groups(api, COSCHEDULING)
    groups.create("train", 3)
    groups.create_pods("train", "a", "b", "c", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    wait_until(lambda: groups.status("train").get("phase") == "Scheduling", "its pods are seen")
    assert (assigned(api), [told(api, name) for name in "abc"]) == (
        {},
        ["Scheduling is blocked due to non-empty scheduling gates"] * 3,
    )
    for name in ("a", "b"):
        patch_pod(api, name, {"spec": {"schedulingGates": None}})
    await_told(api, "gang train: 2 of the 3 pods it needs are there", "a", "b")
    assert assigned(api) == {}
    patch_pod(api, "c", {"spec": {"schedulingGates": None}})
    await_placed(api, cluster, 3)


def test_a_kind_that_the_cluster_gets_later_is_found_without_a_restart(
    api: Api, control_plane: ControlPlane, start_cluster: Callable[[Path], Cluster]
) -> None:
    groups = Groups(api, COSCHEDULING)
    groups.install()
    groups.uninstall()
    cluster = start_cluster(control_plane.kubeconfig)
    for number in range(2):
        api.create_node(f"n{number}", cpu="1")
    groups.create_pods("train", "a", "b")
    await_told(api, "gang train: the cluster has no podgroups.scheduling.x-k8s.io", "a", "b")
    groups.install()
    groups.create("train", 2)
    await_placed(api, cluster, 2)


READABLE = [
    {
        "apiGroups": ["", "apps", "policy", "storage.k8s.io", "resource.k8s.io"],
        "resources": ["*"],
        "verbs": ["*"],
    },
    {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["*"]},
]


def test_who_may_not_read_pod_groups_says_so_and_places_all_other_pods(
    api: Api, control_plane: ControlPlane, start_cluster: Callable[[Path], Cluster]
) -> None:
    for kind in KINDS:
        Groups(api, kind).install()
    groups = Groups(api, COSCHEDULING)
    grant(api, READABLE)
    cluster = start_cluster(control_plane.hoss_kubeconfig)
    for number in range(2):
        api.create_node(f"n{number}", cpu="1")
    groups.create("train", 1)
    groups.create_pods("train", "a")
    api.create_pod("other", scheduler="hoss", cpu="600m")
    await_told(api, "gang train: the dispatcher may not list podgroups.scheduling.x-k8s.io", "a")
    await_placed(api, cluster, 1)
    status = run_hoss(cluster, "status")
    assert "updates of /apis/scheduling.x-k8s.io/v1alpha1/podgroups do not come" in status
    everywhere = [kind.api_group for kind in KINDS]
    reading = {"apiGroups": everywhere, "resources": ["podgroups"], "verbs": ["list", "watch"]}
    grant(api, [*READABLE, reading])
    await_placed(api, cluster, 2)
    said = "the status of podgroups.scheduling.x-k8s.io cannot be written"
    wait_until(lambda: said in run_hoss(cluster, "status"), "it says what it may not write")
    writing = {"apiGroups": everywhere, "resources": ["podgroups/status"], "verbs": ["patch"]}
    grant(api, [*READABLE, reading, writing])
    wait_until(lambda: groups.status("train"), "the status is written all the same")
    wait_until(lambda: said not in run_hoss(cluster, "status"), "the problem is over")


def grant(api: Api, rules: list[Any]) -> None:
    """To HOSS, and nothing else."""
    base = "/apis/rbac.authorization.k8s.io/v1"
    for path in ("clusterroles", "clusterrolebindings"):
        api.request("DELETE", f"{base}/{path}/groups-test")
    metadata = {"name": "groups-test"}
    api("POST", f"{base}/clusterroles", {"metadata": metadata, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "groups-test"}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "hoss"}]
    api("POST", f"{base}/clusterrolebindings", {"metadata": metadata, "roleRef": role, "subjects": subjects})
