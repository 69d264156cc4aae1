"""FGD as an algorithm: the nodes that the paper's measure ranks first, pod by pod."""

import numpy as np
import pytest

from hoss.model.fit import pick_cards
from hoss.model.placing import NO_NODE, NodeSnapshot, PlacementBatch, PlacementRun, checked_placements
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.wire.columns import NO_CARD
from scheduler_worker.core.placement.fgd import FgdPlacement
from scheduler_worker.core.placement.run_by_run import places_by_node
from scheduler_worker.core.plugins.devices.fragmentation import (
    Popularity,
    TaskClass,
    fragmentation,
    free_on_cards,
)

GIB = 2**30
ROWS = ("cpu", "memory", "pods")


def snapshot(cards: list[list[int]], *, cpu: int = 64_000) -> NodeSnapshot:
    """Nodes with these thousandths in use of each card."""
    used = np.full((len(cards), 16), NO_CARD, np.uint16)
    for node, of_node in enumerate(cards):
        used[node, : len(of_node)] = of_node
    allocatable = np.tile(np.array([[cpu], [256 * GIB], [110]], np.int64), len(cards))
    return NodeSnapshot(ROWS, allocatable, np.zeros_like(allocatable), (None,) * len(cards), used)


def batch_of(nodes: int, *asked: tuple[int, DeviceRequest | None, int]) -> PlacementBatch:
    """Runs of pods: cpu in thousandths, cards, and how many."""
    runs, first = [], 0
    for cpu, devices, count in asked:
        request = np.array([cpu, GIB, 1], np.int64)
        spec = PodSpec(devices=devices)
        runs.append(PlacementRun(spec, request, np.ones(nodes, np.bool_), first, count))
        first += count
    return PlacementBatch(tuple(runs))


def lost(task: TaskClass, usual: Popularity, at: NodeSnapshot, node: int) -> float:
    """How much free GPU of the node becomes useless by the pod: everything measured anew, on a copy."""
    cards, amounts = at.cards_used[[node]], at.free[:2, [node]]
    after = cards.copy()
    if task.cards:
        after[0, list(pick_cards(after[0].tolist(), task.cards, task.milli))] += task.milli
    before = fragmentation(usual, *amounts, free_on_cards(cards))
    then = fragmentation(
        usual, amounts[0] - task.cpu, amounts[1] - task.memory, free_on_cards(np.minimum(after, NO_CARD))
    )
    return float((then - before)[0])


@pytest.mark.parametrize("seed", range(8))
def test_each_pod_goes_to_a_node_where_the_least_gpu_becomes_useless(seed):
    rng = np.random.default_rng(seed)
    at = snapshot([rng.integers(0, 1001, rng.integers(0, 5)).tolist() for _ in range(12)], cpu=16_000)
    kinds = [None, *(DeviceRequest(1, m) for m in (200, 500, 1000)), DeviceRequest(2, 1000)]
    asked = [
        (int(rng.integers(1, 6)) * 1000, kinds[rng.integers(len(kinds))], int(rng.integers(1, 5)))
        for _ in range(6)
    ]
    batch = batch_of(12, *asked)
    nodes = FgdPlacement().place(batch, at, 0.1)
    checked_placements(batch, at, nodes)
    counts: dict[TaskClass, int] = {}
    for cpu, devices, count in asked:
        of_pod = (devices.count, devices.milli) if devices else (0, 0)
        task = TaskClass(cpu, GIB, *of_pod)
        counts[task] = counts.get(task, 0) + count
    usual = Popularity.of(counts)
    for run in batch.runs:
        devices = run.spec.devices
        task = TaskClass(int(run.request[0]), GIB, *((devices.count, devices.milli) if devices else (0, 0)))
        for chosen in nodes[run.first : run.first + run.count].tolist():
            open_nodes = np.flatnonzero(places_by_node(run, at.free, at.cards_used))
            if chosen == NO_NODE:
                assert not len(open_nodes)
                continue
            losses = {node: lost(task, usual, at, node) for node in open_nodes.tolist()}
            assert losses[chosen] == pytest.approx(min(losses.values()), abs=1e-3)
            at.requested[:, chosen] += run.request
            if devices:
                cards = at.cards_used[chosen]
                cards[list(pick_cards(cards.tolist(), devices.count, devices.milli))] += devices.milli


def test_older_pods_count_less_and_less():
    algorithm, half, whole = FgdPlacement(), DeviceRequest(1, 500), DeviceRequest(1, 1000)
    nothing = snapshot([[]])
    for devices in (half, *[whole] * 6):
        algorithm.place(batch_of(1, (1000, devices, 150_000)), nothing, 0.1)
    counts = algorithm._gradient.counts
    assert counts[TaskClass(1000, GIB, 1, 500)] * 20 < sum(counts.values()) <= 200_000


def test_equal_nodes_are_filled_one_after_the_other_where_there_are_no_cards():
    allocatable = np.tile(np.array([[4000], [256 * GIB], [110]], np.int64), 3)
    at = NodeSnapshot(ROWS, allocatable, np.zeros_like(allocatable), (None,) * 3)
    chosen = FgdPlacement().place(batch_of(3, (1000, None, 7)), at, 0.1)
    assert np.bincount(chosen, minlength=3).tolist() == [4, 3, 0]
