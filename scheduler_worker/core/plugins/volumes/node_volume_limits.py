"""NodeVolumeLimits: how many volumes a CSI driver can attach to a node."""

import numpy as np

from hoss.model.pod import PodSpec
from hoss.model.reserved_names import attachments
from hoss.model.volumes import OVER_ATTACH_LIMIT, CsiVolume, PodVolumes
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import (
    Failure,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    Reserved,
)
from scheduler_worker.core.nodes import Mask


class NodeVolumeLimits(FilterPlugin):
    """The volumes of the node's pods, those of its VolumeAttachments and the pod's own must not be more than
    its CSINode allows. A volume that several pods of the node use counts once."""

    name = "NodeVolumeLimits"
    filter_reads = Reads.PODS

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin."""
        return None if spec.volumes is None else _FreeAttachments(spec.namespace, spec.volumes, cache)


class _FreeAttachments(FilterState):
    def __init__(self, namespace: str, volumes: PodVolumes, cache: NodeInfoCache) -> None:
        self.passed: Mask = np.zeros(0, np.bool_)
        self._namespace = namespace
        self._volumes = volumes
        self._cache = cache
        self._own: set[CsiVolume] = set()
        self._as_of = (-1, -1)

    def refresh(self) -> bool:
        attached, storage, size = self._cache.attached_volumes, self._cache.storage, self._cache.size
        if storage.version != self._as_of[0]:
            self._own = storage.csi_volumes(self._namespace, self._volumes)
        attached.refresh(size)
        as_of = (storage.version, attached.version)
        if as_of == self._as_of and len(self.passed) == size:
            return False
        self.passed = ~attached.over_limit(self._own, size)
        failing = attached.failing if self._own else {}
        self.failure = Failure(NodeVolumeLimits.name, dict(failing)) if failing else None
        self._as_of = as_of
        return True

    def refusals(self) -> Refusals:
        refused = ~self.passed
        return Refusals(
            reasons=((OVER_ATTACH_LIMIT, refused),), unresolvable=np.zeros(len(refused), np.bool_)
        )

    def reserve(self, node: int) -> Reserved:
        """Attachments of the drivers that have a limit on the node."""
        name, drivers = self._cache.catalogue.name(node), {volume.driver for volume in self._own}
        limits = self._cache.attached_volumes.limits_of(node)
        return Reserved(tuple(attachments(name, driver) for driver, _ in limits if driver in drivers))
