"""Volumes of pods, and storage objects, as the API server stores them."""

import pytest

from hoss.errors import InvalidInput
from hoss.manifests.volumes import read_pod_volumes, read_storage_object
from hoss.model.selectors import LabelSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import (
    ClaimMount,
    ClaimReference,
    CsiNode,
    CsiStorageCapacity,
    EphemeralOwner,
    InlineDisk,
    PodVolumes,
    StorageClass,
)


def volumes(*listed):
    return read_pod_volumes({"name": "web", "uid": "u1"}, {"volumes": list(listed)}, "spec")


def test_volumes_that_restrict_no_nodes_are_none():
    assert volumes({"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}) is None


def test_claims_and_disks_are_read_in_their_order():
    rbd = {"monitors": ["m2", "m1"], "image": "i", "readOnly": True}
    assert volumes(
        {"name": "data", "persistentVolumeClaim": {"claimName": "db"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "image", "rbd": rbd},
    ) == PodVolumes(
        (ClaimMount("db"), ClaimMount("web-scratch", EphemeralOwner("web", "u1"))),
        (InlineDisk("rbd", ("rbd", "i"), True, ("m1", "m2")),),
    )


def test_a_volume_without_the_name_of_its_claim_is_refused_with_its_place():
    with pytest.raises(InvalidInput, match=r"spec\.volumes\[0\]\.persistentVolumeClaim\.claimName"):
        volumes({"name": "data", "persistentVolumeClaim": {}})


def volume(**spec):
    return read_storage_object({"metadata": {"name": "pv"}, "spec": spec}, "PersistentVolume")


def required(*terms):
    return {"required": {"nodeSelectorTerms": list(terms)}}


def test_a_volumes_affinity_passes_over_fields():
    named = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    zone = {"key": "zone", "operator": "In", "values": ["z"]}
    read = volume(nodeAffinity=required({"matchFields": [named], "matchExpressions": [zone]}))
    assert read.node_affinity.terms == (NodeSelectorTerm((Requirement("zone", "In", ("z",)),)),)
    anywhere = volume(nodeAffinity=required({"matchFields": [named]})).node_affinity
    assert anywhere.matches({"zone": "z"}, "a")
    assert anywhere.matches({}, "b")


def test_a_volumes_reservation_and_its_old_annotation_are_read():
    item = {
        "metadata": {
            "name": "pv",
            "annotations": {"volume.beta.kubernetes.io/storage-class": "old"},
            "deletionTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {"storageClassName": "new", "claimRef": {"namespace": "n", "name": "c"}},
        "status": {"phase": "Released"},
    }
    read = read_storage_object(item, "PersistentVolume")
    assert (read.storage_class, read.claim, read.phase) == ("old", ClaimReference("n", "c"), "Released")
    assert read.deleting


def test_a_claim_is_bound_once_it_names_a_volume_and_says_that_binding_is_over():
    def claim(annotations, **spec):
        item = {"metadata": {"name": "c", "namespace": "n", "annotations": annotations}, "spec": spec}
        return read_storage_object(item, "PersistentVolumeClaim")

    done = {"pv.kubernetes.io/bind-completed": "yes"}
    assert claim(done, volumeName="pv").bound
    assert not claim({}, volumeName="pv").bound
    assert not claim(done).bound
    size = claim({}, resources={"requests": {"storage": "1.5Gi"}}).request_bytes
    assert size == 3 * 2**29


@pytest.mark.parametrize(
    ("kind", "item", "expected"),
    [
        (
            "StorageClass",
            {
                "provisioner": "p",
                "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["b", "a"]}]}],
            },
            StorageClass("n", "p", True, (NodeSelectorTerm((Requirement("zone", "In", ("a", "b")),)),)),
        ),
        (
            "CSINode",
            {"spec": {"drivers": [{"name": "b", "allocatable": {"count": 0}}, {"name": "a"}]}},
            CsiNode("n", (("b", 0),)),
        ),
        (
            "CSIStorageCapacity",
            {"storageClassName": "s", "capacity": "2Gi", "maximumVolumeSize": "1Gi", "nodeTopology": {}},
            CsiStorageCapacity("default", "n", "s", LabelSelector(), 2**30),
        ),
        (
            "CSIStorageCapacity",
            {"storageClassName": "s", "capacity": "2Gi"},
            CsiStorageCapacity("default", "n", "s", None, 2**31),
        ),
    ],
)
def test_storage_objects_are_read_as_kube_scheduler_uses_them(kind, item, expected):
    assert read_storage_object({"metadata": {"name": "n"}, **item}, kind) == expected


def test_other_kinds_are_none():
    assert read_storage_object({"metadata": {"name": "n"}}, "ConfigMap") is None
