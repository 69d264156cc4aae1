"""Throughput and latency over the last minutes, as far as somebody looked: a point a look, from counters and histograms."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.histograms import BOUNDS_SECONDS

KEPT_POINTS = 300
GAP_SECONDS = 5.0  # nobody looked for longer: what happened meanwhile is no point of the curve

RATES = ("bound", "accepted", "refused")
PHASES = ("queued", "deciding", "committing")


class Point(NamedTuple):
    """`per_second` by RATES; `p50` and `p99` in seconds by PHASES, None where no pod went through."""

    at_ms: int
    per_second: tuple[float, ...]
    p50: tuple[float | None, ...]
    p99: tuple[float | None, ...]


@dataclass(slots=True)
class Curves:
    """`sample` is to be called with the present sums at every look."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    _at: float = float("-inf")
    _sums: tuple[int, ...] = ()
    _counts: tuple[NDArray[np.int64], ...] = ()

    def sample(
        self, counters: Mapping[str, int], histograms: Mapping[str, NDArray[np.int64]], now: float, now_ms: int
    ) -> None:
        """`now` is monotonic; `histograms` are counts by bucket (dispatcher.core.phases). The first sample after a gap is no point."""
        sums = tuple(counters.get(name, 0) for name in RATES)
        counts = tuple(histograms[phase].copy() for phase in PHASES)
        elapsed = now - self._at
        if 0 < elapsed <= GAP_SECONDS:
            passed = [new - old for new, old in zip(counts, self._counts, strict=True)]
            self.points.append(
                Point(
                    now_ms,
                    tuple(round((new - old) / elapsed, 1) for new, old in zip(sums, self._sums, strict=True)),
                    tuple(percentile(part, 0.50) for part in passed),
                    tuple(percentile(part, 0.99) for part in passed),
                )
            )
        self._at, self._sums, self._counts = now, sums, counts


def percentile(counts: NDArray[np.int64], share: float) -> float | None:
    """The upper bound of the bucket in which that share of all is reached, seconds; None of nothing."""
    total = int(counts.sum())
    if not total:
        return None
    bucket = int(np.searchsorted(np.cumsum(counts), share * total))
    return float(BOUNDS_SECONDS[min(bucket, len(BOUNDS_SECONDS) - 1)])
