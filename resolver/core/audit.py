"""What an audit of the ledger finds: invariants 1, 2 and 6 of docs/architecture.md, on shards read whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.wire.account import CARD_CLOSED, FLAG_GONE, FLAG_SHRUNK, NO_CARD
from hoss.wire.columns import UID_BYTES, Uids, uid_text
from resolver.core.ports import clash, port_text
from resolver.core.values import HOLDS_PORTS, PortHold

_MOST_NAMED = 3  # pods named one by one in a sentence


@dataclass(frozen=True, slots=True)
class ShardAccounts:
    """One shard at one moment. Arrays have one row a node, or a reservation."""

    shard: int
    indexes: NDArray[np.uint32]  # (m,)
    accounts: NDArray[Any]  # account_dtype(R), (m,)
    card_indexes: NDArray[np.uint32]  # (k,)
    cards: NDArray[np.uint16]  # (k, 16)
    uids: Uids  # (n, 16)
    records: NDArray[Any]  # fields node, card_mask, card_milli, flags, group, requests (R2)
    ports: Mapping[int, Sequence[PortHold]] = field(default_factory=dict)  # by node
    group_pods: Mapping[int, int] = field(default_factory=dict)  # by group's key


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant, or (invariant 0) a node that shrank below what it holds, which is none."""

    invariant: int
    node: int | None
    uid: str
    text: str


def audit(shards: Sequence[ShardAccounts], schema: Sequence[str], names: Mapping[int, str]) -> list[Finding]:
    """Everything that is wrong, worst first within a shard."""
    findings = []
    for shard in shards:
        findings += _overcommitted(shard, schema, names)
        findings += _overfull_cards(shard, names)
        findings += _unequal_sums(shard, schema, names)
        findings += _unequal_cards(shard, names)
        findings += _clashing_ports(shard, names)
        findings += _unequal_ports(shard, names)
        findings += _unequal_groups(shard)
    return findings + _held_twice(shards)


def _name(names: Mapping[int, str], index: int) -> str:
    return names.get(index, f"index {index}")


def _holders(shard: ShardAccounts, which: NDArray[np.bool_]) -> str:
    """Whose reservations these are: how many pods, and the first of them."""
    rows = np.flatnonzero(which)
    if not len(rows):
        return "of no pod"
    named = ", ".join(uid_text(shard.uids[row].tobytes()) for row in rows[:_MOST_NAMED].tolist())
    more = ", ..." if len(rows) > _MOST_NAMED else ""
    return f"of {len(rows)} pod{'s' * (len(rows) > 1)}: {named}{more}"


def _overcommitted(shard: ShardAccounts, schema: Sequence[str], names: Mapping[int, str]) -> list[Finding]:
    live = (shard.accounts["flags"] & FLAG_GONE) == 0
    amounts = shard.accounts["amounts"]
    findings = []
    for row, resource in zip(*np.nonzero((amounts[:, :, 1] > amounts[:, :, 0]) & live[:, None]), strict=True):
        allocatable, requested = amounts[row, resource].tolist()
        shrunk = bool(shard.accounts["flags"][row] & FLAG_SHRUNK)
        index = int(shard.indexes[row])
        text = f"node {_name(names, index)}: {schema[resource]} requested {requested} > allocatable {allocatable}"
        findings.append(
            Finding(
                0 if shrunk else 1, index, "", text + (" since it shrank or others put pods there" if shrunk else "")
            )
        )
    return findings


def _overfull_cards(shard: ShardAccounts, names: Mapping[int, str]) -> list[Finding]:
    used = shard.cards & (CARD_CLOSED - 1)
    findings = []
    for row, slot in zip(*np.nonzero((shard.cards != NO_CARD) & (used > WHOLE_CARD_MILLI)), strict=True):
        index = int(shard.card_indexes[row])
        text = f"node {_name(names, index)}: card {slot} has {used[row, slot]} of {WHOLE_CARD_MILLI} thousandths in use"
        findings.append(Finding(1, index, "", text))
    return findings


def _unequal_sums(shard: ShardAccounts, schema: Sequence[str], names: Mapping[int, str]) -> list[Finding]:
    held = shard.records["requests"]
    requested = shard.accounts["amounts"][:, :, 1]
    resources = max(held.shape[1], requested.shape[1])
    sums = np.zeros((len(shard.indexes), resources), np.int64)
    order = np.argsort(shard.indexes)
    if len(shard.indexes):
        at = np.searchsorted(shard.indexes[order], shard.records["node"]).clip(max=len(order) - 1)
        rows = order[at]
        np.add.at(sums[:, : held.shape[1]], rows, held)
        lost = shard.indexes[rows] != shard.records["node"]
    else:
        lost = np.ones(len(held), np.bool_)
    findings = [
        Finding(
            6, int(shard.records["node"][i]), uid_text(shard.uids[i].tobytes()), "reserved on a node that is not there"
        )
        for i in np.flatnonzero(lost)
    ]
    wide = np.zeros_like(sums)
    wide[:, : requested.shape[1]] = requested
    for row, resource in zip(*np.nonzero(sums != wide), strict=True):
        index = int(shard.indexes[row])
        findings.append(
            Finding(
                6,
                index,
                "",
                f"node {_name(names, index)}: {schema[resource]} requested {wide[row, resource]}, "
                f"its reservations add up to {sums[row, resource]} ({_holders(shard, shard.records['node'] == index)})",
            )
        )
    return findings


def _unequal_cards(shard: ShardAccounts, names: Mapping[int, str]) -> list[Finding]:
    holding = shard.records[shard.records["card_mask"] > 0]
    sums = np.zeros(shard.cards.shape, np.int64)
    row_of = {int(index): row for row, index in enumerate(shard.card_indexes)}
    findings = []
    for node, mask, milli in zip(
        holding["node"].tolist(), holding["card_mask"].tolist(), holding["card_milli"].tolist(), strict=True
    ):
        if node not in row_of:
            findings.append(Finding(6, node, "", f"node {_name(names, node)}: cards reserved where there are none"))
            continue
        sums[row_of[node]] += np.where((mask >> np.arange(shard.cards.shape[1])) & 1, milli, 0)
    used = np.where(shard.cards == NO_CARD, 0, shard.cards & (CARD_CLOSED - 1))
    for row, slot in zip(*np.nonzero(sums != used), strict=True):
        index = int(shard.card_indexes[row])
        text = (
            f"node {_name(names, index)}: card {slot} has {used[row, slot]} thousandths in use, "
            f"its reservations add up to {sums[row, slot]} "
            f"({_holders(shard, (shard.records['node'] == index) & (shard.records['card_mask'] >> slot & 1 > 0))})"
        )
        findings.append(Finding(6, index, "", text))
    return findings


def _clashing_ports(shard: ShardAccounts, names: Mapping[int, str]) -> list[Finding]:
    findings = []
    for node, holds in shard.ports.items():
        for at, (uid, claim) in enumerate(holds):
            if any(clash(claim, held) and other != uid for other, held in holds[:at]):
                text = f"node {_name(names, node)}: port {port_text(claim)} is held by more than one pod"
                findings.append(Finding(1, node, uid_text(uid), text))
    return findings


def _unequal_ports(shard: ShardAccounts, names: Mapping[int, str]) -> list[Finding]:
    """Pods that hold ports by their reservation and not by their node, or the other way round."""
    holding = np.flatnonzero(shard.records["flags"] & HOLDS_PORTS)
    by_reservation = {(int(shard.records["node"][i]), shard.uids[i].tobytes()) for i in holding}
    by_node = {(node, uid) for node, holds in shard.ports.items() for uid, _ in holds}
    return [
        Finding(6, node, uid_text(uid), f"node {_name(names, node)}: its ports and its reservations differ about a pod")
        for node, uid in sorted(by_reservation ^ by_node)
    ]


def _unequal_groups(shard: ShardAccounts) -> list[Finding]:
    keys, counts = np.unique(shard.records["group"][shard.records["group"] != 0], return_counts=True)
    pods = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    return [
        Finding(
            6,
            None,
            "",
            f"group {key:016x}: {shard.group_pods.get(key, 0)} pods, its reservations are {pods.get(key, 0)}",
        )
        for key in sorted(pods.keys() | shard.group_pods.keys())
        if pods.get(key, 0) != shard.group_pods.get(key, 0)
    ]


def _held_twice(shards: Sequence[ShardAccounts]) -> list[Finding]:
    uids = np.concatenate([np.empty((0, UID_BYTES), np.uint8), *(shard.uids for shard in shards)])
    # As pairs of big-endian halves: sorting rows of bytes costs twenty times as much.
    halves = np.ascontiguousarray(uids).view(">u8").astype(np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    repeated = order[1:][(halves[order[1:]] == halves[order[:-1]]).all(axis=1)]
    texts = sorted({uid_text(uids[row].tobytes()) for row in repeated})
    return [Finding(2, None, text, f"pod {text} holds more than one reservation") for text in texts]
