"""The audit of the ledger: invariants 1, 2 and 6 of docs/architecture.md, on whole shards.

Of the rules about other pods, only required anti-affinity is audited. The ledger does not know namespace
labels, so a rule with a namespace selector is audited in the namespaces that it names. Spreading is no
invariant: deletions may leave pods more unevenly spread than any placement would have. Required affinity is
none either: the pods that a pod had to be near may leave."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import counted
from hoss.model.resources import WHOLE_CARD_MILLI
from hoss.wire.columns import CARD_CLOSED, FLAG_GONE, FLAG_SHRUNK, NO_CARD, U32, Uids
from hoss.wire.uids import UID_BYTES, uid_text
from resolver.core.accounts import ReservationSums, resource_name, sum_reservations
from resolver.core.commits import CommitFault
from resolver.core.rules import PlacementRule, labels_asked
from resolver.core.values import (
    HOLDS_PORTS,
    IS_TERMINATING,
    UNCOUNTED,
    Group,
    PortHold,
    clash,
    port_text,
)

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TooNear:
    """Two pods, as rows of what was audited. A rule of the first keeps the second out of their common
    domain."""

    bearer: int
    other: int
    rule: PlacementRule
    domain: str


def too_near(
    nodes: NDArray[np.uint32],
    group_keys: NDArray[np.uint64],
    groups: Mapping[int, Group],
    labels: Mapping[int, Labels],
) -> Iterator[list[TooNear]]:
    """The findings in steps: one step for each group, which finds nothing yet, and then one for each rule,
    with a finding for each domain where it is broken. `nodes`, `group_keys`: each pod's node and group (0:
    none); `labels`: of each node."""
    order = np.argsort(group_keys, kind="stable")
    keys, starts = np.unique(group_keys[order], return_index=True)
    rows_of = dict(zip(keys.tolist(), np.split(order, starts[1:]), strict=False))
    bearers: dict[PlacementRule, list[int]] = {}
    for key in rows_of:
        for rule in groups[key].rules if key in groups else ():
            if rule.anti_affinity:
                bearers.setdefault(rule, []).append(key)
        yield []
    known = {key: None for key in rows_of if key in groups}  # in order
    labelled: dict[tuple[str, str] | None, dict[int, None]] = {None: known}
    for key in known:
        for label in groups[key].labels:
            labelled.setdefault(label, {})[key] = None
    for rule, keys_of_bearers in bearers.items():
        named = replace(rule, every_namespace=False)
        candidates = dict.fromkeys(key for label in labels_asked(rule) for key in labelled.get(label, ()))
        seen = [key for key in candidates if named.matches(groups[key].namespace, groups[key].labels)]
        bearing = _by_domain(
            rule, [row for key in keys_of_bearers for row in rows_of[key].tolist()], nodes, labels
        )
        matching = _by_domain(rule, [row for key in seen for row in rows_of[key].tolist()], nodes, labels)
        findings = []
        for domain, here in bearing.items():
            others = matching.get(domain, [])
            # A pod does not break its own rule.
            pair = next(((b, o) for b in here[:2] for o in others[:2] if b != o), None)
            if pair:
                findings.append(TooNear(*pair, rule, domain))
        yield findings


def _by_domain(
    rule: PlacementRule, rows: list[int], nodes: NDArray[np.uint32], labels: Mapping[int, Labels]
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        domain = labels.get(int(nodes[row]), {}).get(rule.topology_key)
        if domain is not None:
            found.setdefault(domain, []).append(row)
    return found


_MOST_NAMED = 3  # pods that a sentence lists by UID


@dataclass(frozen=True, slots=True)
class ShardAccounts:
    """One shard at one moment. Arrays have one row per node or per reservation."""

    shard: int
    indexes: NDArray[np.uint32]  # (m,)
    accounts: NDArray[Any]  # account_dtype(R), (m,)
    card_indexes: NDArray[np.uint32]  # (k,)
    cards: NDArray[np.uint16]  # (k, 16)
    uids: Uids  # (n, 16)
    records: NDArray[Any]  # fields node, card_mask, card_milli, flags, group, requests (R2)
    ports: Mapping[int, Sequence[PortHold]] = field(default_factory=dict)  # by node
    group_pods: Mapping[int, int] = field(default_factory=dict)  # by group's key
    commit_faults: Sequence[CommitFault] = ()
    # Of pods that were moved here: node and commit of the source on another shard, which is being released.
    moved: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    damaged: Mapping[bytes, bytes] = field(default_factory=dict)  # reservations that cannot be read
    damaged_accounts: Mapping[bytes, bytes] = field(default_factory=dict)  # by field, as stored
    damaged_cards: Mapping[bytes, bytes] = field(default_factory=dict)
    wrong_labels: Mapping[bytes, bytes] = field(default_factory=dict)
    damaged_versions: Mapping[bytes, bytes] = field(default_factory=dict)
    damaged_records: Mapping[str, Mapping[bytes, bytes]] = field(default_factory=dict)  # by key and field

    @property
    def terminating(self) -> NDArray[np.bool_]:
        """(n,): which pods were evicted, and are on their nodes until they have ended."""
        terminating: NDArray[np.bool_] = self.records["flags"] & IS_TERMINATING > 0
        return terminating


@dataclass(frozen=True, slots=True)
class LedgerFinding:
    """A broken invariant. Invariant 0 is a report: a node shrank below what its pods hold."""

    invariant: int
    node: int | None
    uid: str
    text: str


def audit(
    shards: Sequence[ShardAccounts], schema: Sequence[str], names: Mapping[int, str]
) -> Iterator[list[LedgerFinding]]:
    """All findings in steps: those of each shard, and then those of pods on several."""
    for shard in shards:
        sums = sum_reservations(shard.indexes, shard.uids, shard.records, {})
        findings = list(_overcommitted(shard, schema, names))
        findings += _overfull_cards(shard, names)
        findings += _unequal_amounts(shard, sums, schema, names)
        findings += _unequal_cards(shard, sums, names)
        findings += _clashing_ports(shard, names)
        findings += _unequal_ports(shard, names)
        findings += _unequal_groups(shard, sums)
        findings += (
            LedgerFinding(6, None, "", f"shard {shard.shard}: {fault.text}") for fault in shard.commit_faults
        )
        findings += _damaged(shard)
        findings += _damaged_nodes(shard, "accounts", shard.damaged_accounts, names)
        findings += _damaged_nodes(shard, "cards", shard.damaged_cards, names)
        findings += _wrong_labels(shard, names)
        findings += _damaged_versions(shard)
        findings += _damaged_records(shard)
        yield findings
    yield _reserved_twice(shards, names)


def _damaged(shard: ShardAccounts) -> Iterator[LedgerFinding]:
    for field_name, record in sorted(shard.damaged.items()):
        uid = uid_text(field_name) if len(field_name) == UID_BYTES else ""
        text = (
            f"shard {shard.shard}: the reservation of {f'pod {uid}' if uid else 'no pod'} cannot be read"
            f" ({len(record)} bytes) and was set aside: key {{hoss:{shard.shard}}}:damaged, field"
            f" {field_name.hex()}; its node still counts it. `hoss audit --repair` gives that back and"
            " forgets the record; the dispatcher has the pod reserved anew"
        )
        yield LedgerFinding(6, None, uid, text)


def _damaged_nodes(
    shard: ShardAccounts, key: str, damaged: Mapping[bytes, bytes], names: Mapping[int, str]
) -> Iterator[LedgerFinding]:
    what, withheld = ("account", "pods") if key == "accounts" else ("record of cards", "cards")
    for field_name, record in sorted(damaged.items()):
        node = _index_in(field_name)
        of = "no node" if node is None else _name(names, node)
        why = f"cannot be read ({len(record)} bytes)" if record else "is missing"
        text = (
            f"shard {shard.shard}: the {what} of {of} {why}: key {{hoss:{shard.shard}}}:{key}, field"
            f" {field_name.hex()}; the node gets no {withheld} until `hoss audit --repair` computes the"
            " record anew, from the node's spec and its reservations"
        )
        yield LedgerFinding(6, node, "", text)


def _wrong_labels(shard: ShardAccounts, names: Mapping[int, str]) -> Iterator[LedgerFinding]:
    for field_name, record in sorted(shard.wrong_labels.items()):
        node = _index_in(field_name)
        of = "no node" if node is None or node not in names else _name(names, node)
        text = (
            f"shard {shard.shard}: the record of labels of {of} is not what the node's spec says"
            f" ({len(record)} bytes): key {{hoss:{shard.shard}}}:labels, field {field_name.hex()}; rules"
            " about pods are judged by it, and where it cannot be read the node gets no pods with such rules,"
            " until `hoss audit --repair` writes it anew"
        )
        yield LedgerFinding(6, node, "", text)


def _damaged_versions(shard: ShardAccounts) -> Iterator[LedgerFinding]:
    for field_name, record in sorted(shard.damaged_versions.items()):
        text = (
            f"shard {shard.shard}: a domain version cannot be read ({len(record)} bytes): key"
            f" {{hoss:{shard.shard}}}:stamps, field {field_name.hex()}; pods whose rules rely on it are"
            " refused until `hoss audit --repair` writes it anew"
        )
        yield LedgerFinding(6, None, "", text)


# By key of the shard: what the record is, what holds until a repair, and what that does.
_RECORDS = {
    "rules": ("a rule about pods", "pods that bear it have it registered anew", "forgets it"),
    "group_pods": ("the number of pods of a group", "the group is not forgotten", "counts them"),
    "pending": ("the list of a commit's pods", "its lease does not end", "lists what it has reserved"),
    "holds": ("the number of pods of a prepared commit", "it ends with its lease", "counts them"),
}


def _damaged_records(shard: ShardAccounts) -> Iterator[LedgerFinding]:
    for key, (what, meanwhile, repair) in _RECORDS.items():
        for field_name, record in sorted(shard.damaged_records.get(key, {}).items()):
            text = (
                f"shard {shard.shard}: {what} was damaged ({len(record)} bytes): key"
                f" {{hoss:{shard.shard}}}:{key}, field {field_name.hex()}; {meanwhile} until"
                f" `hoss audit --repair` {repair}"
            )
            yield LedgerFinding(6, None, "", text)


def _indexes_in(damaged: Mapping[bytes, bytes]) -> NDArray[np.uint32]:
    return np.array([index for name in damaged if (index := _index_in(name)) is not None], U32)


def _index_in(field_name: bytes) -> int | None:
    return int.from_bytes(field_name, "little") if len(field_name) == U32.itemsize else None


def _name(names: Mapping[int, str], index: int) -> str:
    return f"node {names.get(index, f'index {index}')}"


def _holders(shard: ShardAccounts, which: NDArray[np.bool_]) -> str:
    """The number of these pods, and the first of them."""
    rows = np.flatnonzero(which)
    if not len(rows):
        return "of no pod"
    named = ", ".join(uid_text(shard.uids[row].tobytes()) for row in rows[:_MOST_NAMED].tolist())
    more = ", ..." if len(rows) > _MOST_NAMED else ""
    return f"of {counted(len(rows), 'pod')}: {named}{more}"


def _overcommitted(
    shard: ShardAccounts, schema: Sequence[str], names: Mapping[int, str]
) -> Iterator[LedgerFinding]:
    live = (shard.accounts["flags"] & FLAG_GONE) == 0
    amounts = shard.accounts["amounts"]
    for row, resource in zip(*np.nonzero((amounts[:, :, 1] > amounts[:, :, 0]) & live[:, None]), strict=True):
        allocatable, requested = amounts[row, resource].tolist()
        shrunk = bool(shard.accounts["flags"][row] & FLAG_SHRUNK)
        index = int(shard.indexes[row])
        amounts_text = f"requested {requested} > allocatable {allocatable}"
        text = f"{_name(names, index)}: {resource_name(schema, resource)} {amounts_text}"
        text += " since it shrank or others put pods there" if shrunk else ""
        yield LedgerFinding(0 if shrunk else 1, index, "", text)


def _overfull_cards(shard: ShardAccounts, names: Mapping[int, str]) -> Iterator[LedgerFinding]:
    # What terminating pods hold may be held by those for which they were evicted.
    leaving = sum_reservations(
        shard.card_indexes, shard.uids[shard.terminating], shard.records[shard.terminating], {}
    )
    used = (shard.cards & (CARD_CLOSED - 1)) - np.where(shard.cards == NO_CARD, 0, leaving.cards)
    for row, slot in zip(*np.nonzero((shard.cards != NO_CARD) & (used > WHOLE_CARD_MILLI)), strict=True):
        index, in_use = int(shard.card_indexes[row]), f"{used[row, slot]} of {WHOLE_CARD_MILLI} thousandths"
        yield LedgerFinding(1, index, "", f"{_name(names, index)}: card {slot} has {in_use} in use")


def _unequal_amounts(
    shard: ShardAccounts, sums: ReservationSums, schema: Sequence[str], names: Mapping[int, str]
) -> Iterator[LedgerFinding]:
    for row in sums.lost.tolist():
        uid, node = uid_text(shard.uids[row].tobytes()), int(shard.records["node"][row])
        yield LedgerFinding(6, node, uid, "reserved on a node that is not there")
    accounts = shard.accounts["amounts"][:, :, 1]
    resources = max(accounts.shape[1], sums.requested.shape[1])
    requested, reserved = (
        np.pad(amounts, ((0, 0), (0, resources - amounts.shape[1]))) for amounts in (accounts, sums.requested)
    )
    readable = ~np.isin(shard.indexes, _indexes_in(shard.damaged_accounts))
    for row, resource in zip(*np.nonzero((reserved != requested) & readable[:, None]), strict=True):
        index = int(shard.indexes[row])
        text = (
            f"{_name(names, index)}: {resource_name(schema, resource)} requested {requested[row, resource]}, "
            f"its reservations add up to {reserved[row, resource]} "
            f"({_holders(shard, shard.records['node'] == index)})"
        )
        yield LedgerFinding(6, index, "", text)


def _unequal_cards(
    shard: ShardAccounts, sums: ReservationSums, names: Mapping[int, str]
) -> Iterator[LedgerFinding]:
    holding = shard.records["node"][shard.records["card_mask"] > 0]
    known = np.concatenate([shard.card_indexes, _indexes_in(shard.damaged_cards)])
    for node in holding[~np.isin(holding, known)].tolist():
        yield LedgerFinding(6, node, "", f"{_name(names, node)}: cards reserved where there are none")
    row_of = {index: row for row, index in enumerate(shard.indexes.tolist())}
    reserved = sums.cards[[row_of[index] for index in shard.card_indexes.tolist()]]
    used = np.where(shard.cards == NO_CARD, 0, shard.cards & (CARD_CLOSED - 1))
    for row, slot in zip(*np.nonzero(reserved != used), strict=True):
        index = int(shard.card_indexes[row])
        holders = (shard.records["node"] == index) & (shard.records["card_mask"] >> slot & 1 > 0)
        text = (
            f"{_name(names, index)}: card {slot} has {used[row, slot]} thousandths in use, "
            f"its reservations add up to {reserved[row, slot]} ({_holders(shard, holders)})"
        )
        yield LedgerFinding(6, index, "", text)


def _clashing_ports(shard: ShardAccounts, names: Mapping[int, str]) -> Iterator[LedgerFinding]:
    leaving = set(map(bytes, shard.uids[shard.terminating]))
    for node, everybody in shard.ports.items():
        held = [port for port in everybody if port[0] not in leaving]
        for at, (uid, claim) in enumerate(held):
            if any(clash(claim, earlier) and other != uid for other, earlier in held[:at]):
                text = f"{_name(names, node)}: port {port_text(claim)} is held by more than one pod"
                yield LedgerFinding(1, node, uid_text(uid), text)


def _unequal_ports(shard: ShardAccounts, names: Mapping[int, str]) -> Iterator[LedgerFinding]:
    """Pods that hold ports by their reservation and not by their node, or the reverse."""
    holding = np.flatnonzero(shard.records["flags"] & HOLDS_PORTS)
    by_reservation = {(int(shard.records["node"][i]), shard.uids[i].tobytes()) for i in holding}
    by_node = {(node, uid) for node, held in shard.ports.items() for uid, _ in held}
    for node, uid in sorted(by_reservation ^ by_node):
        text = f"{_name(names, node)}: its ports and its reservations differ about a pod"
        yield LedgerFinding(6, node, uid_text(uid), text)


def _unequal_groups(shard: ShardAccounts, sums: ReservationSums) -> Iterator[LedgerFinding]:
    for key in sorted(sums.group_pods.keys() | shard.group_pods.keys()):
        counted, pods = shard.group_pods.get(key, 0), sums.group_pods.get(key, 0)
        if counted not in (pods, UNCOUNTED):
            text = f"group {key:016x}: {counted} pods, its reservations are {pods}"
            yield LedgerFinding(6, None, "", text)


def _reserved_twice(shards: Sequence[ShardAccounts], names: Mapping[int, str]) -> list[LedgerFinding]:
    sources = {(uid, *source) for shard in shards for uid, source in shard.moved.items()}
    counted = [_without(shard, sources) for shard in shards]
    uids = np.concatenate([np.empty((0, UID_BYTES), np.uint8), *(shard.uids for shard in counted)])
    # Pairs of big-endian integers: to sort rows of bytes takes twenty times as long.
    halves = np.ascontiguousarray(uids).view(">u8").astype(np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    same = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    nodes = np.concatenate([np.empty(0, np.uint32), *(shard.records["node"] for shard in counted)])
    where: dict[str, list[str]] = {}
    for row in np.union1d(order[1:][same], order[:-1][same]).tolist():
        where.setdefault(uid_text(uids[row].tobytes()), []).append(_name(names, int(nodes[row])))
    return [
        LedgerFinding(2, None, text, f"pod {text} holds more than one reservation: on {' and on '.join(on)}")
        for text, on in sorted(where.items())
    ]


def _without(shard: ShardAccounts, sources: set[tuple[bytes, int, int]]) -> ShardAccounts:
    """The shard without the sources of moves that are confirmed."""
    if not sources:
        return shard
    held = zip(shard.uids, shard.records["node"].tolist(), shard.records["seq"].tolist(), strict=True)
    left = np.array([(uid.tobytes(), node, seq) not in sources for uid, node, seq in held], np.bool_)
    return replace(shard, uids=shard.uids[left], records=shard.records[left])
