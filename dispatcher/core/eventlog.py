"""What happened to pods lately, for watchers: a bounded log of batches, each with a revision.

A watcher is a position in this log and nothing else, so a slow one costs no memory: when its position has been dropped
it is told so.
"""

from collections import deque
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import Uids

NO_TEXT = 0xFFFF


@dataclass(frozen=True, slots=True)
class PodEvents:
    """Events of n pods. `reasons` are positions in `texts`, NO_TEXT for none."""

    revision: int
    uids: Uids  # (n, 16)
    phases: NDArray[np.uint8]  # (n,)
    nodes: NDArray[np.uint32]  # (n,), NONE_U32 unless BOUND
    reasons: NDArray[np.uint16] | None = None  # (n,); None: no pod has one
    texts: tuple[str, ...] = ()


class EventLog:
    """The last `limit` pod events, in whole batches."""

    def __init__(self, limit: int = 1_000_000, first_revision: int = 1) -> None:
        self._limit = limit
        self._batches: deque[PodEvents] = deque()
        self._pods = 0
        self.revision = first_revision

    def append(
        self,
        uids: Uids,
        phases: NDArray[np.uint8],
        nodes: NDArray[np.uint32],
        reasons: NDArray[np.uint16] | None = None,
        texts: tuple[str, ...] = (),
    ) -> None:
        """Log a batch under the next revision."""
        self.revision += 1
        self._batches.append(PodEvents(self.revision, uids, phases, nodes, reasons, texts))
        self._pods += len(uids)
        while self._pods > self._limit and len(self._batches) > 1:
            self._pods -= len(self._batches.popleft().uids)

    def since(self, revision: int, batches: int = 64) -> list[PodEvents] | None:
        """Up to `batches` batches after a revision, oldest first; None when some of them were dropped already, or the
        revision is none of this log's."""
        first = self._batches[0].revision if self._batches else self.revision + 1
        if revision + 1 < first or revision > self.revision:
            return None
        start = revision + 1 - first  # revisions have no gaps
        return list(islice(self._batches, start, start + batches))
