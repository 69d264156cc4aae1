"""`python -m tools.bench defragment`: what moves win back of a cluster of GPUs that has decayed.

Pods are drawn from the trace as in `hoss bench gpu` until they request 130 % of the cards, and placed one by
one. Then a third of those that were placed go, at random. At most a share of the others is moved: by the plan
of `defragment-gpus`, by that of `fit-pending` for the large pods below, and by strategies of the descheduler
(tools/bench/descheduler.py).

Fragments are measured twice. FGD's own sum counts, for pods without cards, all free cards as lost, and no
move changes that part. The paper's simulator also reports the sum over the classes that request cards: here
`fragmentsOfCards`. `leastFragments` is a bound from below on the first sum, whatever is moved: what is left
of a card beside a large share can be filled by small shares only.

`largePending` pods with two and more whole cards, drawn from the trace until they request all free cards, are
placed before and after, each on the fullest node that accepts it: `largeBound`."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, Workload, group_of
from hoss.model.resources import CPU, MEMORY, WHOLE_CARD_MILLI
from hossctl.bench.gpu import OVERLOAD, draw_load, empty_pool
from hossctl.console import Document
from hossctl.explain.live import LiveSnapshot
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand, DemandTable
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.nodes import NodeIndexes
from scheduler_worker.core.plugins import REGISTRY, default_profile
from scheduler_worker.core.plugins.devices.fragmentation import (
    Popularity,
    TaskClass,
    fragmentation,
    free_after,
    free_on_cards,
)
from scheduler_worker.core.plugins.profiles import PRESETS
from scheduler_worker.core.rebalance.goals import fit_pending
from scheduler_worker.core.rebalance.gpu_goal import defragment_gpus
from scheduler_worker.core.rebalance.movable_pods import PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import PlanState, WaitingPods
from tools.bench import descheduler

GONE = 1 / 3
HOSS, FIT = "defragment-gpus", "fit-pending"


class Filling(str, Enum):
    """How the cluster was filled: at random, as profiles of workers do, or by FGD's exact measure."""

    RANDOM = "random"
    SPREAD = "spread"
    BEST_FIT = "best-fit"
    FGD = "fgd"


class Decayed(NamedTuple):
    """A cluster of which a third of the pods has gone, and the workload that it was filled with. `large`:
    pods that wait now, for several whole cards each."""

    snapshot: LiveSnapshot
    pods: PlacedPods
    popularity: Popularity
    large: tuple[PodSpec, ...]

    def state(self, share: float = 1.0) -> PlanState:
        """A state to plan on, of at most this share of the pods moved."""
        limits = PlanLimits(moves=int(share * len(self.pods)))
        return PlanState(self.snapshot, default_profile(), self.pods, limits)


class Measure(NamedTuple):
    """Fragments in thousandths of a card: FGD's sum, and what of it the classes that request cards lose."""

    fragments: float
    of_cards: float
    large_bound: int


class Result(NamedTuple):
    """What moves have brought. `unplaced`: pods that were evicted and fit nowhere then."""

    name: str
    moves: int
    unplaced: int
    after: Measure
    seconds: float


class Study(NamedTuple):
    """One seed. `free` and `least` are thousandths of a card: see the module."""

    pods: int
    free: int
    least: float
    before: Measure
    results: tuple[Result, ...]


def decay(nodes: Sequence[NodeSpec], pods: Sequence[Workload], seed: int, filling: Filling) -> Decayed:
    """Fill the cluster, and let a third of the pods go."""
    cards = WHOLE_CARD_MILLI * sum(node.cards for node in nodes)
    load = [pod.template.spec for pod in draw_load(pods, OVERLOAD * cards, seed=seed)]
    popularity = Popularity.of(Counter(map(_task, load)))
    cache = NodeInfoCache()
    cache.apply_feed(empty_pool(nodes))
    snapshot = LiveSnapshot(cache, DemandTable(cache.schema, cache.catalogue.images, cache.pod_index))
    everyone = _fill(snapshot, load, _chooser(snapshot, filling, popularity, np.random.default_rng(seed)))
    state = PlanState(snapshot, default_profile(), everyone, PlanLimits())
    gone = np.random.default_rng([seed, 1]).random(len(everyone)) < GONE
    for row in np.flatnonzero(gone).tolist():
        state.take(row)
    kinds = [pod for pod in pods if (of := pod.template.spec.devices) is not None and of.count > 1]
    large = tuple(pod.template.spec for pod in draw_load(kinds, _free(state), seed=seed)) if kinds else ()
    return Decayed(snapshot, some_of(everyone, np.flatnonzero(~gone)), popularity, large)


_Chooser = Callable[[Demand, NodeIndexes], int]  # of nodes that accept a pod, its own


def _chooser(
    snapshot: LiveSnapshot, filling: Filling, popularity: Popularity, rng: np.random.Generator
) -> _Chooser:
    if filling is Filling.RANDOM:
        return lambda _, nodes: int(rng.choice(nodes))
    if filling is Filling.FGD:
        return lambda demand, nodes: int(nodes[_growth(snapshot, demand, nodes, popularity).argmin()])
    profile = PRESETS[filling.value].profile(REGISTRY)
    return lambda demand, nodes: best_scored(snapshot.cache, profile, demand, nodes, rng)


def best_scored(
    cache: NodeInfoCache, profile: Profile, demand: Demand, nodes: NodeIndexes, rng: np.random.Generator
) -> int:
    """The node that the profile scores best, one of those at random: by amounts and cards, which is all that
    the trace's pods ask for."""
    _, scores = profile.evaluate(demand, cache.view(nodes, cards=profile.wants_cards(demand)))
    return int(rng.choice(nodes[scores == scores.max()]))


def _fill(snapshot: LiveSnapshot, load: Sequence[PodSpec], choose: _Chooser) -> PlacedPods:
    """Place the pods in this order; those that fit nowhere are left out."""
    cache = snapshot.cache
    nobody = PlacedPods(
        (),
        list(dict.fromkeys(load)),
        *(np.zeros(0, np.intp),) * 2,
        np.zeros(0, np.uint16),
        *(np.zeros(0, np.intp),) * 2,
        ("",),
        np.zeros((len(set(load)), 0), np.bool_),
        np.zeros(0, np.int64),
    )
    state = PlanState(snapshot, default_profile(), nobody, PlanLimits())
    numbers = {spec: number for number, spec in enumerate(nobody.specs)}
    classes, at, masks = [], [], []
    for spec in load:
        number = numbers[spec]
        pod = state.examined(number)
        there = np.flatnonzero(state.accepting(pod))
        if not len(there):
            continue
        node = choose(pod.demand, there)
        classes.append(number)
        at.append(node)
        masks.append(int(cache.assume(np.array((node,)), pod.demand, group_of(spec))[0]))
    return replace(
        nobody,
        names=[f"default/pod-{number}" for number in range(len(at))],
        classes=np.array(classes, np.intp),
        nodes=np.array(at, np.intp),
        card_masks=np.array(masks, np.uint16),
        workloads=np.array(classes, np.intp),
        fixed=np.zeros(len(at), np.intp),
    )


def _growth(
    snapshot: LiveSnapshot, demand: Demand, nodes: NDArray[np.intp], popularity: Popularity
) -> NDArray[np.float64]:
    """How much the fragments of each node grow with a pod of this demand."""
    cache = snapshot.cache
    cpu, memory = (
        cache.accounts.allocatable[row, nodes] - cache.requested[row, nodes] for row in (CPU, MEMORY)
    )
    free = free_on_cards(cache.cards.used[nodes])
    later = free if demand.devices is None else free_after(free, demand.devices.count, demand.devices.milli)
    before = fragmentation(popularity, cpu, memory, free)
    return (
        fragmentation(popularity, cpu - demand.request[CPU], memory - demand.request[MEMORY], later) - before
    )


def study(decayed: Decayed, share: float, *, descheduled: bool = True, seed: int = 0) -> Study:
    """What moves of at most this share of the pods bring: those that `defragment-gpus` plans, and where
    `descheduled` is set those of `fit-pending` and of the descheduler's strategies as well."""
    state = decayed.state()
    before, free, least = _measure(decayed, state), _free(state), _least(decayed, state)
    results = [_planned(decayed, share)]
    if descheduled:
        results.append(_fitted(decayed, share))
        results += [_descheduled(decayed, share, strategy, seed) for strategy in descheduler.STRATEGIES]
    return Study(len(decayed.pods), free, least, before, tuple(results))


def _planned(decayed: Decayed, share: float) -> Result:
    state = decayed.state(share)
    started = time.process_time()
    plan = defragment_gpus(state, decayed.popularity)
    seconds = time.process_time() - started
    after, moves = _measure(decayed, state), len(plan.moves)
    state.undo_to(0)
    return Result(HOSS, moves, 0, after, seconds)


def _fitted(decayed: Decayed, share: float) -> Result:
    state = decayed.state(share)
    kinds = Counter(decayed.large)
    waiting = [WaitingPods(f"kind-{number}", spec, kinds[spec]) for number, spec in enumerate(kinds)]
    started = time.process_time()
    plan = fit_pending(state, waiting)
    seconds, moves = time.process_time() - started, len(plan.moves)
    while state.placed:  # fragments are those that are there before the large pods come
        state.displace(state.placed.pop())
    after = _measure(decayed, state)._replace(large_bound=len(plan.placements))
    state.undo_to(0)
    return Result(FIT, moves, 0, after, seconds)


def _descheduled(decayed: Decayed, share: float, strategy: descheduler.Strategy, seed: int) -> Result:
    state, rng = decayed.state(share), np.random.default_rng([seed, 2])
    profile = PRESETS[strategy.profile].profile(REGISTRY)
    started = time.process_time()

    def place(row: int) -> int:
        pod = state.examined(int(state.pods.classes[row]))
        there = np.flatnonzero(state.accepting(pod))
        return best_scored(state.cache, profile, pod.demand, there, rng) if len(there) else -1

    done = descheduler.run(strategy, state, place)
    seconds = time.process_time() - started
    after = _measure(decayed, state)
    done.undo(state)
    return Result(strategy.name, done.evicted, len(done.unplaced), after, seconds)


def _measure(decayed: Decayed, state: PlanState) -> Measure:
    cache, size = state.cache, state.cache.size
    free = cache.accounts.allocatable[:, :size] - cache.requested[:, :size]
    on_cards = free_on_cards(cache.cards.used[:size])
    found = float(fragmentation(decayed.popularity, free[CPU], free[MEMORY], on_cards).sum())
    return Measure(found, found - _free(state) * _without_cards(decayed.popularity), _large(decayed, state))


def _without_cards(popularity: Popularity) -> float:
    return 1.0 - float(popularity.weights.sum())


def _large(decayed: Decayed, state: PlanState) -> int:
    """How many of the large pods are bound, one after the other. The state is as it was then."""
    bound = []
    for spec in decayed.large:
        pod, pod_class = state.examine(spec)
        there = np.flatnonzero(state.accepting(pod))
        if len(there):
            node = state.tightest(pod.demand, there)
            bound.append(state.place(pod, pod_class, node))
    for placed in reversed(bound):
        state.displace(placed)
    return len(bound)


def _free(state: PlanState) -> int:
    return int(free_on_cards(state.cache.cards.used[: state.cache.size]).sum())


def _least(decayed: Decayed, state: PlanState) -> float:
    """See the module. A share of more than half a card has no second one beside it, and what it leaves of
    its card can be filled by shares that are no larger, and is of use to classes that ask for no more."""
    pods, popularity = decayed.pods, decayed.popularity
    shares = np.array([of.milli if (of := spec.devices) is not None else 0 for spec in pods.specs])
    shares = shares[pods.classes]
    shares = shares[(shares > 0) & (shares < WHOLE_CARD_MILLI)]
    of_shape = np.add.reduceat(popularity.weights[:, 0], popularity.first)
    fits = popularity.large_enough[popularity.amounts]  # (shapes, 1001): 0 where so much free is too little
    useless = 0.0
    for left in np.unique(WHOLE_CARD_MILLI - shares[shares > WHOLE_CARD_MILLI // 2]).tolist():
        beside = int((WHOLE_CARD_MILLI - shares[shares >= WHOLE_CARD_MILLI - left]).sum())
        unfilled = max(0, beside - int(shares[shares <= left].sum()))
        useless = max(useless, unfilled * float(of_shape[fits[:, left] == 0].sum()))
    return _free(state) * _without_cards(popularity) + useless


def _task(spec: PodSpec) -> TaskClass:
    requests, devices = dict(spec.requests), spec.devices
    cards, milli = (devices.count, devices.milli) if devices else (0, 0)
    return TaskClass(requests.get("cpu", 0), requests.get("memory", 0), cards, milli)


def some_of(pods: PlacedPods, rows: NDArray[np.intp]) -> PlacedPods:
    """The pods in these rows."""
    return replace(
        pods,
        names=[pods.names[row] for row in rows.tolist()],
        classes=pods.classes[rows],
        nodes=pods.nodes[rows],
        card_masks=pods.card_masks[rows],
        workloads=pods.workloads[rows],
        fixed=pods.fixed[rows],
    )


def as_json(seed: int, found: Study, large: int) -> list[Document]:
    """One seed, for the JSON document: an entry for each way of moving."""
    before = found.before
    return [
        {
            "seed": seed,
            "by": result.name,
            "pods": found.pods,
            "moves": result.moves,
            "unplaced": result.unplaced,
            "freeMilli": found.free,
            "leastFragments": round(found.least),
            "fragmentsBefore": round(before.fragments),
            "fragmentsAfter": round(result.after.fragments),
            "fallPercent": _fall(before.fragments, result.after.fragments),
            "fragmentsOfCardsBefore": round(before.of_cards),
            "fragmentsOfCardsAfter": round(result.after.of_cards),
            "fallOfCardsPercent": _fall(before.of_cards, result.after.of_cards),
            "largePending": large,
            "largeBoundBefore": before.large_bound,
            "largeBoundAfter": result.after.large_bound,
            "cpuSeconds": round(result.seconds, 2),
        }
        for result in found.results
    ]


def _fall(before: float, after: float) -> float:
    return round(100 * (1 - after / before), 1) if before > 0 else 0.0


def summary(rows: Sequence[Document]) -> list[Document]:
    """The means of all seeds by way of moving, and the range of what fragments fall by."""
    means = []
    for name in dict.fromkeys(row["by"] for row in rows):
        some = [row for row in rows if row["by"] == name]
        mean: Document = {"by": name}
        for field, value in some[0].items():
            if isinstance(value, (int, float)):
                mean[field] = sum(row[field] for row in some) / len(some)
        falls = [row["fallOfCardsPercent"] for row in some]
        mean["fallOfCardsRange"] = [min(falls), max(falls)]
        means.append(mean)
    return means
