"""`python -m tools.bench defragment`: what planned moves win back of a cluster of GPUs that has decayed.

Pods are drawn from the trace as in `hoss bench gpu` until they request 130 % of the cards, and placed one by
one. Then a third of those that were placed go, at random. For each seed: FGD's fragments before and after the
plan of `defragment-gpus`, with at most a share of the pods moved; and how many pods with eight, four and two
whole cards the free cards would hold, each kind alone, before and after. cpu and memory are not counted
there."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import cards_fit, fits
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, Workload, group_of
from hoss.model.resources import CPU, MEMORY, WHOLE_CARD_MILLI
from hossctl.bench.gpu import OVERLOAD, draw_load, empty_pool
from hossctl.console import Document
from hossctl.explain.live import LiveSnapshot
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand, DemandTable
from scheduler_worker.core.offline.scheduler import examine
from scheduler_worker.core.placement.diagnosis import ExaminedPod
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.plugins.fragmentation import (
    Popularity,
    TaskClass,
    fragmentation,
    free_after,
    free_on_cards,
)
from scheduler_worker.core.rebalance.gpu_goal import defragment_gpus
from scheduler_worker.core.rebalance.plan_state import PlacedPods, PlanLimits, PlanState

GONE = 1 / 3
_LARGE = (
    DeviceRequest(8, WHOLE_CARD_MILLI),
    DeviceRequest(4, WHOLE_CARD_MILLI),
    DeviceRequest(2, WHOLE_CARD_MILLI),
)


class Decayed(NamedTuple):
    """A cluster of which a third of the pods has gone, and the workload that it was filled with."""

    snapshot: LiveSnapshot
    pods: PlacedPods
    popularity: Popularity


class Study(NamedTuple):
    """One seed. Fragments and free are thousandths of a card."""

    pods: int
    moves: int
    free: int
    # Of the fragments: what classes without cards cannot use. It depends on what is free, and no move changes
    # it.
    fixed: float
    before: float
    after: float
    large_before: tuple[int, ...]  # of each kind of _LARGE
    large_after: tuple[int, ...]
    seconds: float


def decay(nodes: Sequence[NodeSpec], pods: Sequence[Workload], seed: int, *, by_fragments: bool) -> Decayed:
    """Fill the cluster, and let a third of the pods go. `by_fragments`: each pod goes where FGD's measure
    grows the least; else to any node that it fits on, at random."""
    cards = WHOLE_CARD_MILLI * sum(node.cards for node in nodes)
    load = [pod.template.spec for pod in draw_load(pods, OVERLOAD * cards, seed=seed)]
    popularity = Popularity.of(Counter(map(_task, load)))
    cache = NodeInfoCache()
    cache.apply_feed(empty_pool(nodes))
    snapshot = LiveSnapshot(cache, DemandTable(cache.schema, cache.catalogue.images, cache.pod_index))
    everyone = _fill(snapshot, load, popularity if by_fragments else None, np.random.default_rng(seed))
    state = PlanState(snapshot, default_profile(), everyone, PlanLimits())
    gone = np.random.default_rng([seed, 1]).random(len(everyone)) < GONE
    for row in np.flatnonzero(gone).tolist():
        state.take(row)
    return Decayed(snapshot, _some(everyone, np.flatnonzero(~gone)), popularity)


def _fill(
    snapshot: LiveSnapshot, load: Sequence[PodSpec], popularity: Popularity | None, rng: np.random.Generator
) -> PlacedPods:
    """Place the pods in this order; those that fit nowhere are left out."""
    cache, profile = snapshot.cache, default_profile()
    numbers: dict[PodSpec, int] = {}
    examined: list[ExaminedPod] = []
    classes, at, masks = [], [], []
    for spec in load:
        number = numbers.get(spec)
        if number is None:
            number = numbers[spec] = len(numbers)
            examined.append(examine(spec, snapshot, profile))
        demand = examined[number].demand
        size = cache.size
        accounts = cache.accounts.allocatable[:, :size], cache.requested[:, :size]
        room = fits(*accounts, demand.request) & examined[number].static.mask
        if demand.devices is not None:
            room &= cards_fit(cache.cards.used[:size], demand.devices.count, demand.devices.milli)
        there = np.flatnonzero(room)
        if not len(there):
            continue
        if popularity is None:
            node = int(rng.choice(there))
        else:
            node = int(there[_growth(snapshot, demand, there, popularity).argmin()])
        classes.append(number)
        at.append(node)
        masks.append(int(cache.assume(np.array((node,)), demand, group_of(spec))[0]))
    return PlacedPods(
        names=[f"default/pod-{number}" for number in range(len(at))],
        specs=list(numbers),
        classes=np.array(classes, np.intp),
        nodes=np.array(at, np.intp),
        card_masks=np.array(masks, np.uint16),
        workloads=np.arange(len(at)),
        fixed=np.zeros(len(at), np.intp),
        reasons=("",),
        covered=np.zeros((len(numbers), 0), np.bool_),
        allowed=np.zeros(0, np.int64),
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


def study(decayed: Decayed, share: float) -> Study:
    """Plan moves of at most this share of the pods."""
    state = PlanState(
        decayed.snapshot,
        default_profile(),
        decayed.pods,
        PlanLimits(moves=int(share * len(decayed.pods))),
    )
    before = _large(state)
    used = state.cache.cards.used[: state.cache.size]
    free = int((WHOLE_CARD_MILLI - used[used <= WHOLE_CARD_MILLI].astype(np.int64)).sum())
    fixed = free * (1.0 - float(decayed.popularity.weights.sum()))
    started = time.perf_counter()
    plan = defragment_gpus(state, decayed.popularity)
    seconds = time.perf_counter() - started
    return Study(
        len(decayed.pods),
        len(plan.moves),
        free,
        fixed,
        plan.before,
        plan.after,
        before,
        _large(state),
        seconds,
    )


def _large(state: PlanState) -> tuple[int, ...]:
    """How many pods of each large kind the cards hold, each kind alone."""
    used = state.cache.cards.used[: state.cache.size]
    whole = (used == 0).sum(axis=1)
    return tuple(int((whole // device.count).sum()) for device in _LARGE)


def _task(spec: PodSpec) -> TaskClass:
    requests, devices = dict(spec.requests), spec.devices
    cards, milli = (devices.count, devices.milli) if devices else (0, 0)
    return TaskClass(requests.get("cpu", 0), requests.get("memory", 0), cards, milli)


def _some(pods: PlacedPods, rows: NDArray[np.intp]) -> PlacedPods:
    return PlacedPods(
        [pods.names[row] for row in rows.tolist()],
        pods.specs,
        pods.classes[rows],
        pods.nodes[rows],
        pods.card_masks[rows],
        pods.workloads[rows],
        pods.fixed[rows],
        pods.reasons,
        pods.covered,
        pods.allowed,
    )


def _fall(before: float, after: float) -> float:
    return round(100 * (1 - after / before), 1) if before > 0 else 0.0


def as_json(seed: int, found: Study) -> Document:
    """One seed, for the JSON document."""
    return {
        "seed": seed,
        "pods": found.pods,
        "moves": found.moves,
        "freeMilli": found.free,
        "fixedFragments": round(found.fixed),
        "fragmentsBefore": round(found.before),
        "fragmentsAfter": round(found.after),
        "fallPercent": _fall(found.before, found.after),
        "fallOfOthersPercent": _fall(found.before - found.fixed, found.after - found.fixed),
        "largeBefore": list(found.large_before),
        "largeAfter": list(found.large_after),
        "seconds": round(found.seconds, 2),
    }
