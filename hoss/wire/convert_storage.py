"""Converts storage objects, manifests of device objects, and nominated pods between the model and hoss.v1."""

from collections.abc import Iterator

from hoss.errors import InvalidInput
from hoss.model.cluster import FollowedObject, NominatedPod, ObjectKey, StorageUpdate
from hoss.model.devices import DeviceManifest
from hoss.model.selectors import NodeSelector
from hoss.model.volumes import (
    ClaimReference,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    CsiVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from hoss.v1 import common_pb2
from hoss.v1 import objects_pb2 as pb
from hoss.wire.convert import amounts_from_proto, amounts_to_proto
from hoss.wire.convert_selectors import (
    labels_from_proto,
    labels_to_proto,
    node_term_from_proto,
    node_term_to_proto,
    optional,
    optional_selector_to_proto,
    selector_from_proto,
)

# Objects in one message: half a megabyte of volumes.
OBJECTS_PER_MESSAGE = 2000


def storage_changes_to_proto(update: StorageUpdate) -> Iterator[pb.StorageChanges]:
    """The update, in as many messages as it takes."""
    starts = range(0, len(update.objects), OBJECTS_PER_MESSAGE) or range(1)
    for start in starts:
        yield pb.StorageChanges(
            objects=map(storage_to_proto, update.objects[start : start + OBJECTS_PER_MESSAGE]),
            gone=[pb.StorageKey(kind=k.kind, namespace=k.namespace, name=k.name) for k in update.gone]
            if start == 0
            else (),
            complete=update.complete,
            continued=start != starts[-1],
        )


def storage_changes_from_proto(message: pb.StorageChanges) -> StorageUpdate:
    """The part of an update that a message holds. Objects of a kind that this version does not know are left
    out."""
    known = (item for item in message.objects if item.WhichOneof("kind") is not None)
    return StorageUpdate(
        tuple(map(storage_from_proto, known)),
        tuple(ObjectKey(key.kind, key.namespace, key.name) for key in message.gone),
        message.complete,
    )


def storage_to_proto(item: FollowedObject) -> pb.StorageObject:  # noqa: PLR0911 - one for each kind
    match item:
        case PersistentVolume():
            return pb.StorageObject(volume=_volume_to_proto(item))
        case PersistentVolumeClaim():
            return pb.StorageObject(claim=_claim_to_proto(item))
        case StorageClass():
            storage_class = pb.StorageClass(
                name=item.name,
                provisioner=item.provisioner,
                waits_for_consumer=item.waits_for_consumer,
                allowed_topologies=map(node_term_to_proto, item.allowed_topologies),
            )
            return pb.StorageObject(storage_class=storage_class)
        case CsiNode():
            limits = amounts_to_proto(item.limits)
            csi_node = pb.CsiNode(name=item.name, limits=limits, migrated=item.migrated)
            return pb.StorageObject(csi_node=csi_node)
        case CsiDriver():
            driver = pb.CsiDriver(name=item.name, reports_capacity=item.reports_capacity)
            return pb.StorageObject(csi_driver=driver)
        case CsiStorageCapacity():
            capacity = pb.CsiStorageCapacity(
                namespace=item.namespace,
                name=item.name,
                storage_class=item.storage_class,
                nodes=optional_selector_to_proto(item.nodes),
                largest_bytes=item.largest_bytes,
            )
            return pb.StorageObject(capacity=capacity)
        case VolumeAttachment():
            attachment = pb.VolumeAttachment(
                name=item.name, node=item.node, attacher=item.attacher, volume_name=item.volume_name
            )
            return pb.StorageObject(attachment=attachment)
        case DeviceManifest():
            device = pb.DeviceManifest(
                kind=item.kind, namespace=item.namespace, name=item.name, text=item.text
            )
            return pb.StorageObject(device=device)
        case NominatedPod():
            nominated = pb.NominatedPod(
                namespace=item.namespace,
                name=item.name,
                node=item.node,
                priority=item.priority,
                requests=amounts_to_proto(item.requests),
            )
            return pb.StorageObject(nominated_pod=nominated)


def storage_from_proto(message: pb.StorageObject) -> FollowedObject:  # noqa: PLR0911 - one for each kind
    """Raises InvalidInput for a missing object and for an unknown kind."""
    match message.WhichOneof("kind"):
        case "volume":
            return _volume_from_proto(message.volume)
        case "claim":
            return _claim_from_proto(message.claim)
        case "storage_class":
            of_class = message.storage_class
            terms = tuple(map(node_term_from_proto, of_class.allowed_topologies))
            return StorageClass(of_class.name, of_class.provisioner, of_class.waits_for_consumer, terms)
        case "csi_node":
            limits = amounts_from_proto(message.csi_node.limits)
            return CsiNode(message.csi_node.name, limits, tuple(message.csi_node.migrated))
        case "csi_driver":
            return CsiDriver(message.csi_driver.name, message.csi_driver.reports_capacity)
        case "capacity":
            capacity = message.capacity
            return CsiStorageCapacity(
                capacity.namespace,
                capacity.name,
                capacity.storage_class,
                optional(capacity, "nodes", selector_from_proto),
                optional(capacity, "largest_bytes", int),
            )
        case "attachment":
            found = message.attachment
            return VolumeAttachment(found.name, found.node, found.attacher, found.volume_name)
        case "device":
            device = message.device
            return DeviceManifest(device.kind, device.namespace, device.name, device.text)
        case "nominated_pod":
            pod = message.nominated_pod
            requests = amounts_from_proto(pod.requests)
            return NominatedPod(pod.namespace, pod.name, pod.node, pod.priority, requests)
        case _:
            problem = "is missing, or of a kind that this version does not know"
            raise InvalidInput(problem, where="object.kind")


def _volume_to_proto(volume: PersistentVolume) -> pb.PersistentVolume:
    claim, affinity, csi = volume.claim, volume.node_affinity, volume.csi
    return pb.PersistentVolume(
        name=volume.name,
        labels=labels_to_proto(volume.labels),
        storage_class=volume.storage_class,
        capacity_bytes=volume.capacity_bytes,
        access_modes=volume.access_modes,
        mode=volume.mode,
        attributes_class=volume.attributes_class,
        phase=volume.phase,
        deleting=volume.deleting,
        claim=pb.ClaimReference(namespace=claim.namespace, name=claim.name, uid=claim.uid) if claim else None,
        node_affinity=common_pb2.NodeSelector(terms=map(node_term_to_proto, affinity.terms))
        if affinity is not None
        else None,
        csi=pb.CsiVolume(driver=csi.driver, handle=csi.handle) if csi is not None else None,
        in_tree=volume.in_tree,
        untranslatable=volume.untranslatable,
    )


def _volume_from_proto(message: pb.PersistentVolume) -> PersistentVolume:
    return PersistentVolume(
        name=message.name,
        labels=labels_from_proto(message.labels),
        storage_class=message.storage_class,
        capacity_bytes=message.capacity_bytes,
        access_modes=tuple(message.access_modes),
        mode=message.mode,
        attributes_class=message.attributes_class,
        phase=message.phase,
        deleting=message.deleting,
        claim=optional(message, "claim", lambda c: ClaimReference(c.namespace, c.name, c.uid)),
        node_affinity=optional(
            message, "node_affinity", lambda s: NodeSelector(tuple(map(node_term_from_proto, s.terms)))
        ),
        csi=optional(message, "csi", lambda c: CsiVolume(c.driver, c.handle)),
        in_tree=message.in_tree,
        untranslatable=message.untranslatable,
    )


def _claim_to_proto(claim: PersistentVolumeClaim) -> pb.PersistentVolumeClaim:
    return pb.PersistentVolumeClaim(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        storage_class=claim.storage_class,
        request_bytes=claim.request_bytes,
        access_modes=claim.access_modes,
        mode=claim.mode,
        attributes_class=claim.attributes_class,
        selector=optional_selector_to_proto(claim.selector),
        volume_name=claim.volume_name,
        bind_completed=claim.bind_completed,
        phase=claim.phase,
        deleting=claim.deleting,
        selected_node=claim.selected_node,
        controller_uid=claim.controller_uid,
    )


def _claim_from_proto(message: pb.PersistentVolumeClaim) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        namespace=message.namespace,
        name=message.name,
        uid=message.uid,
        storage_class=message.storage_class,
        request_bytes=message.request_bytes,
        access_modes=tuple(message.access_modes),
        mode=message.mode,
        attributes_class=message.attributes_class,
        selector=optional(message, "selector", selector_from_proto),
        volume_name=message.volume_name,
        bind_completed=message.bind_completed,
        phase=message.phase,
        deleting=message.deleting,
        selected_node=message.selected_node,
        controller_uid=message.controller_uid,
    )
