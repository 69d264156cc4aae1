"""`hoss bench kubernetes`: what its figures are made of. Its turns are run in tests/e2e/kubernetes."""

from collections import Counter

import pytest

from hoss.manifests.devices import read_pod_claims
from hoss.manifests.pod import read_pod_template
from hoss.manifests.volumes import read_pod_volumes
from hossctl.bench import kubernetes_claims
from hossctl.bench.api_server import Write, read_writes
from hossctl.bench.kubernetes import KubernetesSetting, Turn, order, summary
from hossctl.bench.kubernetes_startup import Start, StartupSetting
from hossctl.bench.kubernetes_startup import summary as startup_summary
from hossctl.choices import Claim, Peer

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PATCH"} 4
apiserver_request_total{code="201",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST"} 1e+03
apiserver_request_total{code="201",dry_run="",group="",resource="pods",scope="resource",subresource="binding",verb="POST"} 9
apiserver_request_total{code="409",dry_run="",group="",resource="pods",scope="resource",subresource="binding",verb="POST"} 1
apiserver_request_total{code="200",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="LIST"} 7
apiserver_request_total{code="200",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT"} 5
apiserver_request_duration_seconds_count{resource="pods",verb="POST"} 3
"""


def setting(**given: object) -> KubernetesSetting:
    return KubernetesSetting(
        **{
            "nodes": 1,
            "initial_pods": 0,
            "pods": 10,
            "workers": 1,
            "resolvers": 1,
            "peer": Peer.KUBE_SCHEDULER,
            **given,
        }
    )  # type: ignore[arg-type]


def turn(scheduler: str, seconds: float, *, unbound: int = 0) -> Turn:
    writes = Counter(
        {Write("POST", "pods"): 10, Write("POST", "pods/binding"): 12, Write("POST", "events"): 5}
    )
    writes[Write("PATCH", "pods/status")] = 1
    return Turn(
        scheduler, 10, unbound, seconds, {"scheduler": 0.02}, {"dispatcher": 0.01, "resolvers": 0.01}, writes
    )


@pytest.mark.parametrize("claim", list(Claim))
def test_each_pod_claims_what_has_its_name(claim: Claim):
    made = kubernetes_claims.pod(7, "any", claim)
    template = read_pod_template({}, made["spec"], "pod", namespace="default")
    assert dict(template.spec.requests)["cpu"] == 100
    claimed = read_pod_volumes(made["metadata"], made["spec"], "spec")
    assert (claimed and [mount.claim for mount in claimed.claims]) == (
        ["p7"] if claim is Claim.VOLUME else None
    )
    uses = read_pod_claims({**made["metadata"], "uid": ""}, made["spec"], {}, "spec")
    assert (uses and [use.claim for use in uses.uses]) == (["p7"] if claim is Claim.DEVICE else None)


def test_writes_are_counted_by_kind_whatever_came_of_them():
    assert read_writes(METRICS) == {
        Write("PATCH", "pods/status"): 4,
        Write("POST", "pods"): 1000,
        Write("POST", "pods/binding"): 10,
    }


def test_writes_of_a_pod_are_those_beside_its_creation():
    assert turn("hoss", 1.0).as_json()["writesPerPod"] == {"bindings": 1.2, "events": 0.5, "others": 0.1}
    assert turn("hoss", 1.0).as_json()["millisPerPod"] == {"scheduler": 2.0}
    assert turn("hoss", 1.0).as_json()["millisPerPodByService"] == {"dispatcher": 1.0, "resolvers": 1.0}


def test_pods_that_were_not_bound_are_no_throughput():
    assert turn("hoss", 2.0, unbound=4).pods_per_second == 3.0


@pytest.mark.parametrize(
    ("given", "turns"),
    [
        ({"repeat": 2}, ["kube-scheduler", "hoss", "hoss", "kube-scheduler"]),
        ({"repeat": 2, "peer": Peer.NOBODY}, ["hoss", "hoss"]),
    ],
)
def test_who_begins_changes(given: dict[str, object], turns: list[str]):
    assert order(setting(**given)) == turns


def test_the_ratio_is_of_medians_and_needs_a_peer():
    document = summary(setting(), [turn("kube-scheduler", 2.0), turn("hoss", 0.5), turn("hoss", 1.0)])
    assert document["podsPerSecond"] == {"hoss": 15.0, "kubeScheduler": 5.0}
    assert document["ratio"] == 3.0
    assert summary(setting(peer=Peer.NOBODY), [turn("hoss", 1.0)])["ratio"] is None


def test_a_ceiling_is_measured_beside_and_each_share_of_it_is_told():
    asked = setting(ceiling=True)
    assert order(asked) == ["bare client", "kube-scheduler", "hoss"]
    turns = [turn("bare client", 0.5), turn("kube-scheduler", 2.0), turn("hoss", 1.0)]
    document = summary(asked, turns)
    assert document["podsPerSecond"] == {"hoss": 10.0, "kubeScheduler": 5.0, "bareClient": 20.0}
    assert document["ofCeiling"] == {"hoss": 0.5, "kubeScheduler": 0.25}
    assert "ofCeiling" not in summary(setting(), turns[1:])


def test_of_starts_the_medians_are_told_and_what_was_not_reserved():
    starts = [
        Start(seconds, {"dispatcher": 1.0}, {"dispatcher": mib}, 90) for seconds, mib in ((3, 90), (1, 70))
    ]
    document = startup_summary(StartupSetting(nodes=5, pods=100, repeat=2), starts)
    assert (document["seconds"], document["dispatcherMib"]) == (2.0, 80.0)
    assert [start["unreserved"] for start in document["turns"]] == [10, 10]
