"""Accounts of nodes in the ledger's model: what a node offers of each resource, card and port, and what is
taken.

Invariant: an account equals the sum of the reservations on its node. `sum_reservations` computes that sum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import CARD_CLOSED, CARD_SLOTS, NO_CARD, Uids
from resolver.core.values import HOLDS_PORTS, Claim, PortHold


@dataclass(slots=True)
class Account:
    """One node. `cards` is empty for a node that never had any, else it has CARD_SLOTS entries, in
    thousandths used."""

    born: int
    seq: int = 0
    flags: int = 0
    described: int = 0  # the seq at which the spec last changed
    allocatable: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    requested: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    cards: list[int] = field(default_factory=list)
    ports: list[PortHold] = field(default_factory=list)

    def widen(self, resources: int) -> None:
        """Give it columns for so many resources at least; those that it lacked are zero."""
        missing = resources - len(self.allocatable)
        if missing > 0:
            self.allocatable = np.pad(self.allocatable, (0, missing))
            self.requested = np.pad(self.requested, (0, missing))

    def copy(self) -> "Account":
        """The account as it is now."""
        amounts = self.allocatable.copy(), self.requested.copy()
        return Account(
            self.born, self.seq, self.flags, self.described, *amounts, list(self.cards), list(self.ports)
        )

    def has(self, flag: int) -> bool:
        """Whether a flag is set."""
        return bool(self.flags & flag)

    def set_flag(self, flag: int, value: bool) -> None:
        """Set or clear a flag."""
        self.flags = self.flags | flag if value else self.flags & ~flag

    def overcommitted(self) -> bool:
        """Whether more of some resource is requested than allocatable."""
        return bool((self.requested > self.allocatable).any())

    @property
    def holds_nothing(self) -> bool:
        return not self.ports and not self.requested.any()

    def exceeded(self) -> bool:
        """Whether the node is overcommitted, or pods hold a card that the node no longer has."""
        return self.overcommitted() or any(CARD_CLOSED <= used < NO_CARD for used in self.cards)


def emptiest_cards(used_milli: Sequence[int], count: int, milli: int) -> tuple[int, ...] | None:
    """The emptiest cards, full or not. For proposals without validation; a card is left out if its record
    would overflow."""
    there = [slot for slot, used in enumerate(used_milli) if used <= CARD_CLOSED - 1 - milli]
    there.sort(key=lambda slot: used_milli[slot])
    return tuple(sorted(there[:count])) if len(there) >= count else None


def resized_cards(used_milli: Sequence[int], count: int) -> list[int]:
    """A node's cards after its card count becomes `count`. A card that goes away while pods hold it stays in
    the account, closed, until those pods leave."""
    before = list(used_milli) or [NO_CARD] * CARD_SLOTS
    holds = [0 if used == NO_CARD else used % CARD_CLOSED for used in before]
    return [
        held if slot < count else CARD_CLOSED + held if held else NO_CARD for slot, held in enumerate(holds)
    ]


@dataclass(frozen=True, slots=True)
class ReservationSums:
    """Sums of reservations, by node (in the order of the given nodes) and by group."""

    requested: NDArray[np.int64]  # (m, R)
    cards: NDArray[np.int64]  # (m, 16), thousandths
    ports: dict[int, list[PortHold]]  # by node, of those that hold any
    group_pods: dict[int, int]  # by the group's key
    lost: NDArray[np.intp]  # rows of reservations on none of the nodes


def resource_name(schema: Sequence[str], resource: int) -> str:
    """A resource that the schema does not have is one of a damaged record."""
    return schema[resource] if resource < len(schema) else f"resource {resource}"


def sum_reservations(
    nodes: NDArray[np.uint32], uids: Uids, records: NDArray[Any], claims: Mapping[int, Sequence[Claim]]
) -> ReservationSums:
    """Add up the reservations `records` (reservation_dtype(R), (n,)) of pods `uids` on `nodes` ((m,), each
    once).

    `claims`: for each group key, the ports that each pod of the group holds."""
    order = np.argsort(nodes)
    at = np.searchsorted(nodes[order], records["node"]).clip(max=max(len(nodes) - 1, 0))
    rows = order[at] if len(nodes) else np.zeros(len(records), np.intp)
    there = nodes[rows] == records["node"] if len(nodes) else np.zeros(len(records), np.bool_)
    requested = np.zeros((len(nodes), records["requests"].shape[1]), np.int64)
    np.add.at(requested, rows[there], records["requests"][there])
    cards = np.zeros((len(nodes), CARD_SLOTS), np.int64)
    carded = np.flatnonzero(there & (records["card_mask"] > 0))
    held = (records["card_mask"][carded, None] >> np.arange(CARD_SLOTS)) & 1
    np.add.at(cards, rows[carded], held.astype(np.int64) * records["card_milli"][carded, None])
    ports: dict[int, list[PortHold]] = {}
    for row in np.flatnonzero(there & ((records["flags"] & HOLDS_PORTS) > 0)).tolist():
        held_here = ports.setdefault(int(records["node"][row]), [])
        held_here += [(uids[row].tobytes(), claim) for claim in claims.get(int(records["group"][row]), ())]
    keys, counts = np.unique(records["group"][records["group"] != 0], return_counts=True)
    group_pods = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    return ReservationSums(requested, cards, ports, group_pods, np.flatnonzero(~there))
