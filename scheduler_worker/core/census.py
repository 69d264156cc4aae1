"""Which pods are where, by what other pods' rules can see of them: the census.

Pods that no rule can tell apart form a *group*. Whoever wants to know how many pods of some sort there are asks a
question and gets a *tally*: a count per node that is kept right from then on. A pod that comes or goes changes its
group's count and the tallies that include the group; nothing is ever counted again from all pods.
"""

from collections.abc import Iterable, Mapping
from weakref import ReferenceType, WeakValueDictionary, finalize, ref

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import Pairs
from hoss.model.pod_groups import PodGroup
from hoss.model.pod_rules import PodAffinityTerm
from scheduler_worker.core.catalogue import NodeCatalogue
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.questions import (
    Bearing,
    NamespaceLabels,
    Question,
    Token,
    about_namespace_labels,
    anchor_of,
    bearings_of,
    port_token,
)
from scheduler_worker.core.tally import Tally

# A group on more nodes than this keeps a count for every node, which is quicker to add up than it is large.
_SPARSE_NODES = 256


class PodCensus:
    """Counts of bound and assumed pods. Nodes are ledger indexes below the capacity last given to `grow`."""

    def __init__(self, catalogue: NodeCatalogue) -> None:
        self.bearings_version = 0  # grows when some pod bears a rule that no pod bore before, or none bears any more
        # (2, capacity) cpu and memory that scores count a node's pods with beyond their requests; None: no pod ever.
        self.excess: NDArray[np.int64] | None = None
        self._catalogue = catalogue
        self._capacity = 0
        self._namespaces: NamespaceLabels = {}
        self._rows: dict[PodGroup, _Row] = {}
        self._rows_by_token: dict[Token, dict[PodGroup, _Row]] = {}
        self._tallies: WeakValueDictionary[Question, Tally] = WeakValueDictionary()
        self._questions_by_token: dict[Token | None, dict[Question, None]] = {}  # None: may include any group
        self._bearings_by_token: dict[Token | None, dict[Bearing, int]] = {}  # -> groups that bear it

    @property
    def namespaces(self) -> NamespaceLabels:
        """Labels of the namespaces that are known."""
        return self._namespaces

    def set_namespaces(self, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        """These namespaces are known from now on, and no others. Questions that look at their labels are asked anew."""
        if namespaces == self._namespaces:
            return
        self._namespaces = dict(namespaces)
        self.bearings_version += 1
        asked_anew = {tally for question, tally in self._tallies.items() if about_namespace_labels(question)}
        if not asked_anew:
            return
        for row in self._rows.values():
            row.tallies = [reference for reference in row.tallies if reference() not in asked_anew]
        for tally in asked_anew:
            tally.reset(self._capacity)
            self._fill(tally)

    def grow(self, capacity: int) -> None:
        """Make room for nodes below `capacity`."""
        if self.excess is not None:
            more = np.zeros((2, capacity - self._capacity), np.int64)
            self.excess = np.concatenate((self.excess, more), axis=1)
        self._capacity = capacity
        for row in self._rows.values():
            row.grow(capacity)
        for tally in self._tallies.values():
            tally.grow(capacity)

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

    def remove(self, group: PodGroup, nodes: NodeIndexes) -> None:
        """One pod less of the group on each of `nodes`, where `add` counted them."""
        if not len(nodes):
            return
        row = self._rows[group]
        row.change(nodes, -1, self._capacity)
        if row.weighs:
            self._weigh(group, nodes, -1)
        if not row.pods:
            self._drop_row(row)

    def counts(self, group: PodGroup, nodes: NodeIndexes) -> NDArray[np.int64]:
        """How many pods of the group are on each of `nodes`, no two alike: (n,)."""
        row = self._rows.get(group)
        on = nodes[:0] if row is None else row.pods_on(nodes)
        counted: NDArray[np.int64] = (on == nodes[:, None]).sum(axis=1)
        return counted

    def clear(self, nodes: NodeIndexes) -> None:
        """There are no pods on these nodes."""
        for group, row in list(self._rows.items()):
            self.remove(group, row.pods_on(nodes))

    def tally(self, question: Question) -> Tally:
        """The answer, kept up to date for as long as anyone holds it."""
        tally = self._tallies.get(question)
        if tally is None:
            tally = Tally(question, self._catalogue, self._capacity)
            self._tallies[question] = tally
            for token in _anchor_or_none(question):
                self._questions_by_token.setdefault(token, {})[question] = None
            finalize(tally, _forget, question, self._questions_by_token)
            self._fill(tally)
        return tally

    def bearings_about(self, namespace: str, labels: Pairs) -> list[Bearing]:
        """Rules of pods in the census that a pod of this namespace with these labels falls under."""
        if not self._bearings_by_token:
            return []
        by_key = dict(labels)
        of_namespace = self._namespaces.get(namespace, {})
        return [
            bearing
            for token in (None, *labels)
            for bearing in self._bearings_by_token.get(token, ())
            if bearing.term.selector is not None
            and bearing.term.selector.matches(by_key)
            and bearing.term.sees(namespace, of_namespace)
        ]

    def _weigh(self, group: PodGroup, nodes: NodeIndexes, sign: int) -> None:
        if self.excess is None:
            self.excess = np.zeros((2, self._capacity), np.int64)
        for column, amount in zip(self.excess, group.excess, strict=True):
            np.add.at(column, nodes, np.int64(sign * amount))

    def _fill(self, tally: Tally) -> None:
        """Count what there is, and connect the tally with the groups it includes."""
        anchor = anchor_of(tally.question)
        if anchor is None:
            candidates: Iterable[_Row] = self._rows.values()
        else:
            found = [self._rows_by_token.get(token, {}) for token in anchor]
            candidates = (
                found[0] if len(found) == 1 else {k: row for rows in found for k, row in rows.items()}
            ).values()
        for row in candidates:
            if tally.question.includes(row.group, self._namespaces):
                row.tallies.append(ref(tally))
                row.pour(tally)

    def _new_row(self, group: PodGroup) -> "_Row":
        row = _Row(group)
        self._rows[group] = row
        for token in row.tokens:
            self._rows_by_token.setdefault(token, {})[group] = row
        # Several tokens may lead to one question.
        asked = {q: None for token in (None, *row.tokens) for q in self._questions_by_token.get(token, ())}
        for question in asked:
            tally = self._tallies.get(question)
            if tally is not None and question.includes(group, self._namespaces):
                row.tallies.append(ref(tally))
        for bearing in row.bearings:
            for anchor in _anchor_or_none(bearing.term):
                bearers = self._bearings_by_token.setdefault(anchor, {})
                self.bearings_version += bearing not in bearers
                bearers[bearing] = bearers.get(bearing, 0) + 1
        return row

    def _drop_row(self, row: "_Row") -> None:
        del self._rows[row.group]
        for token in row.tokens:
            rows = self._rows_by_token[token]
            del rows[row.group]
            if not rows:
                del self._rows_by_token[token]
        for bearing in row.bearings:
            for anchor in _anchor_or_none(bearing.term):
                bearers = self._bearings_by_token[anchor]
                bearers[bearing] -= 1
                if not bearers[bearing]:
                    del bearers[bearing]
                    self.bearings_version += 1
                if not bearers:
                    del self._bearings_by_token[anchor]


class _Row:
    """One group: where its pods are, and which tallies include it."""

    __slots__ = ("_dense", "_sparse", "bearings", "group", "pods", "tallies", "tokens", "weighs")

    def __init__(self, group: PodGroup) -> None:
        self.group = group
        self.weighs = any(group.excess)
        self.bearings = bearings_of(group.affinity)
        self.tokens: tuple[Token, ...] = (*group.labels, *self.bearings, *set(map(port_token, group.host_ports)))
        self.pods = 0
        self.tallies: list[ReferenceType[Tally]] = []
        self._sparse: dict[int, int] = {}  # node -> pods, until there are too many
        self._dense: NDArray[np.int32] | None = None

    def grow(self, capacity: int) -> None:
        if self._dense is not None:
            self._dense = np.concatenate((self._dense, np.zeros(capacity - len(self._dense), np.int32)))

    def pods_on(self, nodes: NodeIndexes) -> NodeIndexes:
        """Those of the nodes where its pods are, once for each pod."""
        if self._dense is not None:
            counts = self._dense[nodes]
        else:
            counts = np.array([self._sparse.get(node, 0) for node in nodes.tolist()], np.int32)
        return np.repeat(nodes, counts)

    def change(self, nodes: NodeIndexes, sign: int, capacity: int) -> None:
        self.pods += sign * len(nodes)
        if self._dense is not None:
            np.add.at(self._dense, nodes, np.int32(sign))  # of the very type: with any other it takes 20 times as long
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
        held = [tally for reference in self.tallies if (tally := reference()) is not None]
        for tally in held:
            tally.add(nodes, sign)
        if len(held) < len(self.tallies):
            self.tallies = [ref(tally) for tally in held]

    def pour(self, tally: Tally) -> None:
        if self._dense is not None:
            tally.counts += self._dense
        elif self._sparse:
            tally.counts[list(self._sparse)] += np.fromiter(self._sparse.values(), np.int32, len(self._sparse))


def _anchor_or_none(of: Question | PodAffinityTerm) -> tuple[Token | None, ...]:
    anchor = anchor_of(of)
    return (None,) if anchor is None else anchor


def _forget(question: Question, questions_by_token: dict[Token | None, dict[Question, None]]) -> None:
    """Nobody holds the question's tally any more."""
    for token in _anchor_or_none(question):
        questions = questions_by_token[token]
        del questions[question]
        if not questions:
            del questions_by_token[token]
