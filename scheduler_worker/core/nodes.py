"""Node specs by ledger index: names, labels, taints and images, as columns of small numbers; and a log of
changed nodes.

A selector over thousands of nodes is a table look-up per requirement, not a loop over nodes. By the log each
ranking repairs only the nodes that changed since it looked last."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NodeSpec, Taint
from hoss.model.resources import Pairs
from hoss.model.selectors import NodeSelectorTerm, Requirement

NodeIndexes = NDArray[np.intp]  # (m,) ledger indexes

# Below this many entries a repeated index costs less to compute twice than to find.
_WORTH_DEDUPLICATING = 48


class ChangeLog:
    """A ring of changed node indexes. `position` counts all entries ever made; each reader keeps its own."""

    def __init__(self, capacity: int = 1 << 15) -> None:
        self._ring: NodeIndexes = np.zeros(capacity, np.intp)
        self.position = 0

    def add(self, node: int) -> None:
        """One node changed."""
        self._ring[self.position % len(self._ring)] = node
        self.position += 1

    def extend(self, nodes: NodeIndexes) -> None:
        """These nodes changed; repetitions are fine."""
        capacity, start = len(self._ring), self.position % len(self._ring)
        self.position += len(nodes)
        if len(nodes) >= capacity:
            return  # more than the ring holds: every reader has to look at all nodes
        room = capacity - start
        self._ring[start : start + len(nodes)] = nodes[:room]
        if len(nodes) > room:
            self._ring[: len(nodes) - room] = nodes[room:]

    def everything(self) -> None:
        """All nodes changed: every reader's position is out of reach from now on."""
        self.position += len(self._ring) + 1

    def since(self, position: int, size: int) -> NodeIndexes | None:
        """The nodes changed since `position`, all below `size`; small sets with repetitions. None if the ring
        has lost some of them."""
        count, capacity = self.position - position, len(self._ring)
        if count >= capacity:
            return None
        start = position % capacity
        changed: NodeIndexes = self._ring[start : start + count]
        if start + count > capacity:
            changed = np.concatenate((changed, self._ring[: start + count - capacity]))
        if count <= _WORTH_DEDUPLICATING:
            return np.array(changed)
        marked = np.zeros(size, np.bool_)  # quicker than np.unique for thousands of nodes
        marked[changed] = True
        found: NodeIndexes = marked.nonzero()[0]
        return found


class ImageIndex:
    """Nodes and sizes by image name."""

    def __init__(self) -> None:
        self.version = 0  # grows when the first node gets an image or the last one loses it
        self._holders: dict[str, dict[int, int]] = {}  # name -> node -> bytes
        # As they are asked for, once requested.
        self._columns: dict[str, tuple[NodeIndexes, int]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._holders

    def __len__(self) -> int:
        return len(self._holders)

    def replace(self, node: int, old: Iterable[tuple[str, int]], new: Iterable[tuple[str, int]]) -> None:
        """The node has `new` images instead of `old` ones. A name may come twice."""
        for name in dict.fromkeys(name for name, _ in old):
            holders = self._holders[name]
            del holders[node]
            self._columns.pop(name, None)
            if not holders:
                del self._holders[name]
                self.version += 1
        for name, size in new:
            if name not in self._holders:
                self._holders[name] = {}
                self.version += 1
            self._holders[name].setdefault(node, size)
            self._columns.pop(name, None)

    def holders(self, name: str) -> tuple[NodeIndexes, int]:
        """The nodes that have the image, and its size in bytes. kube-scheduler keeps one size for all nodes,
        that of the node from which it heard of the image first; here it is the one with the lowest index, so
        that all workers agree."""
        found = self._columns.get(name)
        if found is None:
            sizes = self._holders.get(name, {})
            found = np.array(list(sizes), np.intp), sizes[min(sizes)] if sizes else 0
            if sizes:
                self._columns[name] = found
        return found


Mask = NDArray[np.bool_]  # (n,)
_ABSENT = -1  # indexes the last entry of a table: what holds for nodes without the label


class LabelColumn:
    """One label of all nodes. Its values are the domains of the topology key of that name. The number of a
    value that no node has any more belongs to the next new value."""

    def __init__(self, codes: NDArray[np.int32]) -> None:
        self.codes = codes  # (capacity,): number of the node's value, -1 without the label
        self.numbers: dict[str, int] = {}  # value -> its number
        self.version = 0  # grows whenever a node's value changes
        self._values: list[str | None] = []  # by number, None for a free one
        self._nodes: list[int] = []  # by number: how many nodes have the value
        self._free: list[int] = []

    @property
    def size(self) -> int:
        """All numbers of values are below this."""
        return len(self._values)

    def put(self, index: int, value: str) -> None:
        """The node's label has this value."""
        before, code = int(self.codes[index]), self.numbers.get(value)
        if code is not None and code == before:
            return
        if code is None:
            code = self._add(value)
        self._nodes[code] += 1
        self.codes[index] = code
        self.version += 1
        self._release(before)

    def clear(self, index: int) -> None:
        """The node is without the label."""
        before = int(self.codes[index])
        self.codes[index] = _ABSENT
        self.version += 1
        self._release(before)

    def _add(self, value: str) -> int:
        if self._free:
            code = self._free.pop()
            self._values[code] = value
        else:
            code = len(self._values)
            self._values.append(value)
            self._nodes.append(0)
        self.numbers[value] = code
        return code

    def _release(self, code: int) -> None:
        """One node less has the value of this number."""
        if code == _ABSENT:
            return
        self._nodes[code] -= 1
        value = self._values[code]
        if not self._nodes[code] and value is not None:
            del self.numbers[value]
            self._values[code] = None
            self._free.append(code)

    def table(self, requirement: Requirement) -> Mask:
        """Whether each value meets the requirement, and last whether a node without the label does."""
        values = requirement.values
        if requirement.operator in ("In", "NotIn"):
            listed = [self.numbers[value] for value in values if value in self.numbers]
            result = np.zeros(self.size + 1, np.bool_)
            result[listed] = True
            return result if requirement.operator == "In" else ~result
        key = requirement.key
        there = (value is not None and requirement.matches({key: value}) for value in self._values)
        return np.array([*there, requirement.matches({})])


class NodeCatalogue:
    """Specs by ledger index. Index columns have room for more nodes than are `known`."""

    def __init__(self) -> None:
        self.specs: list[NodeSpec | None] = []
        self.known: Mask = np.zeros(0, np.bool_)  # has a spec
        self.unschedulable: Mask = np.zeros(0, np.bool_)  # spec.unschedulable
        self.cordoned: Mask = np.zeros(0, np.bool_)  # by the ledger, which may be ahead of the spec
        self.taint_sets: list[tuple[Taint, ...]] = [()]  # by number; a free number has no taints
        self._taint_set_numbers: dict[tuple[Taint, ...], int] = {(): 0}
        self._taint_set_nodes = [1]  # by number: how many nodes have the set; no taints is always there
        self._free_taint_sets: list[int] = []
        self._taint_sets_of: NDArray[np.int32] = np.zeros(0, np.int32)  # (capacity,), 0 without a node
        self._columns: dict[str, LabelColumn] = {}  # of labels that some node has
        self._empty_columns: WeakValueDictionary[str, LabelColumn] = WeakValueDictionary()  # that rules name
        self._index_of: dict[str, int] = {}
        self.images = ImageIndex()
        self.nodes = 0  # how many are known

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "nodes": self.nodes,
            "labels": len(self._columns),
            "label_values": sum(len(column.numbers) for column in self._columns.values()),
            "taint_sets": len(self.taint_sets),
            "images": len(self.images),
        }

    def grow(self, capacity: int) -> None:
        """Make room for indexes below `capacity`."""
        old = len(self.specs)
        self.specs.extend([None] * (capacity - old))
        self.known = _grown(self.known, capacity, fill=False)
        self.unschedulable = _grown(self.unschedulable, capacity, fill=False)
        self.cordoned = _grown(self.cordoned, capacity, fill=False)
        self._taint_sets_of = _grown(self._taint_sets_of, capacity, fill=0)
        for column in (*self._columns.values(), *self._empty_columns.values()):
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
        self._taint(index, spec.taints)

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
        self._taint(index, ())
        self.images.replace(index, old.images, ())

    def keep_only(self, specs: Iterable[int], among: NodeIndexes) -> None:
        """Of the indexes `among`, nothing is known any more of any but these."""
        gone = np.zeros(len(self.known), np.bool_)
        gone[among] = self.known[among]
        gone[np.fromiter(specs, np.intp)] = False
        for index in gone.nonzero()[0].tolist():
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

    def index(self, name: str) -> int | None:
        """The index of the node of this name. None: it is not known."""
        return self._index_of.get(name)

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
        column = self._columns.get(key) or self._empty_columns.get(key)
        if column is None:
            column = LabelColumn(np.full(len(self.specs), _ABSENT, np.int32))
            self._empty_columns[key] = column
        return column

    def by_taints(self, table: NDArray[np.int64], at: NodeIndexes) -> NDArray[np.int64]:
        """Per node the entry of `table` for its taints; `table` has one entry for each of `taint_sets`."""
        values: NDArray[np.int64] = table.take(self._taint_sets_of.take(at))
        return values

    def _relabel(self, index: int, old: Pairs, new: Pairs) -> None:
        kept = dict(new)
        for key in dict(old):  # a message may name one twice
            if key not in kept:
                column = self._columns[key]
                column.clear(index)
                if not column.numbers:
                    self._empty_columns[key] = self._columns.pop(key)
        for key, value in new:
            column = self.column(key)
            column.put(index, value)
            self._columns[key] = column

    def _taint(self, index: int, taints: tuple[Taint, ...]) -> None:
        """The node at `index` has these taints from now on."""
        number = self._taint_set_numbers.get(taints)
        if number is None:
            if self._free_taint_sets:
                number = self._free_taint_sets.pop()
                self.taint_sets[number] = taints
            else:
                number = len(self.taint_sets)
                self.taint_sets.append(taints)
                self._taint_set_nodes.append(0)
            self._taint_set_numbers[taints] = number
        before = int(self._taint_sets_of[index])
        self._taint_sets_of[index] = number
        if number:
            self._taint_set_nodes[number] += 1
        if before:
            self._taint_set_nodes[before] -= 1
            if not self._taint_set_nodes[before]:
                del self._taint_set_numbers[self.taint_sets[before]]
                self.taint_sets[before] = ()
                self._free_taint_sets.append(before)

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


@dataclass(slots=True)
class NodeSpecs:
    """n nodes as filters and scores by specs see them."""

    catalogue: NodeCatalogue
    at: NodeIndexes  # (n,)

    @property
    def count(self) -> int:
        """n."""
        return len(self.at)

    def matches(self, term: NodeSelectorTerm) -> Mask:
        """Which of the nodes the term matches: (n,)."""
        return self.catalogue.matches(term, self.at)

    def named(self, names: frozenset[str]) -> Mask:
        """Which of the nodes bear one of these names: (n,)."""
        return self.catalogue.named(names, self.at)
