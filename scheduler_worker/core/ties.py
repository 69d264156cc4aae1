"""How nodes of equal score are ordered: by a permutation of the worker's own, so that workers do not all want the same one.

A *key* is an i64 that orders nodes completely: score << 32 | tie << 12 | slack. The tie names the node, so a
sorted array of keys is a sorted array of nodes. The slack orders levels of one node (docs/adr/0003). A node that is
not feasible has the key INFEASIBLE.
"""

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvariantViolation
from scheduler_worker.core.changes import NodeIndexes

INFEASIBLE = -1
SCORE_SHIFT = 32
SLACK_BITS = 12
MAX_LEVELS = 1 << SLACK_BITS

_TIE_BITS = SCORE_SHIFT - SLACK_BITS
_TIE_MASK = (1 << _TIE_BITS) - 1
MAX_NODES = 1 << _TIE_BITS

Keys = NDArray[np.int64]


class TieOrder:
    """The permutation, drawn anew whenever there are more nodes than it covers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.version = 0
        self.bits: Keys = np.zeros(0, np.int64)  # (nodes,): tie << 12
        self._nodes: NodeIndexes = np.zeros(0, np.intp)  # tie -> node

    def cover(self, size: int) -> None:
        """Make sure that nodes below `size` have ties. May change all of them; `version` tells."""
        if size > len(self.bits):
            if size > MAX_NODES:
                raise InvariantViolation(f"{size} nodes, but keys have room for {MAX_NODES}")
            self._nodes = self._rng.permutation(min(max(size, 2 * len(self.bits)), MAX_NODES))
            self.bits = np.empty(len(self._nodes), np.int64)
            self.bits[self._nodes] = np.arange(len(self._nodes), dtype=np.int64) << SLACK_BITS
            self.version += 1

    def draw(self, keys: Keys) -> int:
        """The index of a key of the highest score, each as likely as any other; of any if all are INFEASIBLE."""
        scores = keys >> SCORE_SHIFT
        equal = np.flatnonzero(scores == scores.max())
        return int(equal[self._rng.integers(len(equal))])

    def nodes_of(self, keys: Keys) -> NodeIndexes:
        """The nodes that keys name."""
        nodes: NodeIndexes = self._nodes[(keys >> SLACK_BITS) & _TIE_MASK]
        return nodes


def levels_of(keys: Keys) -> NDArray[np.int64]:
    """The level of each key whose slack was set by `slack`."""
    return (MAX_LEVELS - 1) - (keys & (MAX_LEVELS - 1))


def slack(levels: int) -> Keys:
    """What to add to the keys of levels 0 to `levels` - 1, so that lower levels come first: (levels, 1)."""
    return np.arange(MAX_LEVELS - 1, MAX_LEVELS - 1 - levels, -1, dtype=np.int64)[:, None]
