"""What choosing for a whole run at once comes to, whichever way: nodes in *piles*, and how many pods of the run each node took.

Nodes of one pile are worth the same but for their own scores. There are few piles, so the next choice costs a look at each and not
at every node.
"""

from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.ties import Keys

# Beyond so many piles a look at each takes as long as a pass over all nodes.
MOST_PILES = 64


class WholeRun:
    """`nodes` (m,) are those that are chosen from, `own` (levels, m) their keys by how many pods of the run they have; those
    of level 0 are feasible."""

    def __init__(self, nodes: NodeIndexes, own: Keys) -> None:
        self.nodes = nodes
        self._own = own
        self._taken: dict[int, int] = {}  # position -> pods of the run

    @property
    def levels(self) -> int:
        """How many pods of the run a node may have before it is not known what it is worth with them."""
        return len(self._own) - 1

    @property
    def deepest(self) -> int:
        """The most pods that one node took."""
        return max(self._taken.values(), default=0)
