"""What a starting dispatcher does before it serves: learn what it promised, and what became of it.

The order matters. Workers of the last life may still be proposing its pods: each is fenced first, so that the list of
reservations is final; then what holds a reservation is bound, what was deleted gives it back, and the rest is queued.
"""

import asyncio
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError

from dispatcher.core import messages as m
from dispatcher.core.faults import Fault
from dispatcher.core.podsets import Submission
from dispatcher.core.podtable import Phase
from dispatcher.intake import read_order
from dispatcher.journal import Record, Recovered
from dispatcher.ledger import Held, commits_of
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, InvariantViolation
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1.objects_pb2 import ClusterObject
from hoss.wire.columns import NONE_U32
from hoss.wire.convert_objects import object_from_proto

if TYPE_CHECKING:
    from dispatcher.mirroring import Mirroring

_RECORDS_AT_ONCE = 16


async def recover(runtime: Runtime, mirroring: "Mirroring | None" = None) -> None:
    """Fill an empty runtime. Waits for journal and resolver as long as it takes; raises InvariantViolation when the journal
    holds what cannot have been accepted. In Kubernetes mode the pods come from the API server, through `mirroring`."""
    journal = await runtime.until_answered(runtime.journal.recover, "journal")
    objects = (object_from_proto(ClusterObject.FromString(message)) for message in journal.objects.values())
    runtime.tell(m.ObjectsApplied(tuple(objects)))
    submissions = []
    for number, record in enumerate(journal.records):
        submissions.append(_accept_again(runtime, record))
        if number % _RECORDS_AT_ONCE == 0:
            await asyncio.sleep(0)  # the lease is renewed beside this
    for submission in submissions:
        _delete_again(runtime, submission, journal)
        _ungate_again(runtime, submission, journal)
        _count_again(runtime, submission, journal)
    for worker in sorted(journal.workers):
        await runtime.until_answered(lambda name=worker: runtime.ledger.grant_epoch(name))  # type: ignore[misc]
    mirrored = await mirroring.begin() if mirroring is not None else []
    bound = await _restore_reservations(runtime, release_strangers=mirroring is not None)
    _blame_again(runtime, journal)
    for submission in submissions:
        runtime.tell(m.Admitted(submission))
    if mirroring is not None:
        mirroring.settle(mirrored)
    pods = runtime.machine.registry.pods.count_by_phase()
    logger().info("recovered", submissions=len(submissions), bound=bound, queued=int(pods[Phase.QUEUED]))


def _accept_again(runtime: Runtime, record: Record) -> Submission:
    try:
        order = read_order(pb.SubmitRequest.FromString(record.message))
        return runtime.machine.registry.accept(order, record.submitted_ms)
    except (DecodeError, InvalidInput) as exc:
        raise InvariantViolation(f"the journal's record {record.key.hex()} cannot be accepted again: {exc}") from exc


def _delete_again(runtime: Runtime, submission: Submission, journal: Recovered) -> None:
    for pod_set in submission.sets:
        bitmap = journal.deletions.get(pod_set.uid_prefix)
        if bitmap is not None:
            rows = (np.flatnonzero(bitmap) + pod_set.first).astype(np.uint32)
            runtime.machine.registry.mark_deleted(rows, runtime.now_ms())


def _ungate_again(runtime: Runtime, submission: Submission, journal: Recovered) -> None:
    for pod_set in submission.sets:
        for gate, bitmap in journal.ungated.get(pod_set.uid_prefix, {}).items():
            rows = (np.flatnonzero(bitmap) + pod_set.first).astype(np.uint32)
            runtime.machine.registry.remove_gates(rows, frozenset((gate,)))


def _count_again(runtime: Runtime, submission: Submission, journal: Recovered) -> None:
    for pod_set in submission.sets:
        attempts = journal.attempts.get(pod_set.uid_prefix)
        if attempts is not None:
            runtime.machine.registry.pods.attempts[pod_set.rows] = attempts


def _blame_again(runtime: Runtime, journal: Recovered) -> None:
    """Faults of pods that are neither bound nor deleted; what is bound was no fault of theirs after all."""
    registry = runtime.machine.registry
    for record in journal.faults:
        rows = registry.directory.rows_of_uids(record.uids)
        rows = rows[rows != NONE_U32]
        rows = rows[np.isin(registry.pods.phase[rows], (Phase.ABSENT, Phase.FAILED))]
        fault = Fault(record.number, record.at_ms, record.worker, record.text, rows, record.final)
        runtime.machine.restore_fault(fault, runtime.now())


async def _restore_reservations(runtime: Runtime, *, release_strangers: bool) -> int:
    """`release_strangers`: all pods there are are known, so what stands of others is of pods that went meanwhile."""

    async def read_all() -> list[Held]:
        return [held async for held in runtime.ledger.reservations()]

    bound = strangers = 0
    assumed: list[m.Instruction] = []
    unconfirmed = [np.empty(0, np.uint32)]
    left: list[Held] = []
    for held in await runtime.until_answered(read_all):
        rows = runtime.machine.registry.directory.rows_of_uids(held.uids)
        ours = rows != NONE_U32
        strangers += int((~ours).sum())
        left.append(Held(*(column[~ours & ~held.assumed] for column in held)))
        bound += int(ours.sum())
        runtime.perform(runtime.machine.restore_bound(rows[ours], held.nodes[ours]))
        # Others' reservations that nobody confirms are the reaper's business.
        pending = ours & held.assumed
        if pending.any():
            commits = commits_of(held.shards[pending], held.seqs[pending])
            assumed.append(m.Confirm(commits, rows[pending], held.uids[pending]))
            unconfirmed.append(rows[pending])
    runtime.perform(runtime.machine.restore_gangs(np.concatenate(unconfirmed), runtime.now()))
    runtime.perform(assumed)
    if release_strangers:
        for held in left:
            await runtime.until_answered(lambda held=held: runtime.ledger.release(held.uids, held.nodes))  # type: ignore[misc]
    if strangers:
        logger().warning("reservations_of_strangers", pods=strangers)
    return bound
