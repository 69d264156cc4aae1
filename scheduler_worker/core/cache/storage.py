"""Volumes in a worker's view: the cluster's storage objects, the nodes that volumes can be mounted on, and
what the pods of each node have attached."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import NominatedPod, ObjectKey, StorageUpdate, storage_key_of
from hoss.model.devices import DeviceManifest
from hoss.model.pod import PodGroup
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm
from hoss.model.volume_topology import driver_of, inline_volumes
from hoss.model.volumes import (
    ClaimMount,
    ClaimReference,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    CsiVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
    StorageObject,
    VolumeAttachment,
)
from scheduler_worker.core.nodes import ChangeLog, Mask, NodeCatalogue, NodeIndexes
from scheduler_worker.core.pod_index.index import PodIndex

_NO_LIMIT = np.iinfo(np.int64).max


ClaimKey = tuple[str, str]  # namespace and name


class _Choice(NamedTuple):
    """What a claim got when a pod was placed: a volume, or ("") one that is provisioned for the node."""

    volume: str
    node: int  # -1 with a volume


class StorageCatalogue:
    """The storage objects of the cluster, as the API server has them and as placed pods change them: a claim
    that waited for its first consumer has its volume or its node from the moment its pod is placed, by
    whomever (kube-scheduler's assume cache)."""

    def __init__(self, name_of: Callable[[int], str] = str) -> None:
        """`name_of` gives the names of nodes."""
        self.version = 0  # grows with every change
        self.objects_version = 0  # grows with changes of the API server's objects
        self.claims: dict[ClaimKey, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.csi_nodes: dict[str, CsiNode] = {}
        self.drivers: dict[str, CsiDriver] = {}
        self._claims: dict[ClaimKey, PersistentVolumeClaim] = {}  # as the API server has them
        self._volumes: dict[str, PersistentVolume] = {}  # the same
        self._capacities: dict[str, dict[ObjectKey, CsiStorageCapacity]] = {}  # by storage class
        self._attachments: dict[ObjectKey, VolumeAttachment] = {}
        # Those that no claim has, by class, the smallest first, as claims choose; and the others, by claim.
        self._free: dict[str, list[PersistentVolume]] = {}
        self._reserved: dict[ClaimKey, dict[str, PersistentVolume]] = {}
        self._name_of = name_of
        # Of placed pods. Several pods may mount a claim; an entry ends with the last pod that chose it.
        self._choices: dict[ClaimKey, Counter[_Choice]] = {}
        # Of these, for claims that are not bound yet: by claim the volumes, and by volume the claims. Two
        # claims may have one volume until the ledger has decided.
        self._chosen: dict[ClaimKey, set[str]] = {}
        self._choosers: dict[str, dict[ClaimKey, None]] = {}

    def replace(self, objects: Iterable[StorageObject]) -> None:
        """Exactly these objects exist from now on."""
        self.apply(StorageUpdate(tuple(objects), complete=True))

    def apply(self, update: StorageUpdate) -> None:
        """Take in changes of the API server's objects."""
        self.version += 1
        self.objects_version += 1
        if update.complete:
            self.classes.clear()
            self.csi_nodes.clear()
            self.drivers.clear()
            self._capacities.clear()
            self._attachments.clear()
            self._free.clear()
            self._reserved.clear()
            for known in (self._claims, self._volumes, self.claims, self.volumes):
                known.clear()
        for key in update.gone:
            self._remove(key)
        for item in update.objects:
            if not isinstance(item, (DeviceManifest, NominatedPod)):
                self._put(item)

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "claims": len(self._claims),
            "volumes": len(self._volumes),
            "volume_choices": len(self._choices),
            "csi_nodes": len(self.csi_nodes),
            "volume_attachments": len(self._attachments),
        }

    @property
    def attachments(self) -> Iterable[VolumeAttachment]:
        """All VolumeAttachments."""
        return self._attachments.values()

    def capacities(self, storage_class: str) -> Iterable[CsiStorageCapacity]:
        """Those of a storage class."""
        return self._capacities.get(storage_class, {}).values()

    def placed(self, group: PodGroup, node: int, sign: int) -> None:
        """One pod of the group more (1), or less (-1), is on the node."""
        if group.volumes is None:
            return
        for mount in group.volumes.to_be_bound:
            key = group.namespace, mount.claim
            choices = self._choices.setdefault(key, Counter())
            choice = _Choice(mount.volume, -1 if mount.volume else node)
            before = set(choices)
            choices[choice] += sign
            if choices[choice] <= 0:
                del choices[choice]
            if not choices:
                del self._choices[key]
            if before != set(choices):
                self.version += 1
                self._renew_claim(key)

    def _put(self, item: StorageObject) -> None:
        match item:
            case PersistentVolumeClaim():
                key = item.namespace, item.name
                self._claims[key] = item
                self._renew_claim(key)
            case PersistentVolume():
                self._volumes[item.name] = item
                self._renew_volume(item.name)
            case StorageClass():
                self.classes[item.name] = item
            case CsiNode():
                self.csi_nodes[item.name] = item
            case CsiDriver():
                self.drivers[item.name] = item
            case CsiStorageCapacity():
                self._capacities.setdefault(item.storage_class, {})[storage_key_of(item)] = item
            case VolumeAttachment():
                self._attachments[storage_key_of(item)] = item

    def _remove(self, key: ObjectKey) -> None:
        match key.kind:
            case "PersistentVolumeClaim":
                self._claims.pop((key.namespace, key.name), None)
                self._renew_claim((key.namespace, key.name))
            case "PersistentVolume":
                self._volumes.pop(key.name, None)
                self._renew_volume(key.name)
            case "StorageClass":
                self.classes.pop(key.name, None)
            case "CSINode":
                self.csi_nodes.pop(key.name, None)
            case "CSIDriver":
                self.drivers.pop(key.name, None)
            case "CSIStorageCapacity":
                for of_class in self._capacities.values():
                    of_class.pop(key, None)
            case "VolumeAttachment":
                self._attachments.pop(key, None)

    def _renew_claim(self, key: ClaimKey) -> None:
        """Combine the API server's claim with what placed pods chose for it, and its volumes as well."""
        claim = self._claims.get(key)
        decided = claim is not None and claim.bound
        choices = () if decided else self._choices.get(key, ())
        node = next((choice.node for choice in choices if not choice.volume), None)
        if claim is None:
            self.claims.pop(key, None)
        elif node is not None and not claim.selected_node:
            self.claims[key] = replace(claim, selected_node=self._name_of(node))
        else:
            self.claims[key] = claim
        former = self._chosen.pop(key, set())
        chosen = {choice.volume for choice in choices if choice.volume}
        if chosen:
            self._chosen[key] = chosen
        for volume in former - chosen:
            del self._choosers[volume][key]
            if not self._choosers[volume]:
                del self._choosers[volume]
        for volume in chosen - former:
            self._choosers.setdefault(volume, {})[key] = None
        for volume in former ^ chosen:
            self._renew_volume(volume)

    def _renew_volume(self, name: str) -> None:
        before, now = self.volumes.get(name), self._volumes.get(name)
        chooser = next(iter(self._choosers.get(name, ())), None)
        if now is not None and now.claim is None and chooser is not None:
            now = replace(now, claim=ClaimReference(*chooser))
        if before is not None:
            self._drop_candidate(before)
            del self.volumes[name]
        if now is not None:
            self.volumes[name] = now
            if now.claim is None:
                insort(self._free.setdefault(now.storage_class, []), now, key=_by_size)
            else:
                self._reserved.setdefault((now.claim.namespace, now.claim.name), {})[name] = now

    def _drop_candidate(self, volume: PersistentVolume) -> None:
        if volume.claim is None:
            of_class = self._free[volume.storage_class]
            del of_class[bisect_left(of_class, _by_size(volume), key=_by_size)]
            if not of_class:
                del self._free[volume.storage_class]
            return
        key = volume.claim.namespace, volume.claim.name
        del self._reserved[key][volume.name]
        if not self._reserved[key]:
            del self._reserved[key]

    def candidates(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """The volumes that the claim may get, the smallest first. Most volumes of a cluster are those of
        other claims, and are not looked at."""
        free = (v for v in self._free.get(claim.storage_class, ()) if claim.fits(v))
        reserved = self._reserved.get((claim.namespace, claim.name))
        if not reserved:
            return list(free)
        return sorted([*free, *(v for v in reserved.values() if claim.fits(v))], key=_by_size)

    def csi_volumes(self, namespace: str, volumes: PodVolumes) -> set[CsiVolume]:
        """What a pod with these volumes has attached to its node."""
        found = (self._csi_volume(namespace, mount.claim) for mount in volumes.claims)
        return {*inline_volumes(volumes), *(volume for volume in found if volume is not None)}

    def stranger(self, namespace: str, volumes: PodVolumes) -> ClaimMount | None:
        """A mount of a generic ephemeral volume whose claim belongs to something else."""
        for mount in volumes.claims:
            claim = self.claims.get((namespace, mount.claim))
            if mount.owner is not None and claim is not None and claim.controller_uid != mount.owner.uid:
                return mount
        return None

    def _csi_volume(self, namespace: str, name: str) -> CsiVolume | None:
        claim = self.claims.get((namespace, name))
        if claim is None:
            return None
        volume = self.volumes.get(claim.volume_name)
        if volume is not None:
            return volume.csi
        storage_class = self.classes.get(claim.storage_class)
        if storage_class is None or not storage_class.provisioner:
            return None
        # The volume does not exist yet: the claim stands for it. No handle begins with a space.
        return CsiVolume(driver_of(storage_class.provisioner), f" {namespace}/{name}")


def _by_size(volume: PersistentVolume) -> tuple[int, str]:
    return volume.capacity_bytes, volume.name


def not_owned(namespace: str, mount: ClaimMount) -> str:
    """kube-scheduler's words for a claim that was not made for the pod of an ephemeral volume."""
    pod = "" if mount.owner is None else mount.owner.name
    return f"PVC {namespace}/{mount.claim} was not created for pod {namespace}/{pod} (pod is not owner)"


NodeCondition = NodeSelector | LabelSelector | tuple[NodeSelectorTerm, ...]  # the terms of a tuple are ORed


class NodeSets:
    """Masks of the nodes that selectors match, kept until a node's spec changes."""

    def __init__(self, catalogue: NodeCatalogue, spec_changes: ChangeLog) -> None:
        self._catalogue = catalogue
        self._spec_changes = spec_changes
        self._as_of = (-1, -1)
        self._by_affinity: dict[NodeCondition, Mask] = {}
        self._reached: dict[NodeSelector, NodeIndexes] = {}
        self._by_label: dict[str, dict[str, NodeIndexes]] = {}  # key -> value -> nodes

    def matching(self, selector: NodeCondition, size: int) -> Mask:
        """The nodes with matching labels, (size,); not to be changed. A label selector without requirements
        matches all."""
        self._renew(size)
        found = self._by_affinity.get(selector)
        if found is None:
            found = self._by_affinity[selector] = self._match(selector, np.arange(size))
        return found

    def reached(self, affinity: NodeSelector, size: int) -> NodeIndexes:
        """The nodes that a volume's affinity matches. There may be a volume for each node, so this takes no
        look at the others."""
        self._renew(size)
        found = self._reached.get(affinity)
        if found is None:
            found = self._listed(affinity, size)
            if found is None:
                found = np.flatnonzero(self._match(affinity, np.arange(size)))
            self._reached[affinity] = found
        return found

    def _renew(self, size: int) -> None:
        as_of = (self._spec_changes.position, size)
        if as_of != self._as_of:
            self._by_affinity.clear()
            self._reached.clear()
            self._by_label.clear()
            self._as_of = as_of

    def _listed(self, affinity: NodeSelector, size: int) -> NodeIndexes | None:
        """The nodes of an affinity that lists the values of one label; None for any other."""
        if len(affinity.terms) != 1 or affinity.terms[0].match_fields:
            return None
        expressions = affinity.terms[0].match_expressions
        if len(expressions) != 1 or expressions[0].operator != "In":
            return None
        [requirement] = expressions
        by_value = self._by_label.get(requirement.key)
        if by_value is None:
            column = self._catalogue.column(requirement.key)
            codes = column.codes[:size]
            order = np.argsort(codes, kind="stable")
            bounds = np.searchsorted(codes[order], np.arange(column.size + 1))
            by_value = self._by_label[requirement.key] = {
                value: order[bounds[code] : bounds[code + 1]] for value, code in column.numbers.items()
            }
        lists = [by_value[value] for value in requirement.values if value in by_value]
        return np.sort(np.concatenate(lists)) if lists else np.empty(0, np.intp)

    def _match(self, selector: NodeCondition, at: NodeIndexes) -> Mask:
        match selector:
            case NodeSelector():
                terms = selector.terms
            case LabelSelector():
                if selector.everything:
                    return np.ones(len(at), np.bool_)
                terms = (NodeSelectorTerm(selector.requirements),)
            case _:
                terms = selector
        mask: Mask = np.zeros(len(at), np.bool_)
        for term in terms:
            mask |= self._catalogue.matches(term, at)
        return mask


class AttachedVolumes:
    """Which CSI volumes each node has attached: those of its pods, and those of VolumeAttachments. Exact as
    of the last `refresh`."""

    def __init__(
        self, storage: StorageCatalogue, catalogue: NodeCatalogue, specs: ChangeLog, pods: PodIndex
    ) -> None:
        self.version = 0  # grows whenever anything may have changed
        self.failing: dict[int, str] = {}  # nodes whose pods cannot be judged, and why
        self._storage = storage
        self._catalogue = catalogue
        self._specs = specs
        self._mounted = pods.mounted
        self._as_of = (-1, -1, -1)  # version of the storage, position of the specs, size
        self._position = -1
        self._of_pods: dict[int, set[CsiVolume]] = {}  # by node
        self._attached: dict[int, set[CsiVolume]] = {}  # by node, from VolumeAttachments
        self._used: dict[str, NDArray[np.int64]] = {}  # by driver, (size,)
        self._holders: dict[CsiVolume, set[int]] = {}  # nodes whose pods have it attached
        self._limits: dict[str, NDArray[np.int64]] = {}  # by driver, (size,)

    def refresh(self, size: int) -> None:
        """Bring it up to date with the pods, the specs and the storage objects."""
        as_of = (self._storage.objects_version, self._specs.position, size)
        if as_of != self._as_of:
            self._begin(size)
            # Without limits nothing needs to be counted.
            changed: Iterable[int] = [*self._mounted.on, *self._attached] if self._limits else ()
        elif not self._limits:
            return
        elif self._position != self._mounted.changes.position:
            nodes = self._mounted.changes.since(self._position, size)
            changed = {*self._mounted.on, *self._of_pods} if nodes is None else nodes.tolist()
        else:
            return
        for node in set(changed):
            self._count(node)
        self._as_of, self._position = as_of, self._mounted.changes.position
        self.version += 1

    def over_limit(self, volumes: set[CsiVolume], size: int) -> Mask:
        """Nodes that cannot attach these volumes as well, (size,)."""
        refused = np.zeros(size, np.bool_)
        by_driver: dict[str, list[CsiVolume]] = {}
        for volume in volumes:
            if volume.driver in self._limits:
                by_driver.setdefault(volume.driver, []).append(volume)
        for driver, new in by_driver.items():
            more = np.full(size, len(new), np.int64)
            for volume in new:
                for node in self._holders.get(volume, ()):
                    more[node] -= 1
            used = self._used.get(driver, np.zeros(size, np.int64))
            refused |= (more > 0) & (used + more > self._limits[driver])
        return refused

    def limits_of(self, node: int) -> tuple[tuple[str, int], ...]:
        """The limits of the node's drivers."""
        known = self._storage.csi_nodes.get(self._catalogue.name(node))
        return () if known is None else known.limits

    def _begin(self, size: int) -> None:
        self._of_pods, self._holders, self._used, self.failing = {}, {}, {}, {}
        self._limits, self._attached = {}, {}
        for csi_node in self._storage.csi_nodes.values():
            node = self._catalogue.index(csi_node.name)
            if node is not None and node < size:
                for driver, limit in csi_node.limits:
                    of_driver = self._limits.setdefault(driver, np.full(size, _NO_LIMIT))
                    of_driver[node] = limit
        for attachment in self._storage.attachments:
            node = self._catalogue.index(attachment.node)
            volume = self._storage.volumes.get(attachment.volume_name)
            known = None if volume is None else volume.attached_by_driver
            if node is not None and node < size and known is not None:
                attached = CsiVolume(attachment.attacher, known.handle)
                self._attached.setdefault(node, set()).add(attached)
        self._used = {driver: np.zeros(size, np.int64) for driver in self._limits}

    def _count(self, node: int) -> None:
        """Count the volumes of one node anew."""
        before, now = self._of_pods.pop(node, set()), set[CsiVolume]()
        self.failing.pop(node, None)
        limited = bool(self.limits_of(node))
        for group in self._mounted.on.get(node, ()):
            if group.volumes is not None:
                now |= self._storage.csi_volumes(group.namespace, group.volumes)
                stranger = self._storage.stranger(group.namespace, group.volumes) if limited else None
                if stranger is not None:
                    self.failing[node] = not_owned(group.namespace, stranger)
        if now:
            self._of_pods[node] = now
        for volume in before - now:
            self._holders[volume].discard(node)
        for volume in now - before:
            self._holders.setdefault(volume, set()).add(node)
        drivers = Counter(volume.driver for volume in now | self._attached.get(node, set()))
        for driver, used in self._used.items():
            used[node] = drivers.get(driver, 0)
