"""`python -m tools.bench plans`: what measuring a large cluster costs, and a plan of moves for each goal.

Pods of 200 kinds lie at random on nodes of which a fifth has eight cards; a tenth of the kinds asks for a
share of a card, and of these pods a part has gone again. What waits are pods of three quarters of a node. All
is in memory: reading a platform costs more."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, group_of
from hoss.model.resources import DEVICE_RESOURCE
from hossctl.bench.gpu import empty_pool
from hossctl.choices import RebalanceGoal
from hossctl.console import Document
from hossctl.explain.live import LiveSnapshot
from hossctl.figures import median
from hossctl.load.nodes import GIB
from hossctl.rebalance.gathering import Gathered
from hossctl.rebalance.plans import plan_for
from hossctl.rebalance.room import fragmentation_document
from hossctl.rebalance.usage import UsageFile
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.rebalance.goals import drain
from scheduler_worker.core.rebalance.movable_pods import PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import MovePlan, PlanState, WaitingPods
from tools.bench.defragment import some_of

_KINDS, _CARD_KINDS = 200, 20
_CPU, _MEMORY, _PODS = 40_000, 160 * GIB, 110
_CARDS = 8  # of every fifth node
_SHARES = (500, 300)  # of a card; two pods always find room on one
_USED_BEYOND = 4  # times its requests: every tenth pod, for quiet-nodes


@dataclass(frozen=True, slots=True)
class Setting:
    """How large the cluster is, and how long plans are."""

    nodes: int
    pods: int
    moves: int
    repeat: int
    seed: int


def measure(setting: Setting) -> Document:
    """Milliseconds of measuring, and seconds of each plan: medians, of CPU time and by the clock."""
    gathered = _cluster(setting)
    profile = default_profile()
    measuring = [_timed(lambda: fragmentation_document(gathered, profile)) for _ in range(setting.repeat)]
    plans = []
    for name, plan in _plans(gathered, setting):
        runs = []
        for _ in range(setting.repeat):
            state = None

            def planned(plan: Callable[[PlanState], MovePlan] = plan) -> int:
                nonlocal state
                limits = PlanLimits(setting.moves)
                state = PlanState(gathered.snapshot, profile, gathered.pods, limits)
                return len(plan(state).moves)

            cpu, clock, moves = _timed(planned)
            runs.append((cpu, clock))
            if state is not None:
                state.undo_all()
        plans.append({"goal": name, "moves": moves, **_medians(runs, 1.0, "Seconds", 3)})
    return {
        "nodes": setting.nodes,
        "pods": setting.pods,
        "repeat": setting.repeat,
        "seed": setting.seed,
        "measuring": _medians([(cpu, clock) for cpu, clock, _ in measuring], 1000.0, "Millis", 1),
        "plans": plans,
    }


def _plans(gathered: Gathered, setting: Setting) -> Iterator[tuple[str, Callable[[PlanState], MovePlan]]]:
    pods = gathered.pods
    used = UsageFile(
        {
            name: (cpu * (_USED_BEYOND if row % 10 == 0 else 1), memory)
            for row, name in enumerate(pods.names)
            for (_, cpu), (_, memory) in (pods.specs[pods.classes[row]].requests,)
        }
    )
    for goal in RebalanceGoal:
        usage = used if goal is RebalanceGoal.QUIET_NODES else None
        yield goal.value, partial(plan_for, goal, gathered=gathered, usage=usage)
    pods_a_node = max(1, setting.pods // setting.nodes)
    nodes = list(range(max(1, setting.moves // pods_a_node)))
    yield "a drain", partial(drain, nodes=nodes)


def _cluster(setting: Setting) -> Gathered:
    rng = np.random.default_rng(setting.seed)
    nodes = [_node(number) for number in range(setting.nodes)]
    specs = [_spec(number, rng) for number in range(_KINDS)]
    cache = NodeInfoCache()
    cache.apply_feed(empty_pool(nodes))
    snapshot = LiveSnapshot(cache, DemandTable(cache.schema, cache.catalogue.images, cache.pod_index))
    with_cards = np.arange(0, setting.nodes, 5)
    places = _shuffled(rng, np.arange(setting.nodes), 30)
    places_with_cards = _shuffled(rng, with_cards, 2 * _CARDS)
    classes, at, masks = [], [], []
    for number, spec in enumerate(specs):
        if spec.devices is None:
            count = setting.pods // _KINDS
            there, places = places[:count], places[count:]
        else:
            there = places_with_cards[number::_CARD_KINDS]
        demand = snapshot.demands.compile(spec).demand
        group = group_of(spec)
        # One by one: two of a kind on a node get different cards.
        masks += [int(cache.assume(np.array((node,)), demand, group)[0]) for node in there.tolist()]
        classes += [number] * len(there)
        at += there.tolist()
    placed = PlacedPods(
        names=[f"default/kind-{number}-{row}" for row, number in enumerate(classes)],
        specs=specs,
        classes=np.array(classes, np.intp),
        nodes=np.array(at, np.intp),
        card_masks=np.array(masks, np.uint16),
        workloads=np.array(classes, np.intp),
        fixed=np.zeros(len(at), np.intp),
        reasons=("",),
        covered=np.zeros((_KINDS, 0), np.bool_),
        allowed=np.zeros(0, np.int64),
    )
    left = _thinned(snapshot, placed, setting, rng)
    large = PodSpec(requests=(("cpu", _CPU * 3 // 4), ("memory", GIB)), nonzero_cpu_milli=_CPU * 3 // 4)
    return Gathered(snapshot, left, (WaitingPods("default/large", large, setting.moves),), ())


def _thinned(
    snapshot: LiveSnapshot, placed: PlacedPods, setting: Setting, rng: np.random.Generator
) -> PlacedPods:
    """So many of the pods with cards go, at random, that the others are as many as the setting says."""
    with_cards = np.flatnonzero(placed.classes < _CARD_KINDS)
    gone = rng.permutation(with_cards)[: max(0, len(placed) - setting.pods)]
    state = PlanState(snapshot, default_profile(), placed, PlanLimits())
    for row in gone.tolist():
        state.take(row)
    return some_of(placed, np.setdiff1d(np.arange(len(placed)), gone))


def _node(number: int) -> NodeSpec:
    cards = 0 if number % 5 else _CARDS
    room = (
        ("cpu", _CPU),
        ("memory", _MEMORY),
        *(((DEVICE_RESOURCE, cards),) if cards else ()),
        ("pods", _PODS),
    )
    return NodeSpec(f"node-{number:05}", allocatable=room, cards=cards)


def _spec(number: int, rng: np.random.Generator) -> PodSpec:
    cards = number < _CARD_KINDS
    cpu = int(rng.integers(1, 6 if cards else 20)) * 100
    memory = int(rng.integers(1, 20)) * GIB // 4
    return PodSpec(
        requests=(("cpu", cpu), ("memory", memory)),
        nonzero_cpu_milli=cpu,
        nonzero_memory_bytes=memory,
        labels=(("app", f"kind-{number}"),),
        devices=DeviceRequest(1, _SHARES[number % 2]) if cards else None,
    )


def _shuffled(rng: np.random.Generator, nodes: NDArray[np.intp], pods: int) -> NDArray[np.intp]:
    """Places for so many pods on each of the nodes, in any order."""
    return rng.permutation(np.repeat(nodes, pods))


def _timed(action: Callable[[], object]) -> tuple[float, float, object]:
    cpu, clock = time.process_time(), time.perf_counter()
    found = action()
    return time.process_time() - cpu, time.perf_counter() - clock, found


def _medians(runs: list[tuple[float, float]], scale: float, unit: str, digits: int) -> Document:
    return {
        f"cpu{unit}": round(scale * median([cpu for cpu, _ in runs]), digits),
        f"clock{unit}": round(scale * median([clock for _, clock in runs]), digits),
    }
