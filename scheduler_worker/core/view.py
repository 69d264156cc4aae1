"""The columns that filters and scores are computed on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Quotients of hundredfold amounts up to here are exact in doubles: the quotient is 100 at most, so it lies at least
# 1/2^46 below the next whole number or is whole, and rounding (2^-47 there) cannot reach it.
EXACT_IN_DOUBLES = 2**46


@dataclass(slots=True)
class NodeView:
    """n nodes as one pod sees them: all there are, the few that changed, or nodes as they would be.

    A view of nodes "as they would be" holds them with further pods of the asking class; `ahead` says how many.
    `nonzero_requested` counts what containers leave unnamed, as the pods' groups say (see PodGroup).
    """

    allocatable: NDArray[np.int64]  # (resources, n), schema units
    requested: NDArray[np.int64]  # (resources, n)
    nonzero_requested: NDArray[np.int64]  # (2, n): cpu and memory
    divisors: NDArray[np.float64]  # (2, n): allocatable cpu and memory, 1 where there is none
    mean_factors: NDArray[np.float64]  # (n,): 1 / how many of the two the node offers (1 where none)
    exact_in_doubles: bool  # no allocatable cpu or memory exceeds EXACT_IN_DOUBLES
    cards_used: NDArray[np.uint16] | None = (
        None  # (n, 16) thousandths, 0xFFFF: no such card. Only for pods with devices
    )
    ahead: NDArray[np.int64] | None = None  # (n,)

    def hundredths(self, parts: NDArray[np.int64]) -> NDArray[np.float64]:
        """100 x parts / allocatable of cpu and memory, truncated: (2, n). Parts lie in 0 to allocatable."""
        if self.exact_in_doubles:
            scaled = parts.astype(np.float64)
            scaled *= 100.0
            scaled /= self.divisors
            np.floor(scaled, out=scaled)
            return scaled
        return (parts * 100 // self.divisors.astype(np.int64)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Asked:
    """What k pods ask for that are looked at side by side: each has m nodes of its own, the columns of their view are (..., k, m)."""

    request: NDArray[np.int64]  # (resources, k, 1), pods = 1 included
    nonzero: NDArray[np.int64]  # (2, k, 1): cpu and memory, for scoring


@dataclass(slots=True)
class OneNode:
    """The same of one node in Python's own numbers: with those a single node is quicker computed than by NumPy's calls."""

    allocatable: list[int]
    requested: list[int]
    nonzero_requested: list[int]
    cards_used: list[int] | None


def divisors(allocatable: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`NodeView.divisors` and `NodeView.mean_factors` for (resources, n) allocatable."""
    offered = allocatable[:2] > 0
    return np.where(offered, allocatable[:2], 1).astype(np.float64), 1.0 / np.maximum(offered.sum(axis=0), 1)
