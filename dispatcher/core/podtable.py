"""All pods as columns. A pod is a row; its number is its handle for as long as its set lives.

A set of pods (a job, a pod list) owns one contiguous range of rows. Columns are replaced when the table grows, so nobody
keeps one across a call that may allocate.
"""

from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import NONE_U16, NONE_U32, UID_BYTES, Uids

Rows = NDArray[np.uint32]  # (n,), row numbers
NO_REASON = 0  # index of the empty text
_NOBODY: frozenset[str] = frozenset()


class Phase(IntEnum):
    """Where a pod stands; the numbers are hoss.v1.PodPhase's. ABSENT rows belong to nobody, or are not durable yet."""

    ABSENT = 0
    QUEUED = 1
    SCHEDULING = 2
    BOUND = 3
    UNSCHEDULABLE = 4
    BACKOFF = 5
    FAILED = 6
    DELETED = 7


_WAITING = frozenset((Phase.QUEUED, Phase.UNSCHEDULABLE, Phase.BACKOFF))


class GrowingColumns:
    """Equally long NumPy columns that grow together, doubling. Subclasses name them in `_columns`."""

    _columns: ClassVar[tuple[str, ...]]

    def _reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all; new ones are zero."""
        capacity = len(getattr(self, self._columns[0]))
        if rows <= capacity:
            return
        while capacity < rows:
            capacity = max(1024, capacity * 2)
        for name in self._columns:
            old: NDArray[Any] = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)


class PodTable(GrowingColumns):
    """The columns, and which ranges of rows are free."""

    _columns = (
        "uid",
        "pod_set",
        "template",
        "phase",
        "node",
        "attempts",
        "reason",
        "worker",
        "batch",
        "since_ms",
        "gang",
        "faults",
        "doubted",
        "eviction",
        "eviction_open",
        "assigned",
        "outdated",
        "in_queue",
    )

    def __init__(self) -> None:
        self.uid: Uids = np.zeros((0, UID_BYTES), np.uint8)
        self.pod_set = np.zeros(0, np.uint32)  # index of its set in the directory
        self.template = np.zeros(0, np.uint32)
        self.phase = np.zeros(0, np.uint8)
        self.node = np.zeros(0, np.uint32)  # where its reservation is, NONE_U32 without one
        self.attempts = np.zeros(0, np.uint16)  # dispatched and refused
        self.reason = np.zeros(0, np.uint32)  # index into Reasons
        self.worker = np.zeros(0, np.uint16)  # the last that had it, NONE_U16 if none had
        self.batch = np.zeros(0, np.uint32)  # serial of the unanswered work batch it is in, 0 if none
        self.since_ms = np.zeros(0, np.int64)  # in this phase since, Unix milliseconds
        self.gang = np.zeros(0, np.uint32)  # number of its gang, 0 if it has none
        self.faults = np.zeros(0, np.uint8)  # how many of dispatcher.core.faults it has
        self.eviction = np.zeros(0, np.uint32)  # why it lost its last place, index into Reasons
        # Told of that, and not yet looked up whether the pod has another place by now.
        self.eviction_open = np.zeros(0, np.bool_)
        self.doubted = np.zeros(0, np.bool_)  # news of its place came out of order once: more of it is verified
        self.assigned = np.zeros(0, np.bool_)  # Kubernetes mode: the API server has it on its node
        self.outdated = np.zeros(0, np.bool_)  # ... it has changed since it was last given to a worker
        # Has waited since it was last with a worker: some queue may refer to it, even if it waits no more.
        self.in_queue = np.zeros(0, np.bool_)
        self.size = 0  # rows below are, or were, in use
        self._free: list[tuple[int, int]] = []  # (first, count), ascending, never touching each other

    def allocate(self, count: int) -> int:
        """Take `count` contiguous rows, ABSENT and otherwise blank; returns the first."""
        first = self._take_free(count)
        if first is None:
            first = self.size
            self._reserve(first + count)
            self.size += count
        rows = slice(first, first + count)
        self.phase[rows] = Phase.ABSENT
        self.node[rows] = NONE_U32
        self.attempts[rows] = 0
        self.reason[rows] = NO_REASON
        self.worker[rows] = NONE_U16
        self.batch[rows] = 0
        self.gang[rows] = 0
        self.faults[rows] = 0
        self.doubted[rows] = False
        self.eviction[rows] = NO_REASON
        self.eviction_open[rows] = False
        self.assigned[rows] = False
        self.outdated[rows] = False
        return first

    def free(self, first: int, count: int) -> None:
        """Give a set's rows back. No queue and no work batch may still hold them."""
        self.phase[first : first + count] = Phase.ABSENT
        self.in_queue[first : first + count] = False
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self._free, (first, count)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        if sum(merged[-1]) == self.size:
            self.size = merged.pop()[0]
        self._free = merged

    @property
    def in_use(self) -> int:
        """Rows that belong to a set."""
        return self.size - sum(count for _, count in self._free)

    def count_by_phase(self) -> NDArray[np.int64]:
        """How many pods are in each phase, by Phase."""
        return np.bincount(self.phase[: self.size], minlength=len(Phase)).astype(np.int64)

    def move(self, rows: Rows, phase: Phase, now_ms: int) -> None:
        """Put pods into a phase."""
        self.phase[rows] = phase
        self.since_ms[rows] = now_ms
        if phase in _WAITING:
            self.in_queue[rows] = True
        elif phase == Phase.SCHEDULING:  # only queues give pods to workers, and let go of them
            self.in_queue[rows] = False

    def _take_free(self, count: int) -> int | None:
        for i, (first, length) in enumerate(self._free):
            if length >= count:
                self._free[i : i + 1] = [(first + count, length - count)] if length > count else []
                return first
        return None


class Reasons:
    """Texts that say why pods are not bound, numbered, and which plugins are behind each. Texts carry counts and so never repeat exactly for long:
    those that no pod has any more are dropped when they become many."""

    LIMIT = 50_000

    def __init__(self) -> None:
        self.texts: list[str] = [""]
        self.refused_by: list[frozenset[str]] = [_NOBODY]
        self._numbers: dict[tuple[str, frozenset[str]], int] = {("", _NOBODY): NO_REASON}

    def number(self, text: str, refused_by: frozenset[str] = _NOBODY) -> int:
        """The index of a text with these plugins behind it."""
        found = self._numbers.get((text, refused_by))
        if found is None:
            found = self._numbers[text, refused_by] = len(self.texts)
            self.texts.append(text)
            self.refused_by.append(refused_by)
        return found

    def compact(self, pods: PodTable) -> None:
        """Renumber what pods still refer to, if there is much else."""
        if len(self.texts) <= self.LIMIT:
            return
        columns = (pods.reason[: pods.size], pods.eviction[: pods.size])
        kept = np.union1d(np.union1d(*columns), [NO_REASON])
        for column in columns:
            column[:] = np.searchsorted(kept, column)
        self.texts = [self.texts[i] for i in kept]
        self.refused_by = [self.refused_by[i] for i in kept]
        self._numbers = {key: i for i, key in enumerate(zip(self.texts, self.refused_by, strict=True))}
