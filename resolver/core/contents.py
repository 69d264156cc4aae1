"""A shard as it is to be after a rebuild: computed whole from its nodes and reservations, before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import pick_cards
from hoss.wire.account import CARD_SLOTS, FLAG_SHRUNK, FLAG_UNSCHEDULABLE, NO_CARD, account_dtype
from hoss.wire.columns import U32, Uids
from resolver.core.mending import with_use
from resolver.core.tallies import Tallies, tally
from resolver.core.values import Group, NodeChange

# Assumed reservations of one commit's number: the reaper takes back what one number reserved in one script.
PODS_A_COMMIT = 1000


@dataclass(frozen=True, slots=True)
class Pods:
    """n reservations. `records`: reservation_dtype(R); `seq` and `flags` in them are given by `compose`."""

    uids: Uids
    records: NDArray[Any]
    card_counts: NDArray[np.uint16]  # (n,): cards wanted
    assumed: NDArray[np.bool_]  # (n,)

    def of(self, rows: NDArray[Any]) -> "Pods":
        """Some of them: a mask or row numbers."""
        return Pods(self.uids[rows], self.records[rows], self.card_counts[rows], self.assumed[rows])


@dataclass(frozen=True, slots=True)
class Contents:
    """One shard. `seq` is the number of its last change, above that of every reservation."""

    seq: int
    nodes: Mapping[int, NodeChange]
    indexes: NDArray[np.uint32]  # (m,), ascending
    accounts: NDArray[Any]  # account_dtype(R), (m,)
    cards: Mapping[int, NDArray[np.uint16]]
    pods: Pods
    groups: Mapping[int, Group]
    tallies: Tallies
    unplaced: Uids

    @property
    def overcommitted(self) -> list[str]:
        """Names of nodes that offer less than is reserved on them."""
        shrunk = self.indexes[(self.accounts["flags"] & FLAG_SHRUNK) > 0]
        return [self.nodes[index].name for index in shrunk.tolist()]


def compose(
    nodes: Mapping[int, NodeChange], pods: Pods, groups: Mapping[int, Group], *, first_seq: int, resources: int
) -> Contents:
    """The shard of these nodes, by index, and pods. Pods whose node is not among them, or whose cards do not fit on it, are
    `unplaced`: nobody may be told that they hold what they do not."""
    indexes = np.array(sorted(nodes), U32)
    cards = {i: _blank_cards(nodes[i].cards) for i in indexes.tolist() if nodes[i].cards}
    records = pods.records.copy()
    pods = Pods(pods.uids, records, pods.card_counts, pods.assumed)
    placed = np.isin(records["node"], indexes) & _lay_cards(cards, records, pods.card_counts)
    unplaced, pods = pods.uids[~placed], pods.of(placed)
    records = pods.records
    # What is assumed is told from the rest by its commit's number, and taken back by it.
    assumed = np.cumsum(pods.assumed) - 1
    records["seq"] = np.where(pods.assumed, first_seq + 1 + assumed // PODS_A_COMMIT, first_seq)
    flags = {key: group.flags for key, group in groups.items()}
    keys, which = np.unique(records["group"], return_inverse=True)
    records["flags"] = np.array([flags.get(key, 0) for key in keys.tolist()], np.uint16)[which]
    seq = first_seq + int(pods.assumed.sum()) // PODS_A_COMMIT + 2
    sums = tally(indexes, pods.uids, records, {key: group.ports for key, group in groups.items()})
    accounts = np.zeros(len(indexes), account_dtype(resources))
    accounts["seq"] = accounts["born"] = seq
    for row, index in enumerate(indexes.tolist()):
        offered = nodes[index].allocatable
        accounts["amounts"][row, : len(offered), 0] = offered
    accounts["amounts"][:, : sums.requested.shape[1], 1] = sums.requested
    exceeds = (accounts["amounts"][:, :, 1] > accounts["amounts"][:, :, 0]).any(axis=1)
    closed = np.array([nodes[index].unschedulable for index in indexes.tolist()], np.bool_)
    accounts["flags"] = np.where(closed, FLAG_UNSCHEDULABLE, 0) | np.where(exceeds, FLAG_SHRUNK, 0)
    return Contents(seq, nodes, indexes, accounts, cards, pods, groups, sums, unplaced)


def _blank_cards(count: int) -> NDArray[np.uint16]:
    return np.where(np.arange(CARD_SLOTS) < count, 0, NO_CARD).astype(np.uint16)


def _lay_cards(
    cards: dict[int, NDArray[np.uint16]], records: NDArray[Any], counts: NDArray[np.uint16]
) -> NDArray[np.bool_]:
    """Give pods their cards: those whose cards are known first, then the largest wishes first. Which pods have them."""
    done: NDArray[np.bool_] = counts == 0
    known = np.flatnonzero(~done & (records["card_mask"] > 0))
    wishing = np.flatnonzero(~done & (records["card_mask"] == 0))
    order = np.lexsort((-counts[wishing].astype(int), -records["card_milli"][wishing].astype(int)))
    for row in [*known.tolist(), *wishing[order].tolist()]:
        node, milli = int(records["node"][row]), int(records["card_milli"][row])
        used = cards.get(node)
        if used is None:
            continue
        mask = int(records["card_mask"][row])
        slots: Sequence[int] | None = [slot for slot in range(CARD_SLOTS) if mask >> slot & 1]
        if not mask:
            slots = pick_cards(used.tolist(), int(counts[row]), milli)
        if slots is None:
            continue
        use = np.where(used == NO_CARD, 0, used & 0x7FFF).astype(np.int64)
        use[list(slots)] += milli
        cards[node] = with_use(used, use)
        records["card_mask"][row] = sum(1 << slot for slot in slots)
        done[row] = True
    return done
