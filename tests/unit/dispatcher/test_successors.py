"""Which new pod is the successor of an evicted one, and which pods are not evicted for a move."""

import pytest

from dispatcher.core.cluster.storage import StorageObjects
from dispatcher.core.kubernetes.pod_objects import PodReader
from dispatcher.core.kubernetes.successors import (
    AwaitedSuccessors,
    unmounted_volume,
    unmovable,
    unsettled_claim,
)
from hoss.model.cluster import StorageUpdate
from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import ClaimMount, PersistentVolume, PersistentVolumeClaim, PodVolumes

READER = PodReader(["hoss"])
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}


EPHEMERAL = {"volumeClaimTemplate": {"spec": {}}}


def seen(number, *, owner=OWNER, namespace="default", scheduler="hoss", cpu="1", spec=None, **metadata):
    uid = f"00000000-0000-0000-0000-{number:012d}"
    named = {"uid": uid, "namespace": namespace, "name": f"web-{number}", "labels": {"app": "web"}}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return READER.read(
        {
            "metadata": {**named, "ownerReferences": [owner] if owner else [], **metadata},
            "spec": {"schedulerName": scheduler, "containers": [container], **(spec or {})},
        }
    )


@pytest.fixture
def awaited():
    awaited = AwaitedSuccessors()
    awaited.expect(seen(1, spec={"nodeName": "n1"}), "place")
    return awaited


def test_a_new_pod_of_the_same_controller_and_shape_gets_the_place_once(awaited):
    assert awaited.take(seen(2)) == "place"
    assert awaited.take(seen(3)) is None
    assert len(awaited) == 0


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(seen(2, owner={**OWNER, "name": "api"}), id="another controller"),
        pytest.param(seen(2, owner={**OWNER, "kind": "Job"}), id="another kind of controller"),
        pytest.param(seen(2, namespace="other"), id="another namespace"),
        pytest.param(seen(2, cpu="2"), id="other requests"),
        pytest.param(seen(2, labels={"app": "api"}), id="other labels"),
        pytest.param(seen(2, scheduler="default-scheduler"), id="another scheduler"),
        pytest.param(seen(2, spec={"nodeName": "n3"}), id="on a node already"),
        pytest.param(seen(2, spec={"schedulingGates": [{"name": "g"}]}), id="gated"),
    ],
)
def test_any_other_pod_is_none(awaited, pod):
    assert awaited.take(pod) is None
    assert len(awaited) == 1


def test_the_one_that_waits_longest_gets_the_first_successor(awaited):
    awaited.expect(seen(4), "second")
    assert [awaited.take(seen(number)) for number in (5, 6)] == ["place", "second"]


def test_what_is_withdrawn_is_given_to_nobody_and_what_was_given_is_not_withdrawn(awaited):
    second = awaited.expect(seen(4), "second")
    assert awaited.withdraw(second)
    assert not awaited.withdraw(second)
    assert awaited.take(seen(5)) == "place"
    assert awaited.take(seen(6)) is None


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (seen(1), ""),
        (seen(1, owner=None), "it has no controller"),
        (seen(1, owner={**OWNER, "kind": "DaemonSet"}), "belongs to its node"),
        (seen(1, owner={**OWNER, "kind": "Node"}), "belongs to its node"),
        (seen(1, scheduler="default-scheduler"), "another scheduler places it"),
        (seen(1, annotations={"hoss.dev/movable": "false"}), "movable says false"),
        (seen(1, annotations={"hoss.dev/movable": "nonsense"}), "movable says false"),
        (seen(1, annotations={"hoss.dev/min-available": "2"}), "one of a gang"),
        (seen(1, deletionTimestamp="2026-11-23T00:00:00Z"), "is leaving"),
        (
            seen(1, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}),
            "claims devices",
        ),
        (seen(1, spec={"volumes": [{"name": "v", "ephemeral": EPHEMERAL}]}), "volumes of its own"),
        (seen(1, spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}), ""),
    ],
)
def test_only_pods_that_somebody_makes_anew_are_evicted(pod, why):
    assert why in unmovable(pod)
    assert bool(unmovable(pod)) == bool(why)


def volume_view(**claim):
    storage = StorageObjects()
    labels = (("topology.kubernetes.io/zone", "a"),)
    here = NodeSelector((NodeSelectorTerm((Requirement("disk", "In", ("fast",)),)),))
    volumes = (PersistentVolume("zonal", labels=labels), PersistentVolume("local", node_affinity=here))
    bound = PersistentVolumeClaim("default", "data", **{"bind_completed": True, **claim})
    storage.apply(StorageUpdate((*volumes, bound)))
    return storage


MOUNTING = PodSpec(volumes=PodVolumes((ClaimMount("data"),)))


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"volume_name": "local"}, ""),
        ({"volume_name": "local", "bind_completed": False}, "its claim data is not bound yet"),
        ({"name": "other", "volume_name": "local"}, "its claim data does not exist"),
    ],
)
def test_a_pod_is_not_evicted_before_its_claims_have_volumes(claim, why):
    named = {"name": "data", **claim}
    storage = StorageObjects()
    claims = PersistentVolumeClaim("default", **{"bind_completed": True, **named})
    storage.apply(StorageUpdate((claims,)))
    assert unsettled_claim(MOUNTING, storage) == why


@pytest.mark.parametrize(
    ("volume", "labels", "why"),
    [
        ("local", {"disk": "fast"}, ""),
        ("local", {}, "node(s) didn't match PersistentVolume's node affinity"),
        ("zonal", {"topology.kubernetes.io/zone": "a"}, ""),
        ("zonal", {"topology.kubernetes.io/zone": "b"}, "node(s) had no available volume zone"),
    ],
)
def test_a_volume_that_its_target_cannot_mount_is_named(volume, labels, why):
    found = unmounted_volume(MOUNTING, "n1", labels, volume_view(volume_name=volume))
    assert found == (why and f"the volume {volume} cannot be mounted on n1: {why}")
