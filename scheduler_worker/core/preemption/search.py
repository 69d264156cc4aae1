"""The search for victims: pods of lower priority whose eviction makes room for a pod that fits nowhere.

After kube-scheduler's DefaultPreemption of 1.36: candidates, reprieve, disruption budgets, and the order of
choice."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache.columns import NodeView
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import Failure
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.placement.diagnosis import ExaminedPod, FilterVerdict, count_reasons, verdicts

Rows = NDArray[np.intp]  # (k,): rows of the columns below

# kube-scheduler adds this to each priority before summing: otherwise more victims of negative priority would
# be better than fewer.
_PRIORITY_SHIFT = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class VictimCandidates:
    """m pods that might be evicted, by row."""

    nodes: NodeIndexes  # (m,)
    priorities: NDArray[np.int64]  # (m,)
    started_at: NDArray[np.float64]  # (m,), seconds
    requests: NDArray[np.int64]  # (m, R), pods = 1 included
    covered: Mask  # (m, b): the disruption budgets that each is charged to
    allowed: NDArray[np.int64]  # (b,): how many more pods may go of each budget

    def __len__(self) -> int:
        return len(self.nodes)

    def by_importance(self, rows: Rows) -> Rows:
        """The most important first: higher priority, then earlier start."""
        ordered: Rows = rows[np.lexsort((self.started_at[rows], -self.priorities[rows]))]
        return ordered

    def ranked(self, rows: Rows, positions: NDArray[np.intp], nodes: int) -> NDArray[np.intp]:
        """These rows as a table (ranks, nodes): one node's rows in each column, in the given order, then -1.

        `positions` is the column of each row."""
        order = np.argsort(positions, kind="stable")
        counts = np.bincount(positions, minlength=nodes)
        table = np.full((int(counts.max(initial=0)), nodes), -1, np.intp)
        ranks = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        table[ranks, positions[order]] = rows[order]
        return table

    def costs(
        self, victims: Rows, positions: NDArray[np.intp], violating: Mask, nodes: int
    ) -> NDArray[np.float64]:
        """The criteria of the choice between nodes, (5, nodes). The last row counts first; less is better.

        After pickOneNodeForPreemption: victims that overdraw a budget, the highest priority among the
        victims, the sum of their priorities, their number, and (negative) when the earliest of the most
        urgent ones started."""
        priorities = self.priorities[victims].astype(np.float64)
        highest = np.full(nodes, -np.inf)
        np.maximum.at(highest, positions, priorities)
        of_highest = priorities == highest[positions]
        earliest = np.full(nodes, np.inf)
        np.minimum.at(earliest, positions[of_highest], self.started_at[victims[of_highest]])
        return np.stack(
            (
                -earliest,
                np.bincount(positions, minlength=nodes).astype(np.float64),
                np.bincount(positions, weights=priorities + _PRIORITY_SHIFT, minlength=nodes),
                highest,
                np.bincount(positions, weights=violating[victims], minlength=nodes),
            )
        )


_NO_USE = "Preemption is not helpful for scheduling"


def unhelpful(reasons: Counter[str], *, nodes: int, tried: int) -> str:
    """The message when no node helps: `tried` of all `nodes` might have helped, and do not for these
    reasons."""
    counted = reasons + Counter({_NO_USE: nodes - tried})
    entries = sorted(f"{count} {reason}" for reason, count in counted.items())
    return f"0/{nodes} nodes are available: {', '.join(entries)}."


NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_LEAVING = "not eligible due to a terminating pod on the nominated node."
NO_VICTIMS = "No preemption victims found for incoming pod"


class PreemptionCluster(Protocol):
    """A cache whose victim candidates can be removed and put back, by row."""

    @property
    def cache(self) -> NodeInfoCache: ...

    def evict(self, row: int) -> None:
        """Remove this pod."""

    def restore(self, row: int) -> None:
        """Put this pod back."""


@dataclass(frozen=True, slots=True, eq=False)
class VictimsOnNode:
    """A node that the pod would fit on without these pods."""

    node: int
    victims: Rows  # most important first
    violations: int  # victims whose eviction violates a disruption budget


class _Tried(NamedTuple):
    fits: Mask  # (n,): without any of its candidates
    victims: Rows  # of all nodes that fit


class PreemptionSearch:
    """The choice among `nodes`, which all refuse the pod in a way that fewer pods may change. Leaves the
    cluster as it was.

    If the pod depends on nothing but amounts of its own node, all nodes are tried at once."""

    def __init__(
        self,
        pod: ExaminedPod,
        profile: Profile,
        cluster: PreemptionCluster,
        candidates: VictimCandidates,
        nodes: NodeIndexes,
    ) -> None:
        self._pod = pod
        self._profile = profile
        self._cluster = cluster
        self._candidates = candidates
        self._nodes = nodes[np.isin(nodes, candidates.nodes)]
        self._without_candidates = len(nodes) - len(self._nodes)
        self._position = np.zeros(int(nodes.max(initial=-1)) + 1, np.intp)
        self._position[self._nodes] = np.arange(len(self._nodes))
        self._allowed = candidates.allowed.copy()
        self._there = np.ones(len(candidates), np.bool_)
        self._victims = np.zeros(len(candidates), np.bool_)
        self._violating = np.zeros(len(candidates), np.bool_)
        self._fits = np.zeros(len(self._nodes), np.bool_)
        self.failures: list[str] = []  # why filters could not judge nodes without their candidates
        self.by_amounts = self.sees_amounts_only(pod)
        self._try(np.arange(len(self._nodes)))

    @staticmethod
    def sees_amounts_only(pod: ExaminedPod) -> bool:
        """Whether the pod depends on nothing but amounts of its own node, so that placing one changes no
        other node."""
        return not pod.demand.about_pods and pod.demand.devices is None

    def candidates(self) -> list[VictimsOnNode]:
        """Every node that the pod would fit on, in the given order."""
        return [self._candidate(position) for position in np.flatnonzero(self._fits).tolist()]

    def best(self) -> VictimsOnNode | None:
        """The node to choose, of equals the first; None if there is none."""
        fitting = np.flatnonzero(self._fits)
        if not len(fitting):
            return None
        victims = np.flatnonzero(self._victims)
        positions = self._position[self._candidates.nodes[victims]]
        costs = self._candidates.costs(victims, positions, self._violating, len(self._nodes))
        return self._candidate(int(fitting[np.lexsort(costs[:, fitting])[0]]))

    def taken(self, candidate: VictimsOnNode) -> None:
        """The cache now holds a pod like this one in place of these victims. Only for searches
        `by_amounts`."""
        self._there[candidate.victims] = False
        self._victims[candidate.victims] = False
        charged = self._candidates.covered[candidate.victims].sum(axis=0)
        self._allowed -= charged
        changed = self._position[candidate.node : candidate.node + 1]
        self._try(np.arange(len(self._nodes)) if charged.any() else changed)

    def why_not(self) -> Counter[str]:
        """Why the nodes that the pod does not fit on do not help."""
        reasons: Counter[str] = Counter()
        left = np.zeros(len(self._nodes), np.bool_)
        left[self._position[self._candidates.nodes[self._there]]] = True
        without = self._without_candidates + int((~self._fits & ~left).sum())
        if without:
            reasons[NO_VICTIMS] += without
        failing = np.flatnonzero(~self._fits & left)
        if self.by_amounts and len(failing):
            view, _ = self._emptied(failing)
            reasons += count_reasons(
                verdicts(self._pod, self._profile, self._cache, self._nodes[failing], view)
            )
        elif len(failing):
            for position in failing.tolist():
                rows = self._rows_on(position)
                self._evict(rows)
                reasons += count_reasons(self._verdicts(position))
                self._restore(rows)
        return reasons

    @property
    def _cache(self) -> NodeInfoCache:
        return self._cluster.cache

    def _candidate(self, position: int) -> VictimsOnNode:
        rows = self._candidates.by_importance(self._rows_on(position))
        victims = rows[self._victims[rows]]
        return VictimsOnNode(int(self._nodes[position]), victims, int(self._violating[victims].sum()))

    def _rows_on(self, position: int) -> Rows:
        return np.flatnonzero(self._there & (self._candidates.nodes == self._nodes[position]))

    def _try(self, positions: NDArray[np.intp]) -> None:
        """Find the victims on these nodes."""
        on = self._there & np.isin(self._candidates.nodes, self._nodes[positions])
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
        for rank in self._candidates.ranked(rows[order], columns[order], len(positions)):
            there = np.flatnonzero((rank >= 0) & fits)
            view.requested[:, there] += self._candidates.requests[rank[there]].T
            refused = there[~self._passes(view, positions)[there]]
            view.requested[:, refused] -= self._candidates.requests[rank[refused]].T
            victims.append(rank[refused])
        return _Tried(fits, np.concatenate(victims) if victims else np.empty(0, np.intp))

    def _emptied(self, positions: NDArray[np.intp]) -> tuple[NodeView, tuple[Rows, NDArray[np.intp]]]:
        """These nodes without their candidates; and the candidates, most important first, each with its
        node's column in the view."""
        view = self._cache.view(self._nodes[positions], cards=self._profile.wants_cards(self._pod.demand))
        column = np.full(len(self._nodes), -1, np.intp)
        column[positions] = np.arange(len(positions))
        rows = np.flatnonzero(self._there)
        rows = self._candidates.by_importance(rows[column[self._position[self._candidates.nodes[rows]]] >= 0])
        columns = column[self._position[self._candidates.nodes[rows]]]
        for rank in self._candidates.ranked(rows, columns, len(positions)):
            there = np.flatnonzero(rank >= 0)
            view.requested[:, there] -= self._candidates.requests[rank[there]].T
        return view, (rows, columns)

    def _passes(self, view: NodeView, positions: NDArray[np.intp]) -> Mask:
        mask: Mask = self._pod.static.mask[self._nodes[positions]]
        admitted = self._profile.admits(self._pod.demand, view)
        return mask if admitted is None else mask & admitted

    def _overdrawing(self, rows: Rows, columns: NDArray[np.intp], nodes: int) -> Mask:
        """Which would overdraw a budget if all of their node were evicted, in this order."""
        covered = self._candidates.covered
        found = np.zeros(len(self._candidates), np.bool_)
        if covered.any():
            charged = np.zeros((nodes, covered.shape[1]), np.int64)
            for rank in self._candidates.ranked(rows, columns, nodes):
                there = np.flatnonzero(rank >= 0)
                charged[there] += covered[rank[there]]
                over = covered[rank[there]] & (charged[there] > self._allowed)
                found[rank[there]] = over.any(axis=1)
        return found[rows]

    # One node

    def _try_one(self, position: int) -> list[int] | None:
        """The victims; None if the pod does not fit even without all candidates of the node."""
        rows = self._candidates.by_importance(self._rows_on(position))
        if not len(rows):
            return None
        self._evict(rows)
        fits = not self._refused(position)
        failure = None if fits else self._failure(position)
        if failure is not None and str(failure) not in self.failures:
            self.failures.append(str(failure))
        self._violating[rows] = self._overdrawing(rows, np.zeros(len(rows), np.intp), 1)
        victims: list[int] = []
        for row in rows[np.argsort(~self._violating[rows], kind="stable")].tolist() if fits else []:
            self._cluster.restore(row)
            if self._refused(position):
                self._cluster.evict(row)
                victims.append(row)
        self._restore(np.array(victims, np.intp) if fits else rows)
        return victims if fits else None

    def _evict(self, rows: Rows) -> None:
        for row in rows.tolist():
            self._cluster.evict(row)

    def _restore(self, rows: Rows) -> None:
        for row in rows.tolist():
            self._cluster.restore(row)
        self._pod.refresh()

    def _refused(self, position: int) -> bool:
        """Whether a filter refuses the node, or cannot judge it."""
        if any(self._verdicts(position)):
            return True
        node = int(self._nodes[position])
        failures = (state.failure for _, state in self._pod.plugin_state.filters)
        return any(failure is not None and node in failure.texts for failure in failures)

    def _failure(self, position: int) -> Failure | None:
        """Of a filter that no other refuses the node before. A filter that fails gives no reasons."""
        node = int(self._nodes[position])
        states = self._pod.plugin_state.filters
        failures = {plugin.name: state.failure for plugin, state in states if state.failure is not None}
        failures = {name: failure for name, failure in failures.items() if node in failure.texts}
        if not failures:
            return None
        refusing = {verdict.plugin for verdict in self._verdicts(position)}
        names = [plugin.name for plugin in self._profile.filters]
        first = next((name for name in ["", *names] if name in refusing or name in failures), "")
        failure = failures.get(first)
        return None if failure is None else Failure(failure.plugin, {node: failure.texts[node]})

    def _verdicts(self, position: int) -> Iterator[FilterVerdict]:
        """Why the node refuses the pod at present."""
        self._pod.refresh()
        return verdicts(self._pod, self._profile, self._cache, self._nodes[position : position + 1])
