"""Days of a cluster whose pods come and go, without rebalancing, packed anew each night, and with the
rebalance controller: how full the nodes in use are, and what it costs in moves.

Pods come at random, more by day than by night, and each stays for a random time, so holes open everywhere.
The controller is the one that runs beside a platform (hossctl/rebalance/controller.py), and it plans as that
does. A pod goes to the fullest node that accepts it, or to the emptiest; the workers' own filters say which
do. Moves take no time here, and nodes in use are those with pods: the others could be switched off.

A share of the pods may be urgent: one that fits nowhere evicts others, the fewest that make room on a node,
and these wait for another place. Where the policy has `beforePreemption`, the controller looks for moves
first.

The document (camel case):

    nodes, days, seed, placing, urgent
    cases[]     name (none, nightly, controller), utilisation (mean share of the cpu of nodes in use that is
                requested), nodesInUse (mean), podsWaiting (mean), podsCame, movesPerDay, preemptedPerDay,
                standOffs (how often the controller left a goal alone, because its moves were undone)
"""

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput
from hoss.model.cluster import Cluster
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import CPU, MEMORY
from hossctl.choices import RebalanceGoal, SimulatedCare, SimulatedPlacer
from hossctl.console import Document
from hossctl.figures import camel
from hossctl.rebalance.controller import RebalanceController
from hossctl.rebalance.policy import GoalDocument, RebalancePolicy
from hossctl.simulate.timeline import Timeline
from scheduler_worker.core.classes import PodClass
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.placement.diagnosis import ExaminedPod
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.rebalance import goals
from scheduler_worker.core.rebalance.movable_pods import PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import CountedPod, MovePlan, PlanState, WaitingPods

DEFAULT_POLICY = RebalancePolicy(
    goals=(GoalDocument(goal=RebalanceGoal.FIT_PENDING), GoalDocument(goal=RebalanceGoal.EMPTY_NODES))
)
_MONDAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
_HOUR, _DAY = 3600.0, 86_400.0
_NIGHT = 3 * _HOUR  # when a cluster is packed anew
_SAMPLE_SECONDS = 600.0
_GIB = 1 << 30

_NODE_CPU, _NODE_MEMORY = 16_000, 64 * _GIB
_NODE = np.array((_NODE_CPU, _NODE_MEMORY))
# Thousandths of a cpu, bytes, and how often: many small pods and a few large ones.
_KINDS = (
    (250, _GIB // 2, 0.30),
    (500, 2 * _GIB, 0.25),
    (1000, 2 * _GIB, 0.20),
    (2000, 8 * _GIB, 0.15),
    (4000, 16 * _GIB, 0.08),
    (8000, 32 * _GIB, 0.02),
)
_MEAN_STAY = 10 * _HOUR
_LOAD = 0.6  # of the cluster's cpu, as a mean over a day
_SWING = 0.4  # by which more pods come in the afternoon, and fewer in the night
_PODS_A_WORKLOAD = 8
_URGENT = 1000  # the priority of urgent pods; others have none


@dataclass(frozen=True, slots=True)
class RebalancingSetting:
    """Days of a cluster under a policy."""

    policy: RebalancePolicy
    nodes: int = 40
    days: float = 7.0
    placer: SimulatedPlacer = SimulatedPlacer.FULLEST
    seed: int = 1
    urgent: float = 0.0  # share of the pods


@dataclass(slots=True)
class _Pod:
    """A pod. `kind`: of _KINDS; those of urgent pods come after these. `node`: -1 while it waits."""

    name: str
    kind: int
    workload: int
    node: int


@dataclass(frozen=True, slots=True)
class RebalancingResult:
    """One case."""

    name: str
    utilisation: float
    nodes_in_use: float
    pods_waiting: float
    pods_came: int
    moves_per_day: float
    preempted_per_day: float
    stand_offs: int

    def as_json(self) -> Document:
        return {
            **camel(self, "name"),
            **camel(self, "utilisation", "nodes_in_use", "pods_waiting", digits=4),
            **camel(self, "moves_per_day", "preempted_per_day", digits=4),
            **camel(self, "pods_came", "stand_offs"),
        }


def play(setting: RebalancingSetting) -> Iterator[RebalancingResult]:
    """Each case, with the same pods at the same times. Raises InvalidInput for a policy that it cannot
    play."""
    if any(entry.nodes is not None for entry in setting.policy.goals):
        raise InvalidInput("names labels of nodes, and simulated nodes have none", where="goals.nodes")
    for care in SimulatedCare:
        yield _SimulatedDays(setting, care).result()


def as_json(setting: RebalancingSetting, results: list[RebalancingResult]) -> Document:
    """See the module's docstring."""
    return {
        **camel(setting, "nodes", "days", "seed", "urgent"),
        "placing": setting.placer.value,
        "cases": [result.as_json() for result in results],
    }


class _SimulatedDays:
    def __init__(self, setting: RebalancingSetting, care: SimulatedCare) -> None:
        self._setting = setting
        self._care = care
        self._timeline = Timeline()
        self._snapshot = ClusterSnapshot(Cluster([_node(i) for i in range(setting.nodes)], []))
        self._profile = default_profile()
        self._specs = [
            PodSpec(requests=(("cpu", cpu), ("memory", memory)), nonzero_cpu_milli=cpu, priority=priority)
            for priority in (0, _URGENT)
            for cpu, memory, _ in _KINDS
        ]
        self._ground = self._state_of(self._placed([]), PlanLimits())  # what pods that come are counted in
        self._examined: list[tuple[ExaminedPod, PodClass]] = [self._ground.examine(s) for s in self._specs]
        self._pods: dict[str, _Pod] = {}
        self._waiting: list[_Pod] = []
        self._controller = RebalanceController(setting.policy, now=_MONDAY)
        self._came = self._moves = self._preempted = 0
        self._samples: list[tuple[float, int, int]] = []

    def result(self) -> RebalancingResult:
        """Play all days."""
        self._come()
        self._timeline.every(_SAMPLE_SECONDS, self._sample)
        if self._care is SimulatedCare.NIGHTLY:
            self._timeline.after(_NIGHT, self._pack)
        elif self._care is SimulatedCare.CONTROLLER:
            self._timeline.every(self._setting.policy.passSeconds, self._pass)
        self._timeline.run(self._setting.days * _DAY)
        shares, in_use, waiting = np.array(self._samples).T
        return RebalancingResult(
            self._care.value,
            float(shares.mean()),
            float(in_use.mean()),
            float(waiting.mean()),
            self._came,
            self._moves / self._setting.days,
            self._preempted / self._setting.days,
            self._controller.stand_offs,
        )

    # --- pods that come and go ---

    def _come(self) -> None:
        """Draw every pod of all days: the same for each case."""
        rng = np.random.default_rng(self._setting.seed)
        weights = np.array([weight for _, _, weight in _KINDS])
        mean_cpu = float(sum(cpu * weight for cpu, _, weight in _KINDS))
        pods = _LOAD * self._setting.nodes * _NODE_CPU / mean_cpu  # at a time
        seconds = self._setting.days * _DAY
        # It begins with as many pods as stay on the mean.
        times = [0.0] * int(pods)
        at = 0.0
        while at < seconds:
            at += rng.exponential(_MEAN_STAY / pods / (1 + _SWING))
            # Thinned: an hour's rate is a share of the highest one.
            rate = (1 - _SWING * np.cos(2 * np.pi * (at / _DAY - 3 / 24))) / (1 + _SWING)
            if rng.random() < rate:
                times.append(at)
        kinds = rng.choice(len(_KINDS), size=len(times), p=weights / weights.sum())
        stays = rng.exponential(_MEAN_STAY, size=len(times))
        kinds += len(_KINDS) * (rng.random(len(times)) < self._setting.urgent)
        for number, (comes, kind, stay) in enumerate(zip(times, kinds.tolist(), stays.tolist(), strict=True)):
            pod = _Pod(f"default/pod-{number}", kind, number // _PODS_A_WORKLOAD, -1)
            self._timeline.after(comes, partial(self._comes, pod, stay))

    def _comes(self, pod: _Pod, stay: float) -> None:
        self._came += 1
        if not self._place(pod, self._setting.placer):
            self._waiting.append(pod)
            if _is_urgent(pod):
                self._make_room(pod)
        self._timeline.after(stay, partial(self._goes, pod))

    def _make_room(self, pod: _Pod) -> None:
        """For an urgent pod that waits: by moves, where the policy asks for that, else by preemption."""
        before = self._setting.policy.beforePreemption
        if self._care is SimulatedCare.CONTROLLER and before is not None and before.upToPriority >= _URGENT:
            now = _MONDAY + timedelta(seconds=self._timeline.now)
            if not self._controller.waits(now):
                self._look(now, (RebalanceGoal.FIT_PENDING,))
        victims = [] if pod.node >= 0 else self._victims(pod)
        for victim in victims:
            self._leave(victim)
            self._waiting.append(victim)
        self._preempted += len(victims)
        if victims:
            self._waiting.remove(pod)
            self._place(pod, self._setting.placer)
            self._place_waiting()

    def _victims(self, pod: _Pod) -> list[_Pod]:
        """The fewest pods of a node that are not urgent and without which this one fits there; of equally
        many, those with the least cpu. Empty: there are none."""
        asked = _size(pod)
        on_nodes: dict[int, list[_Pod]] = {}
        for other in self._pods.values():
            if not _is_urgent(other):
                on_nodes.setdefault(other.node, []).append(other)
        counts: dict[int, int] = {}  # the fewest of each node that has enough
        spare: dict[int, NDArray[np.int64]] = {}  # what the largest so many leave beyond what is asked for
        for node, others in on_nodes.items():
            others.sort(key=lambda other: (-_cpu(other), other.name))
            free = _NODE - self._snapshot.cache.requested[[CPU, MEMORY], node]
            left = free - asked + np.cumsum([_size(other) for other in others], axis=0)
            enough = np.flatnonzero((left >= 0).all(axis=1))
            if len(enough):
                counts[node], spare[node] = int(enough[0]) + 1, left[enough[0]]
        fewest = min(counts.values(), default=0)
        found = [
            (_smaller(on_nodes[node], fewest, spare[node]), node)
            for node, count in counts.items()
            if count == fewest
        ]
        return min(found, key=lambda one: (sum(map(_cpu, one[0])), one[1]))[0] if found else []

    def _goes(self, pod: _Pod) -> None:
        if pod.node < 0:
            self._waiting.remove(pod)
            return
        self._leave(pod)
        self._place_waiting()

    def _place_waiting(self) -> None:
        """The oldest first; of a kind that does not fit none is tried again."""
        full: set[int] = set()
        for pod in list(self._waiting):
            if pod.kind not in full and self._place(pod, self._setting.placer):
                self._waiting.remove(pod)
            elif pod.node < 0:
                full.add(pod.kind)

    def _place(self, pod: _Pod, placer: SimulatedPlacer) -> bool:
        examined, pod_class = self._examined[pod.kind]
        examined.refresh()
        there = np.flatnonzero(self._ground.accepting(examined))
        if not len(there):
            return False
        if placer is SimulatedPlacer.FULLEST:
            node = self._ground.tightest(examined.demand, there)
        else:
            node = int(there[self._ground.load()[there].argmin()])
        self._ground.place(examined, pod_class, node)
        pod.node = node
        self._pods[pod.name] = pod
        return True

    def _leave(self, pod: _Pod) -> None:
        examined, pod_class = self._examined[pod.kind]
        self._ground.displace(CountedPod(examined, pod_class.group, pod.node, ()))
        del self._pods[pod.name]
        pod.node = -1

    def _sample(self) -> None:
        nodes = np.unique([pod.node for pod in self._pods.values()])
        requested = int(self._snapshot.cache.requested[CPU].sum())
        self._samples.append((requested / (len(nodes) * _NODE_CPU), len(nodes), len(self._waiting)))

    # --- care ---

    def _pack(self) -> None:
        """All pods anew, the largest first, on the fullest nodes: as well as it goes. Each night."""
        self._timeline.after(_DAY, self._pack)
        before = {pod.name: pod.node for pod in self._pods.values()}
        pods = sorted(self._pods.values(), key=lambda pod: (-_cpu(pod), pod.name))
        for pod in pods:
            self._leave(pod)
        for pod in pods:
            if not self._place(pod, SimulatedPlacer.FULLEST):
                self._waiting.append(pod)
        self._moves += sum(pod.node != before[pod.name] for pod in pods)
        self._place_waiting()

    def _pass(self) -> None:
        now = _MONDAY + timedelta(seconds=self._timeline.now)
        self._controller.begin_pass(now)
        if not self._controller.waits(now):
            self._look(now, tuple(RebalanceGoal))

    def _look(self, now: datetime, only: Container[RebalanceGoal]) -> None:
        """Make the moves of the first goal, of these, that finds any."""
        pods = self._controller.movable(self._placed(list(self._pods.values())), now)
        for entry in self._setting.policy.goals:
            if entry.goal not in only:
                continue
            state = self._state_of(pods, self._controller.limits(pods, now))
            if self._controller.stands_off(entry.goal, state, now):
                continue
            chosen = self._controller.choose(entry.goal, self._plan(entry.goal, state), state)
            if chosen.moves:
                for move in chosen.moves:
                    self._pods[pods.names[move.row]].node = move.target
                self._moves += len(chosen.moves)
                self._controller.made(chosen, [pods.names[move.row] for move in chosen.moves], now)
                self._place_waiting()
                return

    def _plan(self, goal: RebalanceGoal, state: PlanState) -> MovePlan:
        if goal is RebalanceGoal.FIT_PENDING:
            kinds = sorted(
                Counter(pod.kind for pod in self._waiting).items(), reverse=True
            )  # urgent ones first
            waiting = [WaitingPods(f"kind-{kind}", self._specs[kind], pods) for kind, pods in kinds]
            return goals.fit_pending(state, waiting)
        if goal is RebalanceGoal.EMPTY_NODES:
            return goals.empty_nodes(state)
        if goal is RebalanceGoal.SPREAD:
            return goals.spread(state)
        raise InvalidInput(
            f"the simulation knows no {goal.value}; its pods differ in cpu and memory alone", where="goals"
        )

    def _state_of(self, pods: PlacedPods, limits: PlanLimits) -> PlanState:
        return PlanState(self._snapshot, self._profile, pods, limits)

    def _placed(self, pods: list[_Pod]) -> PlacedPods:
        return PlacedPods(
            names=[pod.name for pod in pods],
            specs=self._specs,
            classes=np.array([pod.kind for pod in pods], np.intp),
            nodes=np.array([pod.node for pod in pods], np.intp),
            card_masks=np.zeros(len(pods), np.uint16),
            workloads=np.array([pod.workload for pod in pods], np.intp),
            fixed=np.zeros(len(pods), np.intp),
            reasons=("",),
            covered=np.zeros((len(self._specs), 0), np.bool_),
            allowed=np.zeros(0, np.int64),
        )


def _smaller(others: list[_Pod], count: int, spare: NDArray[np.int64]) -> list[_Pod]:
    """The first `count` of these pods, the largest first, which leave `spare`. The smallest ones that leave
    enough take their places, one by one."""
    chosen, rest = others[:count], others[: count - 1 : -1]
    for position, victim in enumerate(chosen):
        left = spare - _size(victim)
        better = (i for i, other in enumerate(rest) if (left + _size(other) >= 0).all())
        if (at := next(better, None)) is not None:
            chosen[position] = rest.pop(at)
            spare = left + _size(chosen[position])
    return chosen


def _size(pod: _Pod) -> NDArray[np.int64]:
    return np.array(_KINDS[pod.kind % len(_KINDS)][:2])


def _cpu(pod: _Pod) -> int:
    return _KINDS[pod.kind % len(_KINDS)][0]


def _is_urgent(pod: _Pod) -> bool:
    return pod.kind >= len(_KINDS)


def _node(number: int) -> NodeSpec:
    name = f"node-{number:05}"
    allocatable = (("cpu", _NODE_CPU), ("memory", _NODE_MEMORY), ("pods", 110))
    return NodeSpec(name, (("kubernetes.io/hostname", name),), allocatable=allocatable)
