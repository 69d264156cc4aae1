"""VolumeBinding: nodes that reach a pod's bound volumes, and where its other claims can get volumes.

A claim of a class that waits for its first consumer is bound when its pod is placed: to the smallest volume
that fits and that the node reaches, or else to one that is provisioned there."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.model.reserved_names import chosen_volume, claim_binding
from hoss.model.volume_topology import migrated_affinity, migrated_on
from hoss.model.volumes import (
    VOLUME_UNREACHABLE,
    ClaimMount,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
)
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cache.storage import not_owned
from scheduler_worker.core.framework.extension_points import (
    Code,
    Failure,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    Rejection,
    Reserved,
)
from scheduler_worker.core.nodes import Mask, NodeIndexes

_NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
_NO_SPACE = "node(s) did not have enough free storage"
_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"

_NONE, _PROVISIONED = -1, -2  # instead of the number of a volume
_NOWHERE: NodeIndexes = np.empty(0, np.intp)


class VolumeBinding(FilterPlugin):
    """Claims are bound already, or get a volume on the node, or the node is refused."""

    name = "VolumeBinding"
    filter_reads = Reads.PODS

    def __init__(self, bind_seconds: float | None = None) -> None:
        self.bind_seconds = bind_seconds

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin."""
        if spec.volumes is None or not spec.volumes.claims:
            return None
        return ReachableVolumes(spec.namespace, spec.volumes, cache)


class _Choice(NamedTuple):
    """What a claim gets on each node."""

    claim: PersistentVolumeClaim
    volumes: list[PersistentVolume]
    numbers: NDArray[np.int32]  # (size,): position in `volumes`, _NONE or _PROVISIONED


class ReachableVolumes(FilterState):
    """The result for one class, with the volumes that its claims get on each node."""

    def __init__(self, namespace: str, volumes: PodVolumes, cache: NodeInfoCache) -> None:
        self.passed: Mask = np.zeros(0, np.bool_)
        self._namespace = namespace
        self._mounts = volumes.claims
        self._cache = cache
        self._choices: list[_Choice] = []
        self._as_of = (-1, -1, -1)

    def refresh(self) -> bool:
        """See FilterState."""
        cache = self._cache
        as_of = (cache.storage.version, cache.spec_changes.position, cache.size)
        if as_of == self._as_of:
            return False
        size = cache.size
        self._unreachable, self._gone, self._no_volume, self._no_space = np.zeros((4, size), np.bool_)
        self._choices, self.failure = [], None
        self.rejection = self._look_up()
        if self.rejection is None:
            claims = [cache.storage.claims[self._namespace, mount.claim] for mount in self._mounts]
            self._check_bound([claim for claim in claims if claim.bound])
            self._find_volumes([claim for claim in claims if not claim.bound])
        self.passed = ~(self._unreachable | self._gone | self._no_volume | self._no_space)
        self._as_of = as_of
        return True

    def refusals(self) -> Refusals:
        """See FilterState."""
        reasons = (
            (VOLUME_UNREACHABLE, self._unreachable),
            (_NO_VOLUME, self._no_volume),
            (_NO_SPACE, self._no_space),
            (_GONE, self._gone),
        )
        return Refusals(reasons, unresolvable=~self.passed)

    def reserve(self, node: int) -> Reserved:
        """The claims that are bound with the pod's placement, and the volumes that they get."""
        volumes: dict[str, str | None] = {}
        for choice in self._choices:
            number = int(choice.numbers[node])
            volume = None if number == _PROVISIONED else choice.volumes[number].name
            # A claim that the pod names twice needs two volumes, as in kube-scheduler. It gets the smaller one.
            volumes.setdefault(choice.claim.name, volume)
        claims = (claim_binding(self._namespace, claim) for claim in volumes)
        named = (chosen_volume(volume) for volume in volumes.values() if volume is not None)
        return Reserved((*claims, *named), volumes=volumes)

    def _look_up(self) -> Rejection | None:
        """Why no node can take the pod, by the claims alone."""
        claims = self._cache.storage.claims
        for mount in self._mounts:
            reason = self._unusable(mount, claims.get((self._namespace, mount.claim)))
            if reason:
                return _rejected(reason)
        found = (claims[self._namespace, mount.claim] for mount in self._mounts)
        if any(not claim.bound and not self._binds_now(claim) for claim in found):
            return _rejected("pod has unbound immediate PersistentVolumeClaims")
        return None

    def _unusable(self, mount: ClaimMount, claim: PersistentVolumeClaim | None) -> str:
        """Why the claim cannot be mounted anywhere; "" if it may be."""
        name, reason = mount.claim, ""
        if claim is None and mount.owner is not None:
            reason = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        elif claim is None:
            reason = f'persistentvolumeclaim "{name}" not found'
        elif claim.phase == "Lost":
            gone = claim.volume_name
            reason = f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{gone}"'
        elif claim.deleting:
            reason = f'persistentvolumeclaim "{name}" is being deleted'
        elif mount.owner is not None and claim.controller_uid != mount.owner.uid:
            reason = not_owned(self._namespace, mount)
        return reason

    def _binds_now(self, claim: PersistentVolumeClaim) -> bool:
        storage_class = self._class_of(claim)
        return not claim.volume_name and storage_class is not None and storage_class.waits_for_consumer

    def _class_of(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        return self._cache.storage.classes.get(claim.storage_class)

    def _check_bound(self, claims: list[PersistentVolumeClaim]) -> None:
        """The first claim that a node fails decides its reason."""
        left = np.ones(self._cache.size, np.bool_)
        failing: dict[int, str] = {}
        for claim in claims:
            volume = self._cache.storage.volumes.get(claim.volume_name)
            if volume is None:
                self._gone |= left
                break
            reached = np.zeros(self._cache.size, np.bool_)
            reached[self._nodes_reaching(volume)] = True
            migrated = self._migrated(volume)
            if volume.untranslatable:
                why = f"could not translate pv: {volume.untranslatable}"
                failing |= dict.fromkeys(migrated[left[migrated]].tolist(), why)
                reached[migrated] = True
                left[migrated] = False
            elif len(migrated):
                affinity = migrated_affinity(volume)
                sets = self._cache.node_sets
                reached[migrated] = affinity is None or sets.matching(affinity, len(left))[migrated]
            self._unreachable |= left & ~reached
            left &= reached
        self.failure = Failure(VolumeBinding.name, failing) if failing else None

    def _find_volumes(self, claims: list[PersistentVolumeClaim]) -> None:
        size = self._cache.size
        chosen_nodes = [claim for claim in claims if claim.selected_node]
        for claim in chosen_nodes:  # being provisioned, for a node that was chosen
            node = self._cache.catalogue.index(claim.selected_node)
            elsewhere = np.ones(size, np.bool_)
            if node is not None:
                elsewhere[node] = False
            self._no_volume |= elsewhere
            self._choices.append(_Choice(claim, [], np.full(size, _PROVISIONED, np.int32)))
        looking = ~self._no_volume
        taken: dict[str, NodeIndexes] = {}  # volume -> where a claim before has it
        others = [claim for claim in claims if not claim.selected_node]
        for claim in sorted(others, key=lambda claim: claim.request_bytes):
            self._choices.append(self._choose(claim, taken))
        for choice in self._choices:
            unmatched = looking & (choice.numbers < 0)
            if unmatched.any():
                looking &= ~self._not_provisioned(choice.claim, unmatched)
                choice.numbers[unmatched] = _PROVISIONED

    def _choose(self, claim: PersistentVolumeClaim, taken: dict[str, NodeIndexes]) -> _Choice:
        """The smallest volume on each node, or the one that is reserved for the claim."""
        volumes = self._cache.storage.candidates(claim)
        numbers = np.full(self._cache.size, _NONE, np.int32)
        undecided = np.ones(self._cache.size, np.bool_)
        left = self._cache.size
        # The reserved one first; the sort is stable.
        for number in sorted(range(len(volumes)), key=lambda i: volumes[i].claim is None):
            volume = volumes[number]
            before = taken.get(volume.name, _NOWHERE)
            reached = self._nodes_reaching(volume)
            got = reached[undecided[reached]]
            if len(before):
                got = np.setdiff1d(got, before, assume_unique=True)
            if len(got):
                numbers[got] = number
                undecided[got] = False
                left -= len(got)
                taken[volume.name] = np.concatenate((before, got))
            if volume.claim is not None:
                # A node that does not reach the volume reserved for the claim gets none.
                others = undecided[before]
                undecided[:] = False
                undecided[before] = others
                left = int(others.sum())
            if not left:
                break
        return _Choice(claim, volumes, numbers)

    def _not_provisioned(self, claim: PersistentVolumeClaim, nodes: Mask) -> Mask:
        """Which of these nodes cannot have a new volume for the claim; their reason is noted."""
        storage_class = self._class_of(claim)
        sets, size = self._cache.node_sets, self._cache.size
        possible = np.zeros(size, np.bool_)
        if storage_class is not None and storage_class.provisions:
            possible[:] = True
            if storage_class.allowed_topologies:
                possible &= sets.matching(storage_class.allowed_topologies, size)
        impossible = nodes & ~possible
        self._no_volume |= impossible
        if storage_class is None:
            return impossible
        crowded = nodes & possible & ~self._with_space(claim, storage_class)
        self._no_space |= crowded
        return impossible | crowded

    def _with_space(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> Mask:
        storage, size = self._cache.storage, self._cache.size
        driver = storage.drivers.get(storage_class.provisioner)
        if driver is None or not driver.reports_capacity:
            return np.ones(size, np.bool_)
        found = np.zeros(size, np.bool_)
        for capacity in storage.capacities(storage_class.name):
            largest = capacity.largest_bytes
            if capacity.nodes is not None and largest is not None and largest >= claim.request_bytes:
                found |= self._cache.node_sets.matching(capacity.nodes, size)
        return found

    def _migrated(self, volume: PersistentVolume) -> NodeIndexes:
        """Nodes that have a driver in place of the volume's in-tree plugin."""
        if not volume.in_tree:
            return _NOWHERE
        csi_nodes = (node for node in self._cache.storage.csi_nodes.values() if migrated_on(volume, node))
        found = (self._cache.catalogue.index(node.name) for node in csi_nodes)
        return np.array([node for node in found if node is not None and node < self._cache.size], np.intp)

    def _nodes_reaching(self, volume: PersistentVolume) -> NodeIndexes:
        if volume.node_affinity is None:
            return np.arange(self._cache.size)
        return self._cache.node_sets.reached(volume.node_affinity, self._cache.size)


def _rejected(reason: str) -> Rejection:
    return Rejection(VolumeBinding.name, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reason)
