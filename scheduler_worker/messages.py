"""Between hoss.v1 messages and the core's columns. Raises ColumnError for columns that do not fit
together."""

from functools import lru_cache

import numpy as np
import orjson
from numpy.typing import NDArray

from hoss.errors import ColumnError, InvalidInput
from hoss.manifests.devices import read_device_object
from hoss.model.cluster import (
    DeviceUpdate,
    DisruptionBudget,
    ObjectKey,
    Service,
    StorageUpdate,
    storage_key_of,
)
from hoss.model.conflicts import Overlap, Preference
from hoss.model.devices import DEVICE_KINDS, DeviceManifest, DeviceObject
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.slices import Steps, finished
from hoss.v1 import common_pb2, objects_pb2, resolver_pb2, workerlink_pb2
from hoss.wire.columns import (
    CARDS,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    check_node_index,
    decode,
    decode_accounts,
    decode_nodes,
    decode_uids,
    encode,
)
from hoss.wire.convert import node_from_proto, pod_spec_from_proto
from hoss.wire.convert_objects import namespace_from_proto, service_from_proto
from hoss.wire.convert_rules import definition_of, definition_taking, group_defined, parsed
from hoss.wire.convert_selectors import selector_from_proto
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.backlog import RuleRegistration
from scheduler_worker.core.cycle.refusals import RefusalReport
from scheduler_worker.core.messages import (
    AccountBatch,
    FeedUpdate,
    PodRun,
    PreemptionAnswer,
    PreemptionQuestion,
    ProposalColumns,
    VerdictCode,
    Verdicts,
)
from scheduler_worker.core.pod_index.selector_query import NamespaceLabels
from scheduler_worker.core.work import OutcomeColumns

# Specs or groups of pods that are read between two yields, and the most that one takes.
_SLICE_ROWS = 100
_ROW_MICROS = 50.0


def feed_update(message: resolver_pb2.FeedMessage) -> FeedUpdate:
    """One message of the feed."""
    return finished(reading_feed(message))


def reading_feed(message: resolver_pb2.FeedMessage) -> Steps[FeedUpdate]:
    """`feed_update` in slices."""
    specs: list[tuple[int, NodeSpec | None]] = []
    for start in range(0, len(message.nodes), _SLICE_ROWS):
        entries = message.nodes[start : start + _SLICE_ROWS]
        for entry in entries:
            check_node_index(entry.index, name="nodes.index")
            specs.append((entry.index, None if entry.removed else node_from_proto(entry.spec)))
        yield len(entries) * _ROW_MICROS
    pods: list[PodRun] = []
    for start in range(0, len(message.groups), _SLICE_ROWS):
        runs = message.groups[start : start + _SLICE_ROWS]
        for run in runs:
            nodes = decode_nodes(run.nodes, name="groups.nodes").astype(np.intp)
            pods.append(PodRun(group_defined(run.group), nodes, run.gone))
        yield len(runs) * _ROW_MICROS
    return FeedUpdate(
        shard=message.shard,
        seq=message.seq,
        accounts=account_batch(message.accounts),
        specs=tuple(specs),
        snapshot=message.snapshot,
        shards=message.shards,
        schema=tuple(message.schema),
        pods=tuple(pods),
        holds=tuple(message.holds),
        ended_holds=tuple(message.ended_holds),
        worker_epoch=message.worker_epoch,
    )


def account_batch(accounts: resolver_pb2.Accounts) -> AccountBatch:
    """Columns of node accounts."""
    records = decode_accounts(accounts.records, accounts.resources)
    indexes = decode_nodes(accounts.indexes, name="accounts.indexes", rows=len(records))
    card_indexes = decode_nodes(accounts.card_indexes, name="accounts.card_indexes")
    return AccountBatch(
        indexes=indexes,
        records=records,
        card_indexes=card_indexes,
        cards=decode(accounts.cards, CARDS, name="accounts.cards", rows=len(card_indexes)),
    )


def proposal_batch(
    columns: ProposalColumns, *, worker: str, epoch: int, unchecked: bool, pre_bind: bool = False
) -> resolver_pb2.ProposalBatch:
    """A proposal as resolvers read it. `pre_bind`: its pods are prepared once they are reserved."""
    definitions = [definition_of(group) for group in columns.groups]
    if columns.reserved_names:
        definitions = [
            definition_taking(definition, names)
            for definition, names in zip(definitions, columns.reserved_names, strict=True)
        ]
    positions: dict[bytes, int] = {}
    for definition in definitions:
        positions.setdefault(definition, len(positions))
    return resolver_pb2.ProposalBatch(
        worker=worker,
        epoch=epoch,
        batch_id=columns.batch_id,
        shard=columns.shard,
        snapshot_seq=columns.snapshot_seq,
        resources=columns.requests.shape[1],
        uids=columns.uids.tobytes(),
        slots=encode(columns.slots, U16),
        candidates=columns.candidates.shape[1],
        nodes=encode(columns.candidates, U32),
        requests=encode(columns.requests, I64),
        priorities=encode(columns.priorities, I32),
        attempts=encode(columns.attempts, U16),
        devices=b"" if columns.devices is None else encode(columns.devices, U16),
        unchecked=unchecked,
        groups=positions,
        slot_groups=encode([positions[definition] for definition in definitions], U16),
        gang_minimum=columns.gang_minimum,
        criteria=common_pb2.Criteria.Name(columns.conflicts.criteria),
        displace_gap=0 if columns.gang_minimum or columns.parts else columns.conflicts.displace_gap,
        seen=encode(columns.seen, U64),
        firsts=b"" if columns.firsts is None else encode(columns.firsts, U8),
        places=b"" if columns.places is None else encode(columns.places, U16),
        pre_bind=pre_bind,
        victim_uids=b"".join(
            uid for position in sorted(columns.victims) for uid in columns.victims[position]
        ),
        victims_must_go=columns.victims_must_go,
        victim_counts=_victim_counts(columns) if columns.victims else b"",
        parts=[
            proposal_batch(part, worker=worker, epoch=epoch, unchecked=unchecked, pre_bind=pre_bind)
            for part in columns.parts
        ],
    )


def rule_registration(
    registration: RuleRegistration, *, worker: str, epoch: int
) -> resolver_pb2.ProposalBatch:
    """A registration of rules as resolvers read it: a proposal without pods."""
    return resolver_pb2.ProposalBatch(
        worker=worker,
        epoch=epoch,
        batch_id=registration.id,
        groups=[definition_of(group) for group in registration.groups],
    )


def _victim_counts(columns: ProposalColumns) -> bytes:
    return encode([len(columns.victims.get(position, ())) for position in range(len(columns.uids))], U16)


def preemption_question(question: PreemptionQuestion) -> workerlink_pb2.WorkerMessage:
    """A question as the dispatcher reads it."""
    return workerlink_pb2.WorkerMessage(
        preemption=workerlink_pb2.PreemptionQuestion(
            id=question.id,
            priority=question.priority,
            nodes=encode(question.nodes, U32),
            limit=question.limit,
            uid=question.uid,
        )
    )


def preemption_answer(message: workerlink_pb2.PreemptionAnswer) -> PreemptionAnswer:
    """The dispatcher's answer to a question about preemption."""
    uids = decode_uids(message.uids)
    pods = len(uids)
    classes = decode(message.classes, U32, name="classes", rows=pods).astype(np.intp)
    if len(classes) and int(classes.max()) >= len(message.class_specs):
        raise ColumnError(
            f"class {int(classes.max())} where there are {len(message.class_specs)}", where="classes"
        )
    return PreemptionAnswer(
        id=message.id,
        nodes_seen=message.nodes_seen,
        uids=uids,
        nodes=decode(message.nodes, U32, name="nodes", rows=pods).astype(np.intp),
        classes=classes,
        since_ms=decode(message.since_ms, I64, name="since_ms", rows=pods),
        grace_ms=decode(message.grace_ms, U32, name="grace_ms", rows=pods),
        specs=tuple(map(_spec_of, message.class_specs)),
        budgets=tuple(
            DisruptionBudget(
                b.namespace, selector_from_proto(b.selector) if b.HasField("selector") else None, b.allowed
            )
            for b in message.budgets
        ),
        seen={position.shard: position.seq for position in message.seen},
        held=message.held,
    )


@lru_cache(maxsize=8192)
def _spec_of(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(parsed(common_pb2.PodSpec, spec, name="class_specs"))


def verdicts(message: resolver_pb2.VerdictBatch, pods: int) -> Verdicts:
    """The answer to a proposal of `pods` pods."""
    codes = decode(message.verdicts, U8, name="verdicts", rows=pods)
    duplicates = int(np.count_nonzero(codes == VerdictCode.DUPLICATE))
    return Verdicts(
        seq=message.seq,
        verdicts=codes,
        nodes=decode(message.nodes, U32, name="nodes", rows=pods),
        duplicate_seqs=decode(message.duplicate_seqs, U64, name="duplicate_seqs", rows=duplicates),
        fresh=account_batch(message.fresh),
        as_of=message.as_of_seq,
        awaits=tuple((position.shard, position.seq) for position in message.awaits),
    )


def add_refusals(report: RefusalReport, heartbeat: workerlink_pb2.Heartbeat) -> None:
    """Put a report of refusals into a heartbeat."""
    heartbeat.refusal_winners = encode(report.winners, U64)
    heartbeat.refusal_verdicts = encode(report.verdicts, U8)
    heartbeat.refusal_counts = encode(report.counts, U32)
    heartbeat.refusing_nodes = encode(report.nodes, U32)
    heartbeat.refusal_seqs_behind = encode(report.seqs_behind, U32)
    heartbeat.refusal_ages_ms = encode(report.ages_ms, U32)


def surroundings(message: objects_pb2.Surroundings) -> tuple[NamespaceLabels, tuple[Service, ...]]:
    """Namespaces' labels by name, and the services."""
    namespaces = {entry.name: namespace_from_proto(entry).all_labels for entry in message.namespaces}
    return namespaces, tuple(map(service_from_proto, message.services))


def device_update(update: StorageUpdate) -> DeviceUpdate:
    """The device objects of an update, read. What cannot be read does not exist: the dispatcher's log names
    it."""
    objects: list[DeviceObject] = []
    unreadable: list[ObjectKey] = []
    for item in update.objects:
        if isinstance(item, DeviceManifest):
            try:
                found = read_device_object(orjson.loads(item.text), item.kind)
            except InvalidInput:
                unreadable.append(storage_key_of(item))
            else:
                objects += [] if found is None else [found]
    gone = tuple(key for key in update.gone if key.kind in DEVICE_KINDS)
    return DeviceUpdate(tuple(objects), (*gone, *unreadable), update.complete)


def cache_view(request_id: int, cache: NodeInfoCache, *, idle: bool) -> workerlink_pb2.CacheView:
    """The cache's seq and digest of each shard: the answer to that request."""
    return workerlink_pb2.CacheView(
        id=request_id,
        shards=[
            workerlink_pb2.ShardView(shard=shard, seq=seq, digest=cache.digest(shard))
            for shard, seq in sorted(cache.seqs.items())
        ],
        idle=idle,
    )


def preference(message: workerlink_pb2.Preference) -> Preference | None:
    """The preference among equally good nodes; None for an unknown overlap."""
    if message.overlap not in {overlap.value for overlap in Overlap}:
        return None
    return Preference(Overlap(message.overlap), message.number, max(1, message.shares))


def outcomes(columns: OutcomeColumns) -> workerlink_pb2.WorkerMessage:
    """Outcomes as the dispatcher reads them."""
    return workerlink_pb2.WorkerMessage(
        outcomes=workerlink_pb2.Outcomes(
            batch_id=columns.batch_id,
            positions=encode(columns.positions, U32),
            codes=encode(columns.codes, U8),
            nodes=encode(columns.nodes, U32),
            reasons=b"" if columns.reasons is None else encode(columns.reasons, U16),
            reason_texts=columns.reason_texts,
            commits=[workerlink_pb2.CommitRef(shard=shard, seq=seq) for shard, seq in columns.commits],
            refused_by=[
                workerlink_pb2.RefusedBy(plugins=sorted(plugins), failed=failed)
                for plugins, failed in zip(columns.refused_by, columns.failed, strict=True)
            ],
            seen=[workerlink_pb2.CommitRef(shard=shard, seq=seq) for shard, seq in columns.seen],
            leaving_ms=b"" if columns.leaving_ms is None else encode(columns.leaving_ms, U32),
            deciding_seconds=columns.deciding_seconds,
            committing_seconds=columns.committing_seconds,
            refused=b"" if columns.refused is None else encode(columns.refused, U32),
        )
    )


def work_columns(
    batch: workerlink_pb2.WorkBatch,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint16]]:
    """Class, count and attempts of each run."""
    classes = decode(batch.run_classes, U32, name="run_classes")
    counts = decode(batch.run_counts, U32, name="run_counts", rows=len(classes))
    attempts = decode(batch.run_attempts, U16, name="run_attempts")
    if len(attempts) not in (0, len(classes)):
        raise ColumnError(f"{len(attempts)} rows where {len(classes)} are expected", where="run_attempts")
    return classes, counts, attempts if len(attempts) else np.zeros(len(classes), np.uint16)
