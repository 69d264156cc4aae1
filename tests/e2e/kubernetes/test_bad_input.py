"""What a pod is told whose claims, devices or classes cannot be used: kube-scheduler's own words and reason,
by kube-scheduler beside HOSS on one cluster, on the pod and in `hoss describe`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import run_hoss
from e2e.kubernetes.api import MERGE, Api
from e2e.kubernetes.devices import Devices, claiming
from e2e.kubernetes.storage import Storage, mounting
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

FAILS = 'device.attributes["absent"].x == 1'
TEMPLATE = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
EPHEMERAL = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}


class Bad:
    """A cluster of one node, `n1`, and two schedulers. Each case makes what its pod cannot use, under the
    pod's own name, and returns more of the pod's spec."""

    def __init__(self, api: Api, cluster: Cluster) -> None:
        self.api, self.cluster = api, cluster
        self.storage, self.devices = Storage(api), Devices(api)

    # Volumes

    def no_claim(self, pod: str) -> Any:
        return {"volumes": mounting(pod)}

    def claim_that_is_deleted(self, pod: str) -> Any:
        self.storage.create_claim(pod)
        self.storage.delete_claim(pod)
        return {"volumes": mounting(pod)}

    def lost_claim(self, pod: str) -> Any:
        """Its volume is gone, and the controller manager has seen that."""
        self.storage.create_bound_claim(pod)
        path = f"/api/v1/namespaces/default/persistentvolumeclaims/{pod}/status"
        self.api("PATCH", path, {"status": {"phase": "Lost"}}, **MERGE)
        return {"volumes": mounting(pod)}

    def claim_of_a_volume_that_is_gone(self, pod: str) -> Any:
        """And the controller manager has not seen that."""
        self.storage.create_bound_claim(pod)
        path = f"/api/v1/persistentvolumes/pv-{pod}"
        self.api("PATCH", path, {"metadata": {"finalizers": None}}, **MERGE)
        self.api("DELETE", path)
        return {"volumes": mounting(pod)}

    def claim_of_another_pod(self, pod: str) -> Any:
        self.storage.create_claim(f"{pod}-scratch", owner={"metadata": {"name": "other", "uid": "other"}})
        return {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": EPHEMERAL}}]}

    def class_that_is_missing(self, pod: str) -> Any:
        self.storage.create_claim(pod, storage_class="nowhere")
        return {"volumes": mounting(pod)}

    def class_without_provisioner(self, pod: str) -> Any:
        self.storage.create_claim(pod, storage_class="by-hand")
        return {"volumes": mounting(pod)}

    def class_for_other_nodes(self, pod: str) -> Any:
        self.storage.create_claim(pod, storage_class="elsewhere")
        return {"volumes": mounting(pod)}

    # Devices

    def no_resource_claim(self, pod: str) -> Any:
        return {"resourceClaims": claiming(pod)}

    def resource_claim_that_is_deleted(self, pod: str) -> Any:
        self.devices.create_claim(pod, marks={"finalizers": ["resource.kubernetes.io/delete-protection"]})
        self.devices.delete_claim(pod)
        return {"resourceClaims": claiming(pod)}

    def resource_claim_that_is_not_made_yet(self, pod: str) -> Any:
        return {"resourceClaims": TEMPLATE}

    def device_class_that_is_missing(self, pod: str) -> Any:
        self.devices.create_claim(pod, device_class="nowhere")
        return {"resourceClaims": claiming(pod)}

    def class_whose_expression_fails(self, pod: str) -> Any:
        self.devices.create_claim(pod, device_class="failing")
        return {"resourceClaims": claiming(pod)}

    def claim_whose_expression_fails(self, pod: str) -> Any:
        selectors = [{"cel": {"expression": FAILS}}]
        self.devices.create_claim(pod, selectors=selectors)
        return {"resourceClaims": claiming(pod)}

    def slices_that_cannot_be_used(self, pod: str) -> Any:
        """Two devices of one node would be needed."""
        self.devices.create_claim(pod, count=2)
        return {"resourceClaims": claiming(pod)}


# Both schedulers are told of these in each other's words. Of the others kube-scheduler says nothing: such a
# pod does not enter its queue.
CASES = (
    Bad.no_claim, Bad.claim_that_is_deleted, Bad.lost_claim, Bad.claim_of_a_volume_that_is_gone,
    Bad.claim_of_another_pod, Bad.class_that_is_missing, Bad.class_without_provisioner,
    Bad.class_for_other_nodes, Bad.device_class_that_is_missing, Bad.class_whose_expression_fails,
    Bad.claim_whose_expression_fails, Bad.slices_that_cannot_be_used,
)  # fmt: skip
NOT_QUEUED = {
    Bad.no_resource_claim: 'could not find ResourceClaim "default/{pod}".',
    Bad.resource_claim_that_is_deleted: 'resourceclaim "{pod}" is being deleted.',
    Bad.resource_claim_that_is_not_made_yet: 'pod "default/{pod}": ResourceClaim not created yet.',
}


@pytest.fixture
def bad(tmp_path: Path, own_control_plane: ControlPlane) -> Iterator[Bad]:
    """Of the devices of n1 all can be used, of those of n2 half are not published, and two slices of n3
    contradict each other."""
    api = Api(own_control_plane)
    cluster = Cluster(tmp_path, kubeconfig=own_control_plane.kubeconfig)
    made = Bad(api, cluster)
    made.storage.create_class("disks")
    made.storage.create_class("by-hand", provisioner="kubernetes.io/no-provisioner")
    terms = [{"matchLabelExpressions": [{"key": "zone", "values": ["elsewhere"]}]}]
    made.storage.create_class("elsewhere", allowedTopologies=terms)
    made.devices.create_class()
    made.devices.create_class("failing", FAILS)
    for name in ("n1", "n2", "n3"):
        api.create_node(name)
    made.devices.publish("n1", "gpu-0")
    made.devices.publish("n2", "gpu-0", "gpu-1", slices=2)
    for name in ("one", "other"):
        made.devices.publish("n3", "gpu-0", slices=2, name=name)
    cluster.start_worker("w1")
    own_control_plane.start_scheduler()
    yield made
    cluster.stop()


def condition(api: Api, pod: str) -> tuple[str, str]:
    """Reason and message of PodScheduled=False; empty: it has none. Without what preemption adds:
    kube-scheduler looks for victims also where no pod is less urgent. A reason that changes is written some
    seconds later."""
    found = [c for c in api.pod(pod)["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
    if not found or found[0]["status"] != "False":
        return "", ""
    head, more, _ = found[0]["message"].partition(". ")
    return found[0]["reason"], head + more.strip()


def test_a_pod_with_what_cannot_be_used_is_told_so_in_kube_schedulers_words(bad: Bad) -> None:
    api = bad.api
    names: dict[Callable[[Bad, str], Any], tuple[str, str]] = {}
    for case in (*CASES, *NOT_QUEUED):
        kind = case.__name__.replace("_", "-")
        names[case] = ours, theirs = f"{kind}-ours", f"{kind}-them"
        for pod, scheduler in ((ours, "hoss"), (theirs, "default-scheduler")):
            api.create_pod(pod, scheduler=scheduler, cpu="10m", **case(bad, pod))

    def differences() -> dict[str, tuple[tuple[str, str], tuple[str, str]]]:
        told = {
            ours: (condition(api, ours), condition(api, theirs)) for ours, theirs in map(names.get, CASES)
        }
        return {
            ours: (said, expected)
            for ours, (said, expected) in told.items()
            if not expected[1] or (said[0], said[1].replace("-ours", "-them")) != expected
        }

    def kept_out() -> dict[str, str]:
        return {
            ours: f"0/3 nodes are available: {words.format(pod=ours)}"
            for (ours, _), words in ((names[case], words) for case, words in NOT_QUEUED.items())
        }

    wait_until(lambda: not differences(), lambda: f"HOSS says what kube-scheduler says: {differences()}")
    told = lambda: {pod: condition(api, pod)[1] for pod in kept_out()}  # noqa: E731
    wait_until(lambda: told() == kept_out(), lambda: f"HOSS says why: {told()}")
    # It says nothing, unless it saw the pod before it saw that the claim is being deleted: then either that,
    # or what its write to the claim met.
    kept = {case: condition(api, names[case][1])[1] for case in NOT_QUEUED}
    assert all(
        said in ("", f"0/3 nodes are available: {NOT_QUEUED[case].format(pod=names[case][1])}")
        or said.endswith(" got deleted in the meantime")
        for case, said in kept.items()
    ), kept
    for ours, _ in names.values():
        described = json.loads(run_hoss(bad.cluster, "describe", "pod", ours, "-o", "json"))
        assert described["reason"] == condition(api, ours)[1]
