"""The ledger's decision on columns, for nodes and pods too many for `resolver.core.arbiter`.

What fits is asked of `hoss.model.fit`, as the Arbiter does; tests/property holds the two to the same decisions. Resources only:
no cards, ports, rules or victims. Sequence numbers are kept as the Arbiter keeps them: every operation that changes
anything takes the next one, and each node it changed is marked with it.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import fits

NodeIndexes = NDArray[np.intp]  # (pods,): repetitions allowed


class Conflicts(str, Enum):
    """When a claim conflicts: where there is no room left, as in HOSS, or whenever the node changed since the claimant looked
    (Omega's coarse-grained way)."""

    RESOURCE_FIT = "resource-fit"
    SEQUENCE_NUMBER = "sequence-number"


class Transactions(str, Enum):
    """What becomes of a job of which some pods conflict: the others are committed, or none."""

    INCREMENTAL = "incremental"
    ALL_OR_NOTHING = "all-or-nothing"


@dataclass(frozen=True, slots=True)
class View:
    """Copies of the accounts as of one moment; the owner of a view may count claims of its own in `requested`."""

    allocatable: NDArray[np.int64]  # (resources, nodes)
    requested: NDArray[np.int64]  # (resources, nodes)
    seqs: NDArray[np.int64]  # (nodes,)


class ColumnLedger:
    """Accounts of all nodes. Invariant: nothing is committed that `hoss.model.fit` would not let in."""

    def __init__(self, allocatable: NDArray[np.int64]) -> None:
        """`allocatable`: (resources, nodes), in schema units."""
        self.allocatable = allocatable
        self.requested = np.zeros_like(allocatable)
        self.seqs = np.zeros(allocatable.shape[1], np.int64)
        self.seq = 0

    def view(self) -> View:
        """How it is now."""
        return View(self.allocatable, self.requested.copy(), self.seqs.copy())

    def commit(
        self,
        nodes: NodeIndexes,
        request: NDArray[np.int64],
        *,
        view: View | None = None,
        transactions: Transactions = Transactions.INCREMENTAL,
    ) -> NDArray[np.bool_]:
        """Reserve `request`, (resources,), once on each of `nodes`, in this order; which of them were committed: (pods,).

        With a `view`, by sequence numbers: a node that changed since then refuses, whatever room it has.
        """
        requested = self.requested.copy() if transactions is Transactions.ALL_OR_NOTHING else self.requested
        fresh = np.ones(len(nodes), np.bool_) if view is None else self.seqs[nodes] == view.seqs[nodes]
        taken = np.zeros(len(nodes), np.bool_)
        taken[fresh] = claim(self.allocatable, requested, nodes[fresh], request)
        if transactions is Transactions.ALL_OR_NOTHING and not taken.all():
            return np.zeros(len(nodes), np.bool_)
        self.requested = requested
        self._note(nodes[taken])
        return taken

    def commit_ranked(
        self, candidates: NDArray[np.intp], request: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NodeIndexes]:
        """Reserve for each pod on the first of its candidates that has room: (pods, ranks), -1 for none. Which were committed, and
        where: both (pods,)."""
        nodes = candidates[:, 0].copy()
        taken = claim(self.allocatable, self.requested, nodes, request)
        if not taken.all():
            # A pod that goes to its alternate takes the room of another's choice: now the order of all counts.
            _add(self.requested, nodes[taken], -request)
            for pod, ranked in enumerate(candidates.tolist()):
                taken[pod] = False
                for node in ranked:
                    if node >= 0 and claim(self.allocatable, self.requested, np.array([node]), request)[0]:
                        taken[pod], nodes[pod] = True, node
                        break
        self._note(nodes[taken])
        return taken, nodes

    def release(self, nodes: NodeIndexes, request: NDArray[np.int64]) -> None:
        """Give back what `commit` reserved."""
        _add(self.requested, nodes, -request)
        self._note(nodes)

    def _note(self, nodes: NodeIndexes) -> None:
        if len(nodes):
            self.seq += 1
            self.seqs[nodes] = self.seq


def claim(
    allocatable: NDArray[np.int64], requested: NDArray[np.int64], nodes: NodeIndexes, request: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Count `request` on each of `nodes` that has room, in their order, in `requested`; which had: (pods,).

    The pods are alike, so one that a node refuses changes nothing for the next, and all first claims on their nodes can be judged
    together, then all second ones, and so on.
    """
    taken = np.zeros(len(nodes), np.bool_)
    turns = _turns(nodes)
    for turn in range(int(turns.max(initial=-1)) + 1):
        pods = np.flatnonzero(turns == turn)
        at = nodes[pods]
        ok = fits(allocatable[:, at], requested[:, at], request)
        taken[pods] = ok
        requested[:, at[ok]] += request[:, None]
    return taken


def _turns(nodes: NodeIndexes) -> NDArray[np.intp]:
    """For each pod how many before it name the same node: (pods,)."""
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
