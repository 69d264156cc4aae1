"""Counts of the pods that match a query, per node and per topology domain, kept up to date as pods come and
go."""

from collections import Counter
from collections.abc import Callable
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodGroup
from scheduler_worker.core.nodes import ChangeLog, LabelColumn, Mask, NodeCatalogue, NodeIndexes
from scheduler_worker.core.pod_index.selector_query import PodQuery

Counts = NDArray[np.int32]

# Between two refreshes there are few changes, or so many that counting again costs no more.
_REMEMBERED_CHANGES = 64


class PodCounter:
    """How many pods match a query on each node: `counts`, (capacity,)."""

    def __init__(self, query: PodQuery, catalogue: NodeCatalogue, capacity: int) -> None:
        self.query = query
        self.counts: Counts = np.zeros(capacity, np.int32)
        self.changes = ChangeLog(_REMEMBERED_CHANGES)
        self._catalogue = catalogue
        self._by_key: WeakValueDictionary[str, DomainSums] = WeakValueDictionary()

    def reset(self, capacity: int) -> None:
        """Nothing is counted."""
        self.counts = np.zeros(capacity, np.int32)
        self.changes.everything()

    def grow(self, capacity: int) -> None:
        """Make room for nodes below `capacity`."""
        self.counts = np.concatenate((self.counts, np.zeros(capacity - len(self.counts), np.int32)))
        self.changes.everything()

    def add(self, nodes: NodeIndexes, sign: int) -> None:
        """One pod more (or less) on each of `nodes`."""
        if len(nodes) == 1:
            node = int(nodes[0])
            self.counts[node] += sign
            self.changes.add(node)
        else:
            np.add.at(self.counts, nodes, np.int32(sign))  # with any other type it takes 20 times as long
            self.changes.extend(nodes)

    def by_domain(self, key: str) -> "DomainSums":
        """Its sums over the domains of a topology key, over all nodes; shared by all callers."""
        sums = self._by_key.get(key)
        if sums is None:
            sums = DomainSums(self, self._catalogue.column(key), None)
            self._by_key[key] = sums
        return sums


class DomainSums:
    """A counter summed over topology domains: `sums` by the code of the label's value, and last 0 for nodes
    without the label. So `sums[column.codes]` is every node's domain count."""

    def __init__(self, counter: PodCounter, column: LabelColumn, eligible: Mask | None) -> None:
        self.column = column
        self.sums: Counts = np.zeros(1, np.int32)
        self.version = 0  # grows whenever the sums may have changed
        self._counter = counter
        self._eligible = eligible  # (capacity,): nodes that count; None: all
        self._seen: Counts = np.zeros(0, np.int32)
        self._position = -1
        self._column_version = -1

    def refresh(self) -> int:
        """Bring the sums up to date; the version."""
        log = self._counter.changes
        if self._column_version != self.column.version or self._position < 0:
            self._count_all()
        elif self._position != log.position:
            changed = log.since(self._position, len(self._counter.counts))
            if changed is None:
                self._count_all()
            else:
                self._catch_up(changed)
        return self.version

    def _count_all(self) -> None:
        counts = self._counter.counts
        codes = self.column.codes
        included = counts if self._eligible is None else counts * self._eligible
        holders = included.nonzero()[0]
        values = self.column.size
        sums = np.bincount(codes[holders] + 1, weights=included[holders], minlength=values + 1)
        self.sums = np.append(sums[1:], 0).astype(np.int32)
        self._seen = counts.copy()
        self._position, self._column_version = self._counter.changes.position, self.column.version
        self.version += 1

    def _catch_up(self, changed: NodeIndexes) -> None:
        counts, codes, eligible = self._counter.counts, self.column.codes, self._eligible
        for node in changed.tolist():
            count = counts[node]
            code = codes[node]
            if code >= 0 and (eligible is None or eligible[node]):
                self.sums[code] += count - self._seen[node]
            self._seen[node] = count
        self._position = self._counter.changes.position
        self.version += 1


class MountedGroups:
    """The pods with volumes on each node, by group."""

    def __init__(self) -> None:
        self.on: dict[int, Counter[PodGroup]] = {}
        self.changes = ChangeLog()
        # Gets each change: the group, the node, and 1 or -1.
        self.listener: Callable[[PodGroup, int, int], None] = lambda _group, _node, _sign: None

    def change(self, group: PodGroup, nodes: NodeIndexes, sign: int) -> None:
        """One pod of the group more, or less, on each of `nodes`."""
        for node in nodes.tolist():
            counts = self.on.setdefault(node, Counter())
            counts[group] += sign
            if not counts[group]:
                del counts[group]
                if not counts:
                    del self.on[node]
            self.listener(group, node, sign)
        self.changes.extend(nodes)
