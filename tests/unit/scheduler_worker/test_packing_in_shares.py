"""A profile that packs, in a soft partition: its worker's own nodes first, and then all others."""

import numpy as np
import pytest

from hoss.model.conflicts import Overlap, Preference
from hoss.model.pod import DeviceRequest, SpreadConstraint, group_of
from hoss.model.selectors import NodeSelectorTerm, PreferredTerm, Requirement
from hoss.wire.columns import NONE_U32
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.static_fit import StaticFits
from scheduler_worker.core.placement.ranking import Ranking
from scheduler_worker.core.placement.run_placer import RunPlacer
from scheduler_worker.core.placement.ties import TieOrder
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS

NODES, CARDS = 24, 4
SHARE = Preference(Overlap.SOFT_PARTITION, 0, 3)
SPREAD = SpreadConstraint(1, "kubernetes.io/hostname", None, required=False)


@pytest.fixture
def own():
    """The nodes of the share, ascending."""
    ties = TieOrder(np.random.default_rng(1))
    ties.set_preference(SHARE)
    ties.cover(NODES)
    return np.flatnonzero(ties.own).tolist()


@pytest.fixture
def ledger(make_ledger):
    return make_ledger(NODES, cards=CARDS, allocatable={"cpu": 96_000, "memory": 2**38, "pods": 110})


def packing(harness_of, ledger, preset="best-fit", preference=SHARE):
    harness = harness_of(ledger)
    harness.scheduler = Scheduler(
        NodeInfoCache(), PRESETS[preset].profile(REGISTRY), np.random.default_rng(1)
    )
    harness.scheduler.set_preference(preference)
    harness.scheduler.cache.apply_feed(ledger.snapshot())
    return harness


def placed_on(harness, spec, count):
    harness.submit((spec, count))
    return [int(node) for columns in harness.place() for node in columns.candidates[:, 0]]


def outside(own):
    return next(node for node in range(NODES) if node not in own)


def test_an_own_node_comes_before_a_fuller_one_of_another_worker(harness_of, ledger, make_pod, own):
    fuller = outside(own)
    ledger.cards[fuller][0] = 900
    pod = make_pod(devices=DeviceRequest(1, 100))
    assert placed_on(packing(harness_of, ledger), pod, 1)[0] in own
    alone = packing(harness_of, ledger, preference=Preference(Overlap.SHUFFLED))
    assert placed_on(alone, pod, 1) == [fuller]


@pytest.mark.parametrize("preset", ["best-fit", "fgd", "random"])
def test_all_nodes_are_used_and_the_own_ones_first(harness_of, ledger, make_pod, own, preset):
    nodes = placed_on(packing(harness_of, ledger, preset), make_pod(devices=DeviceRequest(1, 1000)), 96)
    first, others = nodes[: CARDS * len(own)], nodes[CARDS * len(own) :]
    assert set(first) == set(own)
    assert sorted(nodes) == sorted([*range(NODES)] * CARDS)
    assert not set(others) & set(own)


def test_a_pod_that_fits_nowhere_is_told_of_all_nodes(harness_of, ledger, make_pod):
    harness = packing(harness_of, ledger)
    assert placed_on(harness, make_pod(devices=DeviceRequest(CARDS + 1, 1000)), 1) == []
    ((_, _, reason),) = harness.outcomes()
    assert reason == f"0/{NODES} nodes are available: {NODES} Insufficient nvidia.com/gpu."


def test_what_somebody_wrote_down_outweighs_the_share(harness_of, ledger, make_pod, own):
    liked = outside(own)
    ledger.add(
        liked,
        cards=CARDS,
        labels=(("disk", "ssd"),),
        allocatable={"cpu": 96_000, "memory": 2**38, "pods": 110},
    )
    wish = PreferredTerm(100, NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),)))
    pod = make_pod(preferred_node_affinity=(wish,), devices=DeviceRequest(1, 100))
    assert placed_on(packing(harness_of, ledger), pod, 1) == [liked]


@pytest.mark.parametrize("shards", [1, 2])
def test_alternates_are_as_good_and_of_the_share_and_of_the_shard(harness_of, ledger, make_pod, own, shards):
    for node in range(NODES):
        ledger.cards[node][0] = 900
    harness = packing(harness_of, ledger)
    harness.cache.shards = shards
    harness.submit((make_pod(devices=DeviceRequest(1, 100)), 1))
    (proposal,) = harness.place()
    candidates = [node for node in proposal.candidates[0].tolist() if node != NONE_U32]
    assert len(candidates) == len(set(candidates)) == 3
    assert set(candidates) <= set(own)
    assert len({node % shards for node in candidates}) == 1


@pytest.mark.parametrize("preset", ["best-fit", "fgd"])
def test_keys_are_those_of_a_new_ranking_whenever_all_are_wanted(harness_of, ledger, make_pod, preset):
    """Nodes of all shares change while only those of the own share are kept up to date."""
    cache, profile = NodeInfoCache(), PRESETS[preset].profile(REGISTRY)
    cache.apply_feed(ledger.snapshot())
    ties = TieOrder(np.random.default_rng(1))
    ties.set_preference(SHARE)
    statics, table = (
        StaticFits(profile, cache),
        DemandTable(cache.schema, cache.catalogue.images, cache.pod_index),
    )
    placer, chance = RunPlacer(cache, ties), np.random.default_rng(2)
    specs = [make_pod(cpu=1000 * n, devices=DeviceRequest(1, 170 * n)) for n in range(1, 6)]
    demands = {spec: table.compile(spec).demand for spec in specs}

    def ranking_of(spec):
        return Ranking(demands[spec], statics.of(demands[spec]), profile, cache, ties)

    kept = {spec: ranking_of(spec) for spec in specs}
    for step in range(150):
        spec = specs[int(chance.integers(len(specs)))]
        if step % 3:
            placer.place(kept[spec], 1, group_of(spec))
        else:  # as a worker's own pod that the ledger moved
            cache.assume(chance.integers(NODES, size=1), demands[spec], group_of(spec))
        if step % 10 == 0:
            for observer in profile.observers:
                observer.observe(demands[spec], 1 + step)
        if step % 7 == 0:
            kept[spec].refresh()
            new = ranking_of(spec)
            new.refresh()
            assert kept[spec].keys.tolist() == new.keys.tolist()
        share, new = kept[spec].refresh_share(), ranking_of(spec)
        new.refresh()
        assert kept[spec].keys[share].tolist() == new.keys[share].tolist()


@pytest.mark.parametrize("spread", [(), (SPREAD,)], ids=["alone", "about-pods"])
def test_what_a_pod_costs_is_measured_by_class_also_while_the_share_has_room(
    harness_of, ledger, make_pod, spread
):
    """The first pod of a class pays for its ranking. The dispatcher hears what the others take."""
    harness = packing(harness_of, ledger)
    pod = make_pod(devices=DeviceRequest(1, 100), spread=spread)
    placed_on(harness, pod, 1)
    assert not len(harness.scheduler.costs.take_changed().classes)
    placed_on(harness, pod, 1)
    assert len(harness.scheduler.costs.take_changed().classes) == 1
