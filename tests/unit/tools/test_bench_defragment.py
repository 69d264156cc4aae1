"""`python -m tools.bench defragment` on a small made-up cluster."""

import pytest

from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, PodTemplate, Workload
from tools.bench.defragment import FIT, HOSS, Filling, as_json, decay, study, summary

NODES = [NodeSpec(f"n{i}", allocatable=(("cpu", 32_000), ("pods", 100)), cards=4) for i in range(12)]


def pod(name, cpu, *devices):
    spec = PodSpec(
        requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, devices=DeviceRequest(*devices) if devices else None
    )
    return Workload(name, PodTemplate(spec))


PODS = [
    *(pod("whole", 4000, 1, 1000), pod("half", 2000, 1, 500), pod("most", 2000, 1, 800)),
    *(pod("all", 8000, 4, 1000), pod("plain", 100)),
]


def columns(decayed):
    cache = decayed.snapshot.cache
    return cache.requested[:, : len(NODES)].tolist(), cache.cards.used[: len(NODES)].tolist()


@pytest.mark.parametrize("filling", list(Filling))
def test_planned_moves_lower_the_fragments_and_everybody_keeps_to_the_limit_of_moves(filling):
    decayed = decay(NODES, PODS, 1, filling)
    before = columns(decayed)
    found = study(decayed, 0.2)
    assert columns(decayed) == before  # each way of moving began from the same cluster
    planned = next(result for result in found.results if result.name == HOSS)
    # So small a cluster that was packed may have nothing to gain.
    assert (planned.moves > 0) == (planned.after.fragments < found.before.fragments)
    assert planned.moves > 0 or filling in (Filling.BEST_FIT, Filling.FGD)
    assert all(result.moves <= 0.2 * found.pods for result in found.results)
    assert found.least <= planned.after.fragments <= found.before.fragments
    assert found.before.of_cards < found.before.fragments
    [fitted] = [result for result in found.results if result.name == FIT]
    assert fitted.after.large_bound >= found.before.large_bound
    rows = as_json(1, found, len(decayed.large))
    assert rows[0]["fallPercent"] <= rows[0]["fallOfCardsPercent"] <= 100


def test_equal_seeds_make_equal_clusters():
    found = [study(decay(NODES, PODS, seed, Filling.RANDOM), 0.2, descheduled=False) for seed in (1, 1, 2)]
    results = [(each.before, each.results[0].after) for each in found]
    assert results[0] == results[1] != results[2]


def test_what_a_large_share_leaves_of_its_card_bounds_the_fragments_from_below():
    most = PODS[2]
    found = study(decay(NODES, [most, pod("whole", 100, 1, 1000)], 1, Filling.RANDOM), 0.5, descheduled=False)
    shares = round((4 * len(NODES) * 1000 - found.free) % 1000 / 200)  # nothing else takes parts of cards
    assert found.least > 0
    assert found.least % 200 == pytest.approx(0, abs=1e-6), shares


def test_means_are_of_the_seeds_of_each_way_of_moving():
    rows = [
        row for seed in (1, 2) for row in as_json(seed, study(decay(NODES, PODS, seed, Filling.FGD), 0.2), 3)
    ]
    means = summary(rows)
    assert [mean["by"] for mean in means] == [row["by"] for row in rows[:5]]
    falls = [row["fallOfCardsPercent"] for row in rows if row["by"] == HOSS]
    assert means[0]["fallOfCardsPercent"] == pytest.approx(sum(falls) / 2)
    assert means[0]["fallOfCardsRange"] == [min(falls), max(falls)]
