"""Histograms of durations and sizes with fixed buckets, and rates as exponentially decaying means."""

import math
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Upper bounds of the buckets, 0.1 ms to about 1,000 s. A bucket is 19 % wide, so a percentile is at most 9 %
# off. The last bucket holds everything beyond.
BOUNDS_SECONDS: NDArray[np.float64] = 1e-4 * 2.0 ** (np.arange(94) / 4)
BOUNDS_SECONDS.flags.writeable = False


@dataclass(slots=True, eq=False)
class Histogram:
    """`counts` is (len(BOUNDS_SECONDS) + 1,); `total_seconds` is the sum of all durations."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(BOUNDS_SECONDS) + 1, np.int64))
    total_seconds: float = 0.0

    def add(self, seconds: NDArray[np.float64]) -> None:
        """Count durations, (n,)."""
        self.counts += np.bincount(np.searchsorted(BOUNDS_SECONDS, seconds), minlength=len(self.counts))
        self.total_seconds += float(seconds.sum())

    def add_equal(self, seconds: float, count: int = 1) -> None:
        """Count `count` durations of so many seconds."""
        self.counts[np.searchsorted(BOUNDS_SECONDS, seconds)] += count
        self.total_seconds += seconds * count


# Upper bounds, as in kube-scheduler's scheduler_preemption_victims.
BOUNDS_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(slots=True, eq=False)
class SizeHistogram:
    """`counts` has len(BOUNDS_SIZES) + 1 entries: sizes up to each bound, then sizes beyond the last."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SIZES) + 1))
    total: int = 0

    def add(self, size: int) -> None:
        """Count one size."""
        self.counts[bisect_left(BOUNDS_SIZES, size)] += 1
        self.total += size


# The time constant: half of a rate comes from the last 3.5 s.
_MEMORY_SECONDS = 5.0


@dataclass(slots=True)
class Rate:
    """An exponentially decaying mean of constant cost. Times are monotonic seconds."""

    _level: float = 0.0
    _at: float = 0.0

    def count(self, amount: float, now: float) -> None:
        """An amount came at `now`."""
        self._level = self.per_second(now) + amount / _MEMORY_SECONDS
        self._at = now

    def per_second(self, now: float) -> float:
        """The mean at `now`."""
        return self._level * math.exp(-max(0.0, now - self._at) / _MEMORY_SECONDS)
