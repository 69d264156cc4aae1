"""All pods as columns. A pod is a row; the row number identifies it until the row is freed. A set of pods
gets one contiguous range of rows, of which parts may be freed before the others. The columns are replaced
when the table grows, so nobody keeps a column across a call that may allocate."""

from bisect import bisect
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.slices import Steps, finished
from hoss.wire.columns import NONE_U16, NONE_U32, Uids
from hoss.wire.uids import UID_BYTES

Rows = NDArray[np.uint32]  # (n,), row numbers
NO_REASON = 0  # index of the empty text
NO_SET = 0  # no pod set has this index
_NO_PLUGINS: frozenset[str] = frozenset()


class Phase(IntEnum):
    """The phase of a pod; the numbers are hoss.v1.PodPhase's. An ABSENT row is free, or its pod is not
    durable yet."""

    ABSENT = 0
    QUEUED = 1
    SCHEDULING = 2
    BOUND = 3
    UNSCHEDULABLE = 4
    BACKOFF = 5
    FAILED = 6
    DELETED = 7


_WAITING = frozenset((Phase.QUEUED, Phase.UNSCHEDULABLE, Phase.BACKOFF))


_COPY_MICROS_PER_BYTE = 0.0005


class GrowingColumns:
    """The NumPy arrays of a subclass are its columns: equally long, they grow together by doubling."""

    _capacity = 0

    def _reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all; new rows are zero."""
        if rows <= self._capacity:
            return
        finished(self.growing(rows))

    def growing(self, rows: int) -> Steps[None]:
        """Make room for `rows` rows in all, column by column. Meanwhile columns differ in length, so whoever
        compares whole columns takes them up to the rows in use."""
        capacity = self._capacity
        while capacity < rows:
            capacity = max(1024, capacity * 2)
        for name in [name for name, column in vars(self).items() if isinstance(column, np.ndarray)]:
            old = getattr(self, name)
            if len(old) >= capacity:
                continue
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
            yield old.nbytes * _COPY_MICROS_PER_BYTE
        self._capacity = max(self._capacity, capacity)  # only now: all columns have it


def grouped(rows: Rows, numbers: NDArray[np.integer[Any]]) -> Iterator[tuple[int, Rows]]:
    """The rows by their numbers, ascending; rows of equal numbers in their order."""
    order = np.argsort(numbers, kind="stable")
    ordered = rows[order]
    distinct, first = np.unique(numbers[order], return_index=True)
    ends = [*first[1:].tolist(), len(rows)]
    for number, start, end in zip(distinct.tolist(), first.tolist(), ends[: len(distinct)], strict=True):
        yield number, ordered[start:end]


_COUNTED_AT_ONCE = 1 << 17


def count_by_phase(phases: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many of these are each phase, by its number. In a quarter of the time of np.bincount, which makes
    numbers of 8 bytes of them first."""
    found = np.zeros(len(Phase), np.int64)
    for start in range(0, len(phases), _COUNTED_AT_ONCE):  # what stays in the processor's cache
        part = phases[start : start + _COUNTED_AT_ONCE]
        found += [np.count_nonzero(part == phase) for phase in Phase]
    return found


# NumPy finds the distinct ones of so many in a fraction of a millisecond.
_FEW_ROWS = 1000


class PodTable(GrowingColumns):
    """The columns, and the free ranges of rows."""

    def __init__(self) -> None:
        self.uid: Uids = np.zeros((0, UID_BYTES), np.uint8)
        self.pod_set = np.zeros(0, np.uint32)  # index of its set in the directory, NO_SET for a free row
        self.template = np.zeros(0, np.uint32)
        self.phase = np.zeros(0, np.uint8)
        self.node = np.zeros(0, np.uint32)  # of its reservation, NONE_U32 without one
        self.attempts = np.zeros(0, np.uint16)  # how often it was dispatched and refused
        self.reason = np.zeros(0, np.uint32)  # index into Reasons
        self.worker = np.zeros(0, np.uint16)  # the last worker that had it, NONE_U16 for none
        self.batch = np.zeros(0, np.uint32)  # serial of its unanswered work batch, 0 for none
        self.since_ms = np.zeros(0, np.int64)  # start of this phase, Unix milliseconds
        # How often it was put into a phase, modulo 2^16: an answer may be of a place that it has left since.
        self.changes = np.zeros(0, np.uint16)
        self.gang = np.zeros(0, np.uint32)  # number of its gang, 0 for none
        self.faults = np.zeros(0, np.uint8)  # number of its faults (pods.faults)
        self.eviction = np.zeros(0, np.uint32)  # why it was evicted last, index into Reasons
        # The eviction is reported, and it is not yet verified whether the pod has another reservation by now.
        self.eviction_open = np.zeros(0, np.bool_)
        # Events about its reservation arrived out of order once: later ones are verified.
        self.uncertain = np.zeros(0, np.bool_)
        self.assigned = np.zeros(0, np.bool_)  # Kubernetes mode: the API server has it on its node
        # Kubernetes mode: it is evicted for another pod, and is being deleted at the API server
        self.terminating = np.zeros(0, np.bool_)
        # Kubernetes mode: it has changed since it was last sent to a worker
        self.outdated = np.zeros(0, np.bool_)
        # It waited since it was last with a worker: a queue may refer to it, even if it waits no longer.
        self.in_queue = np.zeros(0, np.bool_)
        self.size = 0  # rows below are or were in use
        self._free: list[tuple[int, int]] = []  # (first, count), ascending, never touching each other
        self._longest_free = 0  # no free range is longer

    def allocate(self, count: int) -> int:
        """Take `count` contiguous rows, ABSENT and otherwise blank; returns the first."""
        first = self.take(count)
        self.blank(slice(first, first + count))
        return first

    def take(self, count: int) -> int:
        """Take `count` contiguous rows, which are ABSENT and still to be blanked; returns the first."""
        first = self._take_free(count)
        if first is None:
            first = self.size
            self._reserve(first + count)
            self.size += count
        return first

    def blank(self, rows: slice) -> None:
        """Blank rows that were taken: nothing is left of the pods that had them."""
        for column in (
            self.phase,
            self.attempts,
            self.reason,
            self.batch,
            self.gang,
            self.faults,
            self.eviction,
        ):
            column[rows] = 0
        for flag in (self.uncertain, self.eviction_open, self.assigned, self.terminating, self.outdated):
            flag[rows] = False
        self.node[rows] = NONE_U32
        self.worker[rows] = NONE_U16

    def free(self, first: int, count: int) -> None:
        """Free rows of a set. No queue and no batch may refer to them."""
        for column in (self.phase, self.pod_set, self.reason, self.eviction):
            column[first : first + count] = 0  # ABSENT, NO_SET, NO_REASON
        self.uid[first : first + count] = 0  # so that nobody takes the row for that of its former pod
        self.in_queue[first : first + count] = False
        start, stop, free = first, first + count, self._free
        at = bisect(free, (first, count))
        if at < len(free) and free[at][0] == stop:
            stop += free.pop(at)[1]
        if at and sum(free[at - 1]) == start:
            at -= 1
            start = free.pop(at)[0]
        if stop == self.size:
            self.size = start
        else:
            free.insert(at, (start, stop - start))
            self._longest_free = max(self._longest_free, stop - start)

    def held(self, first: int, count: int, pod_set: int) -> Rows:
        """Those of a set's rows that are not freed, ascending."""
        found: Rows = (np.flatnonzero(self.pod_set[first : first + count] == pod_set) + first).astype(
            np.uint32
        )
        return found

    @property
    def free_ranges(self) -> int:
        """How many ranges of free rows lie between rows in use."""
        return len(self._free)

    @property
    def in_use(self) -> int:
        """Rows that belong to a set."""
        return self.size - sum(count for _, count in self._free)

    def distinct(self, rows: Rows) -> Rows:
        """These rows, each once and ascending."""
        if len(rows) <= _FEW_ROWS:
            return np.unique(rows)
        if (rows[1:] > rows[:-1]).all():
            return rows
        # NumPy's own way takes 3 s for a million rows.
        named = np.zeros(len(self.phase), np.bool_)
        named[rows] = True
        return np.flatnonzero(named).astype(np.uint32)

    def count_by_phase(self) -> NDArray[np.int64]:
        return count_by_phase(self.phase[: self.size])

    def move(self, rows: Rows, phase: Phase, now_ms: int) -> None:
        self.phase[rows] = phase
        self.since_ms[rows] = now_ms
        self.changes[rows] += 1
        if phase in _WAITING:
            self.in_queue[rows] = True
        elif phase == Phase.SCHEDULING:  # the queue has removed them
            self.in_queue[rows] = False

    def _take_free(self, count: int) -> int | None:
        if count > self._longest_free:
            return None  # without a look at all of them
        for i, (first, length) in enumerate(self._free):
            if length >= count:
                self._free[i : i + 1] = [(first + count, length - count)] if length > count else []
                return first
        self._longest_free = max((length for _, length in self._free), default=0)
        return None


class Reasons:
    """Numbered texts that say why pods are not bound, with the plugins behind each, and whether something
    failed instead of lacking room. Texts contain counts and so rarely repeat: unused texts are dropped when
    there are many."""

    LEAST = 1000  # as many are kept without a look at which are in use
    ROWS_PER_TEXT = 16  # dropping looks at all rows, so it is rarer in a large table

    def __init__(self) -> None:
        self.texts: list[str] = [""]
        self.refused_by: list[frozenset[str]] = [_NO_PLUGINS]
        self.failed: list[bool] = [False]
        self._numbers: dict[tuple[str, frozenset[str], bool], int] = {("", _NO_PLUGINS, False): NO_REASON}
        self._limit = self.LEAST

    def number(self, text: str, refused_by: frozenset[str] = _NO_PLUGINS, failed: bool = False) -> int:
        """The index of a text with these plugins."""
        found = self._numbers.get((text, refused_by, failed))
        if found is None:
            found = self._numbers[text, refused_by, failed] = len(self.texts)
            self.texts.append(text)
            self.refused_by.append(refused_by)
            self.failed.append(failed)
        return found

    def compact(self, pods: PodTable) -> None:
        """Renumber the texts in use, if there are many others."""
        if len(self.texts) <= max(self._limit, pods.size // self.ROWS_PER_TEXT):
            return
        columns = (pods.reason[: pods.size], pods.eviction[: pods.size])
        used = np.zeros(len(self.texts), np.bool_)
        used[NO_REASON] = True
        for column in columns:
            used[column] = True
        kept = np.flatnonzero(used).tolist()
        numbers = (np.cumsum(used) - 1).astype(np.uint32)
        for column in columns:
            column[:] = numbers[column]
        self._limit = max(self.LEAST, 2 * len(kept))
        self.texts = [self.texts[i] for i in kept]
        self.refused_by = [self.refused_by[i] for i in kept]
        self.failed = [self.failed[i] for i in kept]
        keys = zip(self.texts, self.refused_by, self.failed, strict=True)
        self._numbers = {key: i for i, key in enumerate(keys)}
