"""VolumeRestrictions: disks that one node cannot mount twice, and claims that one pod alone may use."""

import numpy as np

from hoss.model.pod import PodSpec
from hoss.model.reserved_names import claim_for_one_pod, disk_on_node
from hoss.model.volumes import CLAIM_IN_USE, DISK_IN_USE, READ_WRITE_ONCE_POD, PodVolumes
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import (
    Code,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    Rejection,
    Reserved,
)
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.pod_index.counter import PodCounter
from scheduler_worker.core.pod_index.selector_query import ClaimUsers, DiskHolders


class VolumeRestrictions(FilterPlugin):
    """A pod's disks exclude some disks of other pods of the node. A claim with access mode ReadWriteOncePod
    excludes every other pod of the cluster."""

    name = "VolumeRestrictions"
    filter_reads = Reads.PODS

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin."""
        return None if spec.volumes is None else _UnsharedVolumes(spec.namespace, spec.volumes, cache)


class _UnsharedVolumes(FilterState):
    def __init__(self, namespace: str, volumes: PodVolumes, cache: NodeInfoCache) -> None:
        self.passed: Mask = np.zeros(0, np.bool_)
        self._namespace = namespace
        self._claims = volumes.mounted_claims
        self._disks = tuple(disk for disk in volumes.disks if disk.exclusive)
        self._alone: tuple[str, ...] = ()  # claims for one pod
        self._cache = cache
        self._holders = cache.pod_index.counter(DiskHolders(self._disks)) if self._disks else None
        self._users: PodCounter | None = None  # of the claims for one pod
        self._as_of = (-1, -1, -1, -1)

    def refresh(self) -> bool:
        if self._cache.storage.version != self._as_of[0]:
            self._look_up()
        users, holders = self._users, self._holders
        as_of = (
            self._cache.storage.version,
            self._cache.size,
            -1 if holders is None else holders.changes.position,
            -1 if users is None else users.changes.position,
        )
        if as_of == self._as_of:
            return False
        size = self._cache.size
        self._disk_in_use: Mask = np.zeros(size, np.bool_) if holders is None else holders.counts[:size] > 0
        self._claim_in_use = users is not None and bool(users.counts.any())
        self.passed = ~self._disk_in_use & (not self._claim_in_use)
        self._as_of = as_of
        return True

    def refusals(self) -> Refusals:
        free = ~self._disk_in_use
        return Refusals(
            reasons=((DISK_IN_USE, self._disk_in_use), (CLAIM_IN_USE, free & self._claim_in_use)),
            unresolvable=np.zeros(len(free), np.bool_),
        )

    def reserve(self, node: int) -> Reserved:
        """Claims for one pod, and disks of the node."""
        claims = (claim_for_one_pod(self._namespace, claim) for claim in self._alone)
        name = self._cache.catalogue.name(node)
        disks = (disk_on_node(name, disk) for disk in self._disks)
        return Reserved((*claims, *disks))

    def _look_up(self) -> None:
        claims = {name: self._cache.storage.claims.get((self._namespace, name)) for name in self._claims}
        missing = next((name for name, claim in claims.items() if claim is None), None)
        self.rejection = None
        if missing is not None:
            reason = f'persistentvolumeclaim "{missing}" not found'
            self.rejection = Rejection(VolumeRestrictions.name, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reason)
        self._alone = tuple(
            name
            for name, claim in claims.items()
            if claim is not None and READ_WRITE_ONCE_POD in claim.access_modes
        )
        query = ClaimUsers(self._namespace, self._alone)
        if not self._alone:
            self._users = None
        elif self._users is None or self._users.query != query:
            self._users = self._cache.pod_index.counter(query)
