"""Which nodes have which container images."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.changes import NodeIndexes


class ImageIndex:
    """Nodes and sizes by image name."""

    def __init__(self) -> None:
        self.version = 0  # grows when a name comes up that no node had, or is gone from the last
        self._holders: dict[str, dict[int, int]] = {}  # name -> node -> bytes
        self._columns: dict[str, tuple[NodeIndexes, NDArray[np.int64]]] = {}  # the same as arrays, where asked for

    def __contains__(self, name: object) -> bool:
        return name in self._holders

    def replace(self, node: int, old: Iterable[tuple[str, int]], new: Iterable[tuple[str, int]]) -> None:
        """The node has `new` images instead of `old` ones."""
        for name, _ in old:
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
            self._holders[name][node] = size
            self._columns.pop(name, None)

    def holders(self, name: str) -> tuple[NodeIndexes, NDArray[np.int64]]:
        """The nodes that have the image, and its size in bytes on each."""
        found = self._columns.get(name)
        if found is None:
            sizes = self._holders.get(name, {})
            found = np.array(list(sizes), np.intp), np.array(list(sizes.values()), np.int64)
            self._columns[name] = found
        return found
