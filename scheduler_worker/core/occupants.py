"""Less urgent pods on nodes that have no room, as columns, and how kube-scheduler weighs who of them should go."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes

Rows = NDArray[np.intp]  # (k,): rows of the columns below

# kube-scheduler adds this to each priority before it sums them up: otherwise more victims of negative priority would
# look better than fewer.
_PRIORITY_SHIFT = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class Occupants:
    """m pods, named by row."""

    nodes: NodeIndexes  # (m,)
    priorities: NDArray[np.int64]  # (m,)
    started_at: NDArray[np.float64]  # (m,), seconds
    requests: NDArray[np.int64]  # (m, R), pods = 1 included
    covered: Mask  # (m, b): the disruption budgets that each is charged to
    allowed: NDArray[np.int64]  # (b,): how many more pods may go of each budget

    def __len__(self) -> int:
        return len(self.nodes)

    def by_importance(self, rows: Rows) -> Rows:
        """The most important first: the more urgent, of equals the one that started earlier."""
        ordered: Rows = rows[np.lexsort((self.started_at[rows], -self.priorities[rows]))]
        return ordered

    def ranked(self, rows: Rows, positions: NDArray[np.intp], nodes: int) -> NDArray[np.intp]:
        """These rows as a table (ranks, nodes): in each column one node's, in the given order, then -1.

        `positions` says beside each row which of the `nodes` columns is its.
        """
        order = np.argsort(positions, kind="stable")
        counts = np.bincount(positions, minlength=nodes)
        table = np.full((int(counts.max(initial=0)), nodes), -1, np.intp)
        ranks = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        table[ranks, positions[order]] = rows[order]
        return table

    def costs(self, victims: Rows, positions: NDArray[np.intp], violating: Mask, nodes: int) -> NDArray[np.float64]:
        """What is compared between nodes, (5, nodes), the last row first and the least best.

        After pickOneNodeForPreemption: victims that overdraw a budget, the highest priority among the victims, the sum of
        their priorities, their number, and (negative) when the earliest of the most urgent ones started.
        """
        priorities = self.priorities[victims].astype(np.float64)
        highest = np.full(nodes, -np.inf)
        np.maximum.at(highest, positions, priorities)
        of_highest = priorities == highest[positions]
        earliest = np.full(nodes, np.inf)
        np.minimum.at(earliest, positions[of_highest], self.started_at[victims[of_highest]])
        return np.stack(
            (
                -earliest,
                np.bincount(positions, minlength=nodes).astype(np.float64),
                np.bincount(positions, weights=priorities + _PRIORITY_SHIFT, minlength=nodes),
                highest,
                np.bincount(positions, weights=violating[victims], minlength=nodes),
            )
        )
