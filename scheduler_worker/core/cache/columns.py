"""The columns of all nodes, indexed like the ledger, and views of them for filters and scores.

`requested` is the sum of two layers: `committed`, the ledger's latest accounts, and `assumed`, this worker's
own pods in flight. A node's account is only ever replaced by one at least as new."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import ResourceSchema
from hoss.wire.columns import FLAG_GONE, NO_CARD, account_dtype, digest
from scheduler_worker.core.cache.assumptions import Assumption, CardLayers
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.messages import AccountBatch
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes, NodeSpecs
from scheduler_worker.core.pod_index.index import PodIndex
from scheduler_worker.core.pod_index.nominated import NominatedPods

# Quotients of hundredfold amounts up to here are exact in doubles: the quotient is 100 at most, so it lies at
# least 1/2^46 below the next whole number or is whole, and rounding (2^-47 there) cannot reach it.
EXACT_IN_DOUBLES = 2**46


@dataclass(slots=True)
class NodeView(NodeSpecs):
    """n nodes as one pod sees them, specs and amounts: all nodes, the few that changed, or nodes with `ahead`
    more pods of the class.

    `nonzero_requested` counts defaults for requests that containers leave out, by the pods' groups (see
    PodGroup)."""

    allocatable: NDArray[np.int64]  # (resources, n), schema units
    requested: NDArray[np.int64]  # (resources, n)
    nonzero_requested: NDArray[np.int64]  # (2, n): cpu and memory
    divisors: NDArray[np.float64]  # (2, n): allocatable cpu and memory, 1 where there is none
    mean_factors: NDArray[np.float64]  # (n,): 1 / how many of the two the node offers (1 where none)
    exact_in_doubles: bool  # no allocatable cpu or memory exceeds EXACT_IN_DOUBLES
    # (n, 16) thousandths, 0xFFFF: no such card; for pods with devices
    cards_used: NDArray[np.uint16] | None = None
    ahead: NDArray[np.int64] | None = None  # (n,)
    nominated: NominatedPods | None = None  # None: there are none

    def for_filters(self, demand: Demand) -> "NodeView":
        """The view with what other schedulers' nominated pods request that count for this demand."""
        if self.nominated is None:
            return self
        amounts = self.nominated.amounts(demand.spec.priority, self.at)
        return self if amounts is None else replace(self, requested=self.requested + amounts)

    def hundredths(self, parts: NDArray[np.int64]) -> NDArray[np.float64]:
        """100 x parts / allocatable of cpu and memory, truncated: (2, n). Parts lie in 0 to allocatable."""
        if self.exact_in_doubles:
            scaled = parts.astype(np.float64)
            scaled *= 100.0
            scaled /= self.divisors
            np.floor(scaled, out=scaled)
            return scaled
        return (parts * 100 // self.divisors.astype(np.int64)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class RequestedResources:
    """The requests of k pods that are scored together, each on m nodes of its own: the columns of their view
    are (..., k, m)."""

    request: NDArray[np.int64]  # (resources, k, 1), pods = 1 included
    nonzero: NDArray[np.int64]  # (2, k, 1): cpu and memory, for scoring


@dataclass(slots=True)
class OneNode:
    """One node as Python numbers, which are faster than NumPy's calls for a single node."""

    allocatable: list[int]
    requested: list[int]
    nonzero_requested: list[int]
    cards_used: list[int] | None


def _indexes(count: int) -> NodeIndexes:
    """0 to `count` - 1, not to be written to: all views of all nodes share it."""
    indexes = np.arange(count)
    indexes.flags.writeable = False
    return indexes


def divisors(allocatable: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`NodeView.divisors` and `NodeView.mean_factors` for (resources, n) allocatable."""
    offered = allocatable[:2] > 0
    return np.where(offered, allocatable[:2], 1).astype(np.float64), 1.0 / np.maximum(offered.sum(axis=0), 1)


class AccountLayer:
    """The committed layer: absolute amounts by (resource, node)."""

    def __init__(self, rows: int, cards: CardLayers) -> None:
        self.allocatable: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.committed: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.flags: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self.divisors: NDArray[np.float64] = np.ones((2, 0))  # see NodeView
        self.mean_factors: NDArray[np.float64] = np.ones(0)
        self.exact_in_doubles = True
        self._seqs: NDArray[np.uint64] = np.zeros(0, np.uint64)  # 0: no account
        # Of the cards: a refusal of pods without cards brings accounts without them, ahead of feed entries
        # with them.
        self._card_seqs: NDArray[np.uint64] = np.zeros(0, np.uint64)
        # Of the last commit that `adopt` added: only an account as new as this contains it. 0: none.
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


_FIRST_CAPACITY = 64


class NodeState(NamedTuple):
    """The columns of n nodes that rankings depend on."""

    allocatable: NDArray[np.int64]
    requested: NDArray[np.int64]
    nonzero_requested: NDArray[np.int64]
    flags: NDArray[np.uint32]
    cards: NDArray[np.uint16]

    def unlike(self, other: "NodeState") -> NDArray[np.bool_]:
        """Which nodes differ in any column: (n,)."""
        differs: NDArray[np.bool_] = (
            (self.flags != other.flags)
            | (self.requested != other.requested).any(axis=0)
            | (self.nonzero_requested != other.nonzero_requested).any(axis=0)
            | (self.allocatable != other.allocatable).any(axis=0)
            | (self.cards != other.cards).any(axis=1)
        )
        return differs

    def freed_since(self, before: "NodeState") -> NDArray[np.bool_]:
        """Which nodes have more room than before in any column, flags aside: (n,). The others are as they
        were, or have taken pods."""
        freed: NDArray[np.bool_] = (
            (self.requested < before.requested).any(axis=0)
            | (self.nonzero_requested < before.nonzero_requested).any(axis=0)
            | (self.allocatable != before.allocatable).any(axis=0)
            | ((self.cards < before.cards) | (self.cards == NO_CARD) != (before.cards == NO_CARD)).any(axis=1)
        )
        return freed


class NodeColumns:
    """Arrays have room for more nodes than there are; `present` says which indexes below `size` are nodes."""

    def __init__(self) -> None:
        self.schema = ResourceSchema()
        self.size = 0
        self.catalogue = NodeCatalogue()
        self.pod_index = PodIndex(self.catalogue, self.schema)
        self.cards = CardLayers()
        self.accounts = AccountLayer(len(self.schema), self.cards)
        self._all = _indexes(0)
        self.assumed: NDArray[np.int64] = np.zeros((len(self.schema), 0), np.int64)
        self.requested: NDArray[np.int64] = np.zeros((len(self.schema), 0), np.int64)

    @property
    def present(self) -> Mask:
        """Which indexes below `size` are nodes that have a spec and are not gone."""
        present: Mask = self.catalogue.known[: self.size] & (
            (self.accounts.flags[: self.size] & FLAG_GONE) == 0
        )
        return present

    def specs(self, nodes: NodeIndexes) -> NodeSpecs:
        """The specs of `nodes`."""
        return NodeSpecs(self.catalogue, nodes)

    def view(self, nodes: NodeIndexes | None, *, cards: bool) -> NodeView:
        """The columns of `nodes`; for None of all below `size`, not copied. `cards`: with their cards."""
        accounts = self.accounts
        if nodes is None:
            requested = self.requested[:, : self.size]
            return NodeView(
                catalogue=self.catalogue,
                at=self._all[: self.size],
                allocatable=accounts.allocatable[:, : self.size],
                requested=requested,
                nonzero_requested=self._nonzero(requested, slice(self.size)),
                divisors=accounts.divisors[:, : self.size],
                mean_factors=accounts.mean_factors[: self.size],
                exact_in_doubles=accounts.exact_in_doubles,
                cards_used=self.cards.used[: self.size] if cards else None,
                nominated=self.pod_index.nominated or None,
            )
        requested = self.requested.take(nodes, axis=1)
        return NodeView(
            catalogue=self.catalogue,
            at=nodes,
            allocatable=accounts.allocatable.take(nodes, axis=1),
            requested=requested,
            nonzero_requested=self._nonzero(requested, nodes),
            divisors=accounts.divisors.take(nodes, axis=1),
            mean_factors=accounts.mean_factors.take(nodes),
            exact_in_doubles=accounts.exact_in_doubles,
            cards_used=self.cards.used.take(nodes, axis=0) if cards else None,
            nominated=self.pod_index.nominated or None,
        )

    def side_by_side(self, nodes: slice, shape: tuple[int, int]) -> NodeView:
        """The columns of neighbouring nodes for k pods with m nodes each, `shape` = (k, m): (..., k, m), not
        copied. Without cards."""

        def shaped(column: NDArray[Any]) -> NDArray[Any]:
            return column.reshape(*column.shape[:-1], *shape)

        accounts, requested = self.accounts, self.requested[:, nodes]
        return NodeView(
            catalogue=self.catalogue,
            at=shaped(self._all[nodes]),
            allocatable=shaped(accounts.allocatable[:, nodes]),
            requested=shaped(requested),
            nonzero_requested=shaped(self._nonzero(requested, nodes)),
            divisors=shaped(accounts.divisors[:, nodes]),
            mean_factors=shaped(accounts.mean_factors[nodes]),
            exact_in_doubles=accounts.exact_in_doubles,
        )

    def one(self, node: int, *, cards: bool) -> OneNode:
        """The columns of one node."""
        requested = self.requested[:, node].tolist()
        excess = self.pod_index.excess
        return OneNode(
            allocatable=self.accounts.allocatable[:, node].tolist(),
            requested=requested,
            nonzero_requested=requested
            if excess is None
            else (self.requested[:2, node] + excess[:, node]).tolist(),
            cards_used=self.cards.used[node].tolist() if cards else None,
        )

    def view_ahead(
        self, nodes: NodeIndexes, demand: Demand, ahead: NDArray[np.int64], *, cards: bool
    ) -> NodeView:
        """The columns of `nodes` (repetitions allowed) with `ahead` more pods of this demand each."""
        view = self.view(nodes, cards=cards)
        for row in demand.rows:
            view.requested[row] += demand.request[row] * ahead
        view.nonzero_requested = self._nonzero(view.requested, nodes)
        if demand.excess is not None:
            view.nonzero_requested = view.nonzero_requested + demand.excess * ahead
        view.ahead = ahead
        return view

    def share(self, demand: Demand) -> float:
        """The largest share that one such pod requests of all nodes' amount of a resource."""
        there = self.accounts.allocatable[demand.rows, : self.size].sum(axis=1)
        return float((demand.request[demand.rows] / np.maximum(there, 1)).max())

    def _extend_schema(self, names: tuple[str, ...]) -> None:
        if self.schema.extend(names):
            rows = len(self.schema)
            self.accounts.extend_rows(rows)
            self.assumed, self.requested = heightened(self.assumed, rows), heightened(self.requested, rows)

    def _grow(self, size: int) -> None:
        self.size = max(self.size, size)
        capacity = self.accounts.capacity
        if size > capacity:
            larger = max(_FIRST_CAPACITY, 2 * capacity, size)
            self._all = _indexes(larger)
            self.accounts.grow(larger)
            self.assumed = widened(self.assumed, larger - capacity)
            self.requested = widened(self.requested, larger - capacity)
            self.cards.grow(larger)
            self.catalogue.grow(larger)
            self.pod_index.grow(larger)

    def _combine(self, nodes: NodeIndexes) -> None:
        self.requested[:, nodes] = self.accounts.committed[:, nodes] + self.assumed[:, nodes]
        self.cards.combine(nodes)

    def _state(self, nodes: NodeIndexes) -> NodeState:
        requested = self.requested.take(nodes, axis=1)
        return NodeState(
            self.accounts.allocatable.take(nodes, axis=1),
            requested,
            self._nonzero(requested, nodes),
            self.accounts.flags.take(nodes),
            self.cards.used.take(nodes, axis=0),
        )

    def _nonzero(self, requested: NDArray[np.int64], at: NodeIndexes | slice) -> NDArray[np.int64]:
        excess = self.pod_index.excess
        return requested[:2] if excess is None else requested[:2] + excess[:, at]
