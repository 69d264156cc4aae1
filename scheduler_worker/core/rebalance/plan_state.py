"""The state in which moves of pods are planned: a cluster in which each planned move has been made.

Whether a node accepts a pod is asked of the worker's own filters, so a plan keeps every rule that scheduling
keeps. A pod is judged as if it had just left its node. Its new place is found while all pods that are moved
later still hold theirs, so the moves can be made in the order of the plan, each new place before the old one
is given up."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import card_mask, pick_cards
from hoss.model.pod import PodGroup, PodSpec, group_of
from hoss.model.resources import CPU, MEMORY, PODS, WHOLE_CARD_MILLI
from hoss.wire.columns import CARD_SLOTS
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand, PodClass
from scheduler_worker.core.framework.plugin_state import PluginState
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.static_fit import StaticFit
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.offline.scheduler import ClusterView
from scheduler_worker.core.placement.diagnosis import ExaminedPod, failure_of, rejection_of, verdicts
from scheduler_worker.core.rebalance.movable_pods import MoveBudget, PlacedPods, PlanLimits

_BITS = np.arange(CARD_SLOTS)
# The taint (PreferNoSchedule) of nodes that cluster-autoscaler finds unneeded and removes after a while.
_DELETION_CANDIDATE = "DeletionCandidateOfClusterAutoscaler"


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """Equal pods that wait. With `together`, at least so many of them are placed, or none (a gang)."""

    name: str
    spec: PodSpec
    pods: int
    together: int = 0


@dataclass(frozen=True, slots=True)
class CountedPod:
    """A pod that waits, counted on a node."""

    pod: ExaminedPod
    group: PodGroup
    node: int
    slots: tuple[int, ...]  # the cards that it got


@dataclass(frozen=True, slots=True)
class Move:
    """One pod's way from its node to another. `gain` is in the goal's own unit, for the moves up to this one
    that belong together; see MovePlan."""

    row: int  # of PlacedPods
    source: int
    target: int
    gain: float
    purpose: str  # what the move is for, as a phrase


@dataclass(frozen=True, slots=True)
class WaitingPlacement:
    """Pods that wait, and where they fit once the first `after_moves` moves are made."""

    waiting: int  # number of the WaitingPods
    node: int
    after_moves: int


@dataclass(frozen=True, slots=True)
class Impossible:
    """Something that the goal asks for and that no moves found bring about."""

    subject: str
    why: str


@dataclass(slots=True)
class MovePlan:
    """Moves in the order in which they can be made."""

    unit: str  # of `gain`, `before` and `after`
    before: float
    after: float
    moves: list[Move] = field(default_factory=list)
    placements: list[WaitingPlacement] = field(default_factory=list)
    impossible: list[Impossible] = field(default_factory=list)


class PlanState:
    """Owns the cluster's cache while a plan is made: it holds the planned moves in the end. What is undone
    leaves it as it was."""

    def __init__(self, cluster: ClusterView, profile: Profile, pods: PlacedPods, limits: PlanLimits) -> None:
        self.cache: NodeInfoCache = cluster.cache
        self.profile = profile
        self.pods = pods
        self.budget = MoveBudget(pods, limits)
        self.nodes = pods.nodes.copy()  # (m,): where each pod is now
        self.moves: list[Move] = []
        self.placed: list[CountedPod] = []  # pods that wait and belong to the plan
        self._demands = cluster.demands
        self._card_masks = pods.card_masks.copy()
        # Compiled while every pod counts: a rule that one pod carries decides what others depend on.
        self._classes = [self._demands.compile(spec) for spec in pods.specs]
        self._sizes = self._shares()
        self._groups = pods.groups or [group_of(spec) for spec in pods.specs]
        # (size,): an autoscaler is about to remove them; a pod that is moved there keeps them.
        self.leaving = np.array(
            [
                spec is not None and any(taint.key == _DELETION_CANDIDATE for taint in spec.taints)
                for spec in self.cache.catalogue.specs[: self.cache.size]
            ],
            np.bool_,
        )
        self._examined: dict[int, ExaminedPod] = {}
        self._rows_on: dict[int, set[int]] = {}
        for row, node in enumerate(self.nodes.tolist()):
            self._rows_on.setdefault(node, set()).add(row)

    # Asking

    def rows_on(self, node: int) -> list[int]:
        """The pods of a node, in order."""
        return sorted(self._rows_on.get(node, ()))

    def demand(self, number: int) -> Demand:
        """What pods of this class request."""
        return self._classes[number].demand

    def examined(self, number: int) -> ExaminedPod:
        """A class of the placed pods, up to date with the cache."""
        current = self._demands.current(self._classes[number])
        if current is not self._classes[number] or number not in self._examined:
            self._classes[number] = current
            self._examined[number] = self._examine(current)
        pod = self._examined[number]
        pod.refresh()
        return pod

    def examine(self, spec: PodSpec) -> tuple[ExaminedPod, PodClass]:
        """A pod that is not placed, up to date with the cache; and its class."""
        pod_class = self._demands.compile(spec)
        pod = self._examine(pod_class)
        pod.refresh()
        return pod, pod_class

    def accepting(self, pod: ExaminedPod) -> Mask:
        """Which nodes accept the pod now: (size,)."""
        size = self.cache.size
        if rejection_of(pod) is not None:
            return np.zeros(size, np.bool_)
        mask: Mask = pod.static.mask.copy()
        view = self.cache.view(None, cards=self.profile.wants_cards(pod.demand))
        admitted = self.profile.admits(pod.demand, view)
        if admitted is not None:
            mask &= admitted
        return pod.plugin_state.narrow(mask)

    def targets(self, pod: ExaminedPod, source: int) -> Mask:
        """Which nodes accept the pod as one that is moved, now that it has left its source: (size,). Nodes
        that an autoscaler is about to remove are none of them."""
        there = self.accepting(pod) & ~self.leaving
        there[source] = False
        return there

    def accepts(self, pod: ExaminedPod, node: int) -> bool:
        """Whether this node accepts the pod now."""
        pod.refresh()
        if rejection_of(pod) is not None or failure_of(pod, self.profile, self.cache) is not None:
            return False
        return not any(verdicts(pod, self.profile, self.cache, np.array((node,))))

    def load(self) -> NDArray[np.float64]:
        """The larger share of cpu and memory that is requested of each node, (size,)."""
        size = self.cache.size
        allocatable = self.cache.accounts.allocatable[[CPU, MEMORY], :size]
        shares = self.cache.requested[[CPU, MEMORY], :size] / np.maximum(allocatable, 1)
        load: NDArray[np.float64] = shares.max(axis=0)
        return load

    def load_with(self, nodes: NodeIndexes, demand: Demand | None) -> NDArray[np.float64]:
        """The load of these nodes, with one more pod of this demand each."""
        allocatable = self.cache.accounts.allocatable[:, nodes][[CPU, MEMORY]]
        requested = self.cache.requested[:, nodes][[CPU, MEMORY]]
        if demand is not None:
            requested = requested + demand.request[[CPU, MEMORY], None]
        load: NDArray[np.float64] = (requested / np.maximum(allocatable, 1)).max(axis=0)
        return load

    def name(self, node: int) -> str:
        """The node's name."""
        return self.cache.catalogue.name(node)

    def only_known_pods(self, node: int) -> bool:
        """Whether the placed pods are all that the node's account holds."""
        return int(self.cache.requested[PODS, node]) == len(self._rows_on.get(node, ()))

    def size_of(self, number: int) -> float:
        """The share of a mean node that a pod of the class requests, of the resource where it is largest."""
        return self._sizes[number]

    def tightest(self, demand: Demand, targets: NodeIndexes) -> int:
        """Of these nodes the one with the least room left over, so that large holes stay. Nodes with cards
        come last for pods that request none."""
        cache = self.cache
        allocatable = np.maximum(cache.accounts.allocatable[:, targets][[CPU, MEMORY]], 1)
        left = (allocatable - cache.requested[:, targets][[CPU, MEMORY]]) / allocatable
        key = left.sum(axis=0)
        used = cache.cards.used[targets]
        there = used <= WHOLE_CARD_MILLI
        if demand.devices is None:
            key = key + 10.0 * there.any(axis=1)
        else:
            key = key + np.where(there, 1.0 - used / WHOLE_CARD_MILLI, 0.0).sum(axis=1)
        return int(targets[key.argmin()])

    # Changing

    def take(self, row: int) -> None:
        """The pod leaves its node."""
        node = int(self.nodes[row])
        self._count(row, node, -1, self._slots(row))
        self._rows_on[node].discard(row)

    def put(self, row: int, node: int) -> None:
        """The pod, which left its node, is on this one, on the cards that the ledger would pick."""
        devices = self.demand(int(self.pods.classes[row])).devices
        slots: Sequence[int] = ()
        if devices is not None:
            slots = pick_cards(self.cache.cards.used[node].tolist(), devices.count, devices.milli) or ()
        self._put(row, node, card_mask(slots))

    def put_back(self, row: int, node: int, card_mask: int) -> None:
        """The pod is on its former node again, on the cards that it had."""
        self._put(row, node, card_mask)

    def card_mask(self, row: int) -> int:
        """The cards that the pod holds."""
        return int(self._card_masks[row])

    def place(self, pod: ExaminedPod, pod_class: PodClass, node: int) -> CountedPod:
        """Count a pod that waits, and that is up to date, on the node: with the cards, volumes and devices
        that it gets there."""
        reserved = pod.plugin_state.reserve(node)
        group = pod_class.choosing(reserved.volumes, reserved.held).group
        devices = pod.demand.devices
        slots: tuple[int, ...] = ()
        if devices is not None:
            slots = pick_cards(self.cache.cards.used[node].tolist(), devices.count, devices.milli) or ()
            self.cache.cards.used[node, list(slots)] += devices.milli
        self.cache.requested[:, node] += pod.demand.request
        self.cache.pod_index.add(group, np.array((node,)))
        return CountedPod(pod, group, node, slots)

    def displace(self, counted: CountedPod) -> None:
        """Undo `place`."""
        demand, node = counted.pod.demand, counted.node
        if demand.devices is not None:
            self.cache.cards.used[node, list(counted.slots)] -= demand.devices.milli
        self.cache.requested[:, node] -= demand.request
        self.cache.pod_index.remove(counted.group, np.array((node,)))

    def record(self, move: Move) -> None:
        """The move, which `take` and `put` have made, belongs to the plan."""
        self.moves.append(move)
        self.budget.take(move.row)

    def credit(self, gain: float) -> None:
        """The gain that all moves since the last one with a gain have together."""
        self.moves[-1] = replace(self.moves[-1], gain=gain)

    def credit_together(self, since: int, gain: float) -> None:
        """The gain that all moves but the first `since` have only together."""
        self.moves[since:] = [replace(move, gain=0.0) for move in self.moves[since:]]
        self.credit(gain)

    def undo_all(self) -> None:
        """Take back the whole plan: all moves, and the pods that wait."""
        while self.placed:
            self.displace(self.placed.pop())
        self.undo_to(0)

    def undo_to(self, moves: int) -> None:
        """Take back all moves but the first `moves`."""
        while len(self.moves) > moves:
            move = self.moves.pop()
            self.take(move.row)
            self._put(move.row, move.source, int(self.pods.card_masks[move.row]))
            self.budget.give_back(move.row)

    # Within

    def _examine(self, pod_class: PodClass) -> ExaminedPod:
        demand = pod_class.demand
        return ExaminedPod(
            demand,
            StaticFit(demand.spec, self.profile, self.cache),
            PluginState(demand, self.profile, self.cache),
        )

    def _shares(self) -> list[float]:
        """See `size_of`."""
        size, nodes = self.cache.size, max(int(self.cache.present.sum()), 1)
        mean = np.maximum(self.cache.accounts.allocatable[:, :size].sum(axis=1) / nodes, 1)
        return [
            float((pod_class.demand.request / mean)[pod_class.demand.rows].max())
            for pod_class in self._classes
        ]

    def _slots(self, row: int) -> list[int]:
        slots: list[int] = np.flatnonzero((int(self._card_masks[row]) >> _BITS) & 1).tolist()
        return slots

    def _put(self, row: int, node: int, card_mask: int) -> None:
        self._card_masks[row] = card_mask
        self._count(row, node, 1, self._slots(row))
        self.nodes[row] = node
        self._rows_on.setdefault(node, set()).add(row)

    def _count(self, row: int, node: int, sign: int, slots: Sequence[int]) -> None:
        number = int(self.pods.classes[row])
        demand = self.demand(number)
        self.cache.requested[:, node] += sign * demand.request
        if demand.devices is not None and slots:
            # Subtracted and not added as a negative: the column is unsigned.
            if sign > 0:
                self.cache.cards.used[node, slots] += demand.devices.milli
            else:
                self.cache.cards.used[node, slots] -= demand.devices.milli
        index = self.cache.pod_index
        (index.add if sign > 0 else index.remove)(self._groups[number], np.array((node,)))
