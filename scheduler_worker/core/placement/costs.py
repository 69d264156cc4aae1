"""How long placing pods takes, class by class, by the clock.

Not CPU time: a plugin that waits uses none, and its pods take the time all the same."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Weight of the latest run in a class's smoothed cost.
_SMOOTHING = 0.2

# Weight of earlier runs in the means over all classes, after one more run.
_FADING = 0.98

# Classes in one report: two heartbeats a second must stay small compared with the work.
REPORTED_CLASSES = 256


@dataclass(slots=True)
class _Mean:
    """A fading mean of seconds per piece."""

    seconds: float = 0.0
    pieces: float = 0.0

    def add(self, seconds: float, pieces: int) -> None:
        self.seconds = _FADING * self.seconds + seconds
        self.pieces = _FADING * self.pieces + pieces

    @property
    def micros(self) -> float:
        return self.seconds / self.pieces * 1e6 if self.pieces else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class CostColumns:
    """Microseconds per pod of n classes, and the means over all."""

    classes: NDArray[np.uint32]  # (n,): the dispatcher's numbers
    micros: NDArray[np.float32]  # (n,)
    per_pod: float  # of all pods
    first: float  # for the first pod of a class, above what the others take
    seen: float  # per pod of a class seen before


class CostMeter:
    """Measures every run placed, and reports what changed."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # per pod, by class number
        self._changed: dict[int, None] = {}  # an ordered set
        self._all = _Mean()
        self._first = _Mean()
        self._seen = _Mean()
        self._overhead = _Mean()

    def __len__(self) -> int:
        return len(self._seconds)

    def placed(self, number: int, pods: int, seconds: float, *, first: bool) -> None:
        """A run of `pods` pods of a class took so long; `first`: its demand had no ranking."""
        self._all.add(seconds, pods)
        known = self._seconds.get(number)
        if first:
            self._first.add(max(0.0, seconds - pods * (known or self._seen.micros / 1e6)), 1)
            return
        self._seen.add(seconds, pods)
        per_pod = seconds / pods
        self._seconds[number] = per_pod if known is None else known + _SMOOTHING * (per_pod - known)
        self._changed[number] = None

    def sampled(self, pods: int, seconds: float) -> None:
        """So many pods of new classes took so long together."""
        self._all.add(seconds, pods)
        self._first.add(max(0.0, seconds - pods * self._seen.micros / 1e6), pods)

    def overhead(self, seconds: float, pods: int) -> None:
        """Proposing these pods, or taking in a verdict, took so long."""
        self._overhead.add(seconds, pods)

    def pods_in(self, seconds: float, number: int) -> int | None:
        """How many pods of a class can be placed in so much time, one at least; None if that is not known."""
        known = self._seconds.get(number)
        return None if not known else max(1, int(seconds / known))

    def forget(self, numbers: Iterable[int]) -> None:
        """No further work has these classes."""
        for number in numbers:
            self._seconds.pop(number, None)
            self._changed.pop(number, None)

    def restart(self) -> None:
        """Numbers mean other classes from now on, and the dispatcher has no reports yet."""
        self._seconds.clear()
        self._changed.clear()

    def take_changed(self) -> CostColumns:
        """Classes measured since the last report, those that waited longest first, and the means."""
        reported = [number for number, _ in zip(self._changed, range(REPORTED_CLASSES), strict=False)]
        for number in reported:
            del self._changed[number]
        overhead = self._overhead.micros
        return CostColumns(
            classes=np.array(reported, np.uint32),
            micros=np.array([self._seconds[number] * 1e6 + overhead for number in reported], np.float32),
            per_pod=self._all.micros + overhead,
            first=self._first.micros,
            seen=self._seen.micros + overhead if self._seen.pieces else 0.0,
        )
