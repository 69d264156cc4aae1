"""Noisy neighbours: nodes whose pods use far more than they requested, and moves that relieve them.

Schedulers count requests, so a node of such pods looks free while its pods slow one another down. Here a node
is loaded by what its pods use or by what they request, whichever is more. A pod whose use is not known counts
with its requests."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hoss.errors import counted
from hoss.model.resources import CPU, MEMORY
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.rebalance.plan_state import Impossible, Move, MovePlan, PlanState

# A node is noisy if its pods use more than they requested by so much of the node, of cpu or of memory.
NOISY_EXCESS = 0.2
_PODS_COMPARED = 8  # of one node that can be moved, the largest users first
_LEAST_GAIN = 1e-3  # of squared load
_NAMED = 10  # nodes in a sentence
_NO_QUIET_NODE = "no other node takes it and stays quiet, or it uses too little"
_ROWS = [CPU, MEMORY]


@dataclass(frozen=True, slots=True, eq=False)
class PodUsage:
    """What m placed pods use, by row of PlacedPods."""

    amounts: NDArray[np.int64]  # (2, m): thousandths of a cpu, bytes of memory
    known: Mask  # (m,)


class NodeLoads:
    """Use and requests of all nodes, as shares of what they offer. It follows moves by `shift`."""

    def __init__(self, state: PlanState, usage: PodUsage) -> None:
        self._state = state
        self._known = usage.known
        classes = state.pods.classes
        requests = np.array([state.demand(k).request[_ROWS] for k in range(len(state.pods.specs))], np.int64)
        requested = requests.reshape(-1, 2)[classes].T
        self._beyond = np.where(usage.known, usage.amounts - requested, 0)  # (2, m): use less requests
        self._of_nodes = np.zeros((2, state.cache.size), np.int64)
        for row in range(2):
            np.add.at(self._of_nodes[row], state.nodes, self._beyond[row])
        self._allocatable = np.maximum(state.cache.accounts.allocatable[:, : state.cache.size][_ROWS], 1)

    @property
    def excess(self) -> NDArray[np.float64]:
        """By how much of the node its pods use more than they request, (2, size); negative: less."""
        found: NDArray[np.float64] = self._of_nodes / self._allocatable
        return found

    @property
    def noisy(self) -> Mask:
        """(size,)"""
        found: Mask = (self.excess.max(axis=0) > NOISY_EXCESS) & self._state.cache.present[
            : self._state.cache.size
        ]
        return found

    @property
    def requested(self) -> NDArray[np.float64]:
        """(2, size)"""
        found: NDArray[np.float64] = (
            self._state.cache.requested[:, : self._state.cache.size][_ROWS] / self._allocatable
        )
        return found

    @property
    def load(self) -> NDArray[np.float64]:
        """The larger of use and requests, of cpu or memory, whichever is larger: (size,)."""
        found: NDArray[np.float64] = (self.requested + np.maximum(self.excess, 0)).max(axis=0)
        return found

    @property
    def unmeasured(self) -> Mask:
        """Which nodes have pods, and none whose use is known: (size,)."""
        pods = np.bincount(self._state.nodes, minlength=self._state.cache.size)
        measured = np.bincount(self._state.nodes[self._known], minlength=self._state.cache.size)
        found: Mask = (pods > 0) & (measured == 0)
        return found

    def with_pod(self, nodes: NodeIndexes, row: int) -> tuple[NDArray[np.float64], Mask]:
        """The load of these nodes with this pod, which is on none of them now, and whether they are noisy
        then: (n,) each."""
        demand = self._state.demand(int(self._state.pods.classes[row])).request[_ROWS]
        allocatable = self._allocatable[:, nodes]
        excess = (self._of_nodes[:, nodes] + self._beyond[:, row, None]) / allocatable
        requested = self.requested[:, nodes] + demand[:, None] / allocatable
        load: NDArray[np.float64] = (requested + np.maximum(excess, 0)).max(axis=0)
        noisy: Mask = excess.max(axis=0) > NOISY_EXCESS
        return load, noisy

    def shift(self, row: int, node: int, sign: int) -> None:
        """The pod comes to the node (1) or leaves it (-1)."""
        self._of_nodes[:, node] += sign * self._beyond[:, row]

    def largest_first(self, node: int) -> list[int]:
        """The pods of a node, those first that use most beyond their requests."""
        rows = self._state.rows_on(node)
        share = (self._beyond[:, rows] / self._allocatable[:, [node]]).max(axis=0)
        return [rows[i] for i in np.argsort(-share, kind="stable").tolist()]


def quiet_nodes(state: PlanState, usage: PodUsage) -> MovePlan:
    """Take pods from noisy nodes to others that do not become noisy by them. The gain is in squared load of a
    node.

    Pods of which the use is not known stay, and nodes of which no pod's use is known get none: nobody can say
    that they are quiet."""
    loads = NodeLoads(state, usage)
    present = np.flatnonzero(state.cache.present)
    before = float((loads.load[present] ** 2).sum())
    plan = MovePlan("squared load by use", before=before, after=before)
    unmeasured = loads.unmeasured
    done: set[int] = set()
    while state.budget.moves_left:
        load = loads.load
        noisy = [node for node in np.flatnonzero(loads.noisy).tolist() if node not in done]
        if not noisy:
            break
        source = max(noisy, key=lambda node: float(load[node]))
        move = _best_move(state, loads, source, usage.known, unmeasured)
        if move is None:
            done.add(source)
            continue
        state.take(move.row)
        loads.shift(move.row, move.source, -1)
        state.put(move.row, move.target)
        loads.shift(move.row, move.target, 1)
        state.record(move)
    plan.moves = state.moves
    plan.after = float((loads.load[present] ** 2).sum())
    plan.impossible = [*_still_noisy(state, loads, usage), *_not_known(state, usage, unmeasured)]
    return plan


def _best_move(state: PlanState, loads: NodeLoads, source: int, known: Mask, unmeasured: Mask) -> Move | None:
    """Of this node's largest users that can be moved, the move that lowers the sum of squared loads the
    most."""
    best: Move | None = None
    before, compared = loads.load, 0
    for row in loads.largest_first(source):
        if compared >= _PODS_COMPARED:
            break
        if not known[row] or state.budget.why_fixed(row):
            continue
        mask = state.card_mask(row)
        state.take(row)
        loads.shift(row, source, -1)
        there = state.targets(state.examined(int(state.pods.classes[row])), source)
        targets = np.flatnonzero(there & ~loads.noisy & ~unmeasured)
        if len(targets):
            without = float(loads.load[source])
            after, noisy = loads.with_pod(targets, row)
            gains = before[source] ** 2 - without**2 + before[targets] ** 2 - after**2
            gains[noisy] = -np.inf
            at = int(gains.argmax())
            compared += bool(gains[at] > _LEAST_GAIN)
            if gains[at] > _LEAST_GAIN and (best is None or gains[at] > best.gain):
                purpose = f"lowers {state.name(source)} from {before[source]:.0%} to {without:.0%}, by use"
                best = Move(row, source, int(targets[at]), float(gains[at]), purpose)
        state.put_back(row, source, mask)
        loads.shift(row, source, 1)
    return best


def _still_noisy(state: PlanState, loads: NodeLoads, usage: PodUsage) -> list[Impossible]:
    """Each node that is noisy after the plan, and why its pods stay."""
    nodes = np.flatnonzero(loads.noisy).tolist()
    if state.budget.used_up and nodes:
        return [Impossible(counted(len(nodes), "noisy node"), state.budget.used_up)]
    found = []
    for node in nodes:
        why = Counter(
            "what it uses is not known"
            if not usage.known[row]
            else state.budget.why_fixed(row) or _NO_QUIET_NODE
            for row in state.rows_on(node)
        )
        stay = ", ".join(f"{pods} because {text}" for text, pods in why.most_common())
        found.append(Impossible(f"noisy node {state.name(node)}", f"pods that stay: {stay}"))
    return found


def _not_known(state: PlanState, usage: PodUsage, unmeasured: Mask) -> list[Impossible]:
    """What cannot be judged, because measurements are missing or old."""
    found = []
    nodes = np.flatnonzero(unmeasured).tolist()
    if nodes:
        names = [state.name(node) for node in nodes[:_NAMED]]
        more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
        why = "what their pods use is missing or old: they may be noisy, and get no pods"
        found.append(Impossible(f"{counted(len(nodes), 'node')}: {', '.join(names)}{more}", why))
    if unknown := int((~usage.known).sum()):
        why = "what they use is missing or old; they count with their requests, and stay"
        found.append(Impossible(f"{unknown} of {counted(len(usage.known), 'pod')}", why))
    return found
