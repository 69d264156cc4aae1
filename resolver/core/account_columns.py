"""Accounts of many nodes as columns, and how the model of the ledger decides on equal pods that ask for
resources and cards only: no ports, rules or victims. The Arbiter serves proposals without cards with it, and
`hoss simulate` and `hoss.sim` hold their whole cluster in it, for more nodes and pods than reservations in
Python could be kept of.

`hoss.model.fit` decides what fits. Sequence numbers are those of the Arbiter: every operation that changes
something takes the next one and marks each changed node with it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import card_mask, fits, pick_cards

NodeIndexes = NDArray[np.intp]  # (pods,): repetitions allowed


@dataclass(frozen=True, slots=True)
class View:
    """Copies of the accounts at one moment. The owner of a view may add claims of its own to `requested`."""

    allocatable: NDArray[np.int64]  # (resources, nodes)
    requested: NDArray[np.int64]  # (resources, nodes)
    seqs: NDArray[np.int64]  # (nodes,)


class SavedAccounts(NamedTuple):
    """What AccountColumns had at one moment, by its names."""

    requested: NDArray[np.int64]
    cards: NDArray[np.uint16] | None
    seqs: NDArray[np.int64]
    seq: int


class AccountColumns:
    """Accounts of all nodes. Invariant: nothing is committed that does not fit."""

    def __init__(self, allocatable: NDArray[np.int64], cards: NDArray[np.uint16] | None = None) -> None:
        """`allocatable`: (resources, nodes), in schema units. `cards`: (nodes, slots), thousandths in use,
        NO_CARD where there is none; None: no node has cards."""
        self.allocatable = allocatable
        self.cards = cards
        self.requested = np.zeros_like(allocatable)
        self.seqs = np.zeros(allocatable.shape[1], np.int64)
        self.seq = 0

    def view(self) -> View:
        """A copy of the present state."""
        return View(self.allocatable, self.requested.copy(), self.seqs.copy())

    def commit(
        self,
        nodes: NodeIndexes,
        request: NDArray[np.int64],
        *,
        view: View | None = None,
        all_or_nothing: bool = False,
    ) -> NDArray[np.bool_]:
        """Reserve `request`, (resources,), once on each of `nodes`, in this order; which were committed:
        (pods,). With a `view`, by sequence numbers: a node that changed since then refuses, whatever room it
        has."""
        requested = self.requested.copy() if all_or_nothing else self.requested
        fresh = np.ones(len(nodes), np.bool_) if view is None else self.seqs[nodes] == view.seqs[nodes]
        taken = np.zeros(len(nodes), np.bool_)
        taken[fresh] = claim(self.allocatable, requested, nodes[fresh], request)
        if all_or_nothing and not taken.all():
            return np.zeros(len(nodes), np.bool_)
        self.requested = requested
        self._note(nodes[taken])
        return taken

    def commit_ranked(
        self, candidates: NDArray[np.intp], request: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NodeIndexes]:
        """Reserve for each pod on the first of its candidates with room: (pods, ranks), -1 for none. Which
        pods were committed, and their nodes: both (pods,)."""
        taken, nodes = claim_ranked(self.allocatable, self.requested, candidates, request)
        self._note(nodes[taken])
        return taken, nodes

    def commit_ranked_with_cards(
        self, candidates: NDArray[np.intp], request: NDArray[np.int64], count: int, milli: int
    ) -> tuple[NDArray[np.bool_], NodeIndexes, NDArray[np.uint16]]:
        """As `commit_ranked`, for pods that want `milli` thousandths of each of `count` cards as well; also
        the cards that each pod got, a bit for each slot: (pods,)."""
        taken, nodes = np.zeros(len(candidates), np.bool_), candidates[:, 0].copy()
        masks = np.zeros(len(candidates), np.uint16)
        for pod, ranked in enumerate(candidates.tolist()):
            for node in ranked:
                slots = self._claim_with_cards(node, request, count, milli)
                if slots is not None:
                    taken[pod], nodes[pod], masks[pod] = True, node, card_mask(slots)
                    break
        self._note(nodes[taken])
        return taken, nodes, masks

    def _claim_with_cards(
        self, node: int, request: NDArray[np.int64], count: int, milli: int
    ) -> tuple[int, ...] | None:
        """The cards that a pod gets on the node, or None if anything is missing there."""
        if node < 0 or self.cards is None:
            return None
        slots = pick_cards(self.cards[node].tolist(), count, milli)
        if slots is None or not claim(self.allocatable, self.requested, np.array([node]), request)[0]:
            return None
        self.cards[node, list(slots)] += milli
        return slots

    def release(
        self,
        nodes: NodeIndexes,
        request: NDArray[np.int64],
        masks: NDArray[np.uint16] | None = None,
        milli: int = 0,
    ) -> None:
        """Release what `commit` reserved. `masks`: the cards of each pod, of which it had `milli`
        thousandths; None: it had none."""
        _add(self.requested, nodes, -request)
        if masks is not None and self.cards is not None:
            bits = masks[:, None] >> np.arange(self.cards.shape[1], dtype=np.uint16) & 1
            pods, slots = np.nonzero(bits)
            np.subtract.at(self.cards, (nodes[pods], slots), np.uint16(milli))
        self._note(nodes)

    def saved(self) -> SavedAccounts:
        """A copy of all that `commit` and `release` change."""
        cards = None if self.cards is None else self.cards.copy()
        return SavedAccounts(self.requested.copy(), cards, self.seqs.copy(), self.seq)

    def restore(self, saved: SavedAccounts) -> None:
        """Nothing of what came after `saved` has happened; it is used up."""
        self.requested, self.cards, self.seqs, self.seq = saved

    def _note(self, nodes: NodeIndexes) -> None:
        if len(nodes):
            self.seq += 1
            self.seqs[nodes] = self.seq


def claim(
    allocatable: NDArray[np.int64],
    requested: NDArray[np.int64],
    nodes: NodeIndexes,
    request: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Add `request` to `requested` on each of `nodes` that has room, in order; which had room: (pods,). The
    pods are equal, so a refused pod changes nothing for the next one. Therefore all first claims on their
    nodes can be decided together, then all second ones, and so on."""
    taken = np.zeros(len(nodes), np.bool_)
    turns = _turns(nodes)
    for turn in range(int(turns.max(initial=-1)) + 1):
        pods = np.flatnonzero(turns == turn)
        at = nodes[pods]
        ok = fits(allocatable[:, at], requested[:, at], request)
        taken[pods] = ok
        requested[:, at[ok]] += request[:, None]
    return taken


def claim_ranked(
    allocatable: NDArray[np.int64],
    requested: NDArray[np.int64],
    candidates: NDArray[np.intp],
    request: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], NodeIndexes]:
    """Add `request` to `requested` for each pod on the first of its candidates with room: (pods, ranks), -1
    for none. Which pods had room, and their nodes: both (pods,)."""
    nodes = candidates[:, 0].copy()
    taken = claim(allocatable, requested, nodes, request)
    if not taken.all():
        # A pod that goes to its alternate takes the room of another's choice: now the order of all counts.
        _add(requested, nodes[taken], -request)
        for pod, ranked in enumerate(candidates.tolist()):
            taken[pod] = False
            for node in ranked:
                if node >= 0 and claim(allocatable, requested, np.array([node]), request)[0]:
                    taken[pod], nodes[pod] = True, node
                    break
    return taken, nodes


def _turns(nodes: NodeIndexes) -> NDArray[np.intp]:
    """For each pod the number of earlier pods with the same node: (pods,)."""
    order = np.argsort(nodes, kind="stable")
    ordered = nodes[order]
    first = np.ones(len(nodes), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(len(nodes))
    turns = np.empty(len(nodes), np.intp)
    turns[order] = places - np.maximum.accumulate(np.where(first, places, 0))
    return turns


def _add(requested: NDArray[np.int64], nodes: NodeIndexes, amounts: NDArray[np.int64]) -> None:
    for row, amount in enumerate(amounts.tolist()):
        np.add.at(requested[row], nodes, amount)
