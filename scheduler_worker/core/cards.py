"""Accelerator cards of all nodes: what the ledger said is used of each, and what this worker assumed besides."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import WHOLE_CARD_MILLI, pick_cards
from hoss.model.pod import DeviceRequest
from hoss.wire.account import CARD_SLOTS, NO_CARD
from scheduler_worker.core.changes import NodeIndexes

CardMasks = NDArray[np.uint16]  # (n,): bit i set: the pod holds (a share of) card i

_BITS = (1 << np.arange(CARD_SLOTS)).astype(np.uint16)


class CardLayers:
    """`used` = `committed` + `assumed` per card, absent cards NO_CARD. Kept for every node, cards or not."""

    def __init__(self) -> None:
        self.committed: NDArray[np.uint16] = np.zeros((0, CARD_SLOTS), np.uint16)
        self.assumed: NDArray[np.uint16] = np.zeros((0, CARD_SLOTS), np.uint16)
        self.used: NDArray[np.uint16] = np.zeros((0, CARD_SLOTS), np.uint16)

    def grow(self, capacity: int) -> None:
        """Make room for indexes below `capacity`; new nodes have no cards."""
        more = capacity - len(self.used)
        self.committed = np.concatenate((self.committed, np.full((more, CARD_SLOTS), NO_CARD, np.uint16)))
        self.assumed = np.concatenate((self.assumed, np.zeros((more, CARD_SLOTS), np.uint16)))
        self.used = np.concatenate((self.used, np.full((more, CARD_SLOTS), NO_CARD, np.uint16)))

    def combine(self, nodes: NodeIndexes) -> None:
        """Bring `used` of these nodes up to date with the two layers."""
        committed = self.committed[nodes]
        self.used[nodes] = np.where(committed == NO_CARD, NO_CARD, committed + self.assumed[nodes])

    def assume(self, nodes: NodeIndexes, devices: DeviceRequest) -> CardMasks:
        """One pod on each of `nodes` in turn, on the cards the ledger would pick by the same account.

        A pod for which a node has no cards left gets none here; the ledger will refuse it.
        """
        masks = np.zeros(len(nodes), np.uint16)
        for row, node in enumerate(nodes.tolist()):
            used = self.used[node]
            picked = pick_cards(used.tolist(), devices.count, devices.milli)
            for slot in picked or ():
                used[slot] += devices.milli
                self.assumed[node, slot] += devices.milli
                masks[row] |= 1 << slot
        return masks

    def add(self, nodes: NodeIndexes, masks: CardMasks, millis: NDArray[np.uint16]) -> None:
        """Add to the assumed layer, per pod, `millis` on each of its cards; modulo 2^16, so a negative takes away."""
        holders = np.flatnonzero(masks)
        if len(holders):
            held = (masks[holders, None] & _BITS) != 0
            np.add.at(self.assumed, nodes[holders], held * millis[holders, None])
            self.combine(nodes[holders])

    def adopt(self, nodes: NodeIndexes, masks: CardMasks, millis: NDArray[np.uint16]) -> None:
        """Add to the committed layer, per pod, `millis` on each of its cards that is still there."""
        held = ((masks[:, None] & _BITS) != 0) & (self.committed[nodes] != NO_CARD)
        np.add.at(self.committed, nodes, held * millis[:, None])


def pods_that_fit(used: NDArray[np.uint16], devices: DeviceRequest) -> NDArray[np.int64]:
    """How many pods with these devices the cards of each node still take, one after the other: (n,).

    `used` is (n, 16). For whole cards or a share of one; for shares of several cards at once it would depend on how the
    first pods spread.
    """
    free = np.maximum(WHOLE_CARD_MILLI - used.astype(np.int64), 0)
    pods: NDArray[np.int64] = (free // max(devices.milli, 1)).sum(axis=1) // max(devices.count, 1)
    return pods
