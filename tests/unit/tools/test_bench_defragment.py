"""`python -m tools.bench defragment` on a small made-up cluster."""

import pytest

from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, PodTemplate, Workload
from tools.bench.defragment import as_json, decay, study

NODES = [NodeSpec(f"n{i}", allocatable=(("cpu", 32_000), ("pods", 100)), cards=4) for i in range(12)]


def pod(name, cpu, *devices):
    spec = PodSpec(
        requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, devices=DeviceRequest(*devices) if devices else None
    )
    return Workload(name, PodTemplate(spec))


PODS = [pod("whole", 4000, 1, 1000), pod("half", 2000, 1, 500), pod("all", 8000, 4, 1000), pod("plain", 100)]


@pytest.mark.parametrize("by_fragments", [False, True])
def test_moves_lower_the_fragments_and_no_more_pods_move_than_may(by_fragments):
    decayed = decay(NODES, PODS, 1, by_fragments=by_fragments)
    free = decayed.snapshot.cache.cards.used[: len(NODES), :4].sum()
    found = study(decayed, 0.2)
    assert 0 < found.moves <= 0.2 * found.pods
    assert found.fixed <= found.after < found.before
    assert decayed.snapshot.cache.cards.used[: len(NODES), :4].sum() == free
    document = as_json(1, found)
    assert 0 < document["fallPercent"] < document["fallOfOthersPercent"] <= 100


def test_equal_seeds_make_equal_clusters():
    found = [
        study(decay(NODES, PODS, seed, by_fragments=False), 0.2)._replace(seconds=0) for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]
