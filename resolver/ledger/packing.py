"""Between NumPy columns and what the scripts take and answer.

Arguments of many values are MessagePack arrays of fixed-width elements: NumPy writes them in one go and one call of
`cmsgpack.unpack` reads them inside Redis, at 0.14 us a pod for UIDs and nodes together.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import Criteria
from hoss.wire.columns import U16, U32, U64
from resolver.core.rules import Guard, Question, Registered, Rule, RuleBook, packed, unpacked
from resolver.core.values import CONFLICT, Decision, Proposal, Verdict
from resolver.ledger import stored

_FIXED_STRING = 0xA0  # MessagePack: a string of up to 31 bytes, the length in the low bits
_UINT16 = 0xCD
_EMPTY_ARRAY = b"\x90"

_CRITERIA = {Criteria.FIT: "", Criteria.VERSION: "version", Criteria.STRICT: "strict"}

SlotGuards = tuple[tuple[Guard, ...], ...]  # by slot; empty: no rule sees any

_NO_REFUSALS = (Verdict.COMMITTED, Verdict.DUPLICATE, Verdict.STALE_EPOCH, Verdict.GANG_ABORTED)

_POSITION = np.dtype([("shard", "<u4"), ("seq", "<u8")])
_LOOKUP = np.dtype([("node", "<u4"), ("seq", "<u8"), ("epoch", "<u8")])


def string_array(values: NDArray[Any]) -> bytes:
    """MessagePack array of n strings, from an (n, width) array of bytes or (n,) of items of that width (at most 31)."""
    width = values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
    strings = np.ascontiguousarray(values).view(f"V{width}").reshape(-1)
    return _array(len(strings), _FIXED_STRING | width, strings, f"V{width}")


def uint16_array(values: NDArray[Any]) -> bytes:
    """MessagePack array of small whole numbers."""
    return _array(len(values), _UINT16, values, ">u2")


@cache
def _tagged(element: str) -> np.dtype[Any]:
    return np.dtype([("tag", "u1"), ("value", element)])


def _array(count: int, tag: int, values: NDArray[Any], element: str) -> bytes:
    packed = np.empty(count, _tagged(element))
    packed["tag"] = tag
    packed["value"] = values
    return b"\xdd" + count.to_bytes(4, "big") + packed.tobytes()


@cache
def _slot_dtype(resources: int) -> np.dtype[Any]:
    """What the pods of a slot share, as commit.lua reads it."""
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
    guards: SlotGuards,
    *,
    lease_ms: int,
    rules_version: int,
    shards: int,
    held: bool,
) -> list[bytes | str | int]:
    """The arguments of commit.lua after the ledger epoch and the feed window."""
    uids, slots, nodes = proposal.uids, proposal.slots, proposal.nodes
    if order is not None:
        uids, slots, nodes = uids[order], slots[order], nodes[order]
    count, resources = proposal.requests.shape
    shared = np.zeros(count, _slot_dtype(resources))
    shared["priority"] = proposal.priorities
    shared["attempt"] = proposal.attempts
    shared["requests"] = proposal.requests
    if proposal.groups:
        shared["group"] = [0 if group is None else group.key for group in proposal.groups]
        shared["flags"] = [0 if group is None else group.flags for group in proposal.groups]
    alternates = nodes.shape[1] - 1
    return [
        proposal.worker,
        proposal.epoch,
        proposal.snapshot_seq,
        lease_ms,
        "2" if proposal.stands else "1" if proposal.unchecked else "0",
        resources,
        string_array(uids),
        uint16_array(slots),
        string_array(nodes[:, 0].astype(U32)),
        alternates,
        string_array(nodes[:, 1:].astype(U32).reshape(-1)) if alternates else _EMPTY_ARRAY,
        shared.tobytes(),
        b"" if proposal.devices is None else proposal.devices.astype(U16).tobytes(),
        _groups(proposal),
        str(rules_version) if proposal.groups else "",
        _guards(guards),
        proposal.gang_minimum,
        seqs(proposal.seen_of(shards)),
        "1" if held else "0",
        _victims(proposal, order),
        "1" if proposal.victims_must_go else "0",
        _CRITERIA[proposal.criteria],
        "1" if proposal.victims_assumed else "0",
    ]


def slot_guards(proposal: Proposal, book: RuleBook) -> SlotGuards:
    """What the rules are to the pods of each slot; empty where they are nothing to any."""
    found = tuple(book.guards(group, first=proposal.first(slot)) for slot, group in enumerate(proposal.groups))
    return found if any(found) else ()


def _guards(guards: SlotGuards) -> bytes:
    arguments: bytes = msgpack.packb([_guard_values(of_slot) for of_slot in guards], use_bin_type=False)
    return arguments


def _guard_values(of_slot: Sequence[Guard]) -> list[bytes | int | str]:
    return [
        value
        for guard in of_slot
        for value in (
            guard.key.to_bytes(8, "little"),
            guard.registered.born,
            guard.topology_key,
            guard.notes,
            guard.relies_on,
            int(guard.counts_on_matches),
        )
    ]


def seqs(of_shards: Sequence[int]) -> bytes:
    """A seq for each shard."""
    return np.array(of_shards, U64).tobytes()


def _victims(proposal: Proposal, order: NDArray[np.intp] | None) -> bytes:
    """By position among the served, from 1."""
    if not proposal.victims:
        return b""
    served = range(len(proposal)) if order is None else order.tolist()
    found = {place: list(proposal.victims[p]) for place, p in enumerate(served, 1) if p in proposal.victims}
    arguments: bytes = msgpack.packb(found, use_bin_type=False)
    return arguments


def question_arguments(questions: Sequence[Question]) -> bytes:
    """Pods to be judged, for judge.lua."""
    values = [
        (_guard_values(q.guards), [False if domain is None else domain for domain in q.domains], q.shard, q.seq)
        for q in questions
    ]
    arguments: bytes = msgpack.packb(values, use_bin_type=False)
    return arguments


def read_judgement(reply: bytes) -> list[tuple[int, int] | None]:
    """What judge.lua returned."""
    return [(shard, seq) if seq else None for shard, seq in np.frombuffer(reply, _POSITION).tolist()]


def read_questions(
    reply: Sequence[Any], decision: Decision, slots: Sequence[int], guards: SlotGuards, order: NDArray[np.intp] | None
) -> tuple[Question | None, ...]:
    """What commit.lua left to be judged of the pods of these `slots`, by position, but for the shard."""
    refused = ~np.isin(decision.verdicts, _NO_REFUSALS)
    found = [Question(guards[s]) if out and guards[s] else None for s, out in zip(slots, refused.tolist(), strict=True)]
    flat = msgpack.unpackb(reply[11]) if reply[11] else ()
    for served, seq, domains in zip(*(iter(flat),) * 3, strict=True):
        position = served if order is None else int(order[served])
        named = tuple(None if domain is False else domain for domain in domains)
        found[position] = Question(guards[slots[position]], named, seq=seq)
    return tuple(found) if any(found) else ()


def rule_arguments(rules: dict[int, Rule]) -> bytes:
    """Keys and records, for register_rules.lua."""
    parts = [part for key, rule in rules.items() for part in (key.to_bytes(8, "little"), msgpack.packb(packed(rule)))]
    arguments: bytes = msgpack.packb(parts, use_bin_type=False)
    return arguments


def read_rules(records: dict[bytes, bytes], version: int) -> RuleBook:
    """The rules of a shard as Redis has them."""
    known = {
        int.from_bytes(key, "little"): Registered(
            unpacked(msgpack.unpackb(record[8:])), int.from_bytes(record[:8], "little")
        )
        for key, record in records.items()
    }
    return RuleBook(version, known)


def _groups(proposal: Proposal) -> bytes:
    groups = {group.key: group for group in proposal.groups if group is not None}.values()
    parts = [part for g in groups for part in (g.key.to_bytes(8, "little"), g.definition, b"".join(g.ports))]
    arguments: bytes = msgpack.packb(parts, use_bin_type=False)
    return arguments


def read_decision(reply: Sequence[Any], order: NDArray[np.intp] | None) -> Decision:
    """What commit.lua returned, back in the proposal's order."""
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
            duplicate_seqs = duplicate_seqs[np.argsort(order[served_verdicts == Verdict.DUPLICATE], kind="stable")]
    fresh = stored.account_rows(*reply[5:10])
    return Decision(int(seq), verdicts, nodes, conflicts, duplicate_seqs, fresh, int(reply[10]))


def _placed(served: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
    placed = np.empty_like(served)
    placed[order] = served
    return placed


def read_lookup(reply: bytes) -> NDArray[Any]:
    """What lookup.lua returned: fields node, seq, epoch."""
    return np.frombuffer(reply, _LOOKUP)
