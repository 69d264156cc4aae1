"""What the ledger said of every node, last: the committed layer of the cache."""

import numpy as np
from numpy.typing import NDArray

from hoss.wire.account import FLAG_GONE, NO_CARD, account_dtype, digest
from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.cards import CardLayers
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.messages import AccountBatch
from scheduler_worker.core.view import EXACT_IN_DOUBLES, divisors


class AccountLayer:
    """Absolute amounts by (resource, node). A node's account is only ever replaced by one at least as new."""

    def __init__(self, rows: int, cards: CardLayers) -> None:
        self.allocatable: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.committed: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.flags: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self.divisors: NDArray[np.float64] = np.ones((2, 0))  # see NodeView
        self.mean_factors: NDArray[np.float64] = np.ones(0)
        self.exact_in_doubles = True
        self._seqs: NDArray[np.uint64] = np.zeros(0, np.uint64)  # 0: nothing said
        # Of the cards: a refusal of pods that want none brings accounts without cards, ahead of entries that have them.
        self._card_seqs: NDArray[np.uint64] = np.zeros(0, np.uint64)
        # Of the last commit that `adopt` added: only an account that is as new contains it. 0: none.
        self._own_seqs: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._cards = cards

    @property
    def capacity(self) -> int:
        """Indexes below this have a place."""
        return len(self.flags)

    def grow(self, capacity: int) -> None:
        """Make room for indexes below `capacity`."""
        more = capacity - self.capacity
        self.allocatable = widened(self.allocatable, more)
        self.committed = widened(self.committed, more)
        self.flags = np.concatenate((self.flags, np.full(more, FLAG_GONE, np.uint32)))
        self.divisors = np.concatenate((self.divisors, np.ones((2, more))), axis=1)
        self.mean_factors = np.concatenate((self.mean_factors, np.ones(more)))
        self._seqs = np.concatenate((self._seqs, np.zeros(more, np.uint64)))
        self._card_seqs = np.concatenate((self._card_seqs, np.zeros(more, np.uint64)))
        self._own_seqs = np.concatenate((self._own_seqs, np.zeros(more, np.uint64)))

    def extend_rows(self, rows: int) -> None:
        """The schema has `rows` resources now."""
        self.allocatable = heightened(self.allocatable, rows)
        self.committed = heightened(self.committed, rows)

    def blank(self, nodes: NodeIndexes) -> None:
        """Nothing is known of these nodes."""
        self.allocatable[:, nodes] = 0
        self.committed[:, nodes] = 0
        self.flags[nodes] = FLAG_GONE
        self._seqs[nodes] = 0
        self._card_seqs[nodes] = 0
        self._own_seqs[nodes] = 0
        self._cards.committed[nodes] = NO_CARD

    def put(self, accounts: AccountBatch) -> None:
        """Replace what is known by what is as new or newer. Resources beyond the batch's are 0."""
        nodes, records = accounts.indexes.astype(np.intp), accounts.records
        self._put_cards(accounts)
        newer = records["seq"] >= np.maximum(self._seqs[nodes], self._own_seqs[nodes])
        if not newer.all():
            nodes, records = nodes[newer], records[newer]
        known = records["amounts"].shape[1]
        allocatable = np.zeros((len(self.allocatable), len(nodes)), np.int64)
        allocatable[:known] = records["amounts"][:, :, 0].T
        if not np.array_equal(allocatable, self.allocatable[:, nodes]):
            self.allocatable[:, nodes] = allocatable
            self.divisors[:, nodes], self.mean_factors[nodes] = divisors(allocatable)
            self.exact_in_doubles &= int(allocatable[:2].max(initial=0)) <= EXACT_IN_DOUBLES
        self.committed[:known, nodes] = records["amounts"][:, :, 1].T
        self.committed[known:, nodes] = 0
        self.flags[nodes] = records["flags"]
        self._seqs[nodes] = records["seq"]

    def _put_cards(self, accounts: AccountBatch) -> None:
        """Cards are as new as the account they come with."""
        if not len(accounts.card_indexes):
            return
        order = np.argsort(accounts.indexes)
        beside = order[np.searchsorted(accounts.indexes, accounts.card_indexes, sorter=order)]
        nodes, seqs = accounts.card_indexes.astype(np.intp), accounts.records["seq"][beside]
        newer = seqs >= np.maximum(self._card_seqs[nodes], self._own_seqs[nodes])
        self._cards.committed[nodes[newer]] = accounts.cards[newer]
        self._card_seqs[nodes[newer]] = seqs[newer]

    def adopt(self, pods: Assumption, rows: NDArray[np.intp]) -> None:
        """Add what these rows were committed with, where the account is older than their commit."""
        nodes, slots, seq = pods.nodes[rows], pods.slots[rows], np.uint64(pods.seq)
        unseen = self._seqs[nodes] < seq
        amounts = pods.requests[slots[unseen]]
        for resource in np.flatnonzero(amounts.any(axis=0)):
            np.add.at(self.committed[resource], nodes[unseen], amounts[:, resource])
        uncarded = self._card_seqs[nodes] < seq
        self._cards.adopt(nodes[uncarded], pods.card_masks[rows][uncarded], pods.card_millis[slots[uncarded]])
        self._own_seqs[nodes] = np.maximum(self._own_seqs[nodes], seq)

    def digest(self, nodes: NodeIndexes) -> int:
        """Digest of these nodes' state, as the ledger would compute it."""
        nodes = nodes[self._seqs[nodes] > 0]
        records = np.zeros(len(nodes), account_dtype(len(self.allocatable)))
        records["flags"] = self.flags[nodes]
        records["amounts"][:, :, 0] = self.allocatable[:, nodes].T
        records["amounts"][:, :, 1] = self.committed[:, nodes].T
        cards = self._cards.committed[nodes]
        carded = (cards != NO_CARD).any(axis=1)
        return digest(nodes, records, nodes[carded], cards[carded])


def widened(layer: NDArray[np.int64], more: int) -> NDArray[np.int64]:
    """The (resources, nodes) layer with `more` columns of zeros."""
    return np.concatenate((layer, np.zeros((len(layer), more), np.int64)), axis=1)


def heightened(layer: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The (resources, nodes) layer with zero rows up to `rows`."""
    return np.concatenate((layer, np.zeros((rows - len(layer), layer.shape[1]), np.int64)))
