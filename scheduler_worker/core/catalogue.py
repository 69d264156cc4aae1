"""What nodes are, apart from what is used of them: names, labels, taints, kept as columns of small numbers.

A selector over thousands of nodes is then a table look-up per requirement, not a loop over nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NodeSpec
from hoss.model.pod import Pairs
from hoss.model.selectors import NodeSelectorTerm, Requirement
from hoss.model.taints import Taint
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.images import ImageIndex

Mask = NDArray[np.bool_]  # (n,)
_ABSENT = -1  # indexes the last entry of a table: what holds for nodes without the label


@dataclass(slots=True)
class LabelColumn:
    """One label of all nodes. Its values are the domains of the topology key of that name."""

    codes: NDArray[np.int32]  # (capacity,): number of the node's value, -1 without the label
    numbers: dict[str, int] = field(default_factory=dict)  # value -> its number
    version: int = 0  # grows whenever a node's value changes

    def put(self, index: int, value: str) -> None:
        """The node's label has this value."""
        code = self.numbers.setdefault(value, len(self.numbers))
        if self.codes[index] != code:
            self.codes[index] = code
            self.version += 1

    def clear(self, index: int) -> None:
        """The node is without the label."""
        self.codes[index] = _ABSENT
        self.version += 1

    def table(self, requirement: Requirement) -> Mask:
        """What the requirement says of each value, and last of a node without the label."""
        values = requirement.values
        if requirement.operator in ("In", "NotIn"):
            listed = [self.numbers[value] for value in values if value in self.numbers]
            result = np.zeros(len(self.numbers) + 1, np.bool_)
            result[listed] = True
            return result if requirement.operator == "In" else ~result
        key = requirement.key
        return np.array([*(requirement.matches({key: value}) for value in self.numbers), requirement.matches({})])


class NodeCatalogue:
    """Specs by ledger index. Index columns have room for more nodes than are `known`."""

    def __init__(self) -> None:
        self.specs: list[NodeSpec | None] = []
        self.known: Mask = np.zeros(0, np.bool_)  # has a spec
        self.unschedulable: Mask = np.zeros(0, np.bool_)  # spec.unschedulable
        self.cordoned: Mask = np.zeros(0, np.bool_)  # the ledger said so, maybe ahead of the spec
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self._taint_set_numbers: dict[tuple[Taint, ...], int] = {(): 0}
        self._taint_sets_of: NDArray[np.int32] = np.zeros(0, np.int32)
        self._columns: dict[str, LabelColumn] = {}
        self._index_of: dict[str, int] = {}
        self.images = ImageIndex()
        self.nodes = 0  # how many are known

    def grow(self, capacity: int) -> None:
        """Make room for indexes below `capacity`."""
        old = len(self.specs)
        self.specs.extend([None] * (capacity - old))
        self.known = _grown(self.known, capacity, fill=False)
        self.unschedulable = _grown(self.unschedulable, capacity, fill=False)
        self.cordoned = _grown(self.cordoned, capacity, fill=False)
        self._taint_sets_of = _grown(self._taint_sets_of, capacity, fill=0)
        for column in self._columns.values():
            column.codes = _grown(column.codes, capacity, fill=_ABSENT)
            column.version += 1

    def put(self, index: int, spec: NodeSpec) -> None:
        """The node at `index` is `spec` from now on."""
        old = self.specs[index]
        if old is not None and old.name != spec.name:
            self.remove(index)
            old = None
        self.specs[index] = spec
        self.nodes += not self.known[index]
        self.known[index] = True
        self.unschedulable[index] = spec.unschedulable
        self._index_of[spec.name] = index
        if old is None or old.labels != spec.labels:
            self._relabel(index, () if old is None else old.labels, spec.labels)
        if old is None or old.images != spec.images:
            self.images.replace(index, () if old is None else old.images, spec.images)
        number = self._taint_set_numbers.setdefault(spec.taints, len(self.taint_sets))
        if number == len(self.taint_sets):
            self.taint_sets.append(spec.taints)
        self._taint_sets_of[index] = number

    def remove(self, index: int) -> None:
        """Nothing is known of `index` any more."""
        old = self.specs[index]
        if old is None:
            return
        self.specs[index] = None
        self.known[index] = False
        self.nodes -= 1
        if self._index_of.get(old.name) == index:
            del self._index_of[old.name]
        self._relabel(index, old.labels, ())
        self.images.replace(index, old.images, ())

    def remove_all(self, nodes: NodeIndexes) -> None:
        """Nothing is known of these indexes any more."""
        for index in nodes[self.known[nodes]].tolist():
            self.remove(index)

    def apply(self, specs: Iterable[tuple[int, NodeSpec | None]]) -> None:
        """Take in new and changed specs; None for a node that is gone."""
        for index, spec in specs:
            if spec is None:
                self.remove(index)
            else:
                self.put(index, spec)

    def name(self, index: int) -> str:
        """The node's name, or its number where the catalogue does not know it."""
        spec = self.specs[index]
        return spec.name if spec is not None else f"#{index}"

    def named(self, names: frozenset[str], at: NodeIndexes) -> Mask:
        """Which of the nodes `at` bear one of these names."""
        indexes = [self._index_of[name] for name in names if name in self._index_of]
        if len(indexes) == 1:
            return np.asarray(at == indexes[0])
        return np.isin(at, indexes)

    def matches(self, term: NodeSelectorTerm, at: NodeIndexes) -> Mask:
        """Which of the nodes `at` the term matches; one without requirements matches none."""
        if not term.match_expressions and not term.match_fields:
            return np.zeros(len(at), np.bool_)
        masks = [self._meets(requirement, at) for requirement in term.match_expressions]
        for requirement in term.match_fields:
            named = self.named(frozenset(requirement.values), at)
            masks.append(named if requirement.operator == "In" else ~named)
        return masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)

    def column(self, key: str) -> LabelColumn:
        """The label's values on all nodes."""
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = LabelColumn(np.full(len(self.specs), _ABSENT, np.int32))
        return column

    def by_taints(self, table: NDArray[np.int64], at: NodeIndexes) -> NDArray[np.int64]:
        """Per node the entry of `table` for its taints; `table` has one entry for each of `taint_sets`."""
        values: NDArray[np.int64] = table.take(self._taint_sets_of.take(at))
        return values

    def _relabel(self, index: int, old: Pairs, new: Pairs) -> None:
        kept = dict(new)
        for key, _ in old:
            if key not in kept:
                self._columns[key].clear(index)
        for key, value in new:
            self.column(key).put(index, value)

    def _meets(self, requirement: Requirement, at: NodeIndexes) -> Mask:
        column = self._columns.get(requirement.key)
        if column is None:
            return np.full(len(at), requirement.matches({}))
        mask: Mask = column.table(requirement).take(column.codes.take(at))
        return mask


def _grown(column: NDArray[Any], capacity: int, *, fill: int) -> NDArray[Any]:
    larger: NDArray[Any] = np.full(capacity, fill, column.dtype)
    larger[: len(column)] = column
    return larger
