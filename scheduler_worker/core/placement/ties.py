"""The order of nodes with equal scores: mostly a permutation of the worker's own, so that workers choose
different nodes.

A *key* is an i64 that orders nodes completely: score << 32 | tie << 12 | slack. The tie names the node, so a
sorted array of keys is a sorted array of nodes. The slack orders levels of one node (docs/adr/0003). A node
that is not feasible has the key INFEASIBLE. The dispatcher decides how much the orders of several workers
have in common (docs/adr/0019)."""

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvariantViolation
from hoss.model.conflicts import DEFAULT_PREFERENCE, Overlap, Preference
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.nodes import Mask, NodeIndexes

INFEASIBLE = -1
SCORE_SHIFT = 32
SLACK_BITS = 12
MAX_LEVELS = 1 << SLACK_BITS

_TIE_BITS = SCORE_SHIFT - SLACK_BITS
_TIE_MASK = (1 << _TIE_BITS) - 1
MAX_NODES = 1 << _TIE_BITS

# A node of a worker's own share is taken before one that is better by no more than this. It is nearly the
# most that room can contribute (LeastAllocated and BalancedAllocation, 100 each), for other workers take room
# meanwhile. It is less than any preference that a user can configure.
NEAR_POINTS = 199

# 2^32 divided by the golden ratio: its multiples modulo 2^32 lie evenly, of whatever run of indexes they are.
_SCATTER = 0x9E3779B1

Keys = NDArray[np.int64]


class TieOrder:
    """The permutation. It is made again when there are more nodes than it covers and when the preference
    changes.

    `near_points`: by so much score a node of the worker's own share is ahead of others in a soft
    partition."""

    def __init__(self, rng: np.random.Generator, *, near_points: int = NEAR_POINTS) -> None:
        self._rng = rng
        self._near_points = near_points
        self._preference = DEFAULT_PREFERENCE
        self.version = 0
        # (nodes,) each, to be added to keys: tie << 12 alone, and with near points.
        self._alone: Keys = np.zeros(0, np.int64)
        self.bits: Keys = self._alone
        self._nodes: NodeIndexes = np.zeros(0, np.intp)  # tie -> node
        # (nodes,): which are of the worker's own share in a soft partition. None: there is none.
        self.own: Mask | None = None

    def cover(self, size: int) -> None:
        """Make sure that nodes below `size` have ties. May change all of them; `version` tells."""
        if size > len(self.bits):
            if size > MAX_NODES:
                raise InvariantViolation(f"{size} nodes, but keys have room for {MAX_NODES}")
            self._arrange(min(max(size, 2 * len(self.bits)), MAX_NODES))

    def set_preference(self, preference: Preference) -> None:
        """Use this preference from now on."""
        if preference != self._preference:
            self._preference = preference
            self._arrange(len(self.bits))

    def _arrange(self, size: int) -> None:
        scattered = np.arange(size, dtype=np.int64) * _SCATTER & 0xFFFFFFFF
        preference = self._preference
        # A shared order must not depend on when a worker learnt of which nodes, so the indexes determine it.
        shared = preference.overlap is Overlap.SHARED
        self._nodes = np.argsort(scattered) if shared else self._rng.permutation(size)
        self._alone = np.empty(size, np.int64)
        self._alone[self._nodes] = np.arange(size, dtype=np.int64) << SLACK_BITS
        self.bits, self.own = self._alone, None
        if preference.overlap is Overlap.SOFT_PARTITION and preference.shares > 1:
            self.own = scattered * preference.shares >> 32 == preference.number
            self.bits = self._alone + (self.own * self._near_points << SCORE_SHIFT)
        self.version += 1

    def bits_for(self, demand: Demand) -> Keys:
        """What is added to keys of this demand, (nodes,). Pods that prefer nodes by the pods there are not
        kept to the worker's share: they would crowd in it, though they want to be apart."""
        return self._alone if demand.prefers_by_pods else self.bits

    def draw(self, keys: Keys) -> int:
        """The index of a key of the highest score, each as likely as any other; of any if all are
        INFEASIBLE."""
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
    """Additions to the keys of levels 0 to `levels` - 1, so that lower levels come first: (levels, 1)."""
    return np.arange(MAX_LEVELS - 1, MAX_LEVELS - 1 - levels, -1, dtype=np.int64)[:, None]
