"""The pod index: which pods are where, as far as other pods' rules can see them.

Pods that no rule can distinguish form a *group*. A query gets a *counter*: the number of matching pods on
each node, kept up to date from then on. A pod that comes or goes changes its group's count and the counters
that include the group. Nothing is ever counted again from all pods."""

from collections.abc import Iterable, Mapping
from weakref import ReferenceType, WeakValueDictionary, finalize, ref

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodAffinityTerm, PodGroup
from hoss.model.resources import Pairs, ResourceSchema
from scheduler_worker.core.devices.held import HeldClaims
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes
from scheduler_worker.core.pod_index.counter import MountedGroups, PodCounter
from scheduler_worker.core.pod_index.nominated import NominatedPods
from scheduler_worker.core.pod_index.selector_query import (
    CarriedTerm,
    NamespaceLabels,
    PodQuery,
    Token,
    about_namespace_labels,
    anchor_of,
    carried_terms,
    port_token,
    volume_tokens,
)

# A group on more nodes than this keeps a count for every node, which is quicker to add up than it is large.
_SPARSE_NODES = 256


class PodIndex:
    """Counts of bound and assumed pods. Nodes are ledger indexes below the capacity last given to `grow`."""

    def __init__(self, catalogue: NodeCatalogue, schema: ResourceSchema | None = None) -> None:
        self.terms_version = 0  # grows when the first pod with a term comes or the last one goes
        # (2, capacity) cpu and memory that scores add to the requests of a node's pods; None: no pod ever had
        # any.
        self.excess: NDArray[np.int64] | None = None
        self.mounted = MountedGroups()  # pods with volumes
        self.held_claims = HeldClaims()  # of pods with devices
        # Of other schedulers; they count in no rule about other pods.
        self.nominated = NominatedPods(catalogue, schema or ResourceSchema())
        self._catalogue = catalogue
        self._capacity = 0
        self._namespaces: NamespaceLabels = {}
        self._rows: dict[PodGroup, _Row] = {}
        self._rows_by_token: dict[Token, dict[PodGroup, _Row]] = {}
        self._counters: WeakValueDictionary[PodQuery, PodCounter] = WeakValueDictionary()
        self._queries_by_token: dict[Token | None, dict[PodQuery, None]] = {}  # None: may include any group
        self._terms_by_token: dict[Token | None, dict[CarriedTerm, int]] = {}  # -> groups that bear it

    @property
    def namespaces(self) -> NamespaceLabels:
        """Labels of the namespaces that are known."""
        return self._namespaces

    def set_namespaces(self, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        """Exactly these namespaces exist from now on. Counters that depend on their labels are counted
        again."""
        if namespaces == self._namespaces:
            return
        self._namespaces = dict(namespaces)
        self.terms_version += 1
        outdated = [counter for query, counter in self._counters.items() if about_namespace_labels(query)]
        if not outdated:
            return
        former = set(outdated)
        for row in self._rows.values():
            row.counters = [reference for reference in row.counters if reference() not in former]
        for counter in outdated:
            counter.reset(self._capacity)
            self._fill(counter)

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "namespaces": len(self._namespaces),
            "pod_groups": len(self._rows),
            "pod_counters": len(self._counters),
            "held_claims": len(self.held_claims),
            "pod_terms": sum(map(len, self._terms_by_token.values())),
        }

    def grow(self, capacity: int) -> None:
        """Make room for nodes below `capacity`."""
        if self.excess is not None:
            more = np.zeros((2, capacity - self._capacity), np.int64)
            self.excess = np.concatenate((self.excess, more), axis=1)
        self._capacity = capacity
        for row in self._rows.values():
            row.grow(capacity)
        for counter in self._counters.values():
            counter.grow(capacity)

    def add(self, group: PodGroup, nodes: NodeIndexes) -> None:
        """One more pod of the group on each of `nodes` (repetitions allowed)."""
        if not len(nodes):
            return
        row = self._rows.get(group)
        if row is None:
            row = self._new_row(group)
        row.change(nodes, 1, self._capacity)
        if row.weighs:
            self._weigh(group, nodes, 1)
        if group.volumes is not None:
            self.mounted.change(group, nodes, 1)
        if group.held_claims:
            self.held_claims.change(group.held_claims, len(nodes))

    def remove(self, group: PodGroup, nodes: NodeIndexes) -> None:
        """One pod less of the group on each of `nodes`, where `add` counted them."""
        if not len(nodes):
            return
        row = self._rows[group]
        row.change(nodes, -1, self._capacity)
        if row.weighs:
            self._weigh(group, nodes, -1)
        if group.volumes is not None:
            self.mounted.change(group, nodes, -1)
        if group.held_claims:
            self.held_claims.change(group.held_claims, -len(nodes))
        if not row.pods:
            self._drop_row(row)

    @property
    def groups(self) -> Iterable[PodGroup]:
        """Those of all pods that are counted."""
        return self._rows.keys()

    def counts(self, group: PodGroup, nodes: NodeIndexes) -> NDArray[np.int64]:
        """How many pods of the group are on each of `nodes`, all different: (n,)."""
        row = self._rows.get(group)
        return np.zeros(len(nodes), np.int64) if row is None else row.counts(nodes)

    def pods_of(self, group: PodGroup) -> dict[int, int]:
        """How many pods of the group are on each node that has any."""
        row = self._rows.get(group)
        return {} if row is None else row.by_node()

    def replace(self, group: PodGroup, where: Mask, nodes: NodeIndexes) -> None:
        """On the nodes of `where`, (capacity,), the group has one pod on each of `nodes` (repetitions
        allowed), which are among them, in place of what it had."""
        row = self._rows.get(group)
        if row is None:
            self.add(group, nodes)
            return
        before = row.pods_within(where)
        if not np.array_equal(np.sort(before), np.sort(nodes)):
            self.add(group, nodes)  # first: a group that stays is not forgotten in between
            self.remove(group, before)

    def counter(self, query: PodQuery) -> PodCounter:
        """The query's counter, kept up to date while it is referenced."""
        counter = self._counters.get(query)
        if counter is None:
            counter = PodCounter(query, self._catalogue, self._capacity)
            self._counters[query] = counter
            for token in _anchor_or_none(query):
                self._queries_by_token.setdefault(token, {})[query] = None
            finalize(counter, _forget, query, self._queries_by_token)
            self._fill(counter)
        return counter

    def terms_about(self, namespace: str, labels: Pairs) -> list[CarriedTerm]:
        """Terms of pods in the index that match a pod of this namespace with these labels."""
        if not self._terms_by_token:
            return []
        by_key = dict(labels)
        of_namespace = self._namespaces.get(namespace, {})
        return [
            carried
            for token in (None, *labels)
            for carried in self._terms_by_token.get(token, ())
            if carried.term.selector is not None
            and carried.term.selector.matches(by_key)
            and carried.term.sees(namespace, of_namespace)
        ]

    def _weigh(self, group: PodGroup, nodes: NodeIndexes, sign: int) -> None:
        if self.excess is None:
            self.excess = np.zeros((2, self._capacity), np.int64)
        for column, amount in zip(self.excess, group.excess, strict=True):
            np.add.at(column, nodes, np.int64(sign * amount))

    def _fill(self, counter: PodCounter) -> None:
        """Count what there is, and connect the counter with the groups it includes."""
        anchor = anchor_of(counter.query)
        if anchor is None:
            candidates: Iterable[_Row] = self._rows.values()
        else:
            found = [self._rows_by_token.get(token, {}) for token in anchor]
            candidates = (
                found[0] if len(found) == 1 else {k: row for rows in found for k, row in rows.items()}
            ).values()
        for row in candidates:
            if counter.query.includes(row.group, self._namespaces):
                row.counters.append(ref(counter))
                row.pour(counter)

    def _new_row(self, group: PodGroup) -> "_Row":
        row = _Row(group)
        self._rows[group] = row
        for token in row.tokens:
            self._rows_by_token.setdefault(token, {})[group] = row
        # Several tokens may lead to one query.
        related = {q: None for token in (None, *row.tokens) for q in self._queries_by_token.get(token, ())}
        for query in related:
            counter = self._counters.get(query)
            if counter is not None and query.includes(group, self._namespaces):
                row.counters.append(ref(counter))
        for carried in row.terms:
            for anchor in _anchor_or_none(carried.term):
                carriers = self._terms_by_token.setdefault(anchor, {})
                self.terms_version += carried not in carriers
                carriers[carried] = carriers.get(carried, 0) + 1
        return row

    def _drop_row(self, row: "_Row") -> None:
        del self._rows[row.group]
        for token in row.tokens:
            rows = self._rows_by_token[token]
            del rows[row.group]
            if not rows:
                del self._rows_by_token[token]
        for carried in row.terms:
            for anchor in _anchor_or_none(carried.term):
                carriers = self._terms_by_token[anchor]
                carriers[carried] -= 1
                if not carriers[carried]:
                    del carriers[carried]
                    self.terms_version += 1
                if not carriers:
                    del self._terms_by_token[anchor]


class _Row:
    """A group: where its pods are, and which counters include it."""

    __slots__ = ("_dense", "_sparse", "counters", "group", "pods", "terms", "tokens", "weighs")

    def __init__(self, group: PodGroup) -> None:
        self.group = group
        self.weighs = any(group.excess)
        self.terms = carried_terms(group.affinity)
        self.tokens: tuple[Token, ...] = (
            *group.labels,
            *self.terms,
            *dict.fromkeys(map(port_token, group.host_ports)),
            *volume_tokens(group.namespace, group.volumes),
        )
        self.pods = 0
        self.counters: list[ReferenceType[PodCounter]] = []
        self._sparse: dict[int, int] = {}  # node -> pods, until there are too many
        self._dense: NDArray[np.int32] | None = None

    def grow(self, capacity: int) -> None:
        if self._dense is not None:
            self._dense = np.concatenate((self._dense, np.zeros(capacity - len(self._dense), np.int32)))

    def counts(self, nodes: NodeIndexes) -> NDArray[np.int64]:
        """How many pods of the group each of the nodes has."""
        if self._dense is not None:
            return self._dense[nodes].astype(np.int64)
        return np.array([self._sparse.get(node, 0) for node in nodes.tolist()], np.int64)

    def pods_within(self, where: Mask) -> NodeIndexes:
        """Each node of `where`, (capacity,), as often as it has pods of the group."""
        if self._dense is not None:
            nodes = np.flatnonzero(where)
            return nodes.repeat(self._dense[nodes])
        nodes = np.fromiter(self._sparse, np.intp, len(self._sparse))
        counts = np.fromiter(self._sparse.values(), np.intp, len(self._sparse))
        return nodes.repeat(counts * where[nodes])

    def by_node(self) -> dict[int, int]:
        """node -> pods of the group."""
        if self._dense is None:
            return dict(self._sparse)
        nodes = np.flatnonzero(self._dense)
        return dict(zip(nodes.tolist(), self._dense[nodes].tolist(), strict=True))

    def change(self, nodes: NodeIndexes, sign: int, capacity: int) -> None:
        self.pods += sign * len(nodes)
        if self._dense is not None:
            np.add.at(self._dense, nodes, np.int32(sign))  # with any other type it takes 20 times as long
        else:
            for node in nodes.tolist():
                count = self._sparse.get(node, 0) + sign
                if count:
                    self._sparse[node] = count
                else:
                    del self._sparse[node]
            if len(self._sparse) > _SPARSE_NODES:
                self._dense = np.zeros(capacity, np.int32)
                self._dense[list(self._sparse)] = list(self._sparse.values())
                self._sparse.clear()
        held = [counter for reference in self.counters if (counter := reference()) is not None]
        for counter in held:
            counter.add(nodes, sign)
        if len(held) < len(self.counters):
            self.counters = [ref(counter) for counter in held]

    def pour(self, counter: PodCounter) -> None:
        if self._dense is not None:
            counter.counts += self._dense
        elif self._sparse:
            counter.counts[list(self._sparse)] += np.fromiter(
                self._sparse.values(), np.int32, len(self._sparse)
            )


def _anchor_or_none(of: PodQuery | PodAffinityTerm) -> tuple[Token | None, ...]:
    anchor = anchor_of(of)
    return (None,) if anchor is None else anchor


def _forget(query: PodQuery, queries_by_token: dict[Token | None, dict[PodQuery, None]]) -> None:
    """The query's counter is not referenced any more."""
    for token in _anchor_or_none(query):
        queries = queries_by_token[token]
        del queries[query]
        if not queries:
            del queries_by_token[token]
