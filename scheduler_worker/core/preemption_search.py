"""Which pods of lower priority would have to go for a pod that fits nowhere.

After kube-scheduler's DefaultPreemption of 1.36: candidates, reprieve, disruption budgets, and the order of choice.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.diagnosis import Verdict, count_reasons, verdicts
from scheduler_worker.core.judge import Subject
from scheduler_worker.core.occupants import Occupants, Rows
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.view import NodeView

NO_VICTIMS = "No preemption victims found for incoming pod"


class Ground(Protocol):
    """A cache whose occupants can be taken away and put back, by row."""

    @property
    def cache(self) -> NodeInfoCache: ...

    def evict(self, row: int) -> None:
        """This pod is gone."""

    def restore(self, row: int) -> None:
        """This pod is where it was."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A node that the pod would fit on without these pods."""

    node: int
    victims: Rows  # most important first
    violations: int  # victims whose eviction violates a disruption budget


class _Tried(NamedTuple):
    """What trying some nodes showed."""

    fits: Mask  # (n,): without any of its occupants
    victims: Rows  # of all nodes that fit


class PreemptionSearch:
    """The choice among `nodes`, which all refuse the pod in a way that fewer pods may change. Leaves the ground as it was.

    As long as the pod looks at nothing but amounts of its own node, all nodes are tried at once.
    """

    def __init__(
        self, subject: Subject, profile: Profile, ground: Ground, occupants: Occupants, nodes: NodeIndexes
    ) -> None:
        self._subject = subject
        self._profile = profile
        self._ground = ground
        self._occupants = occupants
        self._nodes = nodes[np.isin(nodes, occupants.nodes)]
        self._without_occupants = len(nodes) - len(self._nodes)
        self._position = np.zeros(int(nodes.max(initial=-1)) + 1, np.intp)
        self._position[self._nodes] = np.arange(len(self._nodes))
        self._allowed = occupants.allowed.copy()
        self._there = np.ones(len(occupants), np.bool_)
        self._victims = np.zeros(len(occupants), np.bool_)
        self._violating = np.zeros(len(occupants), np.bool_)
        self._fits = np.zeros(len(self._nodes), np.bool_)
        self.by_amounts = self.sees_amounts_only(subject)
        self._try(np.arange(len(self._nodes)))

    @staticmethod
    def sees_amounts_only(subject: Subject) -> bool:
        """Whether the pod looks at nothing but amounts of its own node, so that taking a place changes nothing elsewhere."""
        return not subject.demand.about_pods and subject.demand.devices is None

    def candidates(self) -> list[Candidate]:
        """Every node that the pod would fit on, in the order given."""
        return [self._candidate(position) for position in np.flatnonzero(self._fits).tolist()]

    def best(self) -> Candidate | None:
        """The one to be chosen, of equals the first; None if there is none."""
        fitting = np.flatnonzero(self._fits)
        if not len(fitting):
            return None
        victims = np.flatnonzero(self._victims)
        positions = self._position[self._occupants.nodes[victims]]
        costs = self._occupants.costs(victims, positions, self._violating, len(self._nodes))
        return self._candidate(int(fitting[np.lexsort(costs[:, fitting])[0]]))

    def taken(self, candidate: Candidate) -> None:
        """The victims are gone for good, and a pod like this one stands in their place: both are in the cache. Only where the
        search is `by_amounts`."""
        self._there[candidate.victims] = False
        self._victims[candidate.victims] = False
        charged = self._occupants.covered[candidate.victims].sum(axis=0)
        self._allowed -= charged
        changed = self._position[candidate.node : candidate.node + 1]
        self._try(np.arange(len(self._nodes)) if charged.any() else changed)

    def why_not(self) -> Counter[str]:
        """Why the nodes that the pod does not fit on do not help."""
        reasons: Counter[str] = Counter()
        left = np.zeros(len(self._nodes), np.bool_)
        left[self._position[self._occupants.nodes[self._there]]] = True
        without = self._without_occupants + int((~self._fits & ~left).sum())
        if without:
            reasons[NO_VICTIMS] += without
        failing = np.flatnonzero(~self._fits & left)
        if self.by_amounts and len(failing):
            view, _ = self._emptied(failing)
            reasons += count_reasons(verdicts(self._subject, self._profile, self._cache, self._nodes[failing], view))
        elif len(failing):
            for position in failing.tolist():
                rows = self._rows_on(position)
                self._evict(rows)
                reasons += count_reasons(self._verdicts(position))
                self._restore(rows)
        return reasons

    @property
    def _cache(self) -> NodeInfoCache:
        return self._ground.cache

    def _candidate(self, position: int) -> Candidate:
        rows = self._occupants.by_importance(self._rows_on(position))
        victims = rows[self._victims[rows]]
        return Candidate(int(self._nodes[position]), victims, int(self._violating[victims].sum()))

    def _rows_on(self, position: int) -> Rows:
        return np.flatnonzero(self._there & (self._occupants.nodes == self._nodes[position]))

    def _try(self, positions: NDArray[np.intp]) -> None:
        """Find out who would have to go on these nodes."""
        on = self._there & np.isin(self._occupants.nodes, self._nodes[positions])
        self._victims[on] = False
        self._violating[on] = False
        if self.by_amounts:
            tried = self._try_amounts(positions)
            self._fits[positions] = tried.fits
            self._victims[tried.victims] = True
            return
        for position in positions.tolist():
            victims = self._try_one(position)
            self._fits[position] = victims is not None
            self._victims[victims or []] = True

    # All nodes at once

    def _try_amounts(self, positions: NDArray[np.intp]) -> _Tried:
        view, (rows, columns) = self._emptied(positions)
        fits = self._passes(view, positions)
        self._violating[rows] = self._overdrawing(rows, columns, len(positions))
        order = np.argsort(~self._violating[rows], kind="stable")
        victims = []
        for rank in self._occupants.ranked(rows[order], columns[order], len(positions)):
            there = np.flatnonzero((rank >= 0) & fits)
            view.requested[:, there] += self._occupants.requests[rank[there]].T
            refused = there[~self._passes(view, positions)[there]]
            view.requested[:, refused] -= self._occupants.requests[rank[refused]].T
            victims.append(rank[refused])
        return _Tried(fits, np.concatenate(victims) if victims else np.empty(0, np.intp))

    def _emptied(self, positions: NDArray[np.intp]) -> tuple[NodeView, tuple[Rows, NDArray[np.intp]]]:
        """These nodes without their occupants; and these, most important first, each with its node's place in the view."""
        view = self._cache.view(self._nodes[positions], cards=self._profile.wants_cards(self._subject.demand))
        column = np.full(len(self._nodes), -1, np.intp)
        column[positions] = np.arange(len(positions))
        rows = np.flatnonzero(self._there)
        rows = self._occupants.by_importance(rows[column[self._position[self._occupants.nodes[rows]]] >= 0])
        columns = column[self._position[self._occupants.nodes[rows]]]
        for rank in self._occupants.ranked(rows, columns, len(positions)):
            there = np.flatnonzero(rank >= 0)
            view.requested[:, there] -= self._occupants.requests[rank[there]].T
        return view, (rows, columns)

    def _passes(self, view: NodeView, positions: NDArray[np.intp]) -> Mask:
        mask: Mask = self._subject.static.mask[self._nodes[positions]]
        for plugin in self._profile.dynamic_filters:
            passed = plugin.passes(self._subject.demand, view)
            if passed is not None:
                mask = mask & passed
        return mask

    def _overdrawing(self, rows: Rows, columns: NDArray[np.intp], nodes: int) -> Mask:
        """Which would overdraw a budget if all of their node were evicted, in this order."""
        covered = self._occupants.covered
        found = np.zeros(len(self._occupants), np.bool_)
        if covered.any():
            charged = np.zeros((nodes, covered.shape[1]), np.int64)
            for rank in self._occupants.ranked(rows, columns, nodes):
                there = np.flatnonzero(rank >= 0)
                charged[there] += covered[rank[there]]
                over = covered[rank[there]] & (charged[there] > self._allowed)
                found[rank[there]] = over.any(axis=1)
        return found[rows]

    # One node

    def _try_one(self, position: int) -> list[int] | None:
        """The victims; None if the pod does not fit even without all of the node's occupants."""
        rows = self._occupants.by_importance(self._rows_on(position))
        if not len(rows):
            return None
        self._evict(rows)
        fits = not any(self._verdicts(position))
        self._violating[rows] = self._overdrawing(rows, np.zeros(len(rows), np.intp), 1)
        victims: list[int] = []
        for row in rows[np.argsort(~self._violating[rows], kind="stable")].tolist() if fits else []:
            self._ground.restore(row)
            if any(self._verdicts(position)):
                self._ground.evict(row)
                victims.append(row)
        self._restore(np.array(victims, np.intp) if fits else rows)
        return victims if fits else None

    def _evict(self, rows: Rows) -> None:
        for row in rows.tolist():
            self._ground.evict(row)

    def _restore(self, rows: Rows) -> None:
        for row in rows.tolist():
            self._ground.restore(row)
        self._subject.refresh()

    def _verdicts(self, position: int) -> Iterator[Verdict]:
        """Why the node refuses the pod as things are."""
        self._subject.refresh()
        return verdicts(self._subject, self._profile, self._cache, self._nodes[position : position + 1])
