"""The contents of a shard after a rebuild, computed as a whole from nodes and reservations before anything is
written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import card_mask, pick_cards
from hoss.wire.columns import CARD_SLOTS, FLAG_SHRUNK, FLAG_UNSCHEDULABLE, NO_CARD, U32, Uids, account_dtype
from resolver.core.accounts import ReservationSums, sum_reservations
from resolver.core.consistency.repair import with_use
from resolver.core.values import Group, LedgerNodeChange

# Unconfirmed reservations of one commit: the reaper releases the pods of one commit in one script.
PODS_A_COMMIT = 1000


@dataclass(frozen=True, slots=True)
class ReservedPods:
    """n reservations. `records`: reservation_dtype(R). `compose` fills in their `seq` and `flags`."""

    uids: Uids
    records: NDArray[Any]
    card_counts: NDArray[np.uint16]  # (n,): cards requested
    assumed: NDArray[np.bool_]  # (n,)

    def of(self, rows: NDArray[Any]) -> "ReservedPods":
        """A subset: a mask or row numbers."""
        return ReservedPods(self.uids[rows], self.records[rows], self.card_counts[rows], self.assumed[rows])


@dataclass(frozen=True, slots=True)
class Contents:
    """One shard. `seq` is the seq of its last change, above that of every reservation."""

    seq: int
    nodes: Mapping[int, LedgerNodeChange]
    indexes: NDArray[np.uint32]  # (m,), ascending
    accounts: NDArray[Any]  # account_dtype(R), (m,)
    cards: Mapping[int, NDArray[np.uint16]]
    pods: ReservedPods
    groups: Mapping[int, Group]
    sums: ReservationSums
    unplaced: Uids

    @property
    def overcommitted(self) -> list[str]:
        """Names of nodes that offer less than is reserved on them."""
        shrunk = self.indexes[(self.accounts["flags"] & FLAG_SHRUNK) > 0]
        return [self.nodes[index].name for index in shrunk.tolist()]


def compose(
    nodes: Mapping[int, LedgerNodeChange],
    pods: ReservedPods,
    groups: Mapping[int, Group],
    *,
    first_seq: int,
    resources: int,
) -> Contents:
    """The shard that has these nodes (by index) and pods. Pods are `unplaced` if their node is missing or
    their cards do not fit on it: nobody may be told that such a pod holds a reservation."""
    indexes = np.array(sorted(nodes), U32)
    cards = {i: _blank_cards(nodes[i].cards) for i in indexes.tolist() if nodes[i].cards}
    records = pods.records.copy()
    pods = ReservedPods(pods.uids, records, pods.card_counts, pods.assumed)
    placed = np.isin(records["node"], indexes) & _lay_cards(cards, records, pods.card_counts)
    unplaced, pods = pods.uids[~placed], pods.of(placed)
    records = pods.records
    # Unconfirmed pods get commits of their own, because the reaper releases them by commit.
    assumed = np.cumsum(pods.assumed) - 1
    records["seq"] = np.where(pods.assumed, first_seq + 1 + assumed // PODS_A_COMMIT, first_seq)
    flags = {key: group.flags for key, group in groups.items()}
    keys, which = np.unique(records["group"], return_inverse=True)
    records["flags"] = np.array([flags.get(key, 0) for key in keys.tolist()], np.uint16)[which]
    seq = first_seq + int(pods.assumed.sum()) // PODS_A_COMMIT + 2
    sums = sum_reservations(indexes, pods.uids, records, {key: group.ports for key, group in groups.items()})
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
    """Assign cards to pods: first pods whose cards are known, then the largest requests first. Returns which
    pods have their cards."""
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
        records["card_mask"][row] = card_mask(slots)
        done[row] = True
    return done
