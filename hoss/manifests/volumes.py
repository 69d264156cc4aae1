"""Reads what pods mount, and the storage objects of a cluster, as the API server stores them.

What HOSS does not use is not checked. Where Kubernetes still reads an old annotation, so does this."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hoss.errors import InvalidInput
from hoss.manifests.fields import Object, boolean, integer, mapping, mappings, read_labels, text, texts
from hoss.manifests.placement import read_node_selector
from hoss.manifests.pod_rules import read_optional_selector
from hoss.model.quantity import read_quantity
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volume_topology import OLD_ZONE, PLUGINS, ZONE, ebs_handle, gce_handle, gce_problem
from hoss.model.volumes import (
    EBS,
    FILESYSTEM,
    ClaimMount,
    ClaimReference,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    CsiVolume,
    EphemeralOwner,
    InlineDisk,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
    StorageObject,
    VolumeAttachment,
)

_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_BOUND_ANNOTATION = "pv.kubernetes.io/bind-completed"
_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
_MIGRATED_ANNOTATION = "storage.alpha.kubernetes.io/migrated-plugins"
_MOST_VOLUMES = 2**31 - 1  # Kubernetes' type


def read_pod_volumes(metadata: Object, spec: Object, path: str) -> PodVolumes | None:
    """The volumes of a pod that restrict its nodes. None: it has none. Raises InvalidInput."""
    claims: list[ClaimMount] = []
    disks: list[InlineDisk] = []
    for i, volume in enumerate(mappings(spec, "volumes", path)):
        if _RESTRICTING.isdisjoint(volume):
            continue  # most: a token, a ConfigMap, an empty directory
        place = f"{path}.volumes[{i}]"
        if volume.get("persistentVolumeClaim") is not None:
            source = mapping(volume, "persistentVolumeClaim", place)
            claim = text(source, "claimName", f"{place}.persistentVolumeClaim")
            if not claim:
                problem = "is missing; the volume has the name of a claim"
                raise InvalidInput(problem, where=f"{place}.persistentVolumeClaim.claimName")
            claims.append(ClaimMount(claim))
        elif volume.get("ephemeral") is not None:
            owner = EphemeralOwner(text(metadata, "name", "metadata"), text(metadata, "uid", "metadata"))
            claims.append(ClaimMount(f"{owner.name}-{text(volume, 'name', place)}", owner))
        else:
            disks += [
                read(mapping(volume, kind, place), f"{place}.{kind}")
                for kind, read in _DISKS.items()
                if volume.get(kind) is not None
            ]
    return PodVolumes(tuple(claims), tuple(disks)) if claims or disks else None


def _read_gce_disk(disk: Object, path: str) -> InlineDisk:
    names = (text(disk, "pdName", path),)
    return InlineDisk("gcePersistentDisk", names, boolean(disk, "readOnly", path))


def _read_ebs_disk(disk: Object, path: str) -> InlineDisk:
    return InlineDisk(EBS, (text(disk, "volumeID", path),), boolean(disk, "readOnly", path))


def _read_iscsi_disk(disk: Object, path: str) -> InlineDisk:
    return InlineDisk("iscsi", (text(disk, "iqn", path),), boolean(disk, "readOnly", path))


def _read_rbd_image(disk: Object, path: str) -> InlineDisk:
    names = (text(disk, "pool", path, default="rbd"), text(disk, "image", path))
    monitors = tuple(sorted(set(texts(disk, "monitors", path))))
    return InlineDisk("rbd", names, boolean(disk, "readOnly", path), monitors)


def _read_azure_disk(disk: Object, path: str) -> InlineDisk:
    return InlineDisk("azureDisk", (text(disk, "diskURI", path),), boolean(disk, "readOnly", path))


def _read_cinder_disk(disk: Object, path: str) -> InlineDisk:
    return InlineDisk("cinder", (text(disk, "volumeID", path),), boolean(disk, "readOnly", path))


def _read_portworx_volume(disk: Object, path: str) -> InlineDisk:
    return InlineDisk("portworxVolume", (text(disk, "volumeID", path),), boolean(disk, "readOnly", path))


_DISKS: dict[str, Callable[[Object, str], InlineDisk]] = {
    "gcePersistentDisk": _read_gce_disk,
    EBS: _read_ebs_disk,
    "iscsi": _read_iscsi_disk,
    "rbd": _read_rbd_image,
    "azureDisk": _read_azure_disk,
    "cinder": _read_cinder_disk,
    "portworxVolume": _read_portworx_volume,
}


CLAIM_SOURCES = frozenset(("persistentVolumeClaim", "ephemeral"))
DISK_SOURCES = frozenset(_DISKS)  # volumes that name a disk themselves
_RESTRICTING = CLAIM_SOURCES | DISK_SOURCES


def read_storage_object(item: Object, kind: str) -> StorageObject | None:
    """The object; None for another kind. Raises InvalidInput with the field's path."""
    reader = _READERS.get(kind)
    return None if reader is None else reader(item)


def _read_volume(item: Object) -> PersistentVolume:
    metadata, spec, status = _parts(item)
    reference = mapping(spec, "claimRef", "spec")
    csi = mapping(spec, "csi", "spec")
    affinity = mapping(spec, "nodeAffinity", "spec")
    volume = PersistentVolume(
        name=text(metadata, "name", "metadata"),
        labels=read_labels(metadata, "labels", "metadata"),
        storage_class=_storage_class(metadata, spec),
        capacity_bytes=_storage(mapping(spec, "capacity", "spec"), "spec.capacity"),
        access_modes=tuple(sorted(set(texts(spec, "accessModes", "spec")))),
        mode=text(spec, "volumeMode", "spec") or FILESYSTEM,
        attributes_class=text(spec, "volumeAttributesClassName", "spec"),
        phase=text(status, "phase", "status"),
        deleting=metadata.get("deletionTimestamp") is not None,
        claim=ClaimReference(
            text(reference, "namespace", "spec.claimRef"),
            text(reference, "name", "spec.claimRef"),
            text(reference, "uid", "spec.claimRef"),
        )
        if reference
        else None,
        node_affinity=_affinity_by_labels(
            read_node_selector(mapping(affinity, "required", "spec.nodeAffinity"), "spec.nodeAffinity")
        )
        if affinity.get("required") is not None
        else None,
        csi=CsiVolume(text(csi, "driver", "spec.csi"), text(csi, "volumeHandle", "spec.csi"))
        if csi
        else None,
    )
    return replace(volume, **_in_tree(spec, dict(volume.labels)))


def _in_tree(spec: Object, labels: Mapping[str, str]) -> dict[str, Any]:
    """What is known of a volume of an in-tree plugin that a driver has replaced."""
    field = next((field for field in PLUGINS if spec.get(field) is not None), None)
    if field is None:
        return {}
    source, place, problem = mapping(spec, field, "spec"), f"spec.{field}", ""
    handle: str | None
    if field == EBS:
        given = text(source, "volumeID", place)
        handle = ebs_handle(given)
        problem = (
            f"failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({given})"
        )
    elif field == "gcePersistentDisk":
        zones = labels.get(OLD_ZONE) or labels.get(ZONE, "")
        handle, problem = gce_handle(text(source, "pdName", place), zones), gce_problem(zones)
    elif field == "azureDisk":
        kind = text(source, "kind", place)
        handle = text(source, "diskURI", place) if kind.casefold() in ("", "managed") else None
        problem = f"kind({kind}) is not supported in csi migration"
    else:
        handle = text(source, "volumeID", place)
    return {
        "in_tree": PLUGINS[field].name,
        "csi": None if handle is None else CsiVolume(PLUGINS[field].driver, handle),
        "untranslatable": problem if handle is None else "",
    }


def _affinity_by_labels(selector: NodeSelector) -> NodeSelector:
    # Kubernetes matches a volume's affinity with a node that has labels and nothing else, so it passes over
    # matchFields. A term that has only these matches all nodes.
    everywhere = (Requirement("", "DoesNotExist"),)
    return NodeSelector(
        tuple(
            NodeSelectorTerm(term.match_expressions or everywhere) if term.match_fields else term
            for term in selector.terms
        )
    )


def _read_claim(item: Object) -> PersistentVolumeClaim:
    metadata, spec, status = _parts(item)
    annotations = mapping(metadata, "annotations", "metadata")
    requests = mapping(mapping(spec, "resources", "spec"), "requests", "spec.resources")
    return PersistentVolumeClaim(
        namespace=text(metadata, "namespace", "metadata", default="default"),
        name=text(metadata, "name", "metadata"),
        uid=text(metadata, "uid", "metadata"),
        storage_class=_storage_class(metadata, spec),
        request_bytes=_storage(requests, "spec.resources.requests"),
        access_modes=tuple(sorted(set(texts(spec, "accessModes", "spec")))),
        mode=text(spec, "volumeMode", "spec") or FILESYSTEM,
        attributes_class=text(spec, "volumeAttributesClassName", "spec"),
        selector=read_optional_selector(spec, "selector", "spec"),
        volume_name=text(spec, "volumeName", "spec"),
        bind_completed=_BOUND_ANNOTATION in annotations,
        phase=text(status, "phase", "status"),
        deleting=metadata.get("deletionTimestamp") is not None,
        selected_node=text(annotations, _NODE_ANNOTATION, "metadata.annotations"),
        controller_uid=next(
            (
                text(owner, "uid", "metadata.ownerReferences")
                for owner in mappings(metadata, "ownerReferences", "metadata")
                if boolean(owner, "controller", "metadata.ownerReferences")
            ),
            "",
        ),
        version=text(metadata, "resourceVersion", "metadata"),
    )


def _read_storage_class(item: Object) -> StorageClass:
    metadata = mapping(item, "metadata", "StorageClass")
    return StorageClass(
        name=text(metadata, "name", "metadata"),
        provisioner=text(item, "provisioner", "StorageClass"),
        waits_for_consumer=text(item, "volumeBindingMode", "StorageClass") == "WaitForFirstConsumer",
        allowed_topologies=tuple(
            _read_topology(term, f"allowedTopologies[{i}]")
            for i, term in enumerate(mappings(item, "allowedTopologies", "StorageClass"))
        ),
    )


def _read_topology(term: Object, path: str) -> NodeSelectorTerm:
    expressions = mappings(term, "matchLabelExpressions", path)
    return NodeSelectorTerm(
        tuple(
            Requirement(text(e, "key", path), "In", tuple(sorted(set(texts(e, "values", path)))))
            for e in expressions
        )
    )


def _read_csi_node(item: Object) -> CsiNode:
    metadata, spec, _ = _parts(item)
    limits = []
    for i, driver in enumerate(mappings(spec, "drivers", "spec")):
        place = f"spec.drivers[{i}]"
        allocatable = mapping(driver, "allocatable", place)
        if allocatable.get("count") is not None:
            count = integer(
                allocatable, "count", f"{place}.allocatable", least=0, most=_MOST_VOLUMES, default=0
            )
            limits.append((text(driver, "name", place), count))
    annotations = mapping(metadata, "annotations", "metadata")
    migrated = text(annotations, _MIGRATED_ANNOTATION, "metadata.annotations").split(",")
    return CsiNode(
        text(metadata, "name", "metadata"), tuple(sorted(limits)), tuple(sorted({*migrated} - {""}))
    )


def _read_csi_driver(item: Object) -> CsiDriver:
    metadata, spec, _ = _parts(item)
    return CsiDriver(text(metadata, "name", "metadata"), boolean(spec, "storageCapacity", "spec"))


def _read_storage_capacity(item: Object) -> CsiStorageCapacity:
    metadata = mapping(item, "metadata", "CSIStorageCapacity")
    largest = item.get("maximumVolumeSize")
    largest = item.get("capacity") if largest is None else largest
    return CsiStorageCapacity(
        namespace=text(metadata, "namespace", "metadata", default="default"),
        name=text(metadata, "name", "metadata"),
        storage_class=text(item, "storageClassName", "CSIStorageCapacity"),
        nodes=read_optional_selector(item, "nodeTopology", "CSIStorageCapacity"),
        largest_bytes=None if largest is None else _bytes(largest, "CSIStorageCapacity.capacity"),
    )


def _read_attachment(item: Object) -> VolumeAttachment:
    metadata, spec, _ = _parts(item)
    return VolumeAttachment(
        name=text(metadata, "name", "metadata"),
        node=text(spec, "nodeName", "spec"),
        attacher=text(spec, "attacher", "spec"),
        volume_name=text(mapping(spec, "source", "spec"), "persistentVolumeName", "spec.source"),
    )


def _parts(item: Object) -> tuple[Object, Object, Object]:
    metadata, spec = mapping(item, "metadata", "object"), mapping(item, "spec", "object")
    return metadata, spec, mapping(item, "status", "object")


def _storage_class(metadata: Object, spec: Object) -> str:
    annotations = mapping(metadata, "annotations", "metadata")
    if _CLASS_ANNOTATION in annotations:
        return text(annotations, _CLASS_ANNOTATION, "metadata.annotations")
    return text(spec, "storageClassName", "spec")


def _storage(amounts: Object, path: str) -> int:
    return 0 if amounts.get("storage") is None else _bytes(amounts["storage"], f"{path}.storage")


def _bytes(given: object, path: str) -> int:
    try:
        return read_quantity(given).value
    except InvalidInput as exc:
        raise exc.at(path) from None


_READERS: dict[str, Callable[[Object], StorageObject]] = {
    "PersistentVolume": _read_volume,
    "PersistentVolumeClaim": _read_claim,
    "StorageClass": _read_storage_class,
    "CSINode": _read_csi_node,
    "CSIDriver": _read_csi_driver,
    "CSIStorageCapacity": _read_storage_capacity,
    "VolumeAttachment": _read_attachment,
}
