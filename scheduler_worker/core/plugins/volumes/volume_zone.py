"""VolumeZone: volumes with labels of a zone or region are mounted there alone."""

import numpy as np

from hoss.model.pod import PodSpec
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.volume_topology import ZONE_LABELS, zones_of
from hoss.model.volumes import OUT_OF_ZONE, PersistentVolume
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import (
    Code,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    Rejection,
)
from scheduler_worker.core.nodes import Mask


class VolumeZone(FilterPlugin):
    """Each such label of a volume names one value or several. A node without any of the labels mounts every
    volume."""

    name = "VolumeZone"
    filter_reads = Reads.PODS

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin."""
        claims = () if spec.volumes is None else spec.volumes.mounted_claims
        return _VolumesInZones(spec.namespace, claims, cache) if claims else None


class _VolumesInZones(FilterState):
    def __init__(self, namespace: str, claims: tuple[str, ...], cache: NodeInfoCache) -> None:
        self.passed: Mask = np.zeros(0, np.bool_)
        self._namespace = namespace
        self._claims = claims
        self._cache = cache
        self._as_of = (-1, -1, -1)

    def refresh(self) -> bool:
        cache = self._cache
        as_of = (cache.storage.version, cache.spec_changes.position, cache.size)
        if as_of == self._as_of:
            return False
        self.passed = np.ones(cache.size, np.bool_)
        self.rejection = None
        for name in self._claims:
            claim = cache.storage.claims.get((self._namespace, name))
            volume_name = "" if claim is None else claim.volume_name
            volume = cache.storage.volumes.get(volume_name)
            if volume is not None:
                self._keep_to_zones_of(volume)
            elif volume_name and self.rejection is None:
                self.rejection = Rejection(
                    VolumeZone.name,
                    Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
                    f'persistentvolume "{volume_name}" not found',
                )
        self._as_of = as_of
        return True

    def refusals(self) -> Refusals:
        refused = ~self.passed
        return Refusals(reasons=((OUT_OF_ZONE, refused),), unresolvable=refused)

    def _keep_to_zones_of(self, volume: PersistentVolume) -> None:
        zones = zones_of(volume)
        if not zones:
            return
        anywhere = ~np.logical_or.reduce([self._has(key) for key in ZONE_LABELS])
        for key, values in zones.items():
            matching, undecided = np.zeros(len(anywhere), np.bool_), np.ones(len(anywhere), np.bool_)
            for label in ZONE_LABELS[key]:
                matching |= undecided & self._matching(Requirement(label, "In", tuple(sorted(set(values)))))
                undecided &= ~self._has(label)
            self.passed &= anywhere | matching

    def _has(self, label: str) -> Mask:
        return self._matching(Requirement(label, "Exists"))

    def _matching(self, requirement: Requirement) -> Mask:
        return self._cache.node_sets.matching(LabelSelector((requirement,)), self._cache.size)
