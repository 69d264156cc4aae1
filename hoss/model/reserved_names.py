"""Names of what several pods compete for: volumes, attachments and devices (docs/adr/0057-volumes.md).

A proposal carries the names of what its pod takes. The ledger refuses it if a pod that its author did not
know has taken an equal name since. So everybody who reserves has to form a name in the same way."""

from collections.abc import Iterator

from hoss.model.devices import DeviceId
from hoss.model.volume_topology import attach_limits, attached_volumes
from hoss.model.volumes import READ_WRITE_ONCE_POD, InlineDisk, PodVolumes, VolumeView


def claim_for_one_pod(namespace: str, claim: str) -> str:
    """A claim with access mode ReadWriteOncePod."""
    return f"claim/{namespace}/{claim}"


def disk_on_node(node: str, disk: InlineDisk) -> str:
    """A disk that pods name themselves, on the node that mounts it."""
    return f"disk/{node}/{disk.kind}/{'/'.join(disk.names)}"


def attachments(node: str, driver: str) -> str:
    """The volumes that a driver has attached to a node, of which there is a most."""
    return f"attachments/{node}/{driver}"


def claim_binding(namespace: str, claim: str) -> str:
    """The choice of a volume for a claim that waited for its first consumer."""
    return f"binding/{namespace}/{claim}"


def chosen_volume(volume: str) -> str:
    """A volume that such a claim gets."""
    return f"volume/{volume}"


def resource_claim(namespace: str, claim: str) -> str:
    """The choice of devices for a resource claim."""
    return f"resourceclaim/{namespace}/{claim}"


def device(identity: DeviceId) -> str:
    """A device of a resource claim."""
    return f"device/{identity}"


def counters(driver: str, pool: str, counter_set: str) -> str:
    """Amounts that devices of a pool share."""
    return f"counters/{driver}/{pool}/{counter_set}"


def taken_by_volumes(namespace: str, volumes: PodVolumes, node: str, storage: VolumeView) -> Iterator[str]:
    """What a pod whose claims are bound takes by its volumes on the node; some names perhaps twice."""
    for mount in volumes.claims:
        claim = storage.claim(namespace, mount.claim)
        if claim is not None and READ_WRITE_ONCE_POD in claim.access_modes:
            yield claim_for_one_pod(namespace, mount.claim)
    for disk in (disk for disk in volumes.disks if disk.exclusive):
        yield disk_on_node(node, disk)
    limited = attach_limits(storage.csi_node(node))
    for volume in attached_volumes(namespace, volumes, storage):
        if volume.driver in limited:
            yield attachments(node, volume.driver)
