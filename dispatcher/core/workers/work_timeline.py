"""When workers had which batches, for people who look at a timeline.

One row for each message of outcomes, none for a pod. The latest MOST_ROWS are kept: some twenty seconds at a
hundred thousand pods a second, and hours on a quiet platform."""

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.workers.membership import Batch, Worker

MOST_ROWS = 4096

ROW = np.dtype(
    [
        ("worker", "<u4"),  # its number
        ("sent_ms", "<u8"),  # Unix milliseconds
        ("answered_ms", "<u8"),
        ("queued_ms", "<u4"),  # before it was sent, the mean of its pods
        ("deciding_micros", "<u4"),
        ("committing_micros", "<u4"),
        ("bound", "<u4"),  # pods of the message
        ("others", "<u4"),  # pods of the message that were not bound
    ]
)
_MOST_U32 = 0xFFFFFFFF


class WorkTimeline:
    """A ring of rows. `last` is the number of rows that were ever added, and so the serial of the latest."""

    def __init__(self) -> None:
        self.last = 0
        self._rows = np.zeros(MOST_ROWS, ROW)

    def add(
        self,
        worker: Worker,
        batch: Batch,
        now_ms: int,
        *,
        bound: int,
        others: int,
        deciding_seconds: float,
        committing_seconds: float,
    ) -> None:
        """A worker answered for so many pods of a batch."""
        self._rows[self.last % MOST_ROWS] = (
            worker.number,
            batch.sent_ms,
            now_ms,
            min(batch.queued_ms, _MOST_U32),
            _micros(deciding_seconds),
            _micros(committing_seconds),
            bound,
            others,
        )
        self.last += 1

    def after(self, serial: int) -> NDArray[np.void]:
        """The rows that came after the one with that serial, oldest first; all that are kept where it is
        unknown."""
        known = serial if serial <= self.last else 0
        first = max(known, self.last - MOST_ROWS)
        return self._rows[np.arange(first, self.last) % MOST_ROWS]


def _micros(seconds: float) -> int:
    # A worker may report anything, also what is no number.
    return int(min(seconds * 1e6, _MOST_U32)) if seconds > 0 else 0
