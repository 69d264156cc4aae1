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
        # Their names, "" where never reported, and the seq of the removal on their shard.
        self._removed: dict[int, tuple[str, int]] = {}
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
        removal = self._removed.get(index)
        return "" if removal is None else removed(removal[0])

    def removed_at(self, indexes: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """The seq of each node's removal, 0 for a node that is not removed: (n,). A reservation of a higher
        seq was made later, so the node had come back."""
        distinct, which = np.unique(indexes, return_inverse=True)
        seqs = [self._removed.get(index, ("", 0))[1] for index in distinct.tolist()]
        found: NDArray[np.uint64] = np.array(seqs, np.uint64)[which]
        return found

    @property
    def any_may_evict(self) -> bool:
        return bool(self._evicting)

    def may_evict(self, indexes: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of these nodes may evict pods: (n,)."""
        found = np.zeros(len(indexes), np.bool_)
        inside = indexes < len(self._may_evict)
        found[inside] = self._may_evict[indexes[inside]]
        return found

    def update(self, nodes: Mapping[int, KnownNode], now_ms: int) -> list[int]:
        """Replace these nodes. Returns those with NoExecute taints that differ from before."""
        tainted = []
        for index, reported in nodes.items():
            before = self._nodes.get(index)
            node = reported._replace(no_execute=_dated(reported, before, now_ms))
            if node.no_execute and (before is None or before.no_execute != node.no_execute):
                tainted.append(index)
            self._nodes[index] = node
            self._mark(index, may_evict=bool(node.no_execute))
            self._removed.pop(index, None)
        return tainted

    def remove(self, indexes: Iterable[int], seq: int) -> None:
        """These nodes were removed from the cluster, at `seq` of their shard or before."""
        for index in indexes:
            node = self._nodes.pop(index, None)
            name = node.name if node is not None else self._removed.get(index, ("", 0))[0]
            self._removed[index] = name, seq
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
