"""Volumes: what pods mount, and the storage objects of a cluster that decide where they can.

A *claim* is a PersistentVolumeClaim. Only properties that kube-scheduler's volume plugins read are kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from hoss.model.resources import Pairs
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm

READ_WRITE_ONCE_POD = "ReadWriteOncePod"
READ_WRITE_MANY, READ_ONLY_MANY = "ReadWriteMany", "ReadOnlyMany"  # several nodes at a time
FILESYSTEM = "Filesystem"  # the volume mode where none is given

# kube-scheduler's words
DISK_IN_USE = "node(s) had no available disk"
CLAIM_IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
    "another pod"
)
VOLUME_UNREACHABLE = "node(s) didn't match PersistentVolume's node affinity"
OVER_ATTACH_LIMIT = "node(s) exceed max volume count"
OUT_OF_ZONE = "node(s) had no available volume zone"


@dataclass(frozen=True, slots=True)
class EphemeralOwner:
    """The pod that owns the claim of a generic ephemeral volume, and must be the claim's controller."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ClaimMount:
    """One of spec.volumes that mounts a claim of the pod's namespace."""

    claim: str
    owner: EphemeralOwner | None = None  # None: a persistentVolumeClaim volume
    # Of a placed pod whose claim was not bound then: the volume that the claim gets, or that one is
    # provisioned for the pod's node.
    volume: str = ""
    provisioned: bool = False

    @property
    def to_be_bound(self) -> bool:
        """Whether the claim got its volume with the pod's placement."""
        return bool(self.volume) or self.provisioned


@dataclass(frozen=True, slots=True)
class InlineDisk:
    """One of spec.volumes that names a disk itself. `names` identify it together; an RBD image has one entry
    in `monitors` for each server of its cluster."""

    # The field of the volume: gcePersistentDisk, awsElasticBlockStore, iscsi, rbd. Also azureDisk, cinder and
    # portworxVolume, which exclude nothing.
    kind: str
    names: tuple[str, ...]
    read_only: bool = False
    monitors: tuple[str, ...] = ()

    def excludes(self, other: "InlineDisk") -> bool:
        """Whether one node cannot mount both (kube-scheduler's VolumeRestrictions)."""
        if self.kind != other.kind or self.names != other.names or not self.exclusive:
            return False
        if self.kind == "rbd" and not set(self.monitors) & set(other.monitors):
            return False
        return self.kind == EBS or not (self.read_only and other.read_only)

    @property
    def exclusive(self) -> bool:
        """Whether one pod of a node may exclude another one."""
        return self.kind in (EBS, "gcePersistentDisk", "iscsi", "rbd")


EBS = "awsElasticBlockStore"


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """The volumes of a pod that restrict its nodes, each list in the order of spec.volumes."""

    claims: tuple[ClaimMount, ...] = ()
    disks: tuple[InlineDisk, ...] = ()

    @property
    def mounted_claims(self) -> tuple[str, ...]:
        """Names of the claims of persistentVolumeClaim volumes."""
        return tuple(mount.claim for mount in self.claims if mount.owner is None)

    @property
    def to_be_bound(self) -> tuple[ClaimMount, ...]:
        """The claims that got their volumes with the pod's placement."""
        return tuple(mount for mount in self.claims if mount.to_be_bound)

    @property
    def undecided(self) -> "PodVolumes":
        """The same before it was decided which volumes the claims get."""
        claims = tuple(replace(mount, volume="", provisioned=False) for mount in self.claims)
        return replace(self, claims=claims) if self.to_be_bound else self

    def choosing(self, chosen: Mapping[str, str | None]) -> "PodVolumes":
        """The same with the volume that each of these claims gets; None: one is provisioned."""
        return replace(
            self,
            claims=tuple(
                replace(m, volume=chosen[m.claim] or "", provisioned=chosen[m.claim] is None)
                if m.claim in chosen
                else m
                for m in self.claims
            ),
        )


@dataclass(frozen=True, slots=True)
class CsiVolume:
    """A volume as its driver knows it. Pods that mount equal ones on a node share an attachment."""

    driver: str
    handle: str


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """spec.claimRef of a volume. An empty `uid` fits any claim of the name."""

    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """A volume of the cluster."""

    name: str
    labels: Pairs = ()
    storage_class: str = ""
    capacity_bytes: int = 0
    access_modes: tuple[str, ...] = ()  # sorted
    mode: str = FILESYSTEM
    attributes_class: str = ""
    phase: str = ""
    deleting: bool = False
    claim: ClaimReference | None = None
    node_affinity: NodeSelector | None = None  # None: it can be mounted everywhere
    csi: CsiVolume | None = None  # of an in-tree plugin: as the driver knows it that replaced the plugin
    in_tree: str = ""  # the name of that plugin
    untranslatable: str = ""  # why its driver cannot know it, in Kubernetes' words

    @property
    def attached_by_driver(self) -> CsiVolume | None:
        """The volume where VolumeAttachments are counted, which kube-scheduler does for CSI volumes alone."""
        return None if self.in_tree else self.csi


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim:
    """A claim to a volume."""

    namespace: str
    name: str
    uid: str = ""
    storage_class: str = ""
    request_bytes: int = 0
    access_modes: tuple[str, ...] = ()  # sorted
    mode: str = FILESYSTEM
    attributes_class: str = ""
    selector: LabelSelector | None = None  # None: a volume may have any labels
    volume_name: str = ""
    bind_completed: bool = False
    phase: str = ""
    deleting: bool = False
    selected_node: str = ""
    controller_uid: str = ""
    # The object's resourceVersion, for who writes to the API server. A change of it alone is no change.
    version: str = field(default="", compare=False)

    @property
    def bound(self) -> bool:
        """Whether claim and volume name each other for good."""
        return bool(self.volume_name) and self.bind_completed

    def fits(self, volume: PersistentVolume) -> bool:
        """Whether the volume is one of those that the claim may get, wherever they can be mounted.

        A volume reserved for this claim need not have its labels and access modes (Kubernetes'
        FindMatchingVolume)."""
        if volume.storage_class != self.storage_class or volume.deleting:
            return False
        if volume.capacity_bytes < self.request_bytes or volume.mode != self.mode:
            return False
        if volume.attributes_class != self.attributes_class:
            return False
        if volume.claim is not None:
            return self.is_named_by(volume.claim)
        if self.selector is not None and not self.selector.matches(dict(volume.labels)):
            return False
        return volume.phase == "Available" and set(self.access_modes) <= set(volume.access_modes)

    def is_named_by(self, reference: ClaimReference) -> bool:
        """Whether a volume with this claimRef is reserved for the claim."""
        named = (reference.namespace, reference.name) == (self.namespace, self.name)
        return named and reference.uid in ("", self.uid)


NO_PROVISIONER = "kubernetes.io/no-provisioner"


@dataclass(frozen=True, slots=True)
class StorageClass:
    """How claims get volumes."""

    name: str
    provisioner: str = ""
    waits_for_consumer: bool = False  # volumeBindingMode: WaitForFirstConsumer
    allowed_topologies: tuple[NodeSelectorTerm, ...] = ()  # ORed; empty: everywhere

    @property
    def provisions(self) -> bool:
        """Whether volumes are made for claims that no existing one fits."""
        return self.provisioner not in ("", NO_PROVISIONER)


@dataclass(frozen=True, slots=True)
class CsiNode:
    """The drivers on the node of the same name: how many volumes each can attach."""

    name: str
    limits: tuple[tuple[str, int], ...] = ()  # of drivers with a limit
    migrated: tuple[str, ...] = ()  # in-tree plugins that drivers have replaced there, sorted


@dataclass(frozen=True, slots=True)
class CsiDriver:
    """A driver. `reports_capacity`: spec.storageCapacity."""

    name: str
    reports_capacity: bool = False


@dataclass(frozen=True, slots=True)
class CsiStorageCapacity:
    """The largest volume that a storage class can have on some nodes."""

    namespace: str
    name: str
    storage_class: str = ""
    nodes: LabelSelector | None = None  # None: no nodes
    largest_bytes: int | None = None  # maximumVolumeSize, or else capacity; None: not known


@dataclass(frozen=True, slots=True)
class VolumeAttachment:
    """A volume that is, or will be, attached to a node."""

    name: str
    node: str = ""
    attacher: str = ""
    volume_name: str = ""


StorageObject = (
    PersistentVolume
    | PersistentVolumeClaim
    | StorageClass
    | CsiNode
    | CsiDriver
    | CsiStorageCapacity
    | VolumeAttachment
)


class VolumeView(Protocol):
    """Claims, volumes and drivers of the cluster, by name."""

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        """None: there is none of the name."""

    def volume(self, name: str) -> PersistentVolume | None:
        """None: there is none of the name."""

    def csi_node(self, name: str) -> CsiNode | None:
        """The drivers of the node of the name. None: they are not known."""
