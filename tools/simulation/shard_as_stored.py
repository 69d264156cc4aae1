"""A shard of the ledger as plain values, so that what Redis stores and what the model has are comparable.

A state has a dictionary for each key of the shard (resolver.ledger.shards.SHARD_KEYS), by node index, UID,
sequence number or name, as docs/architecture.md describes them. Amounts are without zeros at their end: a
record grows when a proposal names more resources."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack
import numpy as np

from hoss.wire.columns import CARD_SLOTS, CARDS, U32, account_dtype
from hoss.wire.uids import UID_BYTES
from resolver.core.accounts import Account
from resolver.core.arbiter import Arbiter
from resolver.core.placement_constraints import DomainVersion
from resolver.core.quarantine import QuarantineRecord
from resolver.core.rules import RegisteredRule, RuleBook, packed, unpacked
from resolver.core.shard import PreparedProposals, Reservation, ShardChange, TakenShare
from resolver.core.values import (
    IS_TERMINATING,
    MOVE_TARGET,
    PRE_BINDS,
    AccountRows,
    FeedEntry,
    reservation_dtype,
)
from resolver.ledger import stored
from resolver.messages.proposals import group_of

State = dict[str, dict[Any, Any]]
Hash = Mapping[bytes, bytes]

_NEVER_MS = 1 << 53  # of a commit that has no lease, which only a fault of the scripts can make
_TIMES = np.dtype([("since", "<i8"), ("until", "<i8")])
_VERSION = np.dtype([("seq", "<i8"), ("epoch", "<i8"), ("others", "<i8")])


def _amounts(values: Any) -> tuple[int, ...]:
    listed = [int(value) for value in values]
    while listed and listed[-1] == 0:
        listed.pop()
    return tuple(listed)


def read_account(record: bytes) -> tuple[Any, ...]:
    """An account as Redis stores it."""
    resources = (len(record) - account_dtype(0).itemsize - stored.SPREAD_BYTES) // 16
    found = np.frombuffer(record, account_dtype(resources), 1)[0]
    return (*(int(found[name]) for name in _ACCOUNT), _amounts(found["amounts"].reshape(-1)))


_ACCOUNT = ("seq", "born", "flags", "described")
_RESERVED = ("node", "card_mask", "card_milli", "seq", "epoch", "priority", "attempt", "flags", "group")


def _reservation(record: bytes) -> tuple[Any, ...]:
    resources = (len(record) - reservation_dtype(0).itemsize - stored.SPREAD_BYTES) // 8
    found = np.frombuffer(record, reservation_dtype(resources), 1)[0]
    return (*(int(found[name]) for name in _RESERVED), _amounts(found["requests"]))


def _uids(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + UID_BYTES] for at in range(0, len(joined), UID_BYTES))


def _share(record: bytes) -> tuple[bytes, tuple[int, ...]]:
    return record[:UID_BYTES], _amounts(np.frombuffer(record, "<i8", offset=UID_BYTES))


def _quarantine(record: bytes) -> tuple[int, int, str]:
    since, until = np.frombuffer(record, _TIMES, 1)[0].tolist()
    return since, until, record[_TIMES.itemsize :].decode()


def _version_field(field: bytes) -> tuple[int, str, str]:
    return stored.number(field[:8]), chr(field[8]), field[9:].decode()


# By key: what a field is, and what a value is.
_READ: dict[str, tuple[Callable[[bytes], Any], Callable[[bytes], Any]]] = {
    "accounts": (stored.number, read_account),
    "cards": (stored.number, lambda record: tuple(np.frombuffer(record, CARDS.base).tolist())),
    "specs": (stored.number, bytes),
    "names": (bytes.decode, stored.number),
    "reservations": (bytes, _reservation),
    "pending": (int, _uids),
    "workers": (bytes.decode, lambda stored: tuple(map(int, stored.split()))),  # epoch, and if not 0, sending
    "ports": (stored.number, lambda record: sorted(stored.read_ports(record))),
    "groups": (stored.number, bytes),
    "group_pods": (stored.number, int),
    "labels": (stored.number, msgpack.unpackb),
    "rules": (stored.number, lambda r: (int.from_bytes(r[:8], "little"), msgpack.unpackb(r[8:]))),
    "stamps": (_version_field, lambda record: tuple(np.frombuffer(record, _VERSION).tolist())),
    "holds": (int, int),
    "quarantine": (stored.number, _quarantine),
    "versions": (stored.number, int),
    "removed": (stored.number, bytes.decode),
    "moved": (bytes, stored.read_source),
    "terminating": (bytes, _share),
    "nominated": (bytes, _uids),
    "damaged": (bytes, bytes),
}
HASHES = tuple(_READ)


def read_hash(key: str, fields: Hash) -> dict[Any, Any]:
    """What a hash of a shard holds."""
    field_of, value_of = _READ[key]
    return {field_of(field): value_of(value) for field, value in fields.items()}


def read_field(key: str, field: bytes) -> Any:
    """What a field of a hash names."""
    return _READ[key][0](field)


def read_meta(meta: Hash) -> dict[str, Any]:
    """What a shard's meta says; its format aside."""
    floors = meta.get(b"floors", b"")
    return {
        "journal": tuple(map(int, meta.get(b"journal", b"0 0").split())),
        "epoch": meta.get(b"epoch", b"").decode(),
        "nonce": meta.get(b"nonce", b"").decode(),
        **{name: int(meta.get(name.encode(), 0)) for name in ("seq", "term", "next_index", "rules")},
        "free": tuple(np.frombuffer(meta.get(b"free", b""), U32).tolist()),
        "floors": _amounts(np.frombuffer(floors, "<u8")),
        "lease_time": int(meta[b"lease_time"]) if b"lease_time" in meta else None,
        "lease_seen": int(meta.get(b"lease_seen", 0)),
        "leases_ended": int(meta.get(b"leases_ended", 0)),
    }


def read_nonces(joined: bytes) -> dict[int, str]:
    """The nonces of the last changes by their place."""
    width, none = stored.NONCE_BYTES, bytes(stored.NONCE_BYTES)
    found = (joined[at : at + width] for at in range(0, len(joined), width))
    return {place: nonce.decode() for place, nonce in enumerate(found) if nonce != none}


def of_model(shard: Arbiter) -> State:
    """What Redis would store of the shard; the feed aside."""
    groups = {held.group.key: held.group for held in shard.reservations.values() if held.group is not None}
    pods = Counter(held.group.key for held in shard.reservations.values() if held.group is not None)
    pending, constraints = shard.pending, shard.constraints
    return {
        "meta": {
            "journal": shard.journal,
            "epoch": shard.epoch,
            "nonce": shard.nonce,
            "seq": shard.seq,
            "term": shard.term,
            "next_index": shard.next_index,
            "rules": constraints.book.version,
            "free": tuple(shard.free),
            "floors": _amounts(constraints.low_watermarks),
            "lease_time": shard.leases.time_ms,
            "lease_seen": shard.leases.seen_ms,
            "leases_ended": shard.leases_ended,
        },
        "accounts": {node: account_of(account) for node, account in shard.accounts.items()},
        "cards": {node: tuple(a.cards) for node, a in shard.accounts.items() if a.cards},
        "specs": dict(shard.specs),
        "names": dict(shard.names),
        "reservations": {uid: _held(reservation) for uid, reservation in shard.reservations.items()},
        "pending": {seq: tuple(uids) for seq, (_, uids) in pending.items()},
        "leases": {seq: ends_ms for seq, (ends_ms, _) in pending.items() if ends_ms != _NEVER_MS},
        "workers": {
            name: (epoch, shard.sendings[name]) if name in shard.sendings else (epoch,)
            for name, epoch in shard.workers.items()
        },
        "ports": {node: sorted(account.ports) for node, account in shard.accounts.items() if account.ports},
        "groups": {key: group.definition for key, group in groups.items()},
        "group_pods": dict(pods),
        "labels": {node: labels for node, labels in constraints.labels.items() if labels},
        "rules": {key: (known.born, packed(known.rule)) for key, known in constraints.book.rules.items()},
        "stamps": {
            field: tuple(
                (v.seq, v.epoch, v.others_seq)
                for v in (of_shards.get(number, DomainVersion()) for number in range(shard.shards))
            )
            for field, of_shards in constraints.versions.items()
        },
        "holds": shard.prepared.pods(),
        "quarantine": {node: (q.since_ms, q.until_ms, q.reason) for node, q in shard.quarantine.items()},
        "versions": dict(shard.resource_versions),
        "nonces": dict(shard.nonces),
        "removed": dict(shard.removed),
        "moved": dict(shard.moved),
        "terminating": {uid: (s.preemptor, _amounts(s.requests)) for uid, s in shard.terminating.items()},
        "nominated": {uid: tuple(victims) for uid, victims in shard.nominated.items()},
        "damaged": dict(shard.damaged),
    }


def account_of(account: Account) -> tuple[Any, ...]:
    """An account, without its cards and ports."""
    amounts = np.stack((account.allocatable, account.requested), axis=1).reshape(-1)
    return account.seq, account.born, account.flags, account.described & 0xFFFFFFFF, _amounts(amounts)


def _held(held: Reservation) -> tuple[Any, ...]:
    key = 0 if held.group is None else held.group.key
    numbers = held.node, held.card_mask, held.card_milli, held.seq, held.epoch, held.priority, held.attempt
    return (*numbers, held.flags, key, _amounts(held.requests))


def restore(shard: Arbiter, state: State) -> None:
    """Put these hashes of the state into the model; meta, feed and nonces stay."""
    described_high = shard.seq >> 32 << 32
    shard.accounts = {}
    for node, (seq, born, flags, described, amounts) in state["accounts"].items():
        pairs = np.array([*amounts, *[0] * (len(amounts) % 2)], np.int64).reshape(-1, 2)
        cards = list(state["cards"].get(node, ()))
        shard.accounts[node] = Account(
            *(born, seq, flags, described_high + described, pairs[:, 0].copy(), pairs[:, 1].copy()),
            cards,
            list(state["ports"].get(node, ())),
        )
    shard.specs, shard.names = dict(state["specs"]), dict(state["names"])
    shard.reservations = {}
    for uid, held in state["reservations"].items():
        node, card_mask, card_milli, seq, epoch, priority, attempt, flags, key, requests = held
        group = group_of(state["groups"][key]) if key else None
        shard.reservations[uid] = Reservation(
            *(node, card_mask, card_milli, seq, epoch, priority, attempt),
            np.array(requests, np.int64),
            group,
            is_target=bool(flags & MOVE_TARGET),
            is_terminating=bool(flags & IS_TERMINATING),
            pre_binds=bool(flags & PRE_BINDS),
        )
    shard.pending = {
        seq: (state["leases"].get(seq, _NEVER_MS), list(uids)) for seq, uids in state["pending"].items()
    }
    shard.workers = {name: epoch for name, (epoch, *_) in state["workers"].items()}
    shard.sendings = {
        name: sending for name, (_, *sendings) in state["workers"].items() for sending in sendings
    }
    constraints = shard.constraints
    constraints.labels = {node: dict(labels) for node, labels in state["labels"].items()}
    rules = {key: RegisteredRule(unpacked(rule), born) for key, (born, rule) in state["rules"].items()}
    constraints.book = RuleBook(state["meta"]["rules"], rules)
    constraints.versions = {
        field: {number: DomainVersion(*version) for number, version in enumerate(versions) if any(version)}
        for field, versions in state["stamps"].items()
    }
    shard.prepared = PreparedProposals(dict(state["holds"]))
    shard.quarantine = {
        node: QuarantineRecord(why, since, until) for node, (since, until, why) in state["quarantine"].items()
    }
    shard.resource_versions, shard.removed = dict(state["versions"]), dict(state["removed"])
    shard.moved = dict(state["moved"])
    shard.terminating = {uid: TakenShare(*share) for uid, share in state["terminating"].items()}
    shard.nominated = {uid: list(victims) for uid, victims in state["nominated"].items()}
    shard.damaged = dict(state["damaged"])


def accounts_of_rows(rows: AccountRows) -> dict[str, Any]:
    """`accounts` and `cards` by node."""
    indexes = np.frombuffer(rows.indexes, U32).tolist()
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    cards = np.frombuffer(rows.cards, CARDS.base).reshape(-1, CARD_SLOTS).tolist()
    return {
        "accounts": {
            node: (*(int(a[name]) for name in _ACCOUNT), _amounts(a["amounts"].reshape(-1)))
            for node, a in zip(indexes, accounts, strict=True)
        },
        "cards": dict(zip(np.frombuffer(rows.card_indexes, U32).tolist(), map(tuple, cards), strict=True)),
    }


def entry_of_feed(entry: FeedEntry) -> dict[str, Any]:
    """An entry of the feed as plain values."""
    return {
        **accounts_of_rows(entry.accounts),
        "specs": dict(entry.specs),
        "removed": sorted(entry.removed),
        "runs": sorted((run.definition, run.nodes, run.gone) for run in entry.runs),
        "evictions": [(e.uid, e.node, e.victims) for e in entry.evictions],
        "ended": sorted(entry.ended),
        **{name: getattr(entry, name) for name in _ALIKE},
    }


_ALIKE = ("released", "prepared", "epoch", "nonce")


def entry_of_model(change: ShardChange) -> dict[str, Any]:
    """The same of a change of the model. `cards` are those of all its nodes: an entry of the feed names only
    those that may have changed."""
    return {
        "accounts": {node: account_of(account) for node, account in change.accounts.items()},
        "cards": {node: tuple(account.cards) for node, account in change.accounts.items() if account.cards},
        "specs": dict(change.specs),
        "removed": sorted(change.removed),
        "runs": sorted((run.definition, run.nodes, run.gone) for run in change.runs),
        "evictions": [(e.uid, e.node, e.victims) for e in change.evictions],
        "ended": sorted(change.ended),
        **{name: getattr(change, name) for name in _ALIKE},
    }


def differences(there: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Where the scripts have something else than the model; a sentence each."""
    for key in expected:
        found, wanted = there.get(key, {}), expected[key]
        if found == wanted:
            continue
        if not isinstance(found, dict) or not isinstance(wanted, dict):
            yield f"{key}: the scripts have {found}, the model {wanted}"
            continue
        for field in sorted(found.keys() | wanted.keys(), key=repr):
            if found.get(field) != wanted.get(field):
                name = field.hex() if isinstance(field, bytes) else field
                yield f"{key} {name}: the scripts have {found.get(field)}, the model {wanted.get(field)}"
