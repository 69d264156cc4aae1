"""What changed, and since when: lets every ranking of nodes repair only what it has not seen yet."""

import numpy as np
from numpy.typing import NDArray

NodeIndexes = NDArray[np.intp]  # (m,) ledger indexes

# Below this many entries a repeated index costs less to compute twice than to find.
_WORTH_DEDUPLICATING = 48


class ChangeLog:
    """A ring of changed node indexes. `position` counts all entries ever made; readers keep the one they are at."""

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
            return  # more than the ring holds: every reader is behind it now and looks at all nodes
        room = capacity - start
        self._ring[start : start + len(nodes)] = nodes[:room]
        if len(nodes) > room:
            self._ring[: len(nodes) - room] = nodes[room:]

    def everything(self) -> None:
        """All nodes changed: every reader's position is out of reach from now on."""
        self.position += len(self._ring) + 1

    def since(self, position: int, size: int) -> NodeIndexes | None:
        """The nodes changed since `position`, small sets with repetitions; None when only looking at all will do.

        All of them are below `size`.
        """
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
