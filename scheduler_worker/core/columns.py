"""What a worker knows of all nodes, as a structure of arrays that is indexed like the ledger, and views of it for placing.

`requested` is the sum of two layers, what the ledger said and what this worker has assumed; the cache keeps both.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import ResourceSchema
from hoss.wire.account import FLAG_GONE
from scheduler_worker.core.accounts import AccountLayer, heightened, widened
from scheduler_worker.core.cards import CardLayers
from scheduler_worker.core.catalogue import Mask, NodeCatalogue
from scheduler_worker.core.census import PodCensus
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.view import NodeView, OneNode

_FIRST_CAPACITY = 64


class NodeState(NamedTuple):
    """What rankings depend on, of n nodes."""

    allocatable: NDArray[np.int64]
    requested: NDArray[np.int64]
    nonzero_requested: NDArray[np.int64]
    flags: NDArray[np.uint32]
    cards: NDArray[np.uint16]

    def unlike(self, other: "NodeState") -> NDArray[np.bool_]:
        """Of which nodes anything differs: (n,)."""
        differs: NDArray[np.bool_] = (
            (self.flags != other.flags)
            | (self.requested != other.requested).any(axis=0)
            | (self.nonzero_requested != other.nonzero_requested).any(axis=0)
            | (self.allocatable != other.allocatable).any(axis=0)
            | (self.cards != other.cards).any(axis=1)
        )
        return differs


class NodeColumns:
    """Arrays have room for more nodes than there are; indexes below `size` may be in use, `present` says which are."""

    def __init__(self) -> None:
        self.schema = ResourceSchema()
        self.size = 0
        self.catalogue = NodeCatalogue()
        self.census = PodCensus(self.catalogue)
        self.cards = CardLayers()
        self.accounts = AccountLayer(len(self.schema), self.cards)
        self.assumed: NDArray[np.int64] = np.zeros((len(self.schema), 0), np.int64)
        self.requested: NDArray[np.int64] = np.zeros((len(self.schema), 0), np.int64)

    @property
    def present(self) -> Mask:
        """Which indexes below `size` are nodes: introduced and not gone."""
        present: Mask = self.catalogue.known[: self.size] & ((self.accounts.flags[: self.size] & FLAG_GONE) == 0)
        return present

    def view(self, nodes: NodeIndexes | None, *, cards: bool) -> NodeView:
        """The columns of `nodes`; for None of all below `size`, not copied. Cards only where they are asked for."""
        accounts = self.accounts
        if nodes is None:
            requested = self.requested[:, : self.size]
            return NodeView(
                allocatable=accounts.allocatable[:, : self.size],
                requested=requested,
                nonzero_requested=self._nonzero(requested, slice(self.size)),
                divisors=accounts.divisors[:, : self.size],
                mean_factors=accounts.mean_factors[: self.size],
                exact_in_doubles=accounts.exact_in_doubles,
                cards_used=self.cards.used[: self.size] if cards else None,
            )
        requested = self.requested.take(nodes, axis=1)
        return NodeView(
            allocatable=accounts.allocatable.take(nodes, axis=1),
            requested=requested,
            nonzero_requested=self._nonzero(requested, nodes),
            divisors=accounts.divisors.take(nodes, axis=1),
            mean_factors=accounts.mean_factors.take(nodes),
            exact_in_doubles=accounts.exact_in_doubles,
            cards_used=self.cards.used.take(nodes, axis=0) if cards else None,
        )

    def side_by_side(self, nodes: slice, shape: tuple[int, int]) -> NodeView:
        """The columns of neighbouring nodes as k pods see them that have m of them each, `shape` = (k, m): (..., k, m), not copied.
        Without cards."""

        def shaped(column: NDArray[Any]) -> NDArray[Any]:
            return column.reshape(*column.shape[:-1], *shape)

        accounts, requested = self.accounts, self.requested[:, nodes]
        return NodeView(
            allocatable=shaped(accounts.allocatable[:, nodes]),
            requested=shaped(requested),
            nonzero_requested=shaped(self._nonzero(requested, nodes)),
            divisors=shaped(accounts.divisors[:, nodes]),
            mean_factors=shaped(accounts.mean_factors[nodes]),
            exact_in_doubles=accounts.exact_in_doubles,
        )

    def one(self, node: int, *, cards: bool) -> OneNode:
        """What `view` says of one node."""
        requested = self.requested[:, node].tolist()
        excess = self.census.excess
        return OneNode(
            allocatable=self.accounts.allocatable[:, node].tolist(),
            requested=requested,
            nonzero_requested=requested if excess is None else (self.requested[:2, node] + excess[:, node]).tolist(),
            cards_used=self.cards.used[node].tolist() if cards else None,
        )

    def view_ahead(self, nodes: NodeIndexes, demand: Demand, ahead: NDArray[np.int64], *, cards: bool) -> NodeView:
        """The columns of `nodes` (repetitions allowed) as they would be with `ahead` more pods of this demand each."""
        view = self.view(nodes, cards=cards)
        for row in demand.rows:
            view.requested[row] += demand.request[row] * ahead
        view.nonzero_requested = self._nonzero(view.requested, nodes)
        if demand.excess is not None:
            view.nonzero_requested = view.nonzero_requested + demand.excess * ahead
        view.ahead = ahead
        return view

    def share(self, demand: Demand) -> float:
        """The largest share of what all nodes have of a resource that one such pod asks for."""
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
            self.accounts.grow(larger)
            self.assumed = widened(self.assumed, larger - capacity)
            self.requested = widened(self.requested, larger - capacity)
            self.cards.grow(larger)
            self.catalogue.grow(larger)
            self.census.grow(larger)

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
        excess = self.census.excess
        return requested[:2] if excess is None else requested[:2] + excess[:, at]
