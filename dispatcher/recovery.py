"""Recovery: what a new leader does before it serves.

The order matters. Workers of the previous term may still propose pods. Each is fenced first, so that the list
of reservations is final. Then pods with a reservation are bound, deleted pods release theirs, and the rest is
queued. All of it is done in slices, however much there is: the lease is renewed in between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from dispatcher.api.intake import reading_order
from dispatcher.core import messages as m
from dispatcher.core.pods.faults import Fault
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.sets import PodSet, Submission
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.ledger.contents import digest_of_kind, kind_of
from dispatcher.ledger.move_steps import MOVER
from dispatcher.ports import Record, Recovered, ReservationColumns, commits_of
from dispatcher.runtime import Runtime, TermFailed
from hoss.errors import InvalidInput, InvariantViolation
from hoss.model.cluster import ClusterObject
from hoss.model.slices import Steps
from hoss.tasks import end_tasks, in_turns
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import objects_pb2
from hoss.wire.columns import NONE_U32
from hoss.wire.convert_objects import object_from_proto

if TYPE_CHECKING:
    from dispatcher.kubernetes.cluster_mirror import ClusterMirror

_GRANTS_AT_ONCE = 32

# Pods that are restored at once, and what parts of the work take, by estimate.
_SLICE_PODS = 100_000
_POD_MICROS = 0.1
_SET_MICROS = 20.0
_FAULT_MICROS = 50.0


async def recover(
    runtime: Runtime,
    mirror: "ClusterMirror | None" = None,
    *,
    term: int,
    take_over: Callable[[Recovered], Awaitable[None]] | None = None,
) -> Recovered:
    """Fill an empty runtime. Returns what the journal had, and waits for journal and resolver as long as it
    takes.

    In Kubernetes mode the pods come from the API server, through `mirror`. `take_over` gets what the
    journal had once all workers of the former term are fenced and the pods are listed, before reservations
    are restored or released. Raises InvariantViolation for a journal with a record that cannot have been
    accepted, and TermFailed where the ledger obeys a higher term than this one."""
    journal = await runtime.until_answered(runtime.journal.recover, "journal")
    if gap := journal.gap or await _gap_by_ledger(runtime, journal, term):
        runtime.problems["gap"] = (
            f"what was accepted before this term may be incomplete: {gap}; compare with what you "
            "submitted and deleted then"
        )
        logger().warning("journal_incomplete", why=gap)
    runtime.handle(m.ObjectsApplied(tuple(_read_object(*entry) for entry in journal.objects.items())))
    submissions = await in_turns(_restore_submissions(runtime, journal))
    writers = {MOVER} if mirror is None else {MOVER, mirror.writer}
    await _fence(runtime, sorted(journal.workers | writers))
    reading = asyncio.ensure_future(_read_reservations(runtime, digests=mirror is not None))
    try:  # the ledger lists them while the pods are read
        listed = await mirror.begin() if mirror is not None else []
        reservations = await reading
    finally:
        await end_tasks((reading,))
    if take_over is not None:
        await take_over(journal)
    restored = await _restore_reservations(runtime, reservations, every_pod_known=mirror is not None)
    if journal.workers:
        # Each is fenced, and where its pods are is known: nothing is left for which the name is needed.
        forget = partial(runtime.journal.drop_workers, journal.workers)
        await runtime.until_answered(forget, "journal")
    await in_turns(_restore_faults(runtime, journal))
    await in_turns(_admit(runtime, submissions))
    if mirror is not None:
        await mirror.settle(listed, restored.current)
    for event in restored.terminating:
        runtime.handle(event)
    pods = runtime.machine.registry.pods.count_by_phase()
    logger().info(
        "recovered", submissions=len(submissions), bound=restored.bound, queued=int(pods[Phase.QUEUED])
    )
    return journal


async def _gap_by_ledger(runtime: Runtime, journal: Recovered, term: int) -> str:
    """What the journal lacks of what the ledger was told: the journal alone went back. "" if nothing."""
    marks = await runtime.until_answered(runtime.ledger.dispatcher_marks)
    if marks.term > term:
        await runtime.until_answered(partial(runtime.journal.raise_term, marks.term), "journal")
        raise TermFailed(f"the ledger obeys term {marks.term}, and the journal has lost all above {term - 1}")
    if marks.journal <= journal.last_write:
        return ""
    (of, number), (last_of, last) = marks.journal, journal.last_write
    found = f"write {last} of term {last_of}" if last else "nothing"
    return (
        f"the ledger knows of write {number} of term {of}, and the last one that the journal has is {found}"
    )


async def _fence(runtime: Runtime, workers: list[str]) -> None:
    for start in range(0, len(workers), _GRANTS_AT_ONCE):
        grants = (partial(runtime.ledger.grant_epoch, w) for w in workers[start : start + _GRANTS_AT_ONCE])
        await asyncio.gather(*(runtime.until_answered(grant) for grant in grants))


def _read_object(key: str, message: bytes) -> ClusterObject:
    try:
        return object_from_proto(objects_pb2.ClusterObject.FromString(message))
    except (DecodeError, InvalidInput) as exc:
        raise InvariantViolation(f"the journal's object {key} cannot be read again: {exc}") from exc


def _restore_submissions(runtime: Runtime, journal: Recovered) -> Steps[list[Submission]]:
    submissions = []
    for record in journal.records:
        submission = yield from _restore_submission(runtime, record)
        yield from _restore_deletions(runtime, submission, journal)
        submissions.append(submission)
    for submission in submissions:
        runtime.machine.registry.find_deleted(submission)
        yield from _restore_gates(runtime, submission, journal)
        yield from _restore_attempts(runtime, submission, journal)
    return submissions


def _restore_submission(runtime: Runtime, record: Record) -> Steps[Submission]:
    try:
        order = yield from reading_order(pb.SubmitRequest.FromString(record.message))
        submission = yield from runtime.machine.registry.accepting(order, record.submitted_ms)
    except (DecodeError, InvalidInput) as exc:
        raise InvariantViolation(
            f"the journal's record {record.key.hex()} cannot be accepted again: {exc}"
        ) from exc
    submission.order = record.order
    return submission


def _admit(runtime: Runtime, submissions: list[Submission]) -> Steps[None]:
    """Queue the pods that hold no reservation. A gang comes whole."""
    in_gang = runtime.machine.registry.pods.gang
    for submission in submissions:
        pods = sum(pod_set.count for pod_set in submission.sets)
        whole = pods <= _SLICE_PODS or any(in_gang[pod_set.first] for pod_set in submission.sets)
        most = pods if whole else _SLICE_PODS
        for _ in range(0, pods, most):
            runtime.handle(m.Admitted(submission, most))
            yield most * _POD_MICROS + len(submission.sets) * _SET_MICROS


def _expect_size(pod_set: PodSet, what: str, pods: int) -> None:
    """More pods than the set has would be pods of another one."""
    if pods != pod_set.count:
        raise InvariantViolation(
            f"the journal's {what} of the set {pod_set.uid_prefix.hex()} are of {pods:,} pods, and it has "
            f"{pod_set.count:,}"
        )


def _slices(pod_set: PodSet, bitmap: NDArray[np.bool_]) -> Iterator[Rows]:
    """The rows of the pods in a bitmap, part by part."""
    for start in range(0, len(bitmap), _SLICE_PODS):
        part = bitmap[start : start + _SLICE_PODS]
        yield (np.flatnonzero(part) + pod_set.first + start).astype(np.uint32)


def _restore_deletions(runtime: Runtime, submission: Submission, journal: Recovered) -> Steps[None]:
    """The next record may be of a submission with the same names: those of deleted pods are free."""
    registry = runtime.machine.registry
    for pod_set in submission.sets:
        bitmap = journal.deletions.get(pod_set.uid_prefix)
        if bitmap is not None:
            _expect_size(pod_set, "deletions", len(bitmap))
            for rows in _slices(pod_set, bitmap):
                registry.mark_deleted(rows, runtime.now_ms())
                registry.let_others_have(pod_set, rows)
                yield _SET_MICROS + len(rows) * _POD_MICROS


def _restore_gates(runtime: Runtime, submission: Submission, journal: Recovered) -> Steps[None]:
    for pod_set in submission.sets:
        for gate, bitmap in journal.ungated.get(pod_set.uid_prefix, {}).items():
            _expect_size(pod_set, "removed gates", len(bitmap))
            for rows in _slices(pod_set, bitmap):
                runtime.machine.registry.remove_gates(rows, frozenset((gate,)))
                yield _SET_MICROS + len(rows) * _POD_MICROS


def _restore_attempts(runtime: Runtime, submission: Submission, journal: Recovered) -> Steps[None]:
    for pod_set in submission.sets:
        attempts = journal.attempts.get(pod_set.uid_prefix)
        if attempts is not None:
            _expect_size(pod_set, "attempts", len(attempts))
            runtime.machine.registry.pods.attempts[pod_set.range] = attempts
            yield _SET_MICROS


def _restore_faults(runtime: Runtime, journal: Recovered) -> Steps[None]:
    """Restore the faults of pods that are neither bound nor deleted. A bound pod was not at fault."""
    registry = runtime.machine.registry
    for record in journal.faults:
        rows = registry.directory.rows_of_uids(record.uids)
        rows = rows[rows != NONE_U32]
        rows = rows[np.isin(registry.pods.phase[rows], (Phase.ABSENT, Phase.FAILED))]
        fault = Fault(record.number, record.at_ms, record.worker, record.text, rows, record.final)
        runtime.machine.restore_fault(fault, runtime.now())
        yield _FAULT_MICROS


async def _without_unready(runtime: Runtime, part: ReservationColumns) -> ReservationColumns:
    """Release what pods hold that a worker of the former term prepared: it is fenced, and nobody can say any
    more whether they are ready. Returns the rest."""
    unready = part.pre_binding
    if not unready.any():
        return part
    as_of = runtime.ledger.known()
    await runtime.until_answered(
        lambda: runtime.ledger.release(part.uids[unready], part.nodes[unready], as_of)
    )
    logger().info("unready_pods_released", pods=int(unready.sum()))
    return part.of(~unready)


class _Restored(NamedTuple):
    """The reservations of pods that the runtime knows."""

    bound: int
    terminating: list[m.Verified]  # an earlier term may not have deleted these after their eviction
    current: Rows  # of pods whose reservations hold what the pods ask for now


async def _read_reservations(runtime: Runtime, *, digests: bool) -> list[ReservationColumns]:
    async def read_all() -> list[ReservationColumns]:
        return [part async for part in runtime.ledger.reservations(digests=digests)]

    return await runtime.until_answered(read_all)


async def _restore_reservations(
    runtime: Runtime, reservations: list[ReservationColumns], *, every_pod_known: bool
) -> _Restored:
    """`every_pod_known`: every existing pod is known, as it is now. So a reservation of an unknown pod
    belongs to one that ended meanwhile, and is released."""
    unknown = 0
    confirms: list[m.Instruction] = []
    assumed_rows = [np.empty(0, np.uint32)]
    orphans: list[ReservationColumns] = []
    terminating: list[m.Verified] = []
    found = [np.empty(0, np.uint32)]
    as_asked = _AsAsked(runtime.machine.registry)
    for read in reservations:
        part = await _without_unready(runtime, read)
        rows = runtime.machine.registry.directory.rows_of_uids(part.uids)
        known = rows != NONE_U32
        unknown += int((~known).sum())
        found.append(rows[known])
        # The reaper releases unconfirmed reservations of unknown pods.
        orphans.append(part.of(~known & ~part.assumed))
        runtime.perform(runtime.machine.restore_bound(rows[known], part.nodes[known]))
        if (leaving := known & part.terminating).any():
            columns = part.of(leaving)
            of_part = columns.uids, columns.nodes, columns.terminating, columns.seqs
            terminating.append(m.Verified(rows[leaving], *of_part))
        pending = known & part.assumed
        if pending.any():
            commits = commits_of(part.shards[pending], part.seqs[pending])
            confirms.append(m.Confirm(commits, rows[pending], part.uids[pending]))
            assumed_rows.append(rows[pending])
        as_asked.add(rows[known & ~pending & ~leaving], part.digests[known & ~pending & ~leaving])
        await asyncio.sleep(0)  # a part is some thousand pods
    runtime.perform(
        await in_turns(runtime.machine.restore_gangs(np.concatenate(assumed_rows), runtime.now()))
    )
    runtime.perform(confirms)
    if every_pod_known:
        for part in orphans:
            as_of = runtime.ledger.known()
            await runtime.until_answered(partial(runtime.ledger.release, part.uids, part.nodes, as_of))
    if unknown:
        logger().warning("orphan_reservations", pods=unknown)
    rows = np.concatenate(found)
    once, times = np.unique(rows, return_counts=True)
    return _Restored(len(rows), terminating, np.intersect1d(as_asked.rows(), once[times == 1]))


class _AsAsked:
    """Which pods have reservations that hold what the pods ask for now."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._digests: dict[int, int] = {}  # by template
        self._rows = [np.empty(0, np.uint32)]

    def add(self, rows: Rows, digests: NDArray[np.uint64]) -> None:
        """The reservations of these pods hold this, (n,); 0: that is not known."""
        told = digests != 0
        rows, digests = rows[told], digests[told]
        templates, which = np.unique(self._registry.pods.template[rows], return_inverse=True)
        asked = np.array([self._digest(template) for template in templates.tolist()], np.uint64)
        self._rows.append(rows[asked[which] == digests])

    def _digest(self, template: int) -> int:
        if template not in self._digests:
            self._digests[template] = digest_of_kind(kind_of(self._registry, template))
        return self._digests[template]

    def rows(self) -> Rows:
        """The rows of these pods."""
        return np.concatenate(self._rows)
