"""Whether a pod that another scheduler binds may have its volumes and devices: what binds two pods of
different schedulers together and no kubelet refuses in time. Reasons are kube-scheduler's words.

Checked is what others may have taken, or what no scheduler can wish: a claim for one pod that another pod
mounts, a disk that is mounted on the node already, a volume that the node does not reach by its affinity or
its zones, more volumes than a driver attaches, a device that another claim has. What the API server has
settled is not judged again: a volume belongs to the claim that its claimRef names, whatever a worker has
chosen meanwhile. Of devices that claims share, and of counters that devices share, nobody gets more than is
left."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hoss.model import reserved_names
from hoss.model.devices import (
    CLAIM_UNREACHABLE,
    NOT_ALLOCATABLE,
    Allocation,
    DeviceResult,
    HeldClaim,
    PodClaims,
    ResourceClaim,
)
from hoss.model.pod import PodGroup
from hoss.model.volume_topology import attach_limits, attached_volumes, why_not_reached
from hoss.model.volumes import (
    CLAIM_IN_USE,
    DISK_IN_USE,
    OUT_OF_ZONE,
    OVER_ATTACH_LIMIT,
    READ_WRITE_ONCE_POD,
    VOLUME_UNREACHABLE,
    CsiVolume,
    PersistentVolumeClaim,
    PodVolumes,
    VolumeAttachment,
    VolumeView,
)
from resolver.core.kubernetes.held_view import ClaimKey, HeldView
from resolver.core.kubernetes.shared_devices import SharedDevices

VOLUME_CONFLICT, DEVICE_CONFLICT = "conflict_volume", "conflict_device_claim"  # verdicts, in one word


class StorageView(VolumeView, Protocol):
    """Storage objects of the cluster."""

    def attachments(self, node: str) -> Iterable[VolumeAttachment]:
        """What is attached to the node of the name, will be or is being detached."""


@dataclass(frozen=True, slots=True)
class BindingNode:
    """The node of a binding. `index`: in the ledger."""

    index: int
    name: str
    labels: Mapping[str, str]


class Wanted(NamedTuple):
    """What a pod mounts and claims. `device_claims`: by name, those of `claims` that exist."""

    namespace: str
    volumes: PodVolumes | None
    claims: PodClaims | None
    device_claims: Mapping[str, ResourceClaim]


class Taken(NamedTuple):
    """What a pod takes with its binding: names that nobody else may have taken unseen, and devices."""

    names: tuple[str, ...]
    held_claims: tuple[HeldClaim, ...]


class NotGiven(NamedTuple):
    """Why a pod does not get its volumes and devices on the node. `tentative`: perhaps for a pod that will
    not get them either."""

    verdict: str
    reason: str
    tentative: bool = False


def judge(
    wanted: Wanted,
    node: BindingNode,
    storage: StorageView,
    devices: SharedDevices,
    held: HeldView,
    *,
    idle: Collection[ClaimKey] = (),
) -> Taken | NotGiven:
    """The pod must hold no reservation: what it holds itself would count against it. `idle`: resource claims
    none of whose pods is bound."""
    allocated = allocated_claims(wanted)
    if wanted.volumes is not None and (
        reason := _volumes_problem(wanted.namespace, wanted.volumes, node, storage, held)
    ):
        return NotGiven(VOLUME_CONFLICT, reason)
    for claim in allocated:
        if reason := _devices_problem((claim.namespace, claim.name), claim.allocation, node, held):
            return NotGiven(DEVICE_CONFLICT, reason)
    if lack := devices.lack(allocated, held, idle):
        return NotGiven(DEVICE_CONFLICT, f"{NOT_ALLOCATABLE}: {lack}")
    names = set(_names(wanted, allocated, node, storage, devices))
    return Taken(tuple(sorted(names)), allocated)


def allocated_claims(wanted: Wanted) -> tuple[HeldClaim, ...]:
    """The pod's resource claims that have devices. A scheduler that knows of devices allocates them before it
    binds."""
    uses = () if wanted.claims is None else wanted.claims.uses
    found = [wanted.device_claims.get(use.claim or "") for use in uses]
    return tuple(
        HeldClaim(claim.namespace, claim.name, claim.allocation)
        for claim in dict.fromkeys(found)
        if claim is not None and claim.allocation is not None
    )


def _volumes_problem(
    namespace: str, volumes: PodVolumes, node: BindingNode, storage: StorageView, held: HeldView
) -> str:
    for mount in volumes.claims:
        claim = storage.claim(namespace, mount.claim)
        if claim is not None and (reason := _claim_problem(claim, node, storage, held)):
            return reason
    there = [group for group in held.groups_on(node.index) if group.volumes is not None]
    for group in there:
        for disk in group.volumes.disks if group.volumes is not None else ():
            if any(own.excludes(disk) for own in volumes.disks):
                return DISK_IN_USE
    return _attachments_problem(namespace, volumes, node, storage, there)


def _claim_problem(
    claim: PersistentVolumeClaim, node: BindingNode, storage: StorageView, held: HeldView
) -> str:
    key = claim.namespace, claim.name
    if READ_WRITE_ONCE_POD in claim.access_modes and held.users(key):
        return CLAIM_IN_USE
    if claim.bound:
        volumes = [claim.volume_name]
    else:
        choices = held.choices(key)
        if any(choice.node not in (-1, node.index) for choice in choices):
            return VOLUME_UNREACHABLE  # one is being provisioned for another node
        volumes = [choice.volume for choice in choices if choice.volume]
    for volume in map(storage.volume, volumes):
        if volume is None:
            continue
        reason = why_not_reached(volume, node.name, node.labels, storage.csi_node(node.name))
        if reason and (claim.bound or reason != OUT_OF_ZONE):
            return reason
    return ""


def _attachments_problem(
    namespace: str, volumes: PodVolumes, node: BindingNode, storage: StorageView, there: list[PodGroup]
) -> str:
    limits = attach_limits(storage.csi_node(node.name))
    own = {volume for volume in attached_volumes(namespace, volumes, storage) if volume.driver in limits}
    if not own:
        return ""
    attached = set(_left_attached(node, storage))
    for group in there:
        if group.volumes is not None:
            attached.update(attached_volumes(group.namespace, group.volumes, storage))
    for driver in {volume.driver for volume in own - attached}:
        if sum(volume.driver == driver for volume in own | attached) > limits[driver]:
            return OVER_ATTACH_LIMIT
    return ""


def _left_attached(node: BindingNode, storage: StorageView) -> Iterator[CsiVolume]:
    """The volumes of the node's VolumeAttachments. Those of pods that are gone stay until they are
    detached."""
    for attachment in storage.attachments(node.name):
        volume = storage.volume(attachment.volume_name)
        known = None if volume is None else volume.attached_by_driver
        if known is not None:
            yield CsiVolume(attachment.attacher, known.handle)


def _devices_problem(key: ClaimKey, allocation: Allocation, node: BindingNode, held: HeldView) -> str:
    if allocation.nodes is not None and not allocation.nodes.matches(node.labels, node.name):
        return CLAIM_UNREACHABLE
    for result in allocation.results:
        other = None if result.admin_access else _other_claim(key, result, held)
        if other is not None:
            return f"{NOT_ALLOCATABLE}: device {result.id} is given to claim {'/'.join(other)}"
    return ""


def _other_claim(key: ClaimKey, result: DeviceResult, held: HeldView) -> ClaimKey | None:
    """Another claim that has the device and does not share it."""
    others = (use for use in held.uses(result.id) if use.claim != key)
    return next((use.claim for use in others if not (use.shared and result.shared)), None)


def _names(
    wanted: Wanted,
    allocated: tuple[HeldClaim, ...],
    node: BindingNode,
    storage: StorageView,
    devices: SharedDevices,
) -> Iterator[str]:
    if wanted.volumes is not None:
        yield from reserved_names.taken_by_volumes(wanted.namespace, wanted.volumes, node.name, storage)
    for given in allocated:
        yield reserved_names.resource_claim(given.namespace, given.name)
        for result in given.allocation.results:
            if not result.admin_access:
                yield reserved_names.device(result.id)
                for counter_set in devices.counter_sets(result.id):
                    yield reserved_names.counters(result.id.driver, result.id.pool, counter_set)
