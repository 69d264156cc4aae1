"""Accounts of nodes in the ledger's model: what there is of each resource, card and port, and what is taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hoss.wire.account import CARD_CLOSED, CARD_SLOTS, NO_CARD
from resolver.core.values import PortHold


@dataclass(slots=True)
class Account:
    """One node. `cards` is empty for a node that never had any, else CARD_SLOTS thousandths used."""

    born: int
    seq: int = 0
    flags: int = 0
    described: int = 0  # the seq at which the spec last changed
    allocatable: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    requested: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    cards: list[int] = field(default_factory=list)
    ports: list[PortHold] = field(default_factory=list)

    def widen(self, resources: int) -> None:
        """Make room for that many resources."""
        missing = resources - len(self.allocatable)
        if missing > 0:
            self.allocatable = np.pad(self.allocatable, (0, missing))
            self.requested = np.pad(self.requested, (0, missing))

    def has(self, flag: int) -> bool:
        """Whether the flag is set."""
        return bool(self.flags & flag)

    def mark(self, flag: int, wanted: bool) -> None:
        """Set or clear the flag."""
        self.flags = self.flags | flag if wanted else self.flags & ~flag

    def overcommitted(self) -> bool:
        """More is requested of some resource than there is."""
        return bool((self.requested > self.allocatable).any())

    def exceeded(self) -> bool:
        """Overcommitted, or pods hold a card that the node has no more."""
        return self.overcommitted() or any(CARD_CLOSED <= used < NO_CARD for used in self.cards)


def emptiest_cards(used_milli: Sequence[int], count: int, milli: int) -> tuple[int, ...] | None:
    """Where nothing is checked: the emptiest cards, full or not, as long as the record can hold it."""
    there = [slot for slot, used in enumerate(used_milli) if used <= CARD_CLOSED - 1 - milli]
    there.sort(key=lambda slot: used_milli[slot])
    return tuple(sorted(there[:count])) if len(there) >= count else None


def resized_cards(used_milli: Sequence[int], count: int) -> list[int]:
    """A node's cards after it says it has `count`. A card that goes while pods hold it stays, closed, until they leave."""
    before = list(used_milli) or [NO_CARD] * CARD_SLOTS
    holds = [0 if used == NO_CARD else used % CARD_CLOSED for used in before]
    return [held if slot < count else CARD_CLOSED + held if held else NO_CARD for slot, held in enumerate(holds)]
