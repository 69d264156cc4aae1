"""The node state of the dispatcher's core: names, labels, NoExecute taints and allocatable totals, as the
feed last reported them. A node is known by its index in the ledger. A node that comes back under its name
gets its old index."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import KnownNode
from hoss.model.node import Taint


class KnownNodes:
    """The only holder of node state in the core. A node that is removed or has a NoExecute taint *may
    evict*: its bound pods have to be checked."""

    def __init__(self) -> None:
        self._nodes: dict[int, KnownNode] = {}
        self._removed: dict[int, str] = {}  # their names, "" where never reported
        self._evicting: set[int] = set()
        self._may_evict = np.zeros(0, np.bool_)  # by index
        self.allocatable: Mapping[str, int] = {}  # of all nodes together, by resource

    def __contains__(self, index: int) -> bool:
        return index in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {"nodes": len(self), "removed_nodes": len(self._removed)}

    def get(self, index: int) -> KnownNode | None:
        """The node; None if it is removed or not reported yet."""
        return self._nodes.get(index)

    def removal_reason(self, index: int) -> str:
        """Why pods of a removed node are queued again; "" if the node is not removed."""
        name = self._removed.get(index)
        return "" if name is None else removed(name)

    @property
    def any_may_evict(self) -> bool:
        return bool(self._evicting)

    def may_evict(self, indexes: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of these nodes may evict pods: (n,)."""
        found = np.zeros(len(indexes), np.bool_)
        inside = indexes < len(self._may_evict)
        found[inside] = self._may_evict[indexes[inside]]
        return found

    def update(self, nodes: Mapping[int, KnownNode], now_ms: int) -> tuple[list[int], list[int]]:
        """Replace these nodes. Returns those that were not removed before, and which of these have NoExecute
        taints that differ from before. The bound pods of a removed node are being looked up anyway."""
        present = [index for index in nodes if index not in self._removed]
        tainted = []
        for index, reported in nodes.items():
            before = self._nodes.get(index)
            node = reported._replace(no_execute=_dated(reported, before, now_ms))
            if node.no_execute and (before is None or before.no_execute != node.no_execute):
                tainted.append(index)
            self._nodes[index] = node
            self._mark(index, may_evict=bool(node.no_execute))
        tainted = [index for index in tainted if index not in self._removed]
        for index in nodes:
            self._removed.pop(index, None)
        return present, tainted

    def remove(self, indexes: Iterable[int]) -> None:
        """These nodes were removed from the cluster."""
        for index in indexes:
            node = self._nodes.pop(index, None)
            self._removed[index] = node.name if node is not None else self._removed.get(index, "")
            self._mark(index, may_evict=True)

    def _mark(self, index: int, *, may_evict: bool) -> None:
        if may_evict == (index in self._evicting):
            return
        if index >= len(self._may_evict):
            longer = np.zeros(max(2 * len(self._may_evict), index + 1), np.bool_)
            longer[: len(self._may_evict)] = self._may_evict
            self._may_evict = longer
        self._may_evict[index] = may_evict
        (self._evicting.add if may_evict else self._evicting.discard)(index)


def _dated(node: KnownNode, before: KnownNode | None, now_ms: int) -> tuple[tuple[Taint, int], ...]:
    """A taint without a time counts from when it was first reported."""
    earlier = dict(before.no_execute) if before is not None else {}
    return tuple((taint, since_ms or earlier.get(taint, now_ms)) for taint, since_ms in node.no_execute)


def removed(name: str) -> str:
    """Why pods of a removed node are queued again; its name may be unknown ("")."""
    return f"evicted: node {name} was removed" if name else "evicted: its node was removed"
