"""Assumptions: pods that this worker placed and the feed has not shown yet; and the cards that they hold.

A row of an assumption counts until it is given back once."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import pick_cards, pods_on_cards
from hoss.model.pod import DeviceRequest, PodGroup
from hoss.wire.columns import CARD_SLOTS, NO_CARD
from scheduler_worker.core.nodes import NodeIndexes

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
        """One pod on each of `nodes` in turn, on the cards that the ledger would pick by the same account.

        A pod for which a node has no cards left gets none; the ledger will refuse it."""
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
        """Add to the assumed layer, per pod, `millis` on each of its cards, modulo 2^16: a negative
        subtracts."""
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
    """How many more pods with these devices the cards of each node hold, see pods_on_cards: (n,). `used` is
    (n, 16)."""
    return pods_on_cards(used, devices.count, devices.milli)


@dataclass(slots=True, eq=False)
class Assumption:
    """n pods assumed together. A row counts while `live`; the assumption ends when the feed shows its
    commit."""

    nodes: NodeIndexes  # (n,)
    slots: NDArray[np.intp]  # (n,)
    requests: NDArray[np.int64]  # (s, R)
    card_masks: CardMasks  # (n,)
    card_millis: NDArray[np.uint16]  # (s,)
    expires_at: float
    groups: tuple[PodGroup, ...] = ()  # by slot: what the pod index counts them as; empty: not counted
    live: NDArray[np.bool_] = field(init=False)  # (n,)
    seq: int = 0  # of the commit, once it is known

    def __post_init__(self) -> None:
        self.live = np.ones(len(self.nodes), np.bool_)


class AssumptionTable:
    """Assumptions without an answer, and committed ones by shard until the feed shows their commit."""

    def __init__(self) -> None:
        self._open: dict[Assumption, None] = {}  # an ordered set
        self._confirmed: dict[int, list[Assumption]] = {}  # shard ->

    def __iter__(self) -> Iterator[Assumption]:
        yield from self._open
        for waiting in self._confirmed.values():
            yield from waiting

    def __len__(self) -> int:
        return len(self._open) + sum(map(len, self._confirmed.values()))

    @property
    def undecided(self) -> bool:
        """Whether any assumption has no answer from the ledger yet."""
        return bool(self._open)

    @property
    def empty(self) -> bool:
        """Whether nothing at all is assumed."""
        return not self._open and not any(self._confirmed.values())

    def add(self, assumption: Assumption) -> None:
        """Add an assumption without an answer."""
        self._open[assumption] = None

    def close(self, assumption: Assumption) -> None:
        """The assumption counts no more; it may have ended before."""
        self._open.pop(assumption, None)

    def confirm(self, assumption: Assumption, shard: int, seq: int) -> bool:
        """The assumption ends when the shard's feed reaches `seq`. False if it had already ended."""
        if assumption not in self._open:
            return False
        del self._open[assumption]
        assumption.seq = seq
        self._confirmed.setdefault(shard, []).append(assumption)
        return True

    def reached(self, shard: int, seq: int) -> list[Assumption]:
        """Take out what ends with the shard's feed at `seq`."""
        waiting = self._confirmed.get(shard)
        if not waiting:
            return []
        ended = [a for a in waiting if a.seq <= seq]
        if ended:
            self._confirmed[shard] = [a for a in waiting if a.seq > seq]
        return ended

    def take_confirmed(self) -> list[Assumption]:
        """Take out everything the ledger has committed and the feed has not shown."""
        taken = [assumption for waiting in self._confirmed.values() for assumption in waiting]
        self._confirmed.clear()
        return taken

    def take_open(self) -> list[Assumption]:
        """Take out everything without an answer."""
        taken = list(self._open)
        self._open.clear()
        return taken

    def take_expired(self, now: float) -> list[Assumption]:
        """Take out what has passed its deadline, without an answer or without its commit in the feed."""
        expired = [a for a in self if a.expires_at <= now]
        for assumption in expired:
            self._open.pop(assumption, None)
        for shard, waiting in self._confirmed.items():
            self._confirmed[shard] = [a for a in waiting if a.expires_at > now]
        return expired
