"""Converts between hoss.v1's proposal and verdict messages and the values of resolver.core.

A proposal is checked as a whole before anything is written: lengths, ranges, and that it belongs on its
shard."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ColumnError, InvalidInput, quoted
from hoss.model.conflicts import Criteria
from hoss.model.pod import HostPort, PodAffinityTerm
from hoss.model.resources import MAX_AMOUNT, PODS, WHOLE_CARD_MILLI
from hoss.model.selectors import LabelSelector
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import (
    CARD_SLOTS,
    I32,
    I64,
    MAX_CANDIDATES,
    NONE_U32,
    U8,
    U16,
    U32,
    U64,
    decode,
    decode_uids,
)
from hoss.wire.convert_devices import held_claim_from_proto
from hoss.wire.convert_rules import affinity_from_proto, constraint_from_proto, group_key, parsed
from hoss.wire.convert_selectors import labels_from_proto
from resolver.core.rules import RESERVED_NAMES, PlacementRule
from resolver.core.values import (
    MAX_BATCH_PODS,
    MAX_BATCH_VICTIMS,
    AccountRows,
    Decision,
    Group,
    GroupRun,
    Proposal,
    Reservations,
    claim_of,
)

_MAX_NAME_BYTES = 253  # the limit of Kubernetes names
# What no name of an object has, because names are segments of the API server's paths
# (IsValidPathSegmentName of apimachinery), and what ends a path in a URL.
_ENDS_OF_SEGMENTS = frozenset("/%?#")


def read_proposal(
    batch: pb.ProposalBatch,
    *,
    shards: int,
    schema: int,
    allow_unchecked: bool,
    victims_terminate: bool = False,
) -> Proposal:
    """Check a batch. `schema`: the number of resources. Raises InvalidInput that names the field."""
    if batch.shard >= shards:
        raise InvalidInput(f"{batch.shard} where the ledger has shards 0 to {shards - 1}", where="shard")
    check_worker(batch.worker)
    if batch.unchecked and not allow_unchecked:
        raise InvalidInput(
            "this resolver validates every proposal (allow_unchecked is off)", where="unchecked"
        )
    if max(batch.epoch, batch.snapshot_seq, batch.sending) > MAX_AMOUNT:
        raise InvalidInput("the ledger counts to 2^53", where="epoch, snapshot_seq, sending")
    uids = decode_uids(batch.uids)
    if not 0 < len(uids) <= MAX_BATCH_PODS:
        raise InvalidInput(f"{len(uids)} pods where a batch has 1 to {MAX_BATCH_PODS}", where="uids")
    priorities = decode(batch.priorities, I32, name="priorities")
    if len(priorities) > MAX_BATCH_PODS or len(batch.groups) > MAX_BATCH_PODS:
        raise InvalidInput(
            f"{len(priorities)} slots and {len(batch.groups)} groups where a batch has up to "
            f"{MAX_BATCH_PODS} of each",
            where="priorities, groups",
        )
    slots = decode(batch.slots, U16, name="slots", rows=len(uids))
    if not len(priorities) or int(slots.max()) >= len(priorities):
        raise ColumnError(f"slot {int(slots.max())} where there are {len(priorities)}", where="slots")
    return Proposal(
        worker=batch.worker,
        epoch=batch.epoch,
        snapshot_seq=batch.snapshot_seq,
        uids=uids,
        slots=slots,
        nodes=_candidates(batch, len(uids), shards),
        requests=_requests(batch, len(priorities), schema),
        priorities=priorities,
        attempts=decode(batch.attempts, U16, name="attempts", rows=len(priorities)),
        devices=_devices(batch, len(priorities)),
        unchecked=batch.unchecked,
        groups=_groups(batch, len(priorities)),
        gang_minimum=batch.gang_minimum,
        seen=_seen(batch, shards),
        firsts=tuple(first == 1 for first in decode(batch.firsts, U8, name="firsts", rows=len(priorities)))
        if batch.firsts
        else (),
        places=decode(batch.places, U16, name="places", rows=len(uids)) if batch.places else None,
        victims=_victims(batch, len(uids)),
        victims_must_go=batch.victims_must_go,
        victims_terminate=victims_terminate,
        criteria=_criteria(batch.criteria),
        displace_gap=_displace_gap(batch),
        sending=batch.sending,
        pre_binds=batch.pre_bind,
    )


def read_announcement(batch: pb.ProposalBatch) -> list[Group]:
    """The groups of a batch without pods. Raises InvalidInput that names the field."""
    check_worker(batch.worker)
    if len(batch.groups) > MAX_BATCH_PODS:
        raise InvalidInput(f"{len(batch.groups)} where a batch has up to {MAX_BATCH_PODS}", where="groups")
    return [group_of(definition) for definition in batch.groups]


def check_worker(name: str) -> None:
    """Raise InvalidInput for an invalid worker name."""
    if not 0 < len(name.encode()) <= _MAX_NAME_BYTES:
        raise InvalidInput(f"needs 1 to {_MAX_NAME_BYTES} bytes, has {len(name.encode())}", where="worker")


def _displace_gap(batch: pb.ProposalBatch) -> int:
    if batch.displace_gap and (batch.gang_minimum or batch.parts):
        raise InvalidInput(
            "a gang, or a proposal that several shards decide, preempts nobody", where="displace_gap"
        )
    return batch.displace_gap


def _criteria(number: int) -> Criteria:
    try:
        return Criteria(number)
    except ValueError as exc:
        known = ", ".join(f"{criteria.value} ({criteria.name})" for criteria in Criteria)
        raise InvalidInput(f"{number} is none of {known}", where="criteria") from exc


def _seen(batch: pb.ProposalBatch, shards: int) -> tuple[int, ...]:
    seen = decode(batch.seen, U64, name="seen", rows=shards) if batch.seen else np.empty(0, np.uint64)
    if int(seen.max(initial=0)) > MAX_AMOUNT:
        raise InvalidInput("the ledger counts to 2^53", where="seen")
    return tuple(seen.tolist())


def _victims(batch: pb.ProposalBatch, pods: int) -> dict[int, tuple[bytes, ...]]:
    """By position of the pod for which they go."""
    if not batch.victim_uids:
        return {}
    uids = decode_uids(batch.victim_uids, name="victim_uids")
    counts = decode(batch.victim_counts, U16, name="victim_counts", rows=pods).astype(np.int64)
    if int(counts.sum()) != len(uids):
        raise ColumnError(
            f"{int(counts.sum())} in all where there are {len(uids)} victims", where="victim_counts"
        )
    if len(uids) > MAX_BATCH_VICTIMS or batch.gang_minimum:
        raise InvalidInput(
            f"{len(uids)} pods; up to {MAX_BATCH_VICTIMS} are evicted for the pods of a batch, "
            "and nobody for a gang",
            where="victim_uids",
        )
    if len(np.unique(uids, axis=0)) < len(uids):
        raise InvalidInput("a pod is listed twice", where="victim_uids")
    ends = np.cumsum(counts).tolist()
    return {
        position: tuple(uid.tobytes() for uid in uids[end - count : end])
        for position, (count, end) in enumerate(zip(counts.tolist(), ends, strict=True))
        if count
    }


def _groups(batch: pb.ProposalBatch, slots: int) -> tuple[Group | None, ...]:
    if not batch.slot_groups:
        return ()
    positions = decode(batch.slot_groups, U16, name="slot_groups", rows=slots)
    if int(positions.max()) >= len(batch.groups):
        raise ColumnError(
            f"group {int(positions.max())} where there are {len(batch.groups)}", where="slot_groups"
        )
    groups = [group_of(definition) for definition in batch.groups]
    return tuple(groups[position] for position in positions.tolist())


@lru_cache(maxsize=4096)
def group_of(definition: bytes) -> Group:
    """The group of a PodGroup message. Raises InvalidInput for anything else, for invalid ports, and for
    names of claims and volumes that no object can have."""
    message = parsed(pb.PodGroup, definition, name="groups")
    ports = [HostPort(p.port, p.protocol or "TCP", p.host_ip) for p in message.host_ports]
    try:
        claims = tuple(claim_of(port) for port in ports)
    except (ValueError, OverflowError) as exc:
        named = ", ".join(f"{p.port}/{p.protocol}" for p in ports)
        raise InvalidInput(f"{named}: ports go to 65535 and are of TCP, UDP or SCTP", where="groups") from exc
    labels = labels_from_proto(message.labels)
    if not all(message.reserved_names):
        raise InvalidInput("one is empty", where="groups.reserved_names")
    for mount in message.volumes.claims:
        # A worker chose them, and the binder asks the API server for them with the resolver's rights.
        _check_object_name(mount.claim, "groups.volumes.claims.claim")
        if mount.volume:
            _check_object_name(mount.volume, "groups.volumes.claims.volume")
    for held in message.held_claims:
        held_claim_from_proto(held)  # workers that hear of it must be able to read its amounts
    return Group(
        group_key(definition),
        definition,
        claims,
        message.namespace,
        labels,
        tuple(_rules(message)),
        message.tolerates_cordon,
        tuple(sorted(set(message.reserved_names))),
    )


def _check_object_name(name: str, where: str) -> None:
    fits = 0 < len(name.encode()) <= _MAX_NAME_BYTES and name not in (".", "..") and name.isprintable()
    if not fits or not _ENDS_OF_SEGMENTS.isdisjoint(name):
        raise InvalidInput(f"{quoted(name)} cannot be the name of an object", where=where)


def _rules(message: pb.PodGroup) -> Iterator[PlacementRule]:
    """Required anti-affinity, DoNotSchedule constraints, affinity of pods to their own kind, and names. A
    rule without a selector selects nothing, so it is none.

    Which names a pod takes depends on its node. Its volumes and claims alone say that it will take some."""
    affinity = affinity_from_proto(message.affinity)
    for term in affinity.anti_required:
        if term.selector is not None:
            yield _rule(term, term.selector)
    for constraint in map(constraint_from_proto, message.spread):
        # An empty selector: kube-scheduler counts no pods for it.
        if constraint.selector is not None and not constraint.selector.everything:
            yield PlacementRule(
                constraint.topology_key, constraint.selector, (message.namespace,), anti_affinity=False
            )
    own = [_rule(t, t.selector, self_affinity=True) for t in affinity.required if t.selector is not None]
    labels = labels_from_proto(message.labels)
    if (
        own
        and len(own) == len(affinity.required)
        and all(rule.matches(message.namespace, labels) for rule in own)
    ):
        yield own[0]  # for pods of the kind all terms agree, so the first is enough
    if message.reserved_names or message.HasField("volumes") or message.claims_devices:
        yield RESERVED_NAMES


def _rule(term: PodAffinityTerm, selector: LabelSelector, *, self_affinity: bool = False) -> PlacementRule:
    return PlacementRule(
        term.topology_key,
        selector,
        term.namespaces,
        every_namespace=term.namespace_selector is not None,
        anti_affinity=not self_affinity,
        self_affinity=self_affinity,
    )


def read_gang(parts: Sequence[pb.ProposalBatch], proposals: Sequence[Proposal]) -> None:
    """Check what the parts of a whole have in common. The first part carries the others. Raises
    InvalidInput."""
    whole = parts[0]
    pods = sum(len(proposal) for proposal in proposals)
    if not whole.gang_minimum <= pods <= MAX_BATCH_PODS:
        raise InvalidInput(
            f"{whole.gang_minimum} of {pods} pods; a gang has up to {MAX_BATCH_PODS} and as many "
            "as its minimum",
            where="gang_minimum",
        )
    if any(p.seen != proposals[0].seen or p.unchecked != proposals[0].unchecked for p in proposals):
        raise InvalidInput("parts are of one worker's one view, and checked or not as one", where="parts")
    if len({(part.worker, part.epoch, part.sending) for part in parts}) > 1:
        raise InvalidInput("parts are of one worker, epoch and sending", where="parts")
    if any(part.parts for part in whole.parts):
        raise InvalidInput("parts have no parts themselves", where="parts")
    if len({part.shard for part in parts}) < len(parts):
        raise InvalidInput("has two parts on one shard", where="parts")
    if len(np.unique(np.concatenate([p.uids for p in proposals]), axis=0)) < pods:
        raise InvalidInput("a pod is in the whole twice", where="uids")


def _candidates(batch: pb.ProposalBatch, pods: int, shards: int) -> NDArray[np.uint32]:
    if not 0 < batch.candidates <= MAX_CANDIDATES:
        raise InvalidInput(f"{batch.candidates} where a pod has 1 to {MAX_CANDIDATES}", where="candidates")
    nodes = decode(batch.nodes, U32, name="nodes", rows=pods * batch.candidates).reshape(
        pods, batch.candidates
    )
    if (nodes[:, 0] == NONE_U32).any():
        raise ColumnError("a pod has no first candidate", where="nodes")
    if shards > 1:
        misplaced = nodes[(nodes % shards != batch.shard) & (nodes != NONE_U32)]
        if len(misplaced):
            raise ColumnError(f"node {misplaced[0]} is not on shard {batch.shard} of {shards}", where="nodes")
    return nodes


def _requests(batch: pb.ProposalBatch, slots: int, schema: int) -> NDArray[np.int64]:
    if not PODS < batch.resources <= schema:
        raise InvalidInput(
            f"{batch.resources} where the schema has {schema} and pods are counted", where="resources"
        )
    requests = decode(batch.requests, I64, name="requests", rows=slots * batch.resources).reshape(slots, -1)
    if int(requests.min()) < 0 or int(requests.max()) > MAX_AMOUNT:
        wrong = requests[(requests < 0) | (requests > MAX_AMOUNT)][0]
        raise ColumnError(f"{wrong} is not between 0 and 2^53", where="requests")
    if (requests[:, PODS] != 1).any():
        raise ColumnError("every pod counts as one of the resource pods", where="requests")
    return requests


def _devices(batch: pb.ProposalBatch, slots: int) -> NDArray[np.uint16] | None:
    if not batch.devices:
        return None
    devices = decode(batch.devices, U16, name="devices", rows=slots * 2).reshape(slots, 2)
    count, milli = devices[:, 0], devices[:, 1]
    good = (count == 0) | ((count <= CARD_SLOTS) & (milli > 0) & (milli <= WHOLE_CARD_MILLI))
    if not good.all():
        wrong = devices[~good][0].tolist()
        raise ColumnError(
            f"{wrong} where count is up to {CARD_SLOTS} and milli 1 to {WHOLE_CARD_MILLI}", where="devices"
        )
    return devices if count.any() else None


def verdict_message(batch_id: int, shard: int, decision: Decision) -> pb.VerdictBatch:
    """The answer to a proposal that was decided."""
    message = pb.VerdictBatch(
        batch_id=batch_id,
        shard=shard,
        seq=decision.seq,
        verdicts=decision.verdicts.tobytes(),
        nodes=decision.nodes.tobytes(),
        duplicate_seqs=decision.duplicate_seqs.tobytes(),
        as_of_seq=decision.as_of,
        evidence=decision.conflicts.tobytes(),
        awaits=[pb.ShardPosition(shard=of_shard, seq=seq) for of_shard, seq in decision.awaits],
    )
    if decision.fresh.indexes:
        message.fresh.CopyFrom(accounts_message(decision.fresh))
    return message


def accounts_message(rows: AccountRows) -> pb.Accounts:
    return pb.Accounts(
        resources=rows.resources,
        indexes=rows.indexes,
        records=rows.records,
        card_indexes=rows.card_indexes,
        cards=rows.cards,
    )


def group_runs_message(runs: Iterable[GroupRun]) -> list[pb.GroupRun]:
    return [pb.GroupRun(group=r.definition, nodes=r.nodes, gone=r.gone) for r in runs]


def reservation_chunk(shard: int, part: Reservations) -> pb.ReservationChunk:
    """Reservations as columns, without schema and names."""
    records = part.records
    requests = np.ascontiguousarray(records["requests"])
    return pb.ReservationChunk(
        shard=shard,
        uids=np.ascontiguousarray(part.uids).tobytes(),
        nodes=records["node"].tobytes(),
        seqs=records["seq"].tobytes(),
        epochs=records["epoch"].tobytes(),
        priorities=records["priority"].tobytes(),
        attempts=records["attempt"].tobytes(),
        card_masks=records["card_mask"].tobytes(),
        card_millis=records["card_milli"].tobytes(),
        resources=requests.shape[1],
        requests=requests.tobytes(),
        assumed=part.assumed.astype(np.uint8).tobytes(),
        states=part.states.tobytes(),
        groups=records["group"].tobytes(),
    )
