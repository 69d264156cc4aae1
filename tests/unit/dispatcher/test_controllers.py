"""Default spreading by the selector of a pod's controller."""

import pytest

from dispatcher.core.kubernetes.pod_objects import Controllers, PodReader
from hoss.manifests.cluster import read_controller
from hoss.model.cluster import OwnerReference
from hoss.model.selectors import LabelSelector, Requirement

WEB = LabelSelector((Requirement("app", "In", ("web",)),))
SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}]


def controller(kind, selector):
    return read_controller(
        {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": selector}}, kind
    )


def pod(kind="StatefulSet", *, version="apps/v1", name="web", namespace="default", labels=None, **spec):
    owner = {"kind": kind, "apiVersion": version, "name": name, "uid": "u", "controller": True}
    metadata = {"uid": "11111111-2222-3333-4444-555555555555", "namespace": namespace, "name": "web-0"}
    return {
        "metadata": {**metadata, "labels": labels or {"app": "web"}, "ownerReferences": [owner]},
        "spec": {"schedulerName": "hoss", "containers": [{"name": "c", "image": "i"}], **spec},
    }


@pytest.fixture
def known():
    """One controller of each kind."""
    known = Controllers()
    known.apply(controller("StatefulSet", {"matchLabels": {"app": "web"}}))
    known.apply(controller("ReplicaSet", {"matchLabels": {"app": "web"}}))
    known.apply(controller("ReplicationController", {"app": "web"}))
    return known


def spread(known, made):
    return known.template_of(PodReader(("hoss",)).read(made)).spec.default_spread


@pytest.mark.parametrize(
    ("kind", "version"),
    [("StatefulSet", "apps/v1"), ("ReplicaSet", "apps/v1"), ("ReplicationController", "v1")],
)
def test_a_pod_is_spread_among_those_that_its_controller_selects(known, kind, version):
    assert spread(known, pod(kind, version=version)) == WEB


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"namespace": "other"},
        {"version": "apps.kruise.io/v1"},
        {"kind": "Job", "version": "batch/v1"},
        {"topologySpreadConstraints": SPREAD},
        {"schedulerName": "default-scheduler"},
    ],
    ids=str,
)
def test_other_pods_are_not(known, fields):
    assert spread(known, pod(**fields)) is None


def test_a_pod_of_a_deployment_is_spread_by_its_label_whatever_is_known(known):
    selector = spread(known, pod("ReplicaSet", labels={"app": "web", "pod-template-hash": "abc"}))
    assert selector == LabelSelector((Requirement("pod-template-hash", "In", ("abc",)),))


def test_a_controller_that_is_gone_or_selects_everything_spreads_nothing(known):
    known.remove(OwnerReference("StatefulSet", "apps", "web"), "default")
    known.apply(controller("ReplicaSet", {}))
    assert spread(known, pod()) is spread(known, pod("ReplicaSet")) is None


def test_pods_that_are_alike_share_one_template(known):
    reader = PodReader(("hoss",))
    first, second = (known.template_of(reader.read(pod())) for _ in range(2))
    assert first is second
