"""Fragmentation and its descent on nodes small enough to reckon with by hand."""

import numpy as np
import pytest

from hoss.errors import ConfigError
from hoss.model.fit import pick_cards
from hoss.model.pod import DeviceRequest
from hoss.wire.columns import NO_CARD
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.devices.fragmentation import (
    Popularity,
    TaskClass,
    fragmentation,
    free_after,
    free_on_cards,
)
from scheduler_worker.core.plugins.devices.fragmentation_gradient import CardStates
from scheduler_worker.core.plugins.devices.gpu_best_fit import GpuBestFit
from scheduler_worker.core.plugins.devices.gpu_fragmentation import GpuFragmentation
from scheduler_worker.core.plugins.profiles import PRESETS, ProfileSpec

GIB = 2**30

# Of ten pods: five want 600 thousandths of a card and 2 cores, two a whole card and 4 cores, two both cards
# of a node and 8 cores, one no card.
WORKLOAD = Popularity.of(
    {
        TaskClass(2000, GIB, 1, 600): 5,
        TaskClass(4000, GIB, 1, 1000): 2,
        TaskClass(8000, GIB, 2, 1000): 2,
        TaskClass(1000, GIB, 0, 0): 1,
    }
)


def lost(cpu, *cards, memory=64 * GIB):
    amounts = (np.array([cpu]), np.array([memory]), np.array([cards]))
    return float(fragmentation(WORKLOAD, *amounts)[0])


def test_an_empty_node_is_a_fragment_to_pods_without_gpu_alone():
    assert lost(16_000, 1000, 1000) == pytest.approx(0.1 * 2000)


def test_gpu_is_lost_to_classes_the_node_has_no_cpu_for():
    # 3 cores are enough for the first class only.
    assert lost(3000, 1000, 1000) == pytest.approx((0.1 + 0.2 + 0.2) * 2000)
    assert lost(16_000, 1000, 1000, memory=0) == pytest.approx(2000)


def test_gpu_is_lost_on_cards_too_small_for_a_class():
    # 0.5: only the card with 700 serves it, the other 300 are lost; 0.4 + 0.1: nothing serves them.
    assert lost(16_000, 700, 300) == pytest.approx(0.5 * 300 + 0.5 * 1000)
    # A whole card is free: lost to the single ones are 300, to those that want two cards all 1300.
    assert lost(16_000, 1000, 300) == pytest.approx((0.5 + 0.2) * 300 + (0.2 + 0.1) * 1300)


def test_without_a_workload_everything_free_is_lost():
    nothing = Popularity.of({})
    assert fragmentation(nothing, np.array([9000]), np.array([GIB]), np.array([[500, 200]])).tolist() == [700]


@pytest.mark.parametrize(("amounts", "tabled"), [(20, True), (20_000, False)])
def test_the_measure_is_what_its_definition_says(amounts, tabled):
    rng = np.random.default_rng(7)
    classes = 30 if tabled else 150  # so many different ones have no table of weights
    counts = {
        TaskClass(int(cpu), int(memory), int(cards), int(milli)): int(pods)
        for cpu, memory, cards, milli, pods in zip(
            rng.integers(0, amounts, classes), rng.integers(0, amounts, classes), rng.integers(0, 5, classes),
            rng.choice([100, 250, 500, 1000], classes), rng.integers(1, 9, classes), strict=True,
        )
    }  # fmt: skip
    assert (Popularity.of(counts).weights_table is not None) == tabled
    cpu, memory = rng.integers(-5, amounts * 5 // 4, (2, 40))
    cards = rng.choice([0, 99, 100, 300, 500, 999, 1000], (40, 6))
    for node, lost_there in enumerate(fragmentation(Popularity.of(counts), cpu, memory, cards)):
        expected, free = 0.0, cards[node]
        for task, pods in counts.items():
            large_enough = free[free >= task.milli]
            roomy = task.cpu <= cpu[node] and task.memory <= memory[node]
            fits = task.cards and roomy and len(large_enough) >= task.cards
            expected += pods / sum(counts.values()) * (free.sum() - (large_enough.sum() if fits else 0))
        assert lost_there == pytest.approx(expected)


@pytest.mark.parametrize(("count", "milli"), [(1, 300), (1, 1000), (2, 1000), (2, 400), (3, 1000)])
def test_cards_are_taken_as_the_ledger_takes_them(count, milli):
    rng = np.random.default_rng(5)
    used = rng.choice([0, 0, 400, 600, 900, 1000], size=(60, 16)).astype(np.uint16)
    used[:, 6:] = NO_CARD
    after = free_after(free_on_cards(used), count, milli)
    for row, expected in zip(used, after, strict=True):
        picked = pick_cards(row.tolist(), count, milli)
        if picked is not None:
            later = row.astype(np.int64)
            later[list(picked)] += milli
            assert (1000 - later[:6]).tolist() == expected.tolist()


def test_closed_and_absent_cards_are_not_free():
    used = np.array([[250, 0x8000 + 100, 0, *[NO_CARD] * 13]], np.uint16)
    assert free_on_cards(used).tolist() == [[750, 0, 1000]]


@pytest.fixture
def gpu_cache(make_ledger, harness_of):
    """Three nodes of 16 cores with two cards: empty; 400 of one card used; both cards full."""
    ledger = make_ledger(3, cards=2, allocatable={"cpu": 16_000, "memory": 64 * GIB, "pods": 110})
    ledger.cards[1][0] = 400
    ledger.cards[2][:2] = 1000
    return harness_of(ledger).cache


def test_descent_prefers_the_node_where_least_is_lost(gpu_cache, make_pod):
    plugin = GpuFragmentation(steepness=1000.0)
    demand = compile_demand(make_pod(cpu=2000, memory=GIB, devices=DeviceRequest(1, 600)), gpu_cache.schema)
    whole = compile_demand(make_pod(cpu=4000, memory=GIB, devices=DeviceRequest(1, 1000)), gpu_cache.schema)
    plugin.observe(whole, 1)
    plugin.observe(demand, 3)
    # Popularities 3/4 and 1/4, cpu enough throughout. On the empty node the pod leaves 400 on its card:
    # before 0, after 3/4 x 400 + 1/4 x 400 = 400. On the second it takes the 600 that were lost to whole-card
    # pods:   before 1/4 x 600 = 150, after 0. The third has nothing to lose.
    expected = [100 // (1 + np.exp(growth / 1000)) for growth in (400, -150, 0)]
    assert plugin.score(demand, gpu_cache.view(None, cards=True)).tolist() == expected
    assert expected == [40, 53, 50]


@pytest.mark.parametrize(
    ("plugin", "args"),
    [
        (GpuFragmentation, {"steepness": 0}),
        (GpuFragmentation, {"steepness": "x"}),
        (GpuBestFit, {"cpu": 101}),
    ],
)
def test_arguments_out_of_range_are_refused(plugin, args):
    with pytest.raises(ConfigError) as caught:
        plugin(**args)
    assert caught.value.where == next(iter(args))


def test_popularity_is_learnt_anew_as_pods_come(gpu_cache, make_pod):
    plugin = GpuFragmentation()
    demand = compile_demand(make_pod(), gpu_cache.schema)
    versions = []
    for _ in range(100):
        plugin.observe(demand, 10)
        versions.append(plugin.version)
    assert versions[0] == 1
    assert 10 < versions[-1] < 40  # often enough to be right, seldom enough for rankings to last


def test_best_fit_leaves_the_least_cpu_and_gpu(gpu_cache, make_pod):
    demand = compile_demand(make_pod(cpu=8000, memory=GIB, devices=DeviceRequest(1, 500)), gpu_cache.schema)
    # Left: 8 cores of 128, and 1500, 1100 and (were there room) -500 of 8000 thousandths; half each.
    left = [(8 / 128 + gpu / 8000) / 2 for gpu in (1500, 1100, -500)]
    scores = GpuBestFit().score(demand, gpu_cache.view(None, cards=True))
    assert scores.tolist() == [np.floor(100 * (1 - part)) for part in left]


def test_pods_without_cards_see_cards_where_the_profile_reads_them(harness_of, make_ledger, make_pod):
    profile = PRESETS["best-fit"].profile(REGISTRY)
    assert profile.wants_cards(compile_demand(make_pod(), harness_of(make_ledger(1)).cache.schema))
    assert not PRESETS["spread"].profile(REGISTRY).reads_cards
    assert not ProfileSpec((Weighted("GpuBestFit", 0),)).profile(REGISTRY).reads_cards


def _random_nodes(rng, count):
    """Nodes with none to eight cards, some full, some used in part: cards (n, 16), free cpu and memory."""
    used = np.full((count, 16), NO_CARD, np.uint16)
    for row, cards in zip(used, rng.choice([0, 1, 2, 8], count).tolist(), strict=True):
        row[:cards] = rng.choice([0, 250, 400, 700, 1000], cards)
    return used, rng.integers(-1000, 20_000, count), rng.integers(-GIB, 4 * GIB, count)


@pytest.mark.parametrize("most", [1 << 15, 3], ids=["all_states_kept", "states_forgotten"])
@pytest.mark.parametrize("devices", [None, (1, 300), (1, 1000), (2, 1000)])
def test_growth_looked_up_is_that_of_the_measure_to_the_bit(devices, most):
    states = CardStates(Popularity.of({}), most)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        used, cpu, memory = _random_nodes(rng, 1 + seed)
        if seed == 20:  # the pods that usually come change
            states.set_popularity(WORKLOAD)
        workload = WORKLOAD if seed >= 20 else Popularity.of({})
        free = free_on_cards(used)
        later = free if devices is None else free_after(free, *devices)
        expected = fragmentation(workload, cpu - 3000, memory - GIB, later) - fragmentation(
            workload, cpu, memory, free
        )
        found = states.growth(TaskClass(3000, GIB, *(devices or (0, 0))), used, cpu, memory)
        np.testing.assert_array_equal(found, expected)
        singly = [
            states.growth_of_one(TaskClass(3000, GIB, *(devices or (0, 0))), *node)
            for node in zip(used.tolist(), cpu.tolist(), memory.tolist(), strict=True)
        ]
        np.testing.assert_array_equal(singly, expected)
    assert (len(states) <= 3 + 2 * 30) == (most == 3)  # those of one call, before and after the pod, besides
