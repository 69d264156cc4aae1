"""How long things took and how many they were, as histograms: a count a bucket, whatever the number of things."""

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Upper bounds of the buckets, 0.1 ms to some 1,000 s; a bucket is 19 % wide, so a percentile read from it is off by 9 % at
# most. What is beyond the last bound has a bucket of its own.
BOUNDS_SECONDS: NDArray[np.float64] = 1e-4 * 2.0 ** (np.arange(94) / 4)
BOUNDS_SECONDS.flags.writeable = False


@dataclass(slots=True, eq=False)
class Histogram:
    """`counts` (len(BOUNDS_SECONDS) + 1,), and what everything counted took together."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(BOUNDS_SECONDS) + 1, np.int64))
    total_seconds: float = 0.0

    def add(self, seconds: NDArray[np.float64]) -> None:
        """One of each."""
        self.counts += np.bincount(np.searchsorted(BOUNDS_SECONDS, seconds), minlength=len(self.counts))
        self.total_seconds += float(seconds.sum())

    def add_equal(self, seconds: float, count: int = 1) -> None:
        """So many that took the same."""
        self.counts[np.searchsorted(BOUNDS_SECONDS, seconds)] += count
        self.total_seconds += seconds * count


# As kube-scheduler's scheduler_preemption_victims has them.
BOUNDS_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(slots=True, eq=False)
class SizeHistogram:
    """`counts` (len(BOUNDS_SIZES) + 1,): how many were at most each bound and more than the one before, then more than all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SIZES) + 1))
    total: int = 0

    def add(self, size: int) -> None:
        """One of this size."""
        self.counts[bisect_left(BOUNDS_SIZES, size)] += 1
        self.total += size
