"""The services work with the rights that deploy/ gives them, on an API server that grants nobody anything
else; and use them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes import renderers
from e2e.kubernetes.agreement import assigned, reserved, run_hoss
from e2e.kubernetes.api import Api, placed
from e2e.kubernetes.devices import RESOURCE, Devices, claiming, wanting
from e2e.kubernetes.guarded import SECRET, apply, await_guard, install, kubeconfig_of
from e2e.kubernetes.moves import NO_GRACE, begin, create_web, run_status
from e2e.kubernetes.pod_groups import KINDS, Groups
from e2e.kubernetes.rights import rights_of
from e2e.kubernetes.storage import Storage, mounting
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane
from hossctl.local.ports import free_ports

pytestmark = pytest.mark.skipif(bool(renderers.missing()), reason=renderers.missing())

# What is only needed when an answer is lost, or a binding is refused.
RARE = {"hoss-resolver get pods", "hoss-resolver delete resourceclaims"}

# Asked for by the API server itself while it takes another request, so its audit log does not name it.
INNER = {f"{account} patch resourceclaims/binding" for account in ("hoss-dispatcher", "hoss-resolver")}

# Of Kubernetes 1.35, which had Workloads in another version.
OLDER = {f"hoss-dispatcher {verb} workloads" for verb in ("list", "watch")}

# Of the Job, which tests/e2e/kubernetes/test_credentials.py runs.
OF_THE_JOB = {f"hoss-credentials {verb} secrets" for verb in ("create", "get", "update")}

CONTAINER = {"name": "c", "image": "none"}

RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, api: Api) -> Iterator[Cluster]:
    """The services of the overlay `guard`, each as its service account."""
    documents = renderers.objects_of(renderers.kustomized("guard"))
    for (kind, _), document in documents.items():
        if kind in RIGHTS:
            apply(api, document)
    (port,) = free_ports(1)
    install(api, f"https://127.0.0.1:{port}/bindings", failure_policy="Fail")
    kubeconfigs = {name: tmp_path / f"{name}.kubeconfig" for name in ("dispatcher", "resolver")}
    for name, path in kubeconfigs.items():
        path.write_text(kubeconfig_of(api, control_plane, f"hoss-{name}"))
    flags = ["--kubeconfig", str(kubeconfigs["resolver"])]
    flags += ["--webhook-listen", f"127.0.0.1:{port}", "--webhook-host", "127.0.0.1"]
    configuration = tmp_path / "dispatcher.yaml"
    configuration.write_text(documents["ConfigMap", "hoss-dispatcher"]["data"]["dispatcher.yaml"])
    made = Cluster(
        tmp_path,
        kubeconfig=kubeconfigs["dispatcher"],
        resolver_flags=flags,
        dispatcher_flags=["--config", str(configuration)],
    )
    made.start_worker("w1")
    yield made
    made.stop()


# Whose pods can be moved: the dispatcher looks whether one is still there.
CONTROLLERS = ("replicasets", "statefulsets", "replicationcontrollers", "jobs")


def reasons(api: Api, name: str) -> set[str]:
    """Of the events about a pod."""
    events = api("GET", "/api/v1/namespaces/default/events")["items"]
    return {event["reason"] for event in events if event["involvedObject"]["name"] == name}


def granted() -> set[str]:
    """As "account verb resource", by the overlay's roles."""
    return set(map(str, rights_of(renderers.objects_of(renderers.kustomized("guard")))))


def used(plane: ControlPlane) -> tuple[set[str], set[str]]:
    """What was asked and allowed, as `granted`, and what was asked and refused."""
    allowed, refused = set[str](), set[str]()
    for line in (
        plane.audit_log.read_text().rpartition("\n")[0].splitlines()
    ):  # the last one may be half written
        event = json.loads(line)
        about = event["objectRef"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        asked = f"{event['user']['username'].rpartition(':')[2]} {event['verb']} {resource}"
        by_rights = event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
        (allowed if by_rights else refused).add(asked)
    return allowed, refused


def test_hoss_may_do_what_it_does_and_does_what_it_may(
    control_plane: ControlPlane, api: Api, cluster: Cluster
) -> None:
    await_guard(api)
    for kind in KINDS:
        Groups(api, kind).install()
    api.create_node("n1", cpu="1")
    low = api.create_pod("low", cpu="600m", scheduler="hoss", terminationGracePeriodSeconds=0)
    wait_until(lambda: assigned(api) == {low["metadata"]["uid"]: "n1"}, "a pod is bound")
    wait_until(lambda: "Scheduled" in reasons(api, "low"), "its event is there")

    api.create_pod("waits", cpu="900m", scheduler="hoss")
    wait_until(lambda: api.pod("waits")["status"].get("conditions"), "why it waits is on the pod")
    wait_until(lambda: "FailedScheduling" in reasons(api, "waits"), "its event is there")

    status, answer = api.bind(api.create_pod("foreign", cpu="900m"), "n1")
    assert (status, "has no room" in str(answer)) == (403, True)
    assert set(api("GET", SECRET)["data"]) == {"tls.crt", "tls.key", "ca.crt", "ca.key", "path"}
    # As resolvers of an earlier release left it.
    api("PATCH", SECRET, {"data": {"path": None}}, **{"Content-Type": "application/merge-patch+json"})
    cluster.kill("resolver")
    cluster.start_resolver()
    assert "path" in api("GET", SECRET)["data"]
    await_guard(api)

    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.request("POST", path, {"metadata": {"name": "urgent"}, "value": 1000})
    probe = {
        "metadata": {"name": "probe"},
        "spec": {"priorityClassName": "urgent", "containers": [CONTAINER]},
    }
    dry_run = "/api/v1/namespaces/default/pods?dryRun=All"
    wait_until(lambda: api.request("POST", dry_run, probe)[0] == 201, "the API server has seen the class")
    urgent = api.create_pod("urgent", cpu="700m", scheduler="hoss", priorityClassName="urgent")
    wait_until(lambda: assigned(api) == {urgent["metadata"]["uid"]: "n1"}, "it took the other's place")
    storage = Storage(api)
    storage.clear()
    storage.create_class("disks")
    storage.create_volume("pv")
    storage.create_claim("static")
    api.create_pod("static", cpu="10m", scheduler="hoss", volumes=mounting("static"))
    wait_until(lambda: storage.claim_of("pv"), "the volume is reserved")
    storage.create_claim("dynamic")
    api.create_pod("dynamic", cpu="10m", scheduler="hoss", volumes=mounting("dynamic"))
    wait_until(lambda: storage.selected_node("dynamic"), "a volume is asked for")
    storage.bind("static", "pv")
    storage.provision("dynamic")
    wait_until(lambda: len(assigned(api)) == 3, "the pods are bound after their volumes")
    storage.clear()

    devices = Devices(api)
    devices.clear()
    devices.create_class(extendedResourceName=RESOURCE)
    devices.publish("n1", "gpu-0", "gpu-1", "gpu-2")
    devices.create_claim("mine")
    api.create_pod("claims", cpu="10m", scheduler="hoss", resourceClaims=claiming("mine"))
    wait_until(lambda: len(assigned(api)) == 4, "the pod is bound after its device")
    assert devices.users_of("mine") == ["claims"]
    api.create_pod("extended", scheduler="hoss", containers=wanting("1"))
    wait_until(lambda: len(assigned(api)) == 5, "the pod is bound after the claim that was made for it")
    devices.create_claim("idle")
    devices.give("idle", "n1", "gpu-2", on="gone")
    api.create_pod("blocked", cpu="10m", scheduler="hoss", resourceClaims=claiming("idle"))
    wait_until(lambda: len(assigned(api)) == 6, "the pod is bound after its claim was freed")
    devices.clear()

    for number, kind in enumerate(KINDS, start=7):
        groups = Groups(api, kind)
        groups.create("train", 1)
        groups.create_pods("train", f"member-{number}", cpu="10m")
        wait_until(lambda number=number: len(assigned(api)) == number, "a pod of a group is bound")
        wait_until(lambda groups=groups: groups.status("train"), "the group's status is written")

    create_web(api, "web", grace=NO_GRACE, cpu="10m")
    owned = {
        "ordered": ("apps/v1", "StatefulSet"),
        "copy": ("v1", "ReplicationController"),
        "task": ("batch/v1", "Job"),
    }
    for name, (version, kind) in owned.items():
        owner = {"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": True}
        metadata = {"ownerReferences": [owner]}
        api.create_pod(name, cpu="10m", scheduler="hoss", metadata=metadata, terminationGracePeriodSeconds=0)
    sources = {name: placed(api, name) for name in ("web", *owned)}
    api.create_node("n2", cpu="1")
    wait_until(lambda: "n2" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    begin(cluster, *((name, source, "n2") for name, source in sources.items()))
    wait_until(lambda: run_status(cluster)["evicted"], "a pod is evicted, to be moved")
    asked = {f"hoss-dispatcher get {kind}" for kind in CONTROLLERS}
    wait_until(lambda: asked <= used(control_plane)[0], "their controllers are asked for")

    renewed = "hoss-dispatcher update leases"  # by its own clock, whatever happens here
    wait_until(lambda: renewed in used(control_plane)[0], "the Lease is renewed")
    allowed, refused = used(control_plane)
    assert not refused
    assert granted() - allowed <= RARE | INNER | OLDER | OF_THE_JOB
