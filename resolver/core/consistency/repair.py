"""The repair of a shard: accounts, cards, ports and group counts become the sums of the reservations, and
commits that are not confirmed get the lease that they lack.

Damaged accounts and cards are computed anew, from the specs of their nodes and from the reservations.
Reservations are promises to pods, so a repair never changes them. One that cannot be read is forgotten:
nobody knows what it promised. What is only prepared is no promise: without a lease it is given one that is
over. A repair reports what reservations alone cannot tell."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import (
    CARD_CLOSED,
    CARD_SLOTS,
    CARDS,
    FLAG_QUARANTINED,
    FLAG_SHRUNK,
    FLAG_UNSCHEDULABLE,
    NO_CARD,
    U32,
    U64,
    account_dtype,
)
from hoss.wire.uids import uid_text
from resolver.core.accounts import ReservationSums, resource_name
from resolver.core.commits import CommitFault, LeaseRule, commit_seqs
from resolver.core.values import (
    UNCOUNTED,
    AccountRows,
    LedgerNodeChange,
    PortHold,
    Reservations,
    ShardState,
    port_text,
)


@dataclass(slots=True)
class Repair:
    """New values by node index or group key, and sentences about them. Empty: nothing to repair."""

    accounts: dict[int, Any] = field(default_factory=dict)  # account_dtype(R) records
    cards: dict[int, NDArray[np.uint16]] = field(default_factory=dict)
    ports: dict[int, list[PortHold]] = field(default_factory=dict)
    group_pods: dict[int, int] = field(default_factory=dict)
    prepared_pods: dict[int, int] = field(
        default_factory=dict
    )  # by seq of a prepared commit; 0: there is none
    leases: dict[int, LeaseRule] = field(default_factory=dict)  # by seq of a commit
    lists: dict[int, bytes] = field(default_factory=dict)  # by seq of a commit, the UIDs of its pods
    damaged: list[bytes] = field(default_factory=list)  # UIDs of reservations that are forgotten
    # Fields of accounts and cards that are of no node, or of nodes without cards.
    no_accounts: list[bytes] = field(default_factory=list)
    no_cards: list[bytes] = field(default_factory=list)
    labels: dict[int, Mapping[str, str]] = field(default_factory=dict)
    no_labels: list[bytes] = field(default_factory=list)  # fields of no node, or of nodes without labels
    # Domain versions, by field: by shard, the seq that a worker must have seen to know its pods.
    versions: dict[bytes, Sequence[int]] = field(default_factory=dict)
    forgotten: dict[str, list[bytes]] = field(default_factory=dict)  # by key of the shard, its fields
    computed_anew: bool = False  # whether a damaged record was: followers may know the node otherwise
    changes: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)

    @property
    def needs_gap(self) -> bool:
        """Whether ports, group counts or prepared commits change, or a damaged record is computed anew. A
        feed entry cannot express that, so followers must take a new snapshot."""
        return bool(self.ports or self.group_pods or self.prepared_pods or self.computed_anew)


class _Texts(NamedTuple):
    """Names for the sentences."""

    schema: Sequence[str]
    names: Mapping[int, str]

    def node(self, index: int) -> str:
        return f"node {self.names.get(index, f'index {index}')}"


def plan_repair(
    state: ShardState,
    sums: ReservationSums,
    schema: Sequence[str],
    names: Mapping[int, str],
    *,
    described: Mapping[int, LedgerNodeChange] | None = None,
    quarantined: Collection[int] = (),
) -> Repair:
    """The changes that make the shard agree with its reservations. `sums`: of these, by node as in the
    snapshot; `described`: nodes whose accounts or cards are damaged, as their specs say; `quarantined`: nodes
    in quarantine."""
    described = described or {}
    rows = state.snapshot.accounts
    indexes = np.frombuffer(rows.indexes, U32)
    records = state.reservations.records
    found = Repair()
    for row in sums.lost.tolist():
        uid, node = uid_text(state.reservations.uids[row].tobytes()), int(records["node"][row])
        found.remaining.append(
            f"pod {uid} holds a reservation on index {node}, where there is no node; delete the "
            "pod, or restore the node"
        )
    resources = max(
        rows.resources, sums.requested.shape[1], *(len(n.allocatable) for n in described.values())
    )
    accounts = np.zeros(len(indexes), account_dtype(resources))
    old = np.frombuffer(rows.records, account_dtype(rows.resources))
    for name in ("seq", "born", "flags", "described"):
        accounts[name] = old[name]
    accounts["amounts"][:, : rows.resources] = old["amounts"]
    texts = _Texts(schema, names)
    _repair_amounts(found, indexes, accounts, sums.requested, texts)
    cards = dict(zip(indexes.tolist(), sums.cards, strict=True))
    _replace_damaged(found, state, accounts, cards, texts, described=described, quarantined=quarantined)
    readable = np.fromiter(cards, U32, len(cards))
    _repair_cards(found, rows, readable, sums.cards[np.isin(indexes, readable)], texts)
    _repair_ports(found, state.ports, sums.ports, texts)
    for key in sorted(sums.group_pods.keys() | state.groups.keys()):
        definition, counted = state.groups.get(key, (b"", 0))
        pods = sums.group_pods.get(key, 0)
        if pods and not definition:
            found.remaining.append(
                f"group {key:016x} has {pods} pods and no definition; it returns with them"
            )
        elif counted != pods:
            found.group_pods[key] = pods
            before = "a damaged number of" if counted == UNCOUNTED else counted
            found.changes.append(f"group {key:016x}: {before} pods counted, now {pods}")
    for lost, record in sorted(state.damaged.items()):
        found.damaged.append(lost)
        found.changes.append(f"field {lost.hex()}: what could not be read is forgotten: {record.hex()}")
    _forget_records(found, state.damaged_records)
    for fault in state.commit_faults:
        _repair_commit(found, fault, state.reservations)
    # A change of cards or ports also changes the node's account: caches and refusals look at the account's
    # seq.
    for node in found.cards.keys() | found.ports.keys():
        row = np.flatnonzero(indexes == node)
        if len(row):
            found.accounts[node] = accounts[row[0]]
    return found


def _forget_records(found: Repair, damaged: Mapping[str, Mapping[bytes, bytes]]) -> None:
    """Forget damaged rules, and what belongs to no group or commit. What belongs to one is written anew with
    it."""
    for key, records in damaged.items():
        for name, record in sorted(records.items()):
            group = key == "group_pods" and len(name) == U64.itemsize
            if not group and not (key in ("pending", "holds") and commit_seqs([name])):
                found.forgotten.setdefault(key, []).append(name)
                found.changes.append(f"{key} field {name.hex()} is forgotten: {record.hex()}")


def _replace_damaged(
    found: Repair,
    state: ShardState,
    accounts: NDArray[Any],
    cards: dict[int, NDArray[np.int64]],
    texts: _Texts,
    *,
    described: Mapping[int, LedgerNodeChange],
    quarantined: Collection[int],
) -> None:
    """Compute damaged accounts and cards anew, from the specs of their nodes and from the reservations.
    `accounts`: of all nodes, with what their reservations add up to; `cards`: what pods hold of them, by
    node, from which the nodes that are done are taken."""
    rows = {
        index: row for row, index in enumerate(np.frombuffer(state.snapshot.accounts.indexes, U32).tolist())
    }
    for name, record in sorted(state.damaged_accounts.items()):
        node = int.from_bytes(name, "little")
        if len(name) != U32.itemsize:
            found.no_accounts.append(name)
            found.changes.append(
                f"accounts field {name.hex()} is of no node and is forgotten: {record.hex()}"
            )
            continue
        account, spec = accounts[rows[node]], described.get(node)
        if spec is not None:
            account["amounts"][: len(spec.allocatable), 0] = spec.allocatable
            exceeds = bool(
                (account["amounts"][:, 1] > account["amounts"][:, 0]).any() or cards[node][spec.cards :].any()
            )
            account["flags"] = FLAG_UNSCHEDULABLE * spec.unschedulable | FLAG_SHRUNK * exceeds
            account["flags"] |= FLAG_QUARANTINED * (node in quarantined)
        # Whoever knew another node under this index must not place pods here.
        account["born"] = state.snapshot.seq + 1
        account["described"] = account["born"] & 0xFFFFFFFF
        found.accounts[node], found.computed_anew = account, True
        found.changes.append(
            f"{texts.node(node)}: its account was damaged and is computed anew: {record.hex()}"
        )
    for name, record in sorted(state.damaged_cards.items()):
        node = int.from_bytes(name, "little")
        there = node in rows and len(name) == U32.itemsize
        count = described[node].cards if there and node in described else 0
        use = cards.pop(node) if there else np.zeros(CARD_SLOTS, np.int64)
        if count or use.any():
            found.cards[node] = with_use(np.where(np.arange(CARD_SLOTS) < count, 0, NO_CARD), use)
            found.computed_anew = True
        else:
            found.no_cards.append(name)
        of = texts.node(node) if there else f"cards field {name.hex()}"
        found.changes.append(f"{of}: its cards were damaged and are computed anew: {record.hex()}")


def replace_rule_records(
    found: Repair,
    wrong_labels: Mapping[bytes, bytes],
    damaged_versions: Mapping[bytes, bytes],
    *,
    described: Mapping[int, LedgerNodeChange],
    seqs: Sequence[int],
) -> None:
    """Add to the repair what rules about pods are judged by: labels as the specs of their nodes say, and
    domain versions. `described`: at least the nodes with wrong labels that are there; `seqs`: of all shards,
    read after the damaged versions."""
    for name, record in sorted(wrong_labels.items()):
        node = int.from_bytes(name, "little")
        spec = described.get(node) if len(name) == U32.itemsize else None
        if spec is not None and spec.labels:
            found.labels[node] = dict(spec.labels)
        else:
            found.no_labels.append(name)
        of = f"labels field {name.hex()}" if spec is None else f"node {spec.name}"
        found.changes.append(f"{of}: its labels were wrong and are those of its spec now: {record.hex()}")
    for name, record in sorted(damaged_versions.items()):
        # What came to the domain is unknown. It came by now, so whoever has seen all until now knows it.
        found.versions[name] = seqs
        found.changes.append(f"stamps field {name.hex()}: it was damaged and is written anew: {record.hex()}")


def _repair_commit(found: Repair, fault: CommitFault, reservations: Reservations) -> None:
    if fault.pods is not None:
        found.prepared_pods[fault.seq] = fault.pods
    if fault.rule is None and fault.pods is None:
        found.remaining.append(f"{fault.text}; a running resolver ends it")
        return
    if fault.rule is not None:
        found.leases[fault.seq] = fault.rule
        if fault.rule is not LeaseRule.FORGET:
            held = reservations.uids[reservations.records["seq"] == fault.seq]
            found.lists[fault.seq] = held.tobytes()
    words = {
        LeaseRule.BEGIN: "has a lease now",
        LeaseRule.END: "ends now",
        LeaseRule.FORGET: "is forgotten now",
        None: "is counted anew",
    }
    found.changes.append(f"{fault.text}; it {words[fault.rule]}")


def _repair_amounts(
    found: Repair,
    indexes: NDArray[np.uint32],
    accounts: NDArray[Any],
    requested: NDArray[np.int64],
    texts: _Texts,
) -> None:
    right = np.zeros(accounts["amounts"].shape[:2], np.int64)
    right[:, : requested.shape[1]] = requested
    has = accounts["amounts"][:, :, 1].copy()
    accounts["amounts"][:, :, 1] = right
    for row, resource in zip(*np.nonzero(has != right), strict=True):
        node = int(indexes[row])
        found.accounts[node] = accounts[row]
        found.changes.append(
            f"{texts.node(node)}: {resource_name(texts.schema, resource)} requested {has[row, resource]}, "
            f"now {right[row, resource]}"
        )


def _repair_cards(
    found: Repair,
    rows: AccountRows,
    nodes: NDArray[np.uint32],
    right: NDArray[np.int64],
    texts: _Texts,
) -> None:
    """`right`: what pods hold of the cards of these nodes, (n, 16)."""
    used = np.full(right.shape, NO_CARD, np.uint16)
    carded, cards = np.frombuffer(rows.card_indexes, U32), np.frombuffer(rows.cards, CARDS.base)
    _, at_nodes, at_cards = np.intersect1d(nodes, carded, assume_unique=True, return_indices=True)
    used[at_nodes] = cards.reshape(-1, *CARDS.shape)[at_cards]
    repaired = with_use(used, right)
    for row in np.flatnonzero((repaired != used).any(axis=1)).tolist():
        node = int(nodes[row])
        found.cards[node] = repaired[row]
        for slot in np.flatnonzero(repaired[row] != used[row]).tolist():
            found.changes.append(
                f"{texts.node(node)}: card {slot} has {_in_use(used[row, slot])} thousandths in "
                f"use, now {_in_use(repaired[row, slot])}"
            )


def with_use(cards: NDArray[np.uint16], use: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Cards of a node, (16,), or of n, (n, 16), with so many thousandths of each in use. A card that does not
    exist (any more) is closed while it is in use."""
    there = cards < CARD_CLOSED
    return np.where(there, use, np.where(use > 0, CARD_CLOSED + use, NO_CARD)).astype(np.uint16)


def _repair_ports(
    found: Repair,
    held: Mapping[int, Sequence[PortHold]],
    right: Mapping[int, Sequence[PortHold]],
    texts: _Texts,
) -> None:
    for node in sorted(held.keys() | right.keys()):
        gone, come = (
            set(held.get(node, ())) - set(right.get(node, ())),
            set(right.get(node, ())) - set(held.get(node, ())),
        )
        if gone or come:
            found.ports[node] = list(right.get(node, ()))
        for verb, holds in (("no more", gone), ("again", come)):
            found.changes += [
                f"{texts.node(node)}: port {port_text(claim)} is {verb} held by pod {uid_text(uid)}"
                for uid, claim in sorted(holds)
            ]


def _in_use(milli: int) -> int:
    return 0 if milli == NO_CARD else int(milli) & (CARD_CLOSED - 1)
