"""Calls of the ledger's scripts, made on its model: `make` reads the argument as the script does, and carries
out the operation of that name. Scripts of a rebuild and of a repair write what is stored, here too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack
import numpy as np

from hoss.model.conflicts import Criteria
from hoss.wire.columns import NONE_U32, U16, U32, U64
from hoss.wire.uids import UID_BYTES
from resolver.core.arbiter import Arbiter
from resolver.core.moves import Moves, target_uids
from resolver.core.quarantine import QuarantineRequest
from resolver.core.rules import PlacementConstraint, RegisteredRule, RuleQuery, unpacked
from resolver.core.shard import (
    Caller,
    OldCopyError,
    OtherLedgerError,
    ShardChange,
    SupersededError,
    WentBackError,
)
from resolver.core.values import (
    MOVE_TARGET,
    Group,
    LedgerNodeChange,
    Position,
    Proposal,
    ReservationState,
    Verdict,
    Writer,
)
from resolver.ledger import packing, stored
from resolver.ledger.shards import SHARD_KEYS
from resolver.messages.proposals import group_of
from tools.simulation import shard_as_stored as plain
from tools.simulation.redis_commands import as_bytes

_CONSTRAINT_VALUES = 6  # of a rule, in the argument of commit.lua

Args = Mapping[str, Any]


@dataclass
class ModelShard:
    """A shard in the model, and what a rebuild has loaded beside it."""

    arbiter: Arbiter
    loaded: dict[str, dict[Any, Any]] = field(default_factory=dict)


class ScriptCall(NamedTuple):
    """A call of a script as Redis got it."""

    script: str
    shard: int
    keys: Sequence[bytes]
    arguments: Sequence[Any]
    clock_ms: int
    position: int  # of the log of writes, after it


def make(shard: ModelShard, call: ScriptCall) -> Any:
    """Make the call on the model. Its answer has the form of `ledger_comparison.read_reply`."""
    if call.script in _WITHOUT_PRELUDE:
        return _WITHOUT_PRELUDE[call.script](shard, call)
    args = _unpacked(call.arguments[0])
    refusal = _refusal(shard.arbiter, _caller(args))
    if refusal:
        return refusal
    if call.script in _OF_REBUILD:
        return _OF_REBUILD[call.script](shard, args, call)
    return _CALLS[call.script](shard.arbiter, args, call.clock_ms)


def _refusal(arbiter: Arbiter, caller: Caller) -> str:
    """The error with which a script ends at once; "": it goes on."""
    try:
        return "" if arbiter.admit(caller) else f"FENCED {arbiter.seq}"
    except OtherLedgerError as exc:
        return f"OTHERLEDGER {exc.epoch or 'none'}"
    except WentBackError as exc:
        return f"WENTBACK {exc.seq} {exc.known_seq}"
    except OldCopyError as exc:
        return f"OLDCOPY {exc.seq}"
    except SupersededError as exc:
        return f"SUPERSEDED {exc.term}"


def _unpacked(argument: Any) -> dict[str, Any]:
    named: dict[bytes, Any] = msgpack.unpackb(as_bytes(argument), raw=True, strict_map_key=False)
    return {name.decode(): value for name, value in named.items()}


def _caller(args: Args) -> Caller:
    known = Position(args["known_seq"], args.get("known_nonce", b"").decode())
    epoch = args.get("epoch")
    write = args.get("journal_write") or 0
    writer = Writer(args["term"], args["worker"].decode(), None if epoch is None else int(epoch), write)
    return Caller(args["ledger"].decode(), known, args["nonce"].decode(), writer, sending=args.get("sending"))


def numbers(joined: bytes) -> list[int]:
    """The u64 numbers in a column."""
    found: list[int] = np.frombuffer(joined, U64).tolist()
    return found


def _proposal(arbiter: Arbiter, args: Args) -> Proposal:
    """The proposal that commit.lua or move.lua decides, its pods in serving order."""
    uids, resources = args["uids"], args["resources"]
    shared = np.frombuffer(args["shared"], packing.slot_dtype(resources))
    groups = {
        int.from_bytes(key, "little"): group_of(definition)
        for key, definition in zip(args["groups"][::3], args["groups"][1::3], strict=True)
    }
    nodes = np.frombuffer(b"".join(args["first"]), U32)[:, None]
    if args["alternates_each"]:
        alternates = msgpack.unpackb(args["alternates"], raw=True)
        others = np.frombuffer(b"".join(alternates), U32).reshape(len(uids), args["alternates_each"])
        nodes = np.concatenate((nodes, others), axis=1)
    of_slots: tuple[Group | None, ...] = tuple(
        groups[key] if key else None for key in shared["group"].tolist()
    )
    devices = np.frombuffer(args["cards"], U16).reshape(-1, 2) if "cards" in args else None
    return Proposal(
        worker=args["worker"].decode(),
        epoch=int(args["epoch"]),
        snapshot_seq=args["snapshot_seq"],
        uids=np.frombuffer(b"".join(uids), np.uint8).reshape(-1, UID_BYTES),
        slots=np.array(args["slots"], np.uint16),
        nodes=nodes,
        requests=np.ascontiguousarray(shared["requests"]),
        # The pods are in serving order already.
        priorities=shared["priority"],
        attempts=shared["attempt"],
        devices=devices,
        unchecked=args["unchecked"],
        existing=args["existing"],
        groups=of_slots if any(of_slots) else (),
        gang_minimum=args["gang_minimum"],
        victims={place - 1: tuple(listed) for place, listed in args.get("victims", {}).items()},
        victims_must_go=args["victims_must_go"],
        victims_assumed=args["victims_assumed"],
        victims_terminate=args["victims_terminate"],
        criteria=_CRITERIA[args["criteria"]],
        prepared=args["prepare_only"],
        seen=tuple(numbers(args["seen"])),
        firsts=_firsts(arbiter, args, len(shared)),
        sending=args["sending"],
        moves=bool((shared["flags"] & MOVE_TARGET).any()),
        source_seqs=np.frombuffer(args["source_seqs"], U64) if "source_seqs" in args else None,
    )


_CRITERIA = {b"": Criteria.FIT, b"version": Criteria.VERSION, b"strict": Criteria.STRICT}


def _firsts(arbiter: Arbiter, args: Args, slots: int) -> tuple[bool, ...]:
    constraints = [_constraints(arbiter, of_slot) for of_slot in args["constraints"]]
    return tuple(any(c.first for c in of_slot) for of_slot in constraints) or (False,) * slots


def _constraints(arbiter: Arbiter, values: Sequence[Any]) -> tuple[PlacementConstraint, ...]:
    """What rules mean for the pods of a slot, from the values of packing._constraint_values."""
    found = []
    for key, born, topology, recorded, relies_on, _ in zip(
        *(iter(values),) * _CONSTRAINT_VALUES, strict=True
    ):
        number = int.from_bytes(key, "little")
        rule = arbiter.constraints.book.rules[number].rule
        first = rule.self_affinity and b"m" in relies_on
        registered = RegisteredRule(rule, born)
        # A domain that the pod brings: the name of a volume or device that it takes.
        name = topology[1:].decode() if topology.startswith(b"=") else ""
        found.append(PlacementConstraint(number, registered, b"u" in recorded, b"m" in recorded, first, name))
    return tuple(found)


def _commit(arbiter: Arbiter, args: Args, clock_ms: int) -> Any:
    if "rules" in args and str(arbiter.constraints.book.version) != args["rules"].decode():
        return None
    proposal, before = _proposal(arbiter, args), arbiter.seq
    deadline_ms = arbiter.leases.now(clock_ms) + args["lease_ms"]
    rulings, refusing = arbiter.commit(proposal, deadline_ms=deadline_ms)
    accounts = arbiter.accounts
    return {
        "seq": 0 if arbiter.seq == before else arbiter.seq,
        "verdicts": [int(ruling.verdict) for ruling in rulings],
        "nodes": [ruling.node for ruling in rulings],
        "conflicts": [
            (position, ruling.node, r.resource, r.asked, r.free)
            for position, ruling in enumerate(rulings)
            if (r := ruling.refusal) is not None
        ],
        "duplicates": [ruling.seq for ruling in rulings if ruling.verdict is Verdict.DUPLICATE],
        "fresh": {node: plain.account_of(accounts[node]) for node in refusing},
        "cards": {
            node: tuple(accounts[node].cards)
            for node in refusing
            if proposal.devices is not None and accounts[node].cards
        },
        "as_of": arbiter.seq,
        "queries": {
            position: (ruling.query.seq, ruling.query.domains)
            for position, ruling in enumerate(rulings)
            if arbiter.shards > 1 and ruling.query is not None and ruling.query.placed
        },
    }


def _validate(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    if str(arbiter.constraints.book.version) != args["rules"].decode():
        return None
    queries = [
        RuleQuery(
            _constraints(arbiter, values),
            tuple(None if domain is False else domain.decode() for domain in domains),
            shard,
            seq,
        )
        for values, domains, shard, seq in args["pods"]
    ]
    return arbiter.constraints.validate(
        queries, epoch=args["of_epoch"], seen=numbers(args["seen"]), may_refuse=args["may_refuse"]
    )


def _release(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    seqs = numbers(args["seqs"]) if "seqs" in args else None
    unconfirmed = args.get("unconfirmed", False)
    return arbiter.release(args["uids"], seqs, as_of=args.get("as_of"), unconfirmed=unconfirmed)


def _confirm(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    return [arbiter.confirm(args["seqs"]), arbiter.seq]


def _commit_prepared(arbiter: Arbiter, args: Args, clock_ms: int) -> Any:
    deadline_ms = arbiter.leases.now(clock_ms) + args["lease_ms"]
    return arbiter.commit_prepared(args["uids"], numbers(args["seqs"]), deadline_ms=deadline_ms)


def _renew(arbiter: Arbiter, args: Args, clock_ms: int) -> Any:
    deadline_ms = arbiter.leases.now(clock_ms) + args["lease_ms"]
    return arbiter.renew(args["uids"], numbers(args["seqs"]), deadline_ms=deadline_ms)


def _confirm_moves(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    getting, targets = (
        np.frombuffer(b"".join(args[name]), np.uint8).reshape(-1, UID_BYTES) for name in ("uids", "targets")
    )
    moves = Moves(
        target_uids(targets),
        np.frombuffer(b"".join(args["nodes"]), U32),
        np.frombuffer(args["seqs"], U64),
        np.frombuffer(b"".join(args["sources"]), U32),
        np.frombuffer(args["source_seqs"], U64),
        getting if b"-" in args["here"] else None,
    )
    return [int(result) for result in arbiter.confirm_moves(moves)]


def _forget_moved(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    sources = map(stored.read_source, args["sources"])
    arbiter.forget_moved(dict(zip(args["uids"], sources, strict=True)))


def _reap(arbiter: Arbiter, _args: Args, clock_ms: int) -> Any:
    released, more = arbiter.reap(clock_ms)
    return [released, int(more), arbiter.leases_ended, [], len(arbiter.moved)]


def _lookup(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    return [
        (NONE_U32, 0, 0, int(ReservationState.NONE))
        if held is None
        else (held.node, held.seq, held.epoch, int(arbiter.state_of(held)))
        for held in arbiter.look_up(args["uids"])
    ]


def _register_rules(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    pairs = zip(args["rules"][::2], args["rules"][1::2], strict=True)
    rules = {int.from_bytes(key, "little"): unpacked(msgpack.unpackb(rule)) for key, rule in pairs}
    arbiter.register(rules, again=args["again"])


def _forget_rules(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    return arbiter.forget_rules(map(stored.number, args["keys"]), args["low_watermark"])


def _raise_low_watermarks(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    arbiter.constraints.raise_low_watermarks(numbers(args["seqs"]))


def _forget_versions(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    return arbiter.constraints.forget_versions(plain.read_field("stamps", name) for name in args["fields"])


def _upsert_nodes(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    resources, rows = args["resources"], args["allocatable"]
    columns = ("names", "specs", "unschedulable", "card_counts", "labels", "resource_versions")
    changes = [
        LedgerNodeChange(
            name=name.decode(),
            spec=spec,
            allocatable=tuple(rows[place * resources : (place + 1) * resources]),
            unschedulable=unschedulable,
            cards=cards,
            labels=tuple(msgpack.unpackb(labels).items()) if labels else (),
            resource_version=version,
        )
        for place, (name, spec, unschedulable, cards, labels, version) in enumerate(
            zip(*(args[column] for column in columns), strict=True)
        )
    ]
    upserted = arbiter.upsert(changes, args.get("expected", b""))
    return None if upserted is None else [arbiter.seq, *upserted]


def _remove_nodes(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    removed = arbiter.remove([name.decode() for name in args["names"]])
    return [arbiter.seq, list(removed.nodes), removed.missing, removed.before]


def _quarantine(arbiter: Arbiter, args: Args, clock_ms: int) -> Any:
    reason, share = args["reason"].decode(), args["most_per_mille"]
    request = QuarantineRequest(reason, args["duration_ms"], share, args["unchanged_since"])
    return arbiter.quarantine_node(stored.number(args["node"]), request, clock_ms)


def _end_quarantine(arbiter: Arbiter, args: Args, clock_ms: int) -> Any:
    return arbiter.end_quarantine(stored.number(args["node"]) if "node" in args else None, clock_ms)


def _republish(arbiter: Arbiter, args: Args, _clock_ms: int) -> Any:
    node = stored.number(args["node"])
    return [arbiter.seq, plain.account_of(arbiter.accounts[node])] if arbiter.republish(node) else None


_CALLS: dict[str, Callable[[Arbiter, Args, int], Any]] = {
    "commit": _commit,
    "move": _commit,
    "validate": _validate,
    "release": _release,
    "confirm": _confirm,
    "commit_prepared": _commit_prepared,
    "renew": _renew,
    "confirm_moves": _confirm_moves,
    "forget_moved": _forget_moved,
    "reap": _reap,
    "lookup": _lookup,
    "set_aside": lambda arbiter, args, _clock_ms: arbiter.set_aside(args["uids"]),
    "check": lambda arbiter, _args, _clock_ms: [arbiter.seq, arbiter.nonce],
    "grant": lambda arbiter, args, _clock_ms: arbiter.grant(args["name"].decode(), args["granted"]),
    "register_rules": _register_rules,
    "forget_rules": _forget_rules,
    "raise_low_watermarks": _raise_low_watermarks,
    "forget_versions": _forget_versions,
    "upsert_nodes": _upsert_nodes,
    "remove_nodes": _remove_nodes,
    "forget_nodes": lambda arbiter, args, _: arbiter.forget_nodes(map(stored.number, args["nodes"])),
    "quarantine": _quarantine,
    "end_quarantine": _end_quarantine,
    "republish": _republish,
}

# -- rebuilding and repairing, which write what is stored


def _bootstrap(shard: ModelShard, call: ScriptCall) -> Any:
    epoch, shards, newest = (as_bytes(word).decode() for word in call.arguments)
    if not shard.arbiter.epoch:
        shard.arbiter.epoch = epoch
    return [shard.arbiter.epoch, int(shards), shard.arbiter.seq, int(newest)]


def _set_tombstone(shard: ModelShard, call: ScriptCall) -> Any:
    tombstone, _, term, *may_be = (as_bytes(word).decode() for word in call.arguments)
    current = shard.arbiter.epoch
    if 0 < int(term) < shard.arbiter.term:
        return f"SUPERSEDED {shard.arbiter.term}"
    if current in may_be or "*" in may_be:
        shard.arbiter.term = max(int(term), shard.arbiter.term)
        shard.arbiter.epoch = tombstone
        shard.loaded.clear()
    return current


def _load(shard: ModelShard, args: Args, call: ScriptCall) -> None:
    key = call.keys[-1].decode().split(":")[-2]
    pairs = zip(args["fields"][::2], args["fields"][1::2], strict=True)
    shard.loaded.setdefault(key, {}).update(plain.read_hash(key, dict(pairs)))


def _finish(shard: ModelShard, args: Args, call: ScriptCall) -> None:
    arbiter = shard.arbiter
    state = plain.of_model(arbiter)
    for number in args["replaced"]:
        key = SHARD_KEYS[number - 1]
        state[key] = shard.loaded.pop(key, {})
    ends_ms = arbiter.leases.now(call.clock_ms) + args["lease_ms"]
    state["leases"] = dict.fromkeys(state["pending"], ends_ms)
    for key in ("quarantine", "versions", "removed", "moved", "terminating", "nominated", "damaged"):
        state[key] = {}
    state["meta"]["rules"] = 0
    plain.restore(arbiter, state)
    arbiter.feed, arbiter.nonces = [], {}
    arbiter.epoch = args["new_epoch"].decode()
    arbiter.next_index = args["next_index"]
    arbiter.free = np.frombuffer(args["free"], U32).tolist()
    arbiter.constraints.low_watermarks = tuple(numbers(args["low_watermarks"]))
    arbiter.publish(ShardChange(args["seq"], ()))


def _repair(shard: ModelShard, args: Args, call: ScriptCall) -> Any:
    arbiter = shard.arbiter
    if arbiter.seq != args["read_at"]:
        return None
    state = plain.of_model(arbiter)
    for number, name, value in zip(*(iter(args["based_on"]),) * 3, strict=True):
        key = SHARD_KEYS[number - 1]
        read = {} if value is False else plain.read_hash(key, {name: value})
        of = plain.read_field(key, name)
        if state[key].get(of) != read.get(of):
            return None
    for number, flat, gone in zip(*(iter(args["changes"]),) * 3, strict=True):
        key = SHARD_KEYS[number - 1]
        state[key].update(plain.read_hash(key, dict(zip(flat[::2], flat[1::2], strict=True))))
        for name in gone:
            state[key].pop(plain.read_field(key, name), None)
    for commit, rule in zip(args["leases"][::2], args["leases"][1::2], strict=True):
        lease_ms = args["lease_ms"] if rule == b"begin" else 0
        state["leases"][int(commit)] = arbiter.leases.now(call.clock_ms) + lease_ms
        if rule == b"forget":
            del state["leases"][int(commit)]
    plain.restore(arbiter, state)
    entry = dict(zip(args["entry"][::2], args["entry"][1::2], strict=True))
    nodes = tuple(np.frombuffer(entry[b"n"], U32).tolist())
    arbiter.publish(ShardChange(args["seq"], nodes, released=int(entry[b"x"])))
    return args["seq"]


_WITHOUT_PRELUDE: dict[str, Callable[[ModelShard, ScriptCall], Any]] = {
    "bootstrap": _bootstrap,
    "set_tombstone": _set_tombstone,
}
_OF_REBUILD: dict[str, Callable[[ModelShard, Args, ScriptCall], Any]] = {
    "load": _load,
    "finish": _finish,
    "repair": _repair,
}
