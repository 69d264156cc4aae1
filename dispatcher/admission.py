"""Submissions, deletions, removed gates and retries: nothing is acknowledged before the journal has it.

A submission takes its rows and names first, so that two that come at once cannot have the same; then it is written;
then its pods exist. If the write fails, it never was.
"""

import asyncio
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dispatcher.chronicle import Chronicle
from dispatcher.core import messages as m
from dispatcher.core.podsets import Submission, request_key
from dispatcher.core.podtable import Phase, Rows
from dispatcher.intake import read_order
from dispatcher.journal import Record
from dispatcher.objects import Objects, refuse_changes
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, Overloaded
from hoss.v1 import dispatcher_pb2 as pb


class Admission:
    """Accepts, ungates, retries and deletes pods."""

    def __init__(
        self, runtime: Runtime, objects: Objects, chronicle: Chronicle, *, follows_cluster: bool = False
    ) -> None:
        """`follows_cluster`: pods come and go as the API server says, and by nobody else."""
        self._runtime = runtime
        self._follows_cluster = follows_cluster
        self._objects = objects
        self._chronicle = chronicle
        self._registry = runtime.machine.registry
        self._under_way: dict[bytes, asyncio.Future[Submission]] = {}
        self._deleting = asyncio.Lock()

    async def submit(self, message: pb.SubmitRequest) -> pb.SubmitReply:
        """Raises InvalidInput, AlreadyExists, LedgerUnavailable or Overloaded; then nothing of the message was accepted."""
        # A client that goes away while its message is being written does not stop the write.
        return self.reply(await asyncio.shield(self.begin(message)))

    async def breathe(self) -> None:
        """To be awaited between the messages of a stream: returns late when there is much to do already."""
        pause_seconds = self._runtime.machine.pressure.pause_seconds(self._runtime.now())
        if pause_seconds:
            await asyncio.sleep(pause_seconds)

    def begin(self, message: pb.SubmitRequest) -> "asyncio.Future[Submission]":
        """Check a message and take its names, at once; the future is done when it is durable. Shield it from cancellation.

        Raises InvalidInput, AlreadyExists or Overloaded. A message whose request id is known yields the submission it made then.
        """
        if self._follows_cluster:
            refuse_changes("create pods that name it as their scheduler")
        loop = asyncio.get_running_loop()
        if message.request_id:
            key = request_key(message.request_id)
            known = self._registry.directory.submissions.get(key)
            if known is not None and known.durable:
                done: asyncio.Future[Submission] = loop.create_future()
                done.set_result(known)
                return done
            if key in self._under_way:
                return self._under_way[key]
        self._objects.resolve_priorities(message)
        order = read_order(message)
        refusal = self._runtime.machine.pressure.refusal(order.pod_count, order.record_bytes, self._runtime.now())
        if refusal is not None:
            if refusal.retry_after_seconds is None:
                raise InvalidInput(refusal.text, where="submit")
            raise Overloaded(refusal.text, refusal.retry_after_seconds)
        submission = self._registry.accept(order, self._runtime.now_ms())
        message.request_id = order.request_id
        written = loop.create_task(self._write(submission, message, time.time_ns()))
        written.add_done_callback(_mark_seen)
        self._under_way[submission.key] = written
        return written

    def reply(self, submission: Submission) -> pb.SubmitReply:
        """What a submission is answered with, however often."""
        return pb.SubmitReply(
            request_id=submission.request_id,
            accepted_pods=sum(pod_set.count for pod_set in submission.sets),
            sets=[
                pb.PodSet(namespace=s.namespace, name=s.name, uid_prefix=s.uid_prefix, count=s.count)
                for s in submission.sets
            ],
            revision=self._runtime.machine.log.revision,
        )

    async def delete(self, find: Callable[[], Rows]) -> int:
        """Delete the pods that `find` names; returns how many were there. Raises LedgerUnavailable with nothing deleted."""
        if self._follows_cluster:
            refuse_changes("delete pods")
        # One at a time: bitmaps are written whole, and rows named before another deletion may be someone else's after it.
        async with self._deleting:
            pods = self._registry.pods
            rows = np.unique(find())
            rows = rows[~np.isin(pods.phase[rows], (Phase.DELETED, Phase.ABSENT))]
            if not len(rows):
                return 0
            await self._runtime.journal.delete(self._bitmaps(rows))
            self._runtime.tell(m.Deleted(rows))
            return len(rows)

    async def remove_gates(self, find: Callable[[], Rows], gates: frozenset[str]) -> tuple[int, int]:
        """Take gates (none named: all) off the pods that `find` names. How many had one, and how many of them have none left.
        Raises LedgerUnavailable with nothing removed."""
        if self._follows_cluster:
            refuse_changes("remove scheduling gates")
        async with self._deleting:  # the same bitmaps, the same rows that must not become someone else's
            phase = self._registry.pods.phase
            named = np.unique(find())
            found = self._registry.gates_of(named[phase[named] == Phase.UNSCHEDULABLE])
            parts = [rows for has, rows in found.items() if not gates or not gates.isdisjoint(has)]
            if not parts:
                return 0, 0
            rows = np.concatenate(parts)
            going = gates or frozenset(gate for has in found for gate in has)
            await self._runtime.journal.ungate(self._removals(rows, going))
            self._runtime.tell(m.GatesRemoved(rows, going))
            return len(rows), int((~self._registry.gated(rows)).sum())

    async def retry(self, find: Callable[[], Rows]) -> int:
        """Forgive those of the pods that `find` names that were given up, and queue them; how many. Raises LedgerUnavailable with
        none queued."""
        async with self._deleting:  # the same rows that must not become someone else's
            named = np.unique(find())
            rows = named[self._registry.pods.phase[named] == Phase.FAILED]
            if len(rows):
                self._registry.faults.forgive(rows)
                await self._chronicle.write_faults()
                self._runtime.tell(m.Retried(rows))
            return len(rows)

    def _removals(self, rows: Rows, gates: frozenset[str]) -> dict[bytes, dict[str, NDArray[np.bool_]]]:
        removals = {}
        pod_sets = self._registry.pods.pod_set[rows]
        for index in np.unique(pod_sets).tolist():
            pod_set = self._registry.directory.sets[index]
            going = np.zeros(pod_set.count, np.bool_)
            going[rows[pod_sets == index] - pod_set.first] = True
            all_gates = {gate: going | pod_set.ungated.get(gate, False) for gate in gates}
            removals[pod_set.uid_prefix] = {**pod_set.ungated, **all_gates}
        return removals

    def _bitmaps(self, rows: Rows) -> dict[bytes, NDArray[np.bool_]]:
        pods = self._registry.pods
        bitmaps = {}
        for index in np.unique(pods.pod_set[rows]).tolist():
            pod_set = self._registry.directory.sets[index]
            deleted = pods.phase[pod_set.rows] == Phase.DELETED
            deleted[rows[pods.pod_set[rows] == index] - pod_set.first] = True
            bitmaps[pod_set.uid_prefix] = deleted
        return bitmaps

    async def _write(self, submission: Submission, message: pb.SubmitRequest, began_ns: int) -> Submission:
        record = Record(submission.key, submission.submitted_ms, message.SerializeToString())
        try:
            await self._runtime.journal.record(record)
        except BaseException:
            self._registry.abandon(submission)
            raise
        finally:
            del self._under_way[submission.key]
        if self._runtime.traces is not None:
            self._runtime.traces.submitted(submission, message.traceparent, began_ns)
        self._runtime.tell(m.Admitted(submission))
        return submission


def _mark_seen(written: "asyncio.Task[Submission]") -> None:
    """Every client may be gone when the write fails; then nobody reads the error, and that is no fault."""
    if not written.cancelled():
        written.exception()
