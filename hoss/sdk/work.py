"""Work batches: what a message of the dispatcher says, what of it the SDK takes, and the proposals that carry
an algorithm's answer. Nothing here keeps state."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.placing import NO_NODE, PlacementBatch
from hoss.model.pod import PodSpec, group_of
from hoss.sdk.view import ProposedPods
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as rpb
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import (
    I32,
    I64,
    U16,
    U32,
    Uids,
    decode,
    decode_uids,
    encode,
)
from hoss.wire.convert import conflict_rule_from_proto, scope_from_proto
from hoss.wire.convert_rules import definition_of

Rows = NDArray[np.intp]  # positions in a work batch


@dataclass(slots=True, eq=False)
class BatchInHand:
    """A work batch."""

    id: int
    uids: Uids
    classes: NDArray[np.uint32]  # (n,)
    attempts: NDArray[np.uint16]  # (n,)
    specs: Mapping[int, PodSpec]  # of its classes
    conflicts: ConflictRule
    tries: NDArray[np.uint8] = field(init=False)  # (n,): proposals that the ledger refused

    def __post_init__(self) -> None:
        self.tries = np.zeros(len(self.uids), np.uint8)


def unsupported(spec: PodSpec, *, cards: bool = False) -> str:
    """What of the spec an SDK scheduler does not take into account, though it must; empty: nothing. `cards`:
    its algorithm places pods with cards."""
    affinity = spec.pod_affinity
    found = {
        "required pod affinity or anti-affinity": affinity is not None
        and bool(affinity.required or affinity.anti_required),
        "required topology spread": any(constraint.required for constraint in spec.spread),
        "volumes": spec.volumes is not None,
        "resource claims": spec.claims is not None,
        "host ports": bool(spec.host_ports),
        "cards": spec.devices is not None and not cards,
    }
    return ", ".join(name for name, given in found.items() if given)


def work_of(message: pb.WorkBatch, specs: Mapping[int, PodSpec]) -> BatchInHand:
    """A work batch. `specs`: of its classes and earlier ones, by number. Raises InvalidInput for columns that
    do not belong together."""
    scope = scope_from_proto(message.scope) if message.HasField("scope") else None
    counts = decode(message.run_counts, U32, name="run_counts")
    numbers = decode(message.run_classes, U32, name="run_classes", rows=len(counts))
    attempts = decode(message.run_attempts, U16, name="run_attempts")
    return BatchInHand(
        message.batch_id,
        decode_uids(message.uids),
        np.repeat(numbers, counts),
        np.repeat(attempts if len(attempts) else np.zeros(len(counts), np.uint16), counts),
        {number: replace(specs[number], scope=scope) for number in numbers.tolist()},
        conflict_rule_from_proto(message.conflicts)
        if message.HasField("conflicts")
        else DEFAULT_CONFLICT_RULE,
    )


def proposals_of(
    work: BatchInHand, rows: Rows, batch: PlacementBatch, nodes: NDArray[np.intp], *, shards: int
) -> Iterator[tuple[Rows, ProposedPods, rpb.ProposalBatch]]:
    """For each shard with any of the nodes: which pods of the placed batch, what they take, and the proposal
    without what its sender knows (worker, epoch, numbers). `nodes`: one for each row, or NO_NODE."""
    of_run = np.repeat(np.arange(len(batch.runs)), [run.count for run in batch.runs])
    requests = np.array([run.request for run in batch.runs], np.int64)
    devices = np.zeros((len(batch.runs), 2), np.uint16)
    for slot, run in enumerate(batch.runs):
        if run.spec.devices is not None:
            devices[slot] = run.spec.devices.count, run.spec.devices.milli
    carded = bool(devices.any())
    definitions = [definition_of(group_of(run.spec)) for run in batch.runs]
    positions = {definition: number for number, definition in enumerate(dict.fromkeys(definitions))}
    firsts = [rows[run.first] for run in batch.runs]
    shards = max(shards, 1)
    for shard in np.unique(nodes[nodes != NO_NODE] % shards).tolist():
        at = np.flatnonzero((nodes != NO_NODE) & (nodes % shards == shard))
        pods = ProposedPods(shard, nodes[at], requests[of_run[at]], devices[of_run[at]] if carded else None)
        yield (
            at,
            pods,
            rpb.ProposalBatch(
                shard=shard,
                resources=requests.shape[1],
                uids=work.uids[rows[at]].tobytes(),
                slots=encode(of_run[at], U16),
                candidates=1,
                nodes=encode(nodes[at], U32),
                requests=encode(requests, I64),
                devices=encode(devices, U16) if carded else b"",
                priorities=encode([run.spec.priority for run in batch.runs], I32),
                attempts=encode(work.attempts[firsts], U16),
                groups=positions,
                slot_groups=encode([positions[definition] for definition in definitions], U16),
                criteria=common_pb2.Criteria.Name(work.conflicts.criteria),
                displace_gap=work.conflicts.displace_gap,
            ),
        )
