"""`python -m tools.bench defragment`: what planned moves win back of a cluster of GPUs that has decayed.

Pods are drawn from the trace as in `hoss bench gpu` and placed one by one, until they request 130 % of the
cards. Then a third of those that were placed go, at random. Printed for each seed: FGD's fragments before and
after the plan of `defragment-gpus`, with at most a share of the pods moved; and how many pods of each kind of
large pod fit before and after, each kind alone."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hoss.model.fit import pick_cards
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, Workload
from hoss.model.resources import CPU, MEMORY, WHOLE_CARD_MILLI
from hossctl.bench.gpu import OVERLOAD, draw_load, place_one_by_one
from hossctl.explain.live import LiveSnapshot
from hossctl.traces import openb
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.fragmentation import Popularity, TaskClass
from scheduler_worker.core.plugins.profiles import PRESETS
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
    before: float
    after: float
    large_before: tuple[int, ...]  # of each kind of _LARGE
    large_after: tuple[int, ...]
    seconds: float


def decay(nodes: Sequence[NodeSpec], pods: Sequence[Workload], policy: str, seed: int) -> Decayed:
    """Fill the cluster, and let a third of the pods go."""
    cards = WHOLE_CARD_MILLI * sum(node.cards for node in nodes)
    load = [pod.template.spec for pod in draw_load(pods, OVERLOAD * cards, seed=seed)]
    at: dict[int, int] = {}
    profile = PRESETS[policy].profile(REGISTRY)
    cache = place_one_by_one(nodes, load, profile, seed=seed, placed=at.__setitem__)
    snapshot = LiveSnapshot(cache, DemandTable(cache.schema, cache.catalogue.images, cache.pod_index))
    everyone = _placed(nodes, load, at)
    state = PlanState(snapshot, profile, everyone, PlanLimits())
    gone = np.random.default_rng(seed).random(len(everyone)) < GONE
    for row in np.flatnonzero(gone).tolist():
        state.take(row)
    return Decayed(snapshot, _some(everyone, np.flatnonzero(~gone)), Popularity.of(Counter(map(_task, load))))


def study(decayed: Decayed, share: float) -> Study:
    """Plan moves of at most this share of the pods."""
    state = PlanState(
        decayed.snapshot,
        PRESETS["fgd"].profile(REGISTRY),
        decayed.pods,
        PlanLimits(moves=int(share * len(decayed.pods))),
    )
    before = _large(state)
    used = state.cache.cards.used[: state.cache.size]
    free = int((WHOLE_CARD_MILLI - used[used <= WHOLE_CARD_MILLI].astype(np.int64)).sum())
    started = time.perf_counter()
    plan = defragment_gpus(state, decayed.popularity)
    seconds = time.perf_counter() - started
    return Study(
        len(decayed.pods), len(plan.moves), free, plan.before, plan.after, before, _large(state), seconds
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


def _placed(nodes: Sequence[NodeSpec], load: Sequence[PodSpec], at: dict[int, int]) -> PlacedPods:
    used = [[0] * node.cards for node in nodes]
    numbers: dict[PodSpec, int] = {}
    classes, masks = [], []
    for arrival, node in at.items():
        spec = load[arrival]
        classes.append(numbers.setdefault(spec, len(numbers)))
        slots: tuple[int, ...] = ()
        if spec.devices is not None:
            slots = pick_cards(used[node], spec.devices.count, spec.devices.milli) or ()
            for slot in slots:
                used[node][slot] += spec.devices.milli
        masks.append(sum(1 << slot for slot in slots))
    return PlacedPods(
        names=[f"default/pod-{arrival}" for arrival in at],
        specs=list(numbers),
        classes=np.array(classes, np.intp),
        nodes=np.array(list(at.values()), np.intp),
        card_masks=np.array(masks, np.uint16),
        workloads=np.arange(len(at)),
        fixed=np.zeros(len(at), np.intp),
        reasons=("",),
        covered=np.zeros((len(numbers), 0), np.bool_),
        allowed=np.zeros(0, np.int64),
    )


def _some(pods: PlacedPods, rows: np.ndarray) -> PlacedPods:
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


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools.bench defragment", description=__doc__)
    parser.add_argument("--nodes", type=Path, required=True, help="The openb trace's list of nodes.")
    parser.add_argument("--pods", type=Path, required=True, help="Its list of pods.")
    parser.add_argument("--policy", default="fgd", help="The profile that fills the cluster.")
    parser.add_argument("--share", type=float, default=0.05, help="Of the pods that may be moved.")
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args(arguments)
    nodes, pods = openb.read_nodes(given.nodes), openb.read_pods(given.pods)
    for seed in range(1, given.seeds + 1):
        found = study(decay(nodes, pods, given.policy, seed), given.share)
        print(seed, found, round(found.after / found.before, 3), flush=True)
