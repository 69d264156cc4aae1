"""Zones of volumes, and in-tree volumes as the drivers know them that replaced their plugins."""

import pytest

from hoss.manifests.volumes import read_pod_volumes, read_storage_object
from hoss.model.selectors import NodeSelector
from hoss.model.volume_topology import (
    affinity_on,
    driver_of,
    ebs_handle,
    gce_handle,
    in_zones,
    inline_volumes,
)
from hoss.model.volumes import CsiNode, CsiVolume, PersistentVolume
from hoss.wire.convert_storage import storage_from_proto, storage_to_proto

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"


def volume(labels=None, affinity=None, **source):
    terms = [
        {"matchExpressions": [{"key": k, "operator": "In", "values": v} for k, v in (affinity or {}).items()]}
    ]
    spec = {**source, **({"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if affinity else {})}
    read = read_storage_object(
        {"metadata": {"name": "v", "labels": labels or {}}, "spec": spec}, "PersistentVolume"
    )
    assert isinstance(read, PersistentVolume)
    assert storage_from_proto(storage_to_proto(read)) == read
    return read


def csi_node(*migrated):
    annotations = {"storage.alpha.kubernetes.io/migrated-plugins": ",".join(migrated)}
    read = read_storage_object({"metadata": {"name": "n", "annotations": annotations}, "spec": {}}, "CSINode")
    assert isinstance(read, CsiNode)
    assert storage_from_proto(storage_to_proto(read)) == read
    return read


def keys_and_values(selector: NodeSelector | None):
    return (
        None
        if selector is None
        else [[(r.key, r.values) for r in t.match_expressions] for t in selector.terms]
    )


@pytest.mark.parametrize(
    ("given", "handle"),
    [
        ("vol-1", "vol-1"),
        ("any", "any"),
        ("aws://us-east-1a/vol-1", "vol-1"),
        ("aws:///vol-1", "vol-1"),
        ("aws://us-east-1a/disk", None),
        ("aws://vol-1", None),
    ],
)
def test_an_ebs_volume_is_known_by_its_own_id(given, handle):
    assert ebs_handle(given) == handle


@pytest.mark.parametrize(
    ("zones", "place"),
    [
        ("", "zones/UNSPECIFIED"),
        ("us-east1-a", "zones/us-east1-a"),
        ("us-east1-a__us-east1-b", "regions/us-east1"),
        ("us-east1-a__us-west1-b", None),
        ("us-east1-a__here", None),
    ],
)
def test_a_gce_disk_is_known_by_the_zone_or_region_of_its_labels(zones, place):
    wanted = None if place is None else f"projects/UNSPECIFIED/{place}/disks/d"
    assert gce_handle("d", zones) == wanted


def test_in_tree_volumes_take_attachments_of_their_drivers_but_those_of_two_plugins():
    assert volume(cinder={"volumeID": "c"}).csi == CsiVolume("cinder.csi.openstack.org", "c")
    assert volume(azureDisk={"diskURI": "/d", "kind": "Managed"}).csi == CsiVolume("disk.csi.azure.com", "/d")
    assert volume(portworxVolume={"volumeID": "p"}).csi == CsiVolume("pxd.portworx.com", "p")
    assert volume(vsphereVolume={"volumePath": "[d] v"}).csi is None
    assert volume(azureFile={"shareName": "s"}).csi is None
    assert volume(cinder={"volumeID": "c"}).attached_by_driver is None  # by a VolumeAttachment
    assert driver_of("kubernetes.io/aws-ebs") == "ebs.csi.aws.com"
    assert driver_of("kubernetes.io/vsphere-volume") == "kubernetes.io/vsphere-volume"


def test_disks_that_a_pod_names_itself_take_attachments_too():
    disks = [
        {"name": "a", "awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}},
        {"name": "b", "azureDisk": {"diskURI": "/d"}},
        {"name": "c", "iscsi": {"iqn": "i"}},
        {"name": "d", "awsElasticBlockStore": {"volumeID": "aws://z/disk"}},  # no driver knows it
    ]
    volumes = read_pod_volumes({"name": "p"}, {"volumes": disks}, "spec")
    assert list(inline_volumes(volumes)) == [
        CsiVolume("ebs.csi.aws.com", "vol-1"),
        CsiVolume("disk.csi.azure.com", "/d"),
    ]


EBS = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
EBS_KEY = "topology.ebs.csi.aws.com/zone"


@pytest.mark.parametrize(
    ("labels", "affinity", "wanted"),
    [
        ({}, {ZONE: ["a"]}, [[(EBS_KEY, ("a",))]]),
        ({}, {OLD_ZONE: ["a"], OLD_REGION: ["r"]}, [[(EBS_KEY, ("a",)), (REGION, ("r",))]]),
        ({}, {ZONE: ["a"], OLD_REGION: ["r"]}, [[(EBS_KEY, ("a",)), (OLD_REGION, ("r",))]]),
        ({ZONE: "b__a"}, None, [[(EBS_KEY, ("a", "b"))]]),
        ({OLD_ZONE: "a"}, {"disk": ["ssd"]}, [[("disk", ("ssd",)), (EBS_KEY, ("a",))]]),
        ({ZONE: ""}, None, None),
        ({ZONE: "a____b"}, None, [[(EBS_KEY, ("a", "b"))]]),
        ({}, None, None),
    ],
)
def test_the_affinity_of_a_volume_has_the_drivers_key_where_its_plugin_is_migrated(labels, affinity, wanted):
    there, elsewhere = csi_node("kubernetes.io/aws-ebs"), csi_node("kubernetes.io/gce-pd")
    in_tree = volume(labels, affinity, **EBS)
    assert keys_and_values(affinity_on(in_tree, there)) == wanted
    assert affinity_on(in_tree, elsewhere) == affinity_on(in_tree, None) == in_tree.node_affinity
    csi = volume(labels, affinity, csi={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"})
    assert affinity_on(csi, there) == csi.node_affinity


def test_a_volume_keeps_to_its_zones_but_on_nodes_without_any():
    zonal = volume({ZONE: "a__b"})
    assert in_zones(zonal, {ZONE: "b"})
    assert not in_zones(zonal, {ZONE: "c"})
    assert in_zones(zonal, {"disk": "ssd"})
    assert not in_zones(zonal, {REGION: "r"})
    old = volume({OLD_ZONE: "a"})
    assert in_zones(old, {ZONE: "a"})
    assert not in_zones(old, {OLD_ZONE: "b", ZONE: "a"})
    assert in_zones(volume({ZONE: "a____b"}), {ZONE: "c"})  # an empty value: the label says nothing
