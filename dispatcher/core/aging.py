"""No pod starves: a small part of what is dispatched is kept for pods that have waited too long.

Priority is strict, as kube-scheduler's, and so is the fairness between tenants, until a pod has stood in the queue for
`after_seconds`. From then on a tenth of the pods dispatched are the longest waiting ones, whatever their priority and
tenant. So an endless stream of more urgent pods loses a tenth at the most, and every pod's turn comes: each batch of
ten pods brings the oldest one forward by one. A pod's own priority stays what it is.
"""

from collections.abc import Iterable

AGED_PART = 0.1

# More is not saved up: when workers have room again after a long time, what is urgent still gets most of it.
MOST_OWED = 500

_LOOK_SECONDS = 1.0


class Aging:
    """Keeps account of what the aged are owed. Zero seconds: nobody ages."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._overdue_before = float("-inf")
        self._looked_at = float("-inf")
        self._any_overdue = False
        self._owed = 0.0

    def look(self, now: float, queued_at: Iterable[float]) -> None:
        """See whether anybody is overdue, of those that have stood first in their line since these times; once a second."""
        if not self._after_seconds or now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        self._overdue_before = now - self._after_seconds
        self._any_overdue = any(map(self.overdue, queued_at))
        if not self._any_overdue:
            self._owed = 0.0

    def overdue(self, queued_at: float) -> bool:
        """Whether a pod queued then has waited too long."""
        return queued_at <= self._overdue_before

    @property
    def owed(self) -> int:
        """Pods that are to be taken for their age now."""
        return int(self._owed)

    @property
    def turn_due(self) -> bool:
        """Whether there is anything to be taken for its age."""
        return self._any_overdue and self._owed >= 1

    def taken(self, pods: int, *, aged: bool) -> None:
        """So many pods were taken, for their age or not. A gang may be more than was owed: then others wait for longer."""
        if aged:
            self._owed -= pods
        elif self._any_overdue:
            self._owed = min(self._owed + pods * AGED_PART / (1 - AGED_PART), MOST_OWED)
