"""Pods whose claim on a node stands while those that had to go for them are still leaving (nominatedNodeName).

In the table they are BOUND, for they hold their reservation like any bound pod, and the room can be nobody else's. Only
what is told of them waits. Here victims leave when their grace period is over; where a kubelet runs them, word of their
end would call `left`.
"""

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Phase, PodTable, Rows


class Nominations:
    """A few pods at any time, by row. What became of a pod otherwise, deleted or evicted itself, ends it."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self._due: dict[int, tuple[float, bytes]] = {}  # and the UID: rows are given to others

    def add(self, rows: Rows, leaving_ms: NDArray[np.uint32], now: float) -> None:
        """For each pod, how long its victims may still be there; 0: nobody is."""
        for i in np.flatnonzero(leaving_ms).tolist():
            row = int(rows[i])
            self._due[row] = (now + int(leaving_ms[i]) / 1000, self._pods.uid[row].tobytes())

    def among(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these pods wait for others to leave: (n,)."""
        if not self._due:
            return np.zeros(len(rows), np.bool_)
        return np.array([self.waits(row) for row in rows.tolist()], np.bool_)

    def waits(self, row: int) -> bool:
        """Whether the pod is bound and others that went for it are not gone yet."""
        found = self._due.get(row)
        return found is not None and self._pods.phase[row] == Phase.BOUND and found[1] == self._pods.uid[row].tobytes()

    def take_due(self, now: float) -> Rows:
        """Pods that wait no longer, from now on."""
        if not self._due:
            return np.empty(0, np.uint32)
        for row in [row for row in self._due if not self.waits(row)]:
            self.left(row)
        due = [row for row, (when, _) in self._due.items() if when <= now]
        for row in due:
            self.left(row)
        return np.array(due, np.uint32)

    def left(self, row: int) -> None:
        """All that went for this pod are gone."""
        self._due.pop(row, None)
