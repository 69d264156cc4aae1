"""The services work with the rights that deploy/ gives them, on an API server that grants nobody anything
else. They use each of these rights, and what they ask for by it is refused without it."""

import asyncio
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes import renderers
from e2e.kubernetes.agreement import assigned, reserved, run_hoss
from e2e.kubernetes.api import Api, await_reason, placed
from e2e.kubernetes.devices import LEFT_OVER, RESOURCE, Devices, claiming, wanting
from e2e.kubernetes.guarded import SECRET, apply, await_guard, install, kubeconfig_of, token_of
from e2e.kubernetes.moves import NO_GRACE, begin, create_web, run_status
from e2e.kubernetes.pod_groups import KINDS, Groups
from e2e.kubernetes.rights import AuditLog, Roles, Use, rights_of
from e2e.kubernetes.storage import Storage, mounting
from waiting import wait_until

from hoss.errors import AccessDenied
from hoss.host import THIS_HOST
from hoss.kube.config import KubernetesConfig
from hoss.kube.token_review import ServiceAccountReviews
from hoss.security.users import ServiceAccountTokens
from hossctl.local.control_plane import ControlPlane
from hossctl.local.deployment import ACCOUNTS_SECRET
from hossctl.local.ports import free_ports
from resolver.core.kubernetes.binding_review import BindResult
from resolver.kubernetes.binder import Binder, BindingRequest

pytestmark = pytest.mark.skipif(bool(renderers.missing()), reason=renderers.missing())

OF_DEVICES, OF_GROUPS = "resource.k8s.io", "scheduling.k8s.io"

# Asked for by the API server itself while it takes another request, so its audit log does not name it.
INNER = {
    Use(account, "patch", OF_DEVICES, "resourceclaims/binding")
    for account in ("hoss-dispatcher", "hoss-resolver")
}

# Of Kubernetes 1.35, which had Workloads in another version. No API server of this version is asked for them.
OLDER = {
    Use("hoss-dispatcher", verb, OF_GROUPS, "workloads"): f"/apis/{OF_GROUPS}/v1alpha1/workloads{query}"
    for verb, query in (("list", ""), ("watch", "?watch=1&timeoutSeconds=1"))
}

SECRETS = "/api/v1/namespaces/hoss-system/secrets"
CONTAINER = {"name": "c", "image": "none"}

RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture
def audit(control_plane: ControlPlane) -> AuditLog:
    return AuditLog(control_plane)


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane, api: Api, audit: AuditLog) -> Iterator[Cluster]:
    """The services of the overlay `guard`, each as its service account."""
    for document in objects().values():
        apply(api, document)
    documents = renderers.objects_of(renderers.kustomized("guard"))
    (port,) = free_ports(1)
    install(api, f"https://127.0.0.1:{port}/bindings", failure_policy="Fail")
    kubeconfigs = {name: tmp_path / f"{name}.kubeconfig" for name in ("dispatcher", "resolver")}
    for name, path in kubeconfigs.items():
        path.write_text(kubeconfig_of(api, control_plane, f"hoss-{name}"))
    configuration = tmp_path / "dispatcher.yaml"
    configuration.write_text(documents["ConfigMap", "hoss-dispatcher"]["data"]["dispatcher.yaml"])
    made = Cluster(
        tmp_path,
        kubeconfig=kubeconfigs["dispatcher"],
        webhook_ports=(port,),
        resolver_flags=["--kubeconfig", str(kubeconfigs["resolver"])],
        dispatcher_flags=["--config", str(configuration)],
    )
    made.start_worker("w1")
    yield made
    made.stop()


# Whose pods can be moved: the dispatcher looks whether one is still there.
CONTROLLERS = (
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("", "replicationcontrollers"),
    ("batch", "jobs"),
)


def reasons(api: Api, name: str) -> set[str]:
    """Of the events about a pod."""
    events = api("GET", "/api/v1/namespaces/default/events")["items"]
    return {event["reason"] for event in events if event["involvedObject"]["name"] == name}


@functools.cache
def objects() -> renderers.Objects:
    """Of the overlays that give services and the Job rights."""
    return {
        key: found
        for overlay in ("guard", "service-accounts")
        for key, found in renderers.objects_of(renderers.kustomized(overlay)).items()
        if key[0] in RIGHTS
    }


async def ask_as(kubeconfigs: Mapping[str, Path], bound: Any) -> None:
    """What services do with the API server in moments that no test can bring about at will: a binding whose
    answer was lost, and a client that shows the token of a ServiceAccount."""
    rng, clock = THIS_HOST.rng, THIS_HOST.monotonic
    clients = {
        name: KubernetesConfig(kubeconfig=path).api(f"hoss-{name}", clock=clock, rng=rng)
        for name, path in kubeconfigs.items()
    }
    metadata = bound["metadata"]
    pod = f"{metadata['namespace']}/{metadata['name']}"
    again = BindingRequest(pod, metadata["uid"], bound["spec"]["nodeName"])
    assert [found.result for found in await Binder(clients["resolver"]).bind([again])] == [BindResult.DONE]
    for client in clients.values():
        config = ServiceAccountTokens(reviews_per_second=100)
        reviews = ServiceAccountReviews(client, config, clock=clock, unix_clock=time.time)
        with pytest.raises(AccessDenied):
            await reviews.check("forged", {"aud": [config.audience], "exp": time.time() + 60})
        await reviews.close()


def test_each_right_is_used_and_without_it_its_use_is_refused(
    *,
    control_plane: ControlPlane,
    api: Api,
    audit: AuditLog,
    cluster: Cluster,
    tmp_path: Path,
    run_job: Callable[..., str],
) -> None:
    kubeconfigs = {name: tmp_path / f"{name}.kubeconfig" for name in ("dispatcher", "resolver")}
    roles = Roles(control_plane, api, objects())
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
    by_resolver, by_dispatcher = sorted(INNER, reverse=True)
    with roles.without(by_resolver):
        api.create_pod("extended", scheduler="hoss", containers=wanting("1"))
        given = by_resolver._replace(resource="resourceclaims/status")
        wait_until(lambda: given in audit.read().failed, "devices are not given without a right")
        deleted = by_resolver._replace(verb="delete", resource="resourceclaims")
        wait_until(lambda: deleted in audit.read().allowed, "the claim is deleted")
    wait_until(lambda: len(assigned(api)) == 5, "the pod is bound after the claim that was made for it")
    devices.create_claim("idle")
    devices.give("idle", "n1", "gpu-2", on="gone")
    with roles.without(by_dispatcher):
        api.create_pod("blocked", cpu="10m", scheduler="hoss", resourceClaims=claiming("idle"))
        freed = by_dispatcher._replace(resource="resourceclaims/status")
        wait_until(lambda: freed in audit.read().failed, "devices are not freed without a right")
    wait_until(lambda: len(assigned(api)) == 6, "the pod is bound after its claim was freed")
    waiting = api.create_pod("waiting", scheduler="hoss", containers=wanting("1"))
    await_reason(api, "waiting", "cannot allocate all claims")
    devices.create_claim("waiting-extended-resources-1", owner=waiting, marks=LEFT_OVER)
    wait_until(lambda: devices.extended_claim("waiting") is None, "the claim that was left over is deleted")
    api.delete_pod("waiting")
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
    asked = {Use("hoss-dispatcher", "get", *of) for of in CONTROLLERS}
    wait_until(lambda: asked <= {*audit.read().allowed}, "their controllers are asked for")

    asyncio.run(ask_as(kubeconfigs, api.pod("urgent")))
    run_job()
    damaged = api("GET", f"{SECRETS}/{ACCOUNTS_SECRET}")
    del damaged["data"]["users.acl"]
    api("PUT", f"{SECRETS}/{ACCOUNTS_SECRET}", damaged)
    run_job()

    renewed = Use("hoss-dispatcher", "update", "coordination.k8s.io", "leases")  # by its own clock
    wait_until(lambda: renewed in audit.read().allowed, "the Lease is renewed")
    found = audit.read()
    assert not found.refused
    granted = {right.use for right in rights_of(objects())}
    assert not granted - {*found.allowed} - INNER - {*OLDER}

    cluster.stop()
    tokens = {use.account: token_of(api, use.account) for use in granted}
    for use in sorted(granted - INNER):
        path, token = {**found.allowed, **OLDER}[use], tokens[use.account]
        roles.await_right(token, use, path)
        with roles.without(use):
            roles.await_refusal(token, use, path)
