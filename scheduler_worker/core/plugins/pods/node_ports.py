"""NodePorts: two pods of a node cannot hold the same port of it."""

import numpy as np

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import FilterPlugin, FilterState, Reads, Refusals
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.pod_index.selector_query import PortHolders

_REASON = "node(s) didn't have free ports for the requested pod ports"


class NodePorts(FilterPlugin):
    """Ports clash if number and protocol are equal, and the addresses are equal or one of them is 0.0.0.0."""

    name = "NodePorts"
    filter_reads = Reads.PODS

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin."""
        return _FreePorts(spec, cache) if spec.host_ports else None


class _FreePorts(FilterState):
    def __init__(self, spec: PodSpec, cache: NodeInfoCache) -> None:
        self.passed: Mask = np.zeros(0, np.bool_)
        self._cache = cache
        self._holders = cache.pod_index.counter(PortHolders(spec.host_ports))
        self._position = -1

    def refresh(self) -> bool:
        size, position = self._cache.size, self._holders.changes.position
        if self._position == position and len(self.passed) == size:
            return False
        self.passed = self._holders.counts[:size] == 0
        self._position = position
        return True

    def refusals(self) -> Refusals:
        return Refusals(reasons=((_REASON, ~self.passed),), unresolvable=self.passed & False)
