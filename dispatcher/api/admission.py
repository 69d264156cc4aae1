"""Submissions, deletions, removed gates and retries. Nothing is acknowledged before it is in the journal.

A submission first reserves its rows and names, so that two concurrent ones cannot get the same. Then it is
written, and then its pods exist. If the write fails, the reservation is undone. If the write has no answer,
the client is told that the outcome is unknown: here the change is undone, as in the journal with its next
write, but a dispatcher that takes over before that may find it made."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dispatcher.api.cluster_objects import ClusterObjectStore, refuse_changes
from dispatcher.api.intake import reading_order
from dispatcher.core import messages as m
from dispatcher.core.pods.sets import AlreadyExists, PodSet, Submission, request_key
from dispatcher.core.pods.table import Phase, Rows, grouped
from dispatcher.journal.checkpointer import Checkpointer
from dispatcher.ports import Record
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, Overloaded
from hoss.tasks import in_turns
from hoss.telemetry.context import now_ns
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.uids import random_uid_text

ChangedT = TypeVar("ChangedT")

# Pods of one request that change in one step of the event loop: some 20 ms.
_SLICE_ROWS = 100_000
_SLICE_SETS = 2000  # bare pods are sets of their own

# Rows by the index of the newest set that is meant: pods of later sets came after the call.
Finds = Callable[[int], Awaitable[Rows]]


class Admission:
    """Accepts, ungates, retries and deletes pods.

    `find` parameters return rows, and are called while no other deletion runs: rows named earlier may have
    been given to other pods."""

    def __init__(
        self,
        runtime: Runtime,
        objects: ClusterObjectStore,
        checkpointer: Checkpointer,
        *,
        rng: random.Random,
        until_moved: Callable[[Collection[bytes]], Awaitable[None]],
        follows_cluster: bool = False,
        max_pod_terms: int | None = None,
    ) -> None:
        """`until_moved`: see Mover. `follows_cluster`: pods come and go with those of the API server only.
        `max_pod_terms`: see DispatcherConfig; None: any number."""
        self._max_pod_terms = max_pod_terms
        self._runtime = runtime
        self._rng = rng
        self._until_moved = until_moved
        self._follows_cluster = follows_cluster
        self._objects = objects
        self._checkpointer = checkpointer
        self._registry = runtime.machine.registry
        self._writing: dict[bytes, asyncio.Future[Submission]] = {}
        self._deleting = asyncio.Lock()
        self._accepting = asyncio.Lock()  # one at a time, because names are checked before they are taken

    async def submit(self, message: pb.SubmitRequest, tenant: str = "") -> pb.SubmitReply:
        """Raises InvalidInput, AlreadyExists, LedgerUnavailable, Overloaded or AccessDenied; then this call
        changed nothing. Raises OutcomeUnknown; then the same message settles it."""
        # Shielded: a client that leaves does not stop the write of its message.
        return self.reply(await asyncio.shield(await self.begin(message, tenant)))

    async def throttle(self) -> None:
        """Await between the messages of a stream. Delays the stream when many pods wait already."""
        pause_seconds = self._runtime.machine.pressure.pause_seconds(self._runtime.now())
        if pause_seconds:
            await asyncio.sleep(pause_seconds)

    async def begin(self, message: pb.SubmitRequest, tenant: str = "") -> "asyncio.Future[Submission]":
        """Check a message and reserve its names. The future is done when the submission is durable; shield it
        from cancellation. `submitted_by` in the message is who sends it. `tenant`: to which its client is
        limited; "": to none.

        Raises InvalidInput, AlreadyExists, Overloaded or AccessDenied. A message with a known request id
        returns the submission that the first one made."""
        if self._follows_cluster:
            refuse_changes("create pods that name it as their scheduler")
        return await _to_the_end(self._begin(message, tenant))

    async def _begin(self, message: pb.SubmitRequest, tenant: str) -> "asyncio.Future[Submission]":
        async with self._accepting:
            loop = asyncio.get_running_loop()
            if message.request_id:
                key = request_key(message.request_id)
                known = self._registry.directory.submissions.get(key)
                _check_owner(known, message.submitted_by)
                if key in self._writing:
                    return self._writing[key]
                if known is not None and known.durable:
                    done: asyncio.Future[Submission] = loop.create_future()
                    done.set_result(known)
                    return done
            self._objects.resolve_priorities(message)
            self._objects.check_priorities(message, tenant)
            if not message.request_id:
                message.request_id = random_uid_text(self._rng)
            order = await in_turns(reading_order(message, self._max_pod_terms))
            pressure, now = self._runtime.machine.pressure, self._runtime.now()
            refusal = await in_turns(pressure.refusal(order.pod_count, order.record_bytes, now, tenant))
            if refusal is not None:
                if refusal.retry_after_seconds is None:
                    raise InvalidInput(refusal.text, where="submit")
                raise Overloaded(refusal.text, refusal.retry_after_seconds)
            submission = await in_turns(self._registry.accepting(order, self._runtime.now_ms()))
            written = loop.create_task(self._write(submission, message, now_ns()))
            written.add_done_callback(_mark_seen)
            self._writing[submission.key] = written
            return written

    def reply(self, submission: Submission) -> pb.SubmitReply:
        """The reply to a submission, the same for repeated requests."""
        return pb.SubmitReply(
            request_id=submission.request_id,
            accepted_pods=sum(pod_set.count for pod_set in submission.sets),
            sets=[
                pb.PodSet(namespace=s.namespace, name=s.name, uid_prefix=s.uid_prefix, count=s.count)
                for s in submission.sets
            ],
            revision=self._runtime.machine.log.revision,
        )

    async def delete(self, find: Finds) -> int:
        """Delete the pods that `find` returns. Returns how many existed. Raises LedgerUnavailable with
        nothing deleted, and OutcomeUnknown."""
        if self._follows_cluster:
            refuse_changes("delete pods")
        return await _to_the_end(self._delete(find))

    async def _delete(self, find: Finds) -> int:
        # One at a time, because bitmaps are written as a whole.
        async with self._deleting:
            live = set(Phase) - {Phase.DELETED, Phase.ABSENT}
            rows = await self._in_phase(find, *live)
            if not len(rows):
                return 0
            deleted = await self._bitmaps(_slices(rows), self._registry.deleted)
            await self._runtime.journal.delete({pod_set.uid_prefix: bitmap for pod_set, bitmap in deleted})
            await self._handle_in_slices(rows, m.Deleted)
            return len(rows)

    async def _in_phase(self, find: Finds, *phases: Phase) -> Rows:
        """Those of the rows that `find` returns whose pods are in one of the phases. Others may get rows of
        deleted pods in between: pods of sets that came after the call are not meant."""
        pods, newest = self._registry.pods, self._registry.directory.newest
        rows = pods.distinct(await find(newest))
        wanted = np.array([phase in phases for phase in Phase], np.bool_)
        parts = [rows[:0]]
        for part in _slices(rows):
            await asyncio.sleep(0)
            parts.append(part[wanted[pods.phase[part]] & (pods.pod_set[part] <= newest)])
        found = np.concatenate(parts)
        await asyncio.sleep(0)  # copying nine million takes a slice of its own
        return found

    async def remove_gates(self, find: Finds, gates: frozenset[str]) -> tuple[int, int]:
        """Remove gates (all if none are named) from the pods that `find` returns. Returns how many had one,
        and how many of these have none left. Raises LedgerUnavailable with nothing removed, and
        OutcomeUnknown."""
        if self._follows_cluster:
            refuse_changes("remove scheduling gates")
        return await _to_the_end(self._remove_gates(find, gates))

    async def _remove_gates(self, find: Finds, gates: frozenset[str]) -> tuple[int, int]:
        async with self._deleting:
            named = await self._in_phase(find, Phase.UNSCHEDULABLE)
            parts: list[Rows] = []
            removed = set(gates)
            for part in _slices(named):
                await asyncio.sleep(0)
                for has, rows in self._registry.gates_of(part).items():
                    if not gates or not gates.isdisjoint(has):
                        parts.append(rows)
                        removed.update(() if gates else has)
            if not parts:
                return 0, 0
            await self._runtime.journal.ungate(await self._removals(parts, removed))
            left = 0
            for rows in parts:
                self._runtime.handle(m.GatesRemoved(rows, frozenset(removed)))
                left += int(self._registry.gated(rows).sum())
                await asyncio.sleep(0)
            changed = sum(map(len, parts))
            return changed, changed - left

    async def retry(self, find: Finds) -> int:
        """Forgive and queue the failed ones of the pods that `find` returns. Returns how many. Raises
        LedgerUnavailable with none queued, and OutcomeUnknown."""
        return await _to_the_end(self._retry(find))

    async def _retry(self, find: Finds) -> int:
        async with self._deleting:
            rows = await self._in_phase(find, Phase.FAILED)
            if len(rows):
                self._registry.faults.forgive(rows)
                await self._checkpointer.write_faults()
                await self._handle_in_slices(rows, m.Retried)
            return len(rows)

    async def _handle_in_slices(self, rows: Rows, event: Callable[[Rows], m.Event]) -> None:
        """Let the machine handle an event about these pods, part by part. Everybody else gets a turn in
        between; to them it looks as if several requests had come."""
        for part in _slices(rows):
            self._runtime.handle(event(part))
            await asyncio.sleep(0)

    async def _removals(
        self, parts: Iterable[Rows], gates: Iterable[str]
    ) -> dict[bytes, dict[str, NDArray[np.bool_]]]:
        """From which pods of these rows' sets each gate is removed, when these are removed as well."""
        removals = {}
        of_sets = await self._bitmaps(parts, lambda pod_set: np.zeros(pod_set.count, np.bool_))
        for done, (pod_set, removed) in enumerate(of_sets, 1):
            all_gates = {gate: removed | pod_set.ungated.get(gate, False) for gate in sorted(gates)}
            removals[pod_set.uid_prefix] = {**pod_set.ungated, **all_gates}
            if done % _SLICE_SETS == 0 or pod_set.count > _SLICE_ROWS:
                await asyncio.sleep(0)
        return removals

    async def _bitmaps(
        self, parts: Iterable[Rows], before: Callable[[PodSet], NDArray[np.bool_]]
    ) -> list[tuple[PodSet, NDArray[np.bool_]]]:
        """The sets of these rows, with their pods in the rows besides those of `before`."""
        pods, sets = self._registry.pods, self._registry.directory.sets
        bitmaps: dict[int, tuple[PodSet, NDArray[np.bool_]]] = {}
        for part in parts:
            await asyncio.sleep(0)
            for done, (index, mine) in enumerate(grouped(part, pods.pod_set[part]), 1):
                if index not in bitmaps:
                    bitmaps[index] = sets[index], before(sets[index])
                pod_set, bitmap = bitmaps[index]
                bitmap[mine - pod_set.first] = True
                if done % _SLICE_SETS == 0:
                    await asyncio.sleep(0)
        return list(bitmaps.values())

    async def _write(self, submission: Submission, message: pb.SubmitRequest, began_ns: int) -> Submission:
        prefixes = tuple(pod_set.uid_prefix for pod_set in submission.sets)
        record = Record(submission.key, submission.submitted_ms, message.SerializeToString(), prefixes)
        try:
            try:
                # They are those of a deleted job where its request is made again: its pods must not get
                # places while a move of theirs may still give them one.
                await self._until_moved(prefixes)
                submission.order = await self._runtime.journal.record(record)
            except BaseException:
                self._registry.abandon(submission)
                raise
            if self._runtime.traces is not None:
                self._runtime.traces.submitted(submission, message.traceparent, began_ns)
            await self._admit(submission, in_gangs=bool(message.gangs) or _has_gang_jobs(message))
        finally:
            del self._writing[submission.key]
        return submission

    async def _admit(self, submission: Submission, *, in_gangs: bool) -> None:
        """The submission is durable: its pods exist, in slices where they are many. A gang comes whole."""
        pods = sum(pod_set.count for pod_set in submission.sets)
        if pods <= _SLICE_ROWS or in_gangs:
            self._runtime.handle(m.Admitted(submission))
            return
        async with self._deleting:  # a deletion finds all pods of a job, or none
            for _ in range(0, pods, _SLICE_ROWS):
                self._runtime.handle(m.Admitted(submission, _SLICE_ROWS))
                await asyncio.sleep(0)


def _slices(rows: Rows) -> Iterator[Rows]:
    """The rows in parts of which each is handled in one step."""
    return (rows[start : start + _SLICE_ROWS] for start in range(0, len(rows), _SLICE_ROWS))


def _has_gang_jobs(message: pb.SubmitRequest) -> bool:
    return any(job.min_available for job in message.jobs)


async def _to_the_end(change: Coroutine[Any, Any, ChangedT]) -> ChangedT:
    """The result of a change, which is not left half done where its client leaves."""
    task = asyncio.ensure_future(change)
    task.add_done_callback(_mark_seen)
    return await asyncio.shield(task)


def _check_owner(known: Submission | None, submitted_by: str) -> None:
    """Raises AlreadyExists where another caller made the submission: its reply would tell of that one's
    pods."""
    if known is not None and known.submitted_by and submitted_by not in ("", known.submitted_by):
        raise AlreadyExists("somebody else has used this request_id: choose another one", where="request_id")


def _mark_seen(written: "asyncio.Task[Any]") -> None:
    """Mark the error of a failed write as retrieved, also when every client has left."""
    if not written.cancelled():
        written.exception()
