"""The domains of topology spread constraints: which nodes take part in counting, and how many pods are in
each domain."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec, SpreadConstraint
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.nodes import LabelColumn, Mask
from scheduler_worker.core.plugins.nodes.node_affinity import matching_nodes
from scheduler_worker.core.plugins.nodes.taint_toleration import tolerated_nodes
from scheduler_worker.core.pod_index.counter import DomainSums, PodCounter
from scheduler_worker.core.pod_index.selector_query import Peers


class SpreadDomains:
    """The domains of several constraints of one class. Which nodes take part is computed again when node
    specs change."""

    def __init__(
        self,
        spec: PodSpec,
        constraints: tuple[SpreadConstraint, ...],
        cache: NodeInfoCache,
        *,
        all_keys: bool,
    ) -> None:
        self.has_all_keys: Mask = np.zeros(0, np.bool_)  # (size,)
        self._spec = spec
        self._constraints = constraints
        self._cache = cache
        self._all_keys = all_keys  # whether only nodes with the keys of all constraints take part
        self._columns: list[LabelColumn] = [cache.catalogue.column(c.topology_key) for c in constraints]
        self._counters: list[PodCounter] = [
            cache.pod_index.counter(Peers(spec.namespace, c.selector)) for c in constraints
        ]
        self._sums: list[DomainSums] = []
        self._found: list[NDArray[np.intp]] = []
        self._eligible: list[Mask] = []
        self._keyless: list[bool] = []
        self._position = -1
        self._versions: list[int] = []

    def refresh(self) -> bool:
        """Bring it up to date with the cache; whether anything changed."""
        stale = self.nodes_changed()
        if stale:
            self._select_nodes(self._cache.size)
            self._position = self._cache.spec_changes.position
        versions = [sums.refresh() for sums in self._sums]
        changed = stale or versions != self._versions
        self._versions = versions
        return changed

    def nodes_changed(self) -> bool:
        """Whether `refresh` will compute again which nodes take part."""
        return (
            self._position != self._cache.spec_changes.position or len(self.has_all_keys) != self._cache.size
        )

    def codes(self, index: int) -> NDArray[np.int32]:
        """Per node the number of its domain, -1 without one: (size,)."""
        return self._columns[index].codes[: self._cache.size]

    def counts(self, index: int) -> NDArray[np.int32]:
        """Pods per domain, by its number, and last 0 for nodes without one."""
        return self._sums[index].sums

    def counts_of_nodes(self, index: int) -> NDArray[np.int32]:
        """Pods on each node, whether it takes part or not: (size,)."""
        return self._counters[index].counts[: self._cache.size]

    def found(self, index: int) -> NDArray[np.intp]:
        """Numbers of the domains that have a node which takes part."""
        return self._found[index]

    def counting(self, index: int) -> Mask:
        """Which nodes' pods count: (capacity,)."""
        return self._eligible[index]

    def keyless(self, index: int) -> bool:
        """Whether some node is in no domain of the constraint."""
        return self._keyless[index]

    def distinct(self, index: int, at: Mask) -> int:
        """How many domains these nodes are in. Nodes without the label are in the domain of the empty
        value."""
        column = self._columns[index]
        reached = np.zeros(column.size + 1, np.bool_)
        reached[self.codes(index)[at]] = True
        empty = column.numbers.get("")
        return int(reached.sum()) - (empty is not None and bool(reached[empty] and reached[-1]))

    def counts_with_unlabelled(self, index: int) -> NDArray[np.int32]:
        """`counts` where nodes without the label are in the domain of the empty value."""
        empty = self._columns[index].numbers.get("")
        if empty is None or not self._keyless[index]:
            return self.counts(index)
        counts: NDArray[np.int32] = self.counts(index).copy()
        unlabelled = (self.codes(index) < 0) & self._eligible[index][: self._cache.size]
        counts[empty] += self.counts_of_nodes(index)[unlabelled].sum()
        return counts

    def _select_nodes(self, size: int) -> None:
        cache = self._cache
        nodes = cache.specs(np.arange(size))
        present = cache.present
        self.has_all_keys = np.logical_and.reduce([self.codes(i) >= 0 for i in range(len(self._columns))])
        taking_part = present & self.has_all_keys if self._all_keys else present
        matching = matching_nodes(self._spec, nodes)
        tolerated = None
        if any(c.honor_taints for c in self._constraints):
            tolerated = tolerated_nodes(self._spec, nodes)
        self._sums, self._found, self._eligible = [], [], []
        self._keyless = [bool((self.codes(i) < 0).any()) for i in range(len(self._columns))]
        for constraint, column, counter in zip(self._constraints, self._columns, self._counters, strict=True):
            eligible = np.zeros(len(column.codes), np.bool_)
            eligible[:size] = taking_part
            if constraint.honor_node_affinity and matching is not None:
                eligible[:size] &= matching
            if constraint.honor_taints and tolerated is not None:
                eligible[:size] &= tolerated
            self._eligible.append(eligible)
            self._sums.append(DomainSums(counter, column, eligible))
            found = np.zeros(column.size + 1, np.bool_)
            found[column.codes[eligible]] = True
            found[-1] = False
            self._found.append(np.flatnonzero(found))
