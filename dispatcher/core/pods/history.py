"""What happened to pods lately: how long each phase took, the event log for watchers, and the transitions of
every pod between phases.

The event log is a bounded list of batches, each with a revision; revisions have no gaps. A watcher is nothing
but a revision, so a slow watcher costs no memory; when its position was dropped, it is told so. The pod
history records one entry for any number of pods that change phase together, without a look at the single
pods. Its oldest entries are dropped when there are many: before `dropped_until_ms` it is incomplete."""

from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import NO_REASON, Phase, PodTable, Reasons, Rows
from hoss.statistics import Histogram
from hoss.wire.columns import NONE_U16, NONE_U32, Uids
from hoss.wire.uids import UID_BYTES


@dataclass(slots=True, eq=False)
class PhaseTimes:
    """`queued`: time in the queue before each dispatch, by a millisecond clock. `deciding` and `committing`:
    of bound pods, as their workers measured them per batch. `scheduled`: from submission to binding; it is
    not a phase."""

    queued: Histogram = field(default_factory=Histogram)
    deciding: Histogram = field(default_factory=Histogram)
    committing: Histogram = field(default_factory=Histogram)
    scheduled: Histogram = field(default_factory=Histogram)

    def answered(self, deciding_seconds: float, committing_seconds: float, pods: int) -> None:
        """So many pods were bound; 0 and 0: their worker reports no times."""
        if deciding_seconds or committing_seconds:
            self.deciding.add_equal(deciding_seconds, pods)
            self.committing.add_equal(committing_seconds, pods)

    def by_phase(self) -> Iterator[tuple[str, Histogram]]:
        """The histograms, by the phase that metrics and the status name."""
        yield "queued", self.queued
        yield "deciding", self.deciding
        yield "committing", self.committing


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


# Bytes of an event, of a batch, and of a text beside its characters.
_EVENT_BYTES = UID_BYTES + 7
_BATCH_BYTES = 8
_TEXT_BYTES = 64

_CHUNK_EVENTS = 4096

EVENT_LOG_BYTES = 128 * 2**20


class _Chunk:
    """Batches one after the other in columns with room for a number of events."""

    def __init__(self, first_revision: int, capacity: int) -> None:
        self.first_revision = first_revision
        self.uids: Uids = np.zeros((capacity, UID_BYTES), np.uint8)
        self.phases = np.zeros(capacity, np.uint8)
        self.nodes = np.zeros(capacity, np.uint32)
        self.reasons = np.zeros(capacity, np.uint16)
        self.ends = array("I", [0])  # the end of each batch, after that of none
        self.texts: dict[int, tuple[str, ...]] = {}  # by number of the batch, of those with reasons

    @property
    def events(self) -> int:
        return self.ends[-1]

    @property
    def batches(self) -> int:
        return len(self.ends) - 1

    def batch(self, number: int) -> PodEvents:
        part, texts = slice(self.ends[number], self.ends[number + 1]), self.texts.get(number)
        return PodEvents(
            self.first_revision + number,
            self.uids[part],
            self.phases[part],
            self.nodes[part],
            None if texts is None else self.reasons[part],
            texts or (),
        )


class EventLog:
    """The last `limit_pods` pod events, and no more than take `limit_bytes`; in whole batches, the last one
    at least. The events of many batches share columns: a batch of one pod takes some 30 bytes."""

    def __init__(
        self, limit_pods: int = 1_000_000, first_revision: int = 1, limit_bytes: int = EVENT_LOG_BYTES
    ) -> None:
        self._limit_pods = limit_pods
        self._limit_bytes = limit_bytes
        self._chunks: list[_Chunk] = []
        self._pods = 0
        self.bytes = 0  # of the batches that are kept, about
        self._first = first_revision + 1  # revision of the oldest batch that is kept
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
        chunk, count = self._chunks[-1] if self._chunks else None, len(uids)
        if chunk is None or chunk.events + count > len(chunk.phases):
            chunk = _Chunk(self.revision, max(_CHUNK_EVENTS, count))
            self._chunks.append(chunk)
        part = slice(chunk.events, chunk.events + count)
        chunk.uids[part], chunk.phases[part], chunk.nodes[part] = uids, phases, nodes
        if reasons is not None:
            chunk.reasons[part] = reasons
            chunk.texts[chunk.batches] = texts
        chunk.ends.append(part.stop)
        self._pods += count
        self.bytes += _bytes_of(count, texts)
        while (self._pods > self._limit_pods or self.bytes > self._limit_bytes) and len(self) > 1:
            self._drop_oldest()

    def __len__(self) -> int:
        """The number of batches that are kept."""
        return self.revision - self._first + 1

    def since(self, revision: int, batches: int = 64) -> list[PodEvents] | None:
        """Up to `batches` batches after a revision, oldest first. None if some of them were dropped, or if
        the revision is not of this log."""
        if revision + 1 < self._first or revision > self.revision:
            return None
        found: list[PodEvents] = []
        at = bisect(self._chunks, revision + 1, key=_first_revision) - 1
        for chunk in self._chunks[max(at, 0) :]:
            start = max(0, revision + 1 - chunk.first_revision)
            stop = min(chunk.batches, start + batches - len(found))
            found += map(chunk.batch, range(start, stop))
            if len(found) == batches:
                break
        return found

    def _drop_oldest(self) -> None:
        chunk = self._chunks[0]
        number = self._first - chunk.first_revision
        count = chunk.ends[number + 1] - chunk.ends[number]
        self._pods -= count
        self.bytes -= _bytes_of(count, chunk.texts.pop(number, ()))
        self._first += 1
        if number + 1 == chunk.batches:
            del self._chunks[0]


def _first_revision(chunk: _Chunk) -> int:
    return chunk.first_revision


def _bytes_of(events: int, texts: tuple[str, ...]) -> int:
    return _BATCH_BYTES + events * _EVENT_BYTES + sum(len(text) + _TEXT_BYTES for text in texts)


# Causes of transitions, where the phase is not explanation enough. Queue events have kube-scheduler's names
# where there are any.
ATTEMPT_FAILURE = "ScheduleAttemptFailure"
BINDING_REFUSED = "BindingRefused"
EVICTED = "Evicted"
GATED = "Gated"
WAITING_FOR_GANG = "Gathering"  # its gang is below its minimum
GIVEN_BACK = "GivenBack"  # its reservation: the gang was too small, the pod has changed, or it was not ready
GIVEN_UP = "GivenUp"
MOVED = "Moved"  # to another node, by a plan
RESERVATION_LOST = "ReservationLost"
RETURNED = "Returned"  # by its worker, not tried
WORKER_LOST = "WorkerLost"
ASSIGNED = "Assigned"  # the API server has it on its node
CONFIRMED = "Confirmed"  # its reservation lasts until it is released
VICTIMS_LEFT = "VictimsLeft"

# For these events the pod's reason in the table belongs to the transition; otherwise it is older.
_EVENTS_WITH_REASON = frozenset(
    (
        ATTEMPT_FAILURE,
        BINDING_REFUSED,
        EVICTED,
        GATED,
        WAITING_FOR_GANG,
        GIVEN_BACK,
        GIVEN_UP,
        RESERVATION_LOST,
    )
)

LIMIT_PODS = 1_000_000  # about 8 bytes each
_ENTRY_PODS = 32  # fixed cost of an entry, and of each of its texts, in pods


class PodTransition(NamedTuple):
    """One pod's transition."""

    at_ms: int  # Unix
    phase: Phase
    event: str  # "" where the phase is explanation enough
    worker: str  # that got or had it, "" for none
    node: int  # if bound, NONE_U32 otherwise
    reason: str


@dataclass(slots=True)
class TransitionCount:
    """How many transitions of one kind some pods had, and the first and last time."""

    pods: int
    first_ms: int
    last_ms: int


class _Entry(NamedTuple):
    at_ms: int
    phase: Phase
    event: str
    rows: Rows
    worker: str
    nodes: NDArray[np.uint32] | None
    reasons: NDArray[np.intp] | None  # positions in `texts`
    texts: tuple[str, ...]

    @property
    def cost(self) -> int:
        return len(self.rows) + _ENTRY_PODS * (1 + len(self.texts))


class PodHistory:
    """The latest transitions. Rows are reused: a reader passes the number of the entry (`recorded`) after
    which its pod's transitions begin."""

    def __init__(self, pods: PodTable, reasons: Reasons, limit: int = LIMIT_PODS) -> None:
        self._pods = pods
        self._reasons = reasons
        self._limit = limit
        self.worker_name: Callable[[int], str] = str  # by number; numbers of workers are reused
        self._entries: deque[_Entry] = deque()
        self._cost = 0
        self.recorded = 0  # entries ever recorded
        self.dropped_until_ms = 0  # time of the latest dropped entry; 0: nothing was dropped

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, rows: Rows, phase: Phase, now_ms: int, event: str = "") -> None:
        """These pods are in this phase now. Node, worker and reason are taken from the table."""
        if not len(rows):
            return
        nodes = self._pods.node[rows] if phase is Phase.BOUND and event != CONFIRMED else None
        by_worker = phase is Phase.SCHEDULING or event in (RETURNED, WORKER_LOST)
        number = int(self._pods.worker[rows[0]]) if by_worker else NONE_U16
        worker = "" if number == NONE_U16 else self.worker_name(number)
        reasons, texts = self._texts(rows) if event in _EVENTS_WITH_REASON else (None, ())
        entry = _Entry(now_ms, phase, event, rows, worker, nodes, reasons, texts)
        self._entries.append(entry)
        self._cost += entry.cost
        self.recorded += 1
        while self._cost > self._limit and len(self._entries) > 1:
            gone = self._entries.popleft()
            self._cost -= gone.cost
            self.dropped_until_ms = gone.at_ms

    def of_pod(self, row: int, after: int = 0) -> list[PodTransition]:
        """The transitions of the pod in a row after entry `after`, oldest first. Scans all entries:
        milliseconds."""
        transitions = []
        for entry, at in self._parts(after, lambda rows: rows == row):
            node = NONE_U32 if entry.nodes is None else int(entry.nodes[at[0]])
            reason = "" if entry.reasons is None else entry.texts[int(entry.reasons[at[0]])]
            transitions.append(
                PodTransition(entry.at_ms, entry.phase, entry.event, entry.worker, node, reason)
            )
        return transitions

    def transition_counts(self, pod_set: int, after: int = 0) -> dict[tuple[Phase, str], TransitionCount]:
        """Counts of the transitions of a set's pods after entry `after`, by kind, in order of first
        occurrence. Scans all entries."""
        found: dict[tuple[Phase, str], TransitionCount] = {}
        for entry, at in self._parts(after, lambda at: self._pods.pod_set[at] == pod_set):
            count = found.setdefault((entry.phase, entry.event), TransitionCount(0, entry.at_ms, entry.at_ms))
            count.pods += len(at)
            count.last_ms = entry.at_ms
        return found

    def _parts(
        self, after: int, selects: Callable[[Rows], NDArray[np.bool_]]
    ) -> Iterator[tuple[_Entry, NDArray[np.intp]]]:
        """Entries after `after` with any selected pod, and the positions of these pods in each. Evaluates all
        rows at once: entry by entry would take twenty times as long."""
        entries = list(islice(self._entries, max(0, after - (self.recorded - len(self._entries))), None))
        if not entries:
            return
        hits = np.flatnonzero(selects(np.concatenate([entry.rows for entry in entries])))
        if not len(hits):
            return
        begins = np.cumsum([0, *(len(entry.rows) for entry in entries)])
        which = np.searchsorted(begins, hits, side="right") - 1
        numbers, firsts = np.unique(which, return_index=True)
        ends = [*firsts[1:].tolist(), len(hits)]
        for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True):
            yield entries[number], hits[first:end] - begins[number]

    def _texts(self, rows: Rows) -> tuple[NDArray[np.intp] | None, tuple[str, ...]]:
        """The reasons of these pods, as positions in a tuple of texts, because the table's numbers change."""
        numbers = self._pods.reason[rows]
        if not (numbers != NO_REASON).any():
            return None, ()
        distinct, which = np.unique(numbers, return_inverse=True)
        return which.ravel(), tuple(self._reasons.texts[i] for i in distinct.tolist())
