"""Where every pod of a load stands, as columns filled from the dispatcher's watch stream.

A pod is a row; no pod has a Python object. Clock readings are passed in, seconds on any one monotonic clock.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, UID_PREFIX_BYTES, Uids, decode, decode_uids

_SETTLED = np.zeros(256, np.bool_)  # by PodPhase
_SETTLED[[pb.BOUND, pb.UNSCHEDULABLE, pb.FAILED, pb.DELETED]] = True
_KEY_BYTES = 8
_COUNT = re.compile(r"^\d+ ")


class _Events(NamedTuple):
    """Rows of a watch batch, or some of them."""

    at: float
    uids: Uids
    phases: NDArray[Any]  # u8
    nodes: NDArray[Any]  # u32
    texts: NDArray[Any]  # i32, index into Tracker.texts; -1: none

    def where(self, mask: NDArray[np.bool_]) -> "_Events":
        return _Events(self.at, self.uids[mask], self.phases[mask], self.nodes[mask], self.texts[mask])


class Tracker:
    """The pods of a load, `pods` rows in the order of submission.

    Events may come before the reply that names their pods; they are kept until it is there. Events of pods that no reply
    names are passed over once every reply is in.
    """

    def __init__(self, pods: int) -> None:
        self.pods = pods
        self.phases = np.zeros(pods, np.uint8)  # POD_PHASE_UNSPECIFIED until the first event
        self.nodes = np.full(pods, NONE_U32, np.uint32)
        self.submitted_at = np.zeros(pods)  # when the message that held it was sent
        self.bound_at = np.zeros(pods)  # when it was first reported bound; 0.0: not yet
        self.settled_at = np.zeros(pods)  # when its present phase was reported
        self.texts: list[str] = []
        self._settled = np.zeros(pods, np.bool_)
        self._reasons = np.full(pods, -1, np.int32)
        self._text_numbers: dict[str, int] = {}
        self._named = 0
        self._waiting: list[_Events] = []
        self._given_uids: dict[bytes, int] = {}  # UIDs the client chose, to rows
        # Sets by the beginning of their UIDs' prefix, ascending; the prefix is a hash, 8 of its 12 bytes tell sets apart.
        self._set_keys = np.empty(0, np.uint64)
        self._set_rows = np.empty(0, np.int64)
        self._set_counts = np.empty(0, np.int64)

    @property
    def settled(self) -> int:
        """Pods that are bound, unschedulable, failed or deleted."""
        return int(np.count_nonzero(self._settled))

    @property
    def done(self) -> bool:
        """Whether every pod is settled."""
        return self._named == self.pods and self.settled == self.pods

    def count(self, phase: int) -> int:
        """Pods in a phase."""
        return int(np.count_nonzero(self.phases == phase))

    def add_reply(self, request: pb.SubmitRequest, reply: pb.SubmitReply, sent_at: float) -> None:
        """Learn the UIDs of one message's pods. Replies come in the order of their messages."""
        for pod_set in reply.sets:
            rows = slice(self._named, self._named + pod_set.count)
            self.submitted_at[rows] = sent_at
            if request.pods.uids and pod_set is reply.sets[-1]:  # the pod list comes last; these UIDs are the client's
                given = decode_uids(request.pods.uids, rows=pod_set.count)
                self._given_uids.update(zip(map(bytes, given), range(rows.start, rows.stop), strict=True))
            else:
                self._add_set(int.from_bytes(pod_set.uid_prefix[:_KEY_BYTES], "little"), rows.start, pod_set.count)
            self._named = rows.stop
        waiting, self._waiting = self._waiting, []
        for events in waiting:
            self._apply(events)

    def add_batch(self, batch: pb.WatchBatch, now: float) -> None:
        """Take in one message of the watch stream. Raises ColumnError when its columns do not agree."""
        uids = decode_uids(batch.uids)
        rows = len(uids)
        texts = np.full(rows, -1, np.int32)
        if batch.reasons:
            numbers = decode(batch.reasons, U16, name="reasons", rows=rows)
            known = np.array([self._text_number(text) for text in batch.reason_texts] or [-1], np.int32)
            given = numbers != NONE_U16
            texts[given] = known[numbers[given]]
        phases = decode(batch.phases, U8, name="phases", rows=rows)
        self._apply(_Events(now, uids, phases, decode(batch.nodes, U32, name="nodes", rows=rows), texts))

    def latencies(self) -> NDArray[np.float64]:
        """Seconds from submission to the first report as bound, of the pods that were bound."""
        bound = self.bound_at > 0
        return self.bound_at[bound] - self.submitted_at[bound]

    def binding_seconds(self) -> float:
        """From the first submission to the last first report of a pod as bound; 0.0 when none was."""
        return float(max(0.0, self.bound_at.max() - self.submitted_at.min())) if self.bound_at.any() else 0.0

    def reasons(self, phase: int = pb.UNSCHEDULABLE) -> Counter[str]:
        """Pods in a phase by the kinds of reason they were given, without the numbers of nodes."""
        numbers, counts = np.unique(self._reasons[self.phases == phase], return_counts=True)
        kinds: Counter[str] = Counter()
        for number, count in zip(numbers, counts, strict=True):
            kinds[reason_kinds(self.texts[number]) if number >= 0 else "no reason given"] += int(count)
        return kinds

    def _apply(self, events: _Events) -> None:
        rows = self._rows(events.uids)
        found = rows >= 0
        if not found.all():
            if self._named < self.pods:
                self._waiting.append(events.where(~found))
            events, rows = events.where(found), rows[found]
        # A batch that names a pod twice has its later state last, and NumPy's assignment keeps the last.
        self.phases[rows] = events.phases
        self._settled[rows] = _SETTLED[events.phases]
        self.nodes[rows] = events.nodes
        self._reasons[rows] = events.texts
        self.settled_at[rows] = events.at
        bound = rows[(events.phases == pb.BOUND) & (self.bound_at[rows] == 0)]
        self.bound_at[bound] = events.at

    def _rows(self, uids: Uids) -> NDArray[np.int64]:
        rows = np.full(len(uids), -1, np.int64)
        if len(self._set_keys):
            rows = self._rows_of_sets(uids)
        return self._rows_of_given(uids, rows) if self._given_uids else rows

    def _rows_of_sets(self, uids: Uids) -> NDArray[np.int64]:
        keys = np.ascontiguousarray(uids[:, :_KEY_BYTES]).view("<u8").ravel()
        ordinals = np.ascontiguousarray(uids[:, UID_PREFIX_BYTES:]).view(">u4").ravel().astype(np.int64)
        position = np.minimum(np.searchsorted(self._set_keys, keys), len(self._set_keys) - 1)
        ours = (self._set_keys[position] == keys) & (ordinals < self._set_counts[position])
        return np.where(ours, self._set_rows[position] + ordinals, -1)

    def _rows_of_given(self, uids: Uids, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        for i in np.flatnonzero(rows < 0).tolist():
            rows[i] = self._given_uids.get(uids[i].tobytes(), -1)
        return rows

    def _add_set(self, key: int, first: int, count: int) -> None:
        at = int(np.searchsorted(self._set_keys, np.uint64(key)))
        self._set_keys = np.insert(self._set_keys, at, np.uint64(key))
        self._set_rows = np.insert(self._set_rows, at, first)
        self._set_counts = np.insert(self._set_counts, at, count)

    def _text_number(self, text: str) -> int:
        number = self._text_numbers.get(text)
        if number is None:
            number = self._text_numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


def reason_kinds(text: str) -> str:
    """A reason without its counts: "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had taints." and the same
    with other numbers both give "Insufficient cpu, node(s) had taints"."""
    _, _, reasons = text.partition("nodes are available: ")
    if not reasons:
        return text
    return ", ".join(sorted({_COUNT.sub("", part.strip()) for part in reasons.rstrip(".").split(", ")}))
