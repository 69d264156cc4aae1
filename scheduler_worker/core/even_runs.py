"""Choosing for a whole run whose pods are spread by a score alone: each pod moves the scores of its host and its zone.

Nodes of one zone with equally many such pods are a pile: spreading scores them alike, so among them their own scores decide.
A pod takes the best node of some pile, and that node moves to the pile of one pod more.
"""

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.framework import MAX_SCORE
from scheduler_worker.core.ties import INFEASIBLE, SCORE_SHIFT, Keys
from scheduler_worker.core.whole_runs import MOST_PILES, WholeRun


@dataclass(frozen=True, slots=True)
class Evenly:
    """How spreading scores the m feasible nodes, as of now. Points are more the fuller, and nothing where a label is missing."""

    hosts: NDArray[np.int32]  # (m,): pods on the node
    has_host: NDArray[np.bool_]  # (m,): it has the label of its host
    zones: NDArray[np.int32]  # (m,): number of its zone, -1: none
    in_zones: Sequence[int]  # pods by number of zone
    host_least: int
    zone_weight: float
    zone_least: int
    weight: int  # of the whole score

    def points_of_host(self, pods: int, nodes: int) -> float:
        """Of a node with so many pods, where so many nodes are feasible."""
        return pods * float(np.log(nodes + 2)) + self.host_least

    def points_of_zone(self, pods: int) -> float:
        """Of a zone with so many pods."""
        return pods * self.zone_weight + self.zone_least


class _Pile:
    """Nodes with the same points: `keys` of them without spreading, ascending."""

    __slots__ = ("has_host", "host_points", "hosts", "keys", "zone")

    def __init__(self, zone: int, hosts: int, *, has_host: bool) -> None:
        self.zone, self.hosts, self.has_host = zone, hosts, has_host
        self.host_points = 0.0
        self.keys: list[int] = []


class EvenRun(WholeRun):
    """`nodes` (m,) are the feasible ones; their keys leave spreading out. `fixed`: these do not change when another set of nodes
    is feasible."""

    def __init__(self, nodes: NodeIndexes, own: Keys, evenly: Evenly, *, fixed: bool) -> None:
        super().__init__(nodes, own)
        self._fixed = fixed
        self._feasible = len(nodes)
        self._feasible_in = Counter(evenly.zones.tolist())
        self._evenly = evenly
        self._in_zones = list(evenly.in_zones)
        self._piles: dict[tuple[int, int, bool], _Pile] = {}
        self._fill()

    def choices(self, wanted: int) -> list[int]:
        """Positions of the nodes that the next `wanted` pods take, in order, as far as can be told at once.

        It ends with a node that took `levels` pods and one more; with one that is full, where that changes what others are
        worth in themselves or by their zones; and where there are too many piles, it may be from the beginning.
        """
        chosen: list[int] = []
        at = {key: position for position, key in enumerate(self._own[0].tolist())}
        while len(chosen) < wanted and 0 < len(self._piles) <= MOST_PILES:
            pile = self._best()
            key = pile.keys.pop()
            if not pile.keys:
                del self._piles[pile.zone, pile.hosts, pile.has_host]
            position = at.pop(key)
            chosen.append(position)
            taken = self._taken[position] = self._taken.get(position, 0) + 1
            if pile.zone >= 0:
                self._in_zones[pile.zone] += 1
            if taken == len(self._own):
                break
            following = int(self._own[taken, position])
            if following == INFEASIBLE:
                if not self._is_full(pile.zone):
                    break
                continue
            at[following] = position
            insort(self._pile(pile.zone, pile.hosts + 1, has_host=pile.has_host).keys, following)
        return chosen

    def spare(self, count: int) -> NodeIndexes:
        """Nodes with room that no pod of the run took, `count` of the best of each pile, better ones first."""
        best = np.array([key for pile in self._piles.values() for key in pile.keys[-count:]], np.int64)
        untouched = np.ones(len(self.nodes), np.bool_)
        untouched[list(self._taken)] = False
        left = np.flatnonzero(untouched & np.isin(self._own[0], best))
        ordered: NodeIndexes = self.nodes[left[np.argsort(self._own[0, left])[::-1]]]
        return ordered

    def _is_full(self, zone: int) -> bool:
        """One node of the zone is not feasible any more. Whether that leaves others as they were but for their hosts' weight."""
        self._feasible -= 1
        self._feasible_in[zone] -= 1
        for pile in self._piles.values():
            self._weigh(pile)
        return self._fixed and self._feasible_in[zone] > 0

    def _weigh(self, pile: _Pile) -> None:
        pile.host_points = self._evenly.points_of_host(pile.hosts, self._feasible) if pile.has_host else 0.0

    def _fill(self) -> None:
        evenly = self._evenly
        keys = self._own[0]
        order = np.lexsort((keys, evenly.has_host, evenly.hosts, evenly.zones))
        columns = np.stack((evenly.zones[order], evenly.hosts[order], evenly.has_host[order]))
        starts = np.flatnonzero((columns[:, 1:] != columns[:, :-1]).any(axis=0)) + 1
        if len(starts) >= MOST_PILES:
            starts = starts[:MOST_PILES]  # one more than there may be: enough to be refused
        for part in np.split(order, starts):
            first = part[0]
            pile = self._pile(int(evenly.zones[first]), int(evenly.hosts[first]), has_host=bool(evenly.has_host[first]))
            pile.keys = keys[part].tolist()

    def _pile(self, zone: int, hosts: int, *, has_host: bool) -> _Pile:
        pile = self._piles.get((zone, hosts, has_host))
        if pile is None:
            pile = self._piles[zone, hosts, has_host] = _Pile(zone, hosts, has_host=has_host)
            self._weigh(pile)
        return pile

    def _best(self) -> _Pile:
        """The pile that has the best node; as PodTopologySpread normalises, over all feasible nodes."""
        evenly, in_zones = self._evenly, self._in_zones
        piles = list(self._piles.values())
        raws = [
            int(pile.host_points + (evenly.points_of_zone(in_zones[pile.zone]) if pile.zone >= 0 else 0.0) + 0.5)
            for pile in piles
        ]
        lowest, highest = min(raws), max(raws)
        best, best_key = piles[0], -1
        for pile, raw in zip(piles, raws, strict=True):
            score = (highest + lowest - raw) * MAX_SCORE // highest if highest else MAX_SCORE
            key = pile.keys[-1] + (score * evenly.weight << SCORE_SHIFT)
            if key > best_key:
                best, best_key = pile, key
        return best
