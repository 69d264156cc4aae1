"""Choosing for a whole run whose pods limit each other by topology domains alone: required anti-affinity to their own kind, one
DoNotSchedule constraint on spreading, or neither, where only pods of others have a say.

What such pods are worth to a node does not change by where the others of the run are, only whether they may go there. Nodes of one
domain of the constraint are a pile, best last; a pod takes the best node of all piles that are open.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.ties import INFEASIBLE, Keys
from scheduler_worker.core.whole_runs import MOST_PILES, WholeRun

_SPARE = 4  # nodes of a pile beside those a run takes: for alternates

Domains = NDArray[np.int32]  # (size,): number of each node's domain, -1 without one


@dataclass(frozen=True, slots=True)
class Skew:
    """One constraint whose own pods count: a domain takes another pod while it has at most `margin` more than the emptiest."""

    domains: Domains
    counts: Sequence[int]  # pods by number of domain
    found: Sequence[int]  # numbers of the domains that are compared; none: the emptiest counts as empty
    margin: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How the pods of one class limit each other."""

    passed: Mask  # (size,): nodes that are out whatever the run does are not in it
    once: tuple[Domains, ...] = ()  # a domain of these takes one pod of the run, and then no more
    skew: Skew | None = None


class BoundRun(WholeRun):
    """`nodes` (m,) are those that the next `wanted` pods may want, of each pile the best (see `candidates`)."""

    def __init__(self, nodes: NodeIndexes, own: Keys, bounds: Bounds) -> None:
        super().__init__(nodes, own)
        self._bounded = bool(bounds.once) or bounds.skew is not None
        self._once = [domains[nodes].tolist() for domains in bounds.once]
        self._used: list[set[int]] = [set() for _ in bounds.once]
        skew = bounds.skew
        self._skew = skew
        self._counts = [] if skew is None else list(skew.counts)
        self._pile_of = [0] * len(nodes) if skew is None else skew.domains[nodes].tolist()
        self._piles: dict[int, list[int]] = {}  # keys, ascending
        self._at: dict[int, int] = {}  # key -> position
        for position in np.argsort(own[0]).tolist():
            key = int(own[0, position])
            self._piles.setdefault(self._pile_of[position], []).append(key)
            self._at[key] = position

    def choices(self, wanted: int) -> list[int]:
        """Positions of the nodes that the next `wanted` pods take, in order, as far as can be told at once.

        It ends with a node that took `levels` pods and one more, and where a pile is used up, for it may be of the best only.
        """
        chosen: list[int] = []
        while len(chosen) < wanted and (pile := self._best()) is not None:
            keys = self._piles[pile]
            position = self._at.pop(keys.pop())
            if self._is_closed(position):
                if not keys:
                    break
                continue
            chosen.append(position)
            taken = self._taken[position] = self._taken.get(position, 0) + 1
            if self._skew is not None:
                self._counts[pile] += 1
            for domains, used in zip(self._once, self._used, strict=True):
                if domains[position] >= 0:
                    used.add(domains[position])
            if taken == len(self._own):
                break
            following = int(self._own[taken, position])
            if following != INFEASIBLE:
                self._at[following] = position
                insort(keys, following)
            if not keys:
                break
        return chosen

    def spare(self, count: int) -> NodeIndexes:
        """Nodes with room that no pod of the run took, `count` of the best; none where pods of the run limit each other, for
        the choice of one may be what keeps others from there."""
        if self._bounded:
            return self.nodes[:0]
        left = [position for key in reversed(self._piles.get(0, ())) if (position := self._at[key]) not in self._taken]
        return self.nodes[left[:count]]

    def _best(self) -> int | None:
        """The open pile that has the best node; None where none is open."""
        skew = self._skew
        if skew is None:
            return 0 if self._piles.get(0) else None
        counts = self._counts
        most = skew.margin + min((counts[domain] for domain in skew.found), default=0)
        best, best_key = None, INFEASIBLE
        for pile, keys in self._piles.items():
            if counts[pile] <= most and keys[-1] > best_key:
                best, best_key = pile, keys[-1]
        return best

    def _is_closed(self, position: int) -> bool:
        return any(domains[position] in used for domains, used in zip(self._once, self._used, strict=True))


def candidates(feasible: NodeIndexes, keys: Keys, wanted: int, skew: Skew | None) -> NodeIndexes | None:
    """Of these nodes, whose keys are `keys`, the best of each pile: no run takes more. None for too many piles."""
    if skew is None:
        return _best_of(feasible, keys, wanted + _SPARE)
    domains = skew.domains[feasible]
    if (domains < 0).any():
        return None
    piles = np.flatnonzero(np.bincount(domains))
    if len(piles) > MOST_PILES:
        return None
    best = [_best_of(feasible[domains == pile], keys[domains == pile], wanted) for pile in piles.tolist()]
    return np.concatenate(best) if best else feasible


def _best_of(nodes: NodeIndexes, keys: Keys, wanted: int) -> NodeIndexes:
    return nodes if len(nodes) <= wanted else nodes[np.argpartition(keys, -wanted)[-wanted:]]
