"""Submits a load and follows it on the dispatcher's watch stream until every pod is settled. submit, demo,
replay and the benchmarks share this. A pod is a row of columns and has no Python object. Clock readings are
seconds on any one monotonic clock."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, Uids, decode, decode_uids
from hoss.wire.uids import UID_PREFIX_BYTES

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
    """The pods of a load, one row each in the order of submission. Events may arrive before the reply that
    names their pods; they are kept until then. Once every reply is in, events of other pods are dropped."""

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
        # Sets by the beginning of their UIDs' prefix, ascending; the prefix is a hash, 8 of its 12 bytes
        # distinguish sets apart.
        self._set_keys = np.empty(0, np.uint64)
        self._set_rows = np.empty(0, np.int64)
        self._set_counts = np.empty(0, np.int64)

    @property
    def settled(self) -> int:
        """Pods that are bound, unschedulable, failed or deleted."""
        return int(np.count_nonzero(self._settled))

    @property
    def done(self) -> bool:
        return self._named == self.pods and self.settled == self.pods

    def count(self, phase: int) -> int:
        return int(np.count_nonzero(self.phases == phase))

    def add_reply(self, request: pb.SubmitRequest, reply: pb.SubmitReply, sent_at: float) -> None:
        """Learn the UIDs of one message's pods. Replies come in the order of the messages."""
        for pod_set in reply.sets:
            rows = slice(self._named, self._named + pod_set.count)
            self.submitted_at[rows] = sent_at
            if (
                request.pods.uids and pod_set is reply.sets[-1]
            ):  # the pod list comes last; these UIDs are the client's
                given = decode_uids(request.pods.uids, rows=pod_set.count)
                self._given_uids.update(zip(map(bytes, given), range(rows.start, rows.stop), strict=True))
            else:
                self._add_set(
                    int.from_bytes(pod_set.uid_prefix[:_KEY_BYTES], "little"), rows.start, pod_set.count
                )
            self._named = rows.stop
        waiting, self._waiting = self._waiting, []
        for events in waiting:
            self._apply(events)

    def add_batch(self, batch: pb.WatchBatch, now: float) -> None:
        """Apply one message of the watch stream. Raises ColumnError when its columns do not agree."""
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
        """From the first submission to the last of the first reports as bound; 0.0 if no pod was bound."""
        return float(max(0.0, self.bound_at.max() - self.submitted_at.min())) if self.bound_at.any() else 0.0

    def reasons(self, phase: int = pb.UNSCHEDULABLE) -> Counter[str]:
        """Pods in a phase by their kinds of reason, without the numbers of nodes."""
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
    """A reason without its counts. "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had taints." gives
    "Insufficient cpu, node(s) had taints", and so does the same text with other numbers, and with what
    preemption said after it."""
    _, _, reasons = text.partition(" preemption: ")[0].partition("nodes are available: ")
    if not reasons:
        return text
    return ", ".join(sorted({_COUNT.sub("", part.strip()) for part in reasons.rstrip(".").split(", ")}))


STALL_SECONDS = 30.0  # longer than the recovery from a worker's death
_POLL_SECONDS = 0.1  # between two updates of the progress

Progress = Callable[[Tracker], None]


def pods_of(requests: Sequence[pb.SubmitRequest]) -> int:
    """The number of pods in the messages."""
    return sum(sum(job.replicas for job in request.jobs) + len(request.pods.names) for request in requests)


async def place(
    client: DispatcherClient,
    requests: Sequence[pb.SubmitRequest],
    *,
    progress: Progress = lambda _: None,
    stall_seconds: float = STALL_SECONDS,
    poll_seconds: float = _POLL_SECONDS,
) -> Tracker:
    """Submit the messages and wait until every pod is bound, unschedulable, failed or deleted. `progress` is
    called every `poll_seconds`, and once at the end. Clock readings in the tracker are `time.perf_counter`.
    Raises HossError when nothing changes for `stall_seconds`, and what submission or watch raise."""
    tracker = Tracker(pods_of(requests))
    if not tracker.pods:
        return tracker
    # The watch begins at the present revision, so no event is missed, whichever stream begins first.
    revision = (await client.status()).revision
    finished = asyncio.Event()
    watching = asyncio.ensure_future(_until(tracker, finished, progress, stall_seconds, poll_seconds))
    following = asyncio.ensure_future(follow(client, tracker, revision, finished))
    submitting = asyncio.ensure_future(submit(client, tracker, requests, finished))
    await until_any({watching}, {following, submitting})
    progress(tracker)
    return tracker


async def until_any(ends: "set[asyncio.Future[Any]]", others: "set[asyncio.Future[Any]]") -> None:
    """Wait until one of `ends` is done, then cancel all. Raises what any of them raises before."""
    running = tasks = {*ends, *others}
    try:
        while ends <= running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def submit(
    client: DispatcherClient,
    tracker: Tracker,
    requests: Sequence[pb.SubmitRequest],
    finished: asyncio.Event,
    *,
    at_seconds: Sequence[float] = (),
) -> None:
    """Send the messages and pass the replies to the tracker. A message is sent `at_seconds` after the first,
    ascending; without times, as fast as messages are accepted. Sets `finished` when all pods are settled.
    Raises HossError where the dispatcher answers too few messages."""
    sent_at: list[float] = []
    began = time.perf_counter()

    async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
        for number, request in enumerate(requests):
            if at_seconds and (early := began + at_seconds[number] - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            sent_at.append(time.perf_counter())
            yield request

    answered = 0
    async for reply in client.submit_stream(outgoing()):
        tracker.add_reply(requests[answered], reply, sent_at[answered])
        answered += 1
        if tracker.done:
            finished.set()
    if answered < len(requests):
        raise HossError(
            f"the dispatcher answered {answered} of {len(requests)} messages and ended the stream"
        )


async def follow(client: DispatcherClient, tracker: Tracker, revision: int, finished: asyncio.Event) -> None:
    """Pass the events after a revision to the tracker, until cancelled. Sets `finished` when all its pods are
    settled."""
    async for batch in client.watch(revision):
        tracker.add_batch(batch, time.perf_counter())
        if tracker.done:
            finished.set()
    raise HossError("the dispatcher ended the watch stream; is it being stopped?")


async def _until(
    tracker: Tracker, finished: asyncio.Event, progress: Progress, stall_seconds: float, poll_seconds: float
) -> None:
    last_settled, last_change = -1, time.monotonic()
    while not finished.is_set():
        try:
            await asyncio.wait_for(finished.wait(), poll_seconds)
        except asyncio.TimeoutError:
            progress(tracker)
        if tracker.settled != last_settled:
            last_settled, last_change = tracker.settled, time.monotonic()
        elif time.monotonic() - last_change > stall_seconds:
            raise HossError(
                f"nothing has changed for {stall_seconds:.0f} s with {tracker.settled} of {tracker.pods} "
                "pods settled; "
                "`hoss status` says what waits for what"
            )
