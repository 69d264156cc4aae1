"""Converts between NumPy columns and the arguments and replies of the scripts.

A script has one argument: a MessagePack map with names (lua/prelude.lua). Values with many elements are
MessagePack arrays of elements with a fixed width. NumPy writes such an array in one step, and one call of
`cmsgpack.unpack` reads it in Redis: 0.14 us per pod for UIDs and nodes together."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import Criteria
from hoss.wire.columns import U16, U32, U64
from resolver.core.moves import Moves, target_uids
from resolver.core.rules import (
    PlacementConstraint,
    PlacementRule,
    RegisteredRule,
    RuleBook,
    RuleQuery,
    packed,
    unpacked,
)
from resolver.core.values import CONFLICT, MOVE_TARGET, PRE_BINDS, Decision, Proposal, Verdict
from resolver.ledger import stored

_FIXED_STRING = 0xA0  # MessagePack: a string of up to 31 bytes, the length in the low bits
_UINT16 = 0xCD
_ONE_ELEMENT = b"\xdd\0\0\0\1"  # MessagePack: an array of one, with the length of `_array`
_FIXED_MAP_MEMBERS = 15  # MessagePack: with more, a map begins with three bytes instead of one

Members = Mapping[str, Any]
"""Of a script's argument. `Packed` values are MessagePack already."""


class Packed(bytes):
    """MessagePack of one value, which is put into an argument as it is."""


_CRITERIA = {Criteria.FIT: "", Criteria.VERSION: "version", Criteria.STRICT: "strict"}

SlotConstraints = tuple[tuple[PlacementConstraint, ...], ...]  # by slot; empty: no rule concerns the pods

_NO_REFUSALS = (Verdict.COMMITTED, Verdict.DUPLICATE, Verdict.STALE_EPOCH, Verdict.GANG_ABORTED)

_POSITION = np.dtype([("shard", "<u4"), ("seq", "<u8")])
_LOOKUP = np.dtype([("node", "<u4"), ("seq", "<u8"), ("epoch", "<u8"), ("state", "u1")])


def argument(members: Members) -> bytes:
    """A script's argument: a MessagePack map of these members. Those that are None are left out."""
    plain = {n: v for n, v in members.items() if v is not None and not isinstance(v, Packed)}
    packed = {n: v for n, v in members.items() if isinstance(v, Packed)}
    body: bytes = msgpack.packb(plain, use_bin_type=False)
    parts = [b"\xde", (len(plain) + len(packed)).to_bytes(2, "big")]
    parts.append(body[1 if len(plain) <= _FIXED_MAP_MEMBERS else 3 :])
    for name, value in packed.items():
        parts += [_packed_name(name), value]
    return b"".join(parts)


@cache
def _packed_name(name: str) -> bytes:
    packed: bytes = msgpack.packb(name)
    return packed


def string_array(values: NDArray[Any]) -> Packed:
    """MessagePack array of n strings, from an (n, width) array of bytes or (n,) items of that width (at most
    31)."""
    width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
    if len(values) == 1:  # the binding webhook's proposals: NumPy takes five times as long
        return Packed(_ONE_ELEMENT + bytes((_FIXED_STRING | width,)) + values.tobytes())
    strings = np.ascontiguousarray(values).view(f"V{width}").reshape(-1)
    return _array(len(strings), _FIXED_STRING | width, strings, f"V{width}")


def uint16_array(values: NDArray[Any]) -> Packed:
    """MessagePack array of small integers."""
    if len(values) == 1:
        return Packed(_ONE_ELEMENT + bytes((_UINT16,)) + int(values[0]).to_bytes(2, "big"))
    return _array(len(values), _UINT16, values, ">u2")


@cache
def _tagged(element: str) -> np.dtype[Any]:
    return np.dtype([("tag", "u1"), ("value", element)])


def _array(count: int, tag: int, values: NDArray[Any], element: str) -> Packed:
    packed = np.empty(count, _tagged(element))
    packed["tag"] = tag
    packed["value"] = values
    return Packed(b"\xdd" + count.to_bytes(4, "big") + packed.tobytes())


@cache
def slot_dtype(resources: int) -> np.dtype[Any]:
    """What the pods of a slot share, as lua/proposal.lua reads it."""
    return np.dtype(
        [
            ("priority", "<i4"),
            ("attempt", "<u2"),
            ("flags", "<u2"),
            ("group", "<u8"),
            ("requests", "<i8", (resources,)),
        ]
    )


def commit_arguments(
    proposal: Proposal,
    order: NDArray[np.intp] | None,
    constraints: SlotConstraints,
    *,
    lease_ms: int,
    rules_version: int,
    shards: int,
    prepared: bool,
) -> Members:
    """What commit.lua and move.lua have besides the writer."""
    uids, slots, nodes, sources = proposal.uids, proposal.slots, proposal.nodes, proposal.source_seqs
    if order is not None:
        uids, slots, nodes = uids[order], slots[order], nodes[order]
        sources = None if sources is None else sources[order]
    count, resources = proposal.requests.shape
    shared = np.zeros(count, slot_dtype(resources))
    shared["priority"] = proposal.priorities
    shared["attempt"] = proposal.attempts
    shared["requests"] = proposal.requests
    if proposal.groups:
        shared["group"] = [0 if group is None else group.key for group in proposal.groups]
        shared["flags"] = [0 if group is None else group.flags for group in proposal.groups]
    shared["flags"] |= MOVE_TARGET * proposal.moves | PRE_BINDS * proposal.pre_binds
    alternates = nodes.shape[1] - 1
    return {
        "uids": string_array(uids),
        "slots": uint16_array(slots),
        "first": string_array(nodes[:, 0].astype(U32)),
        "alternates_each": alternates,
        # Not unpacked with the rest: most batches need none.
        "alternates": bytes(string_array(nodes[:, 1:].astype(U32).reshape(-1))) if alternates else None,
        "victims": _victims(proposal, order) if proposal.victims else None,
        "resources": resources,
        "shared": shared.tobytes(),
        "cards": None if proposal.devices is None else proposal.devices.astype(U16).tobytes(),
        "constraints": [_constraint_values(of_slot) for of_slot in constraints],
        "groups": _groups(proposal),
        "rules": str(rules_version) if proposal.groups else None,
        "sending": proposal.sending,
        "snapshot_seq": proposal.snapshot_seq,
        "seen": seqs(proposal.seen_of(shards)),
        "unchecked": proposal.unchecked or proposal.existing,
        "existing": proposal.existing,
        "gang_minimum": proposal.gang_minimum,
        "criteria": _CRITERIA[proposal.criteria],
        "lease_ms": lease_ms,
        "prepare_only": prepared,
        "victims_must_go": proposal.victims_must_go,
        "victims_assumed": proposal.victims_assumed,
        "victims_terminate": proposal.victims_terminate,
        "source_seqs": None if sources is None else sources.astype(U64).tobytes(),
    }


def slot_constraints(proposal: Proposal, book: RuleBook) -> SlotConstraints:
    """What the rules mean for the pods of each slot; empty if no rule concerns any pod of the proposal."""
    # The parts of a proposal have all its slots.
    slots = len(proposal.groups)
    pods = [len(proposal)] if slots == 1 else np.bincount(proposal.slots, minlength=slots)
    found = tuple(
        book.constraints(group, first=proposal.first(slot)) if pods[slot] else ()
        for slot, group in enumerate(proposal.groups)
    )
    return found if any(found) else ()


def _constraint_values(of_slot: Sequence[PlacementConstraint]) -> list[bytes | int | str]:
    return [
        value
        for constraint in of_slot
        for value in (
            constraint.key.to_bytes(8, "little"),
            constraint.registered.born,
            constraint.topology_key,
            constraint.recorded_roles,
            constraint.relies_on,
            int(constraint.counts_on_matches),
        )
    ]


def seqs(of_shards: Sequence[int]) -> bytes:
    """One seq per shard."""
    return np.array(of_shards, U64).tobytes()


def _victims(proposal: Proposal, order: NDArray[np.intp] | None) -> dict[int, list[bytes]]:
    """By position in serving order, from 1."""
    served = range(len(proposal)) if order is None else order.tolist()
    return {place: list(proposal.victims[p]) for place, p in enumerate(served, 1) if p in proposal.victims}


def query_arguments(queries: Sequence[RuleQuery]) -> list[Any]:
    """Pods to validate, for validate.lua."""
    return [
        (
            _constraint_values(q.constraints),
            [False if domain is None else domain for domain in q.domains],
            q.shard,
            q.seq,
        )
        for q in queries
    ]


def read_validation(reply: bytes) -> list[tuple[int, int] | None]:
    """The reply of validate.lua."""
    return [(shard, seq) if seq else None for shard, seq in np.frombuffer(reply, _POSITION).tolist()]


def reserves(decision: Decision) -> bool:
    """Whether any of its pods has a reservation."""
    return bool(decision.seq) or len(decision.duplicate_seqs) > 0


def read_queries(
    reply: Sequence[Any],
    decision: Decision,
    slots: Sequence[int],
    constraints: SlotConstraints,
    order: NDArray[np.intp] | None,
) -> tuple[RuleQuery | None, ...]:
    """The pods that commit.lua left for validation, by position, without the shard."""
    refused = ~np.isin(decision.verdicts, _NO_REFUSALS)
    found = [
        RuleQuery(constraints[s]) if out and constraints[s] else None
        for s, out in zip(slots, refused.tolist(), strict=True)
    ]
    flat = msgpack.unpackb(reply[11]) if reply[11] else ()
    for served, seq, domains in zip(*(iter(flat),) * 3, strict=True):
        position = served if order is None else int(order[served])
        named = tuple(None if domain is False else domain for domain in domains)
        found[position] = RuleQuery(constraints[slots[position]], named, seq=seq)
    return tuple(found) if any(found) else ()


def move_arguments(moves: Moves, shards: int, shard: int) -> Members:
    """What confirm_moves.lua has besides the writer."""
    here = moves.sources % np.uint32(shards) == shard
    of_successors = moves.successors is not None
    where = np.full(len(moves), ord("-")) if of_successors else np.where(here, ord("1"), ord("0"))
    return {
        "uids": string_array(moves.uids if moves.successors is None else moves.successors),
        "targets": string_array(target_uids(moves.uids)),
        "nodes": string_array(moves.nodes.astype(U32)),
        "seqs": moves.seqs.astype(U64).tobytes(),
        "sources": string_array(moves.sources.astype(U32)),
        "source_seqs": moves.source_seqs.astype(U64).tobytes(),
        "here": where.astype(np.uint8).tobytes(),
    }


def rule_arguments(rules: dict[int, PlacementRule]) -> list[bytes]:
    """Keys and records, for register_rules.lua."""
    return [
        part
        for key, rule in rules.items()
        for part in (key.to_bytes(8, "little"), msgpack.packb(packed(rule)))
    ]


def read_rules(
    records: Mapping[bytes, bytes], at: int, decoded: dict[bytes, PlacementRule]
) -> tuple[dict[int, RegisteredRule], dict[bytes, bytes]]:
    """The rules of a shard that is at the seq `at`, from Redis, by key; and the records that were damaged.

    `decoded`: rules by field and packed rule, which are not decoded again. Those that are not among them are
    added."""
    known, damaged = {}, {}
    for field, record in records.items():
        packed_rule = field + record[8:]
        rule, born = decoded.get(packed_rule), int.from_bytes(record[:8], "little")
        if rule is None:
            rule = _read_rule(field, record[8:])
        if rule is not None:
            decoded[packed_rule] = rule
        if rule is not None and born <= at:
            known[rule.key] = RegisteredRule(rule, born)
        else:
            damaged[field] = record
    return known, damaged


def _read_rule(field: bytes, packed_rule: bytes) -> PlacementRule | None:
    """None: it was damaged."""
    try:
        rule = unpacked(msgpack.unpackb(packed_rule))
        return rule if rule.key == int.from_bytes(field, "little") else None
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def _groups(proposal: Proposal) -> list[bytes]:
    groups = {group.key: group for group in proposal.groups if group is not None}.values()
    return [part for g in groups for part in (g.key.to_bytes(8, "little"), g.definition, b"".join(g.ports))]


def read_decision(reply: Sequence[Any], order: NDArray[np.intp] | None) -> Decision:
    """The reply of commit.lua, in the proposal's order."""
    seq, verdicts_raw, nodes_raw, conflicts_raw, duplicates_raw = reply[:5]
    verdicts = np.frombuffer(verdicts_raw, np.uint8)
    nodes = np.frombuffer(nodes_raw, U32)
    conflicts = np.frombuffer(conflicts_raw, CONFLICT)
    duplicate_seqs = np.frombuffer(duplicates_raw, U64)
    if order is not None:
        served_verdicts, verdicts, nodes = verdicts, _placed(verdicts, order), _placed(nodes, order)
        if len(conflicts):
            conflicts = conflicts.copy()
            conflicts["position"] = order[conflicts["position"]]
            conflicts = conflicts[np.argsort(conflicts["position"], kind="stable")]
        if len(duplicate_seqs):
            duplicate_seqs = duplicate_seqs[
                np.argsort(order[served_verdicts == Verdict.DUPLICATE], kind="stable")
            ]
    fresh = stored.account_rows(*reply[5:10])
    return Decision(int(seq), verdicts, nodes, conflicts, duplicate_seqs, fresh, int(reply[10]))


def _placed(served: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
    placed = np.empty_like(served)
    placed[order] = served
    return placed


def read_lookup(reply: bytes) -> NDArray[Any]:
    """The reply of lookup.lua: fields node, seq, epoch, state."""
    return np.frombuffer(reply, _LOOKUP)
