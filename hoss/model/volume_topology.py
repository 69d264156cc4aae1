"""Which nodes a volume reaches by the zones of its labels, and in-tree volumes as the CSI drivers know them
that replaced their plugins (Kubernetes' csi-translation-lib).

kube-scheduler counts an in-tree volume against the driver's limit on every node that has a CSINode. Where the
CSINode says that the plugin is migrated, a bound volume's affinity is read with the driver's topology key."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import (
    OUT_OF_ZONE,
    VOLUME_UNREACHABLE,
    CsiNode,
    CsiVolume,
    InlineDisk,
    PersistentVolume,
    PodVolumes,
    VolumeView,
)

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
_ZONES_BETWEEN = "__"  # in the value of a label

# A label of a volume, and the labels of a node that it is compared with: the first that the node has.
ZONE_LABELS = {
    ZONE: (ZONE,),
    REGION: (REGION,),
    OLD_ZONE: (OLD_ZONE, ZONE),
    OLD_REGION: (OLD_REGION, REGION),
}


def zones_of(volume: PersistentVolume) -> dict[str, list[str]]:
    """The values that each of these labels of the volume names (kube-scheduler's VolumeZone)."""
    zones = {key: value.split(_ZONES_BETWEEN) for key, value in volume.labels if key in ZONE_LABELS}
    return {key: values for key, values in zones.items() if all(values)}


def in_zones(volume: PersistentVolume, node_labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is in the volume's zones. One without any of the labels mounts every
    volume."""
    if not any(key in node_labels for key in ZONE_LABELS):
        return True
    return all(
        next((node_labels[label] for label in ZONE_LABELS[key] if label in node_labels), None) in values
        for key, values in zones_of(volume).items()
    )


@dataclass(frozen=True, slots=True)
class InTreePlugin:
    """A plugin that kube-scheduler 1.36 counts as its driver. Those of vSphere and Azure File it does not."""

    name: str
    driver: str
    topology_key: str = ""  # of the driver's zones; empty: the affinity stays as it is


# By the field of a volume's source.
PLUGINS = {
    "awsElasticBlockStore": InTreePlugin(
        "kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"
    ),
    "gcePersistentDisk": InTreePlugin(
        "kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone"
    ),
    "azureDisk": InTreePlugin("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    "cinder": InTreePlugin(
        "kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"
    ),
    "portworxVolume": InTreePlugin("kubernetes.io/portworx-volume", "pxd.portworx.com"),
}
_BY_NAME = {plugin.name: plugin for plugin in PLUGINS.values()}


def driver_of(provisioner: str) -> str:
    """The driver that makes volumes for a storage class."""
    plugin = _BY_NAME.get(provisioner)
    return provisioner if plugin is None else plugin.driver


def attached_volumes(namespace: str, volumes: PodVolumes, storage: VolumeView) -> Iterable[CsiVolume]:
    """What a pod with these volumes has attached to its node: the volumes of bound claims, and those that the
    pod names itself. Pods that mount equal ones share an attachment."""
    yield from inline_volumes(volumes)
    for mount in volumes.claims:
        claim = storage.claim(namespace, mount.claim)
        volume = None if claim is None or not claim.bound else storage.volume(claim.volume_name)
        if volume is not None and volume.csi is not None:
            yield volume.csi


def attach_limits(csi_node: CsiNode | None) -> Mapping[str, int]:
    """How many volumes can be attached, by driver that has a limit on the node."""
    return {} if csi_node is None else dict(csi_node.limits)


def inline_volumes(volumes: PodVolumes) -> Iterable[CsiVolume]:
    """The disks that a pod names itself, as their drivers know them. What no driver knows is left out."""
    for disk in volumes.disks:
        plugin = PLUGINS.get(disk.kind)
        handle = None if plugin is None else _inline_handle(disk)
        if plugin is not None and handle is not None:
            yield CsiVolume(plugin.driver, handle)


def _inline_handle(disk: InlineDisk) -> str | None:
    [name] = disk.names
    if disk.kind == "gcePersistentDisk":
        return gce_handle(name, "")
    if disk.kind == "awsElasticBlockStore":
        return ebs_handle(name)
    return name


_EBS_URL = re.compile(r"aws://[^/?#]*([^?#]*)")
_EBS_VOLUME = re.compile(r"vol-[^/]*")


def ebs_handle(volume_id: str) -> str | None:
    """`vol-1` of `vol-1` and of `aws://zone/vol-1`; None: neither."""
    if not volume_id.startswith("aws://"):
        return volume_id
    match = _EBS_URL.match(volume_id)
    name = "" if match is None else match[1].strip("/")
    return name if _EBS_VOLUME.fullmatch(name) else None


def gce_handle(name: str, zones: str) -> str | None:
    """The driver's handle of a disk in these zones (the value of a label). None: they are of no one
    region."""
    listed = zones.split(_ZONES_BETWEEN)
    if len(listed) == 1:
        return f"projects/UNSPECIFIED/zones/{zones or 'UNSPECIFIED'}/disks/{name}"
    regions = {zone.rpartition("-")[0] for zone in listed if zone.count("-") == 2}
    if len(regions) != 1 or any(zone.count("-") != 2 for zone in listed):
        return None
    return f"projects/UNSPECIFIED/regions/{regions.pop()}/disks/{name}"


def gce_problem(zones: str) -> str:
    """Why a disk in these zones has no handle."""
    listed = zones.split(_ZONES_BETWEEN)
    for zone in listed:
        if zone.count("-") != 2:
            expected = "zone in unexpected format, expected: {locale}-{region}-{zone}"
            return f"failed to get region from zones: {expected}, got: {zone}"
    regions = " ".join(f"{region}:{{}}" for region in sorted({zone.rpartition("-")[0] for zone in listed}))
    several = f"multiple or no regions gotten from zones, got: map[{regions}]"
    return f"failed to get region from zones: {several}"


def migrated_on(volume: PersistentVolume, node: CsiNode | None) -> bool:
    """Whether the node has the driver in place of the volume's plugin."""
    return bool(volume.in_tree) and node is not None and volume.in_tree in node.migrated


def why_not_reached(
    volume: PersistentVolume, node: str, node_labels: Mapping[str, str], csi_node: CsiNode | None
) -> str:
    """Why the node cannot mount this volume, in kube-scheduler's words; empty: it can. `csi_node`: the
    node's, None where it is not known."""
    affinity = affinity_on(volume, csi_node)
    if affinity is not None and not affinity.matches(node_labels, node):
        return VOLUME_UNREACHABLE
    return "" if in_zones(volume, node_labels) else OUT_OF_ZONE


def affinity_on(volume: PersistentVolume, node: CsiNode | None) -> NodeSelector | None:
    """The affinity of a bound volume by which a node with this CSINode is judged."""
    if not migrated_on(volume, node):
        return volume.node_affinity
    return migrated_affinity(volume)


def migrated_affinity(volume: PersistentVolume) -> NodeSelector | None:
    """The volume's affinity, or else the zones of its labels, with the topology key of the driver."""
    affinity, key = volume.node_affinity, _BY_NAME[volume.in_tree].topology_key
    if not key:
        return affinity
    labels = dict(volume.labels)
    terms = () if affinity is None else affinity.terms
    used = {requirement.key for term in terms for requirement in term.match_expressions}
    old = ZONE not in used and (OLD_ZONE in used or (ZONE not in labels and OLD_ZONE in labels))
    zone = OLD_ZONE if old else ZONE
    renamed = {OLD_REGION: REGION} if old else {}
    if any(r.key == zone and r.values for term in terms for r in term.match_expressions):
        return _with_keys(terms, {**renamed, zone: key})
    zones = {value.strip() for value in labels.get(zone, "").split(_ZONES_BETWEEN)} - {""}
    if zones:
        only = Requirement(key, "In", tuple(sorted(zones)))
        terms = tuple(
            replace(term, match_expressions=(*term.match_expressions, only))
            for term in terms or (NodeSelectorTerm(),)
        )
    return _with_keys(terms, renamed) if terms else affinity


def _with_keys(terms: Iterable[NodeSelectorTerm], names: dict[str, str]) -> NodeSelector:
    return NodeSelector(
        tuple(
            replace(
                term,
                match_expressions=tuple(
                    replace(r, key=names.get(r.key, r.key)) for r in term.match_expressions
                ),
            )
            for term in terms
        )
    )
