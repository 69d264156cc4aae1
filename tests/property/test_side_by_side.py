"""Pods looked at side by side, each on nodes of its own, pass and score there as each would alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from hoss.model.cluster import Cluster
from hoss.model.fit import each_fits, fits
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, group_of
from scheduler_worker.core.cache.columns import RequestedResources
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.plugins import REGISTRY, default_profile
from scheduler_worker.core.plugins.resources.resources_fit import ResourcesFit

amounts = st.sampled_from([0, 1, 100, 333, 4000, 2**40 + 7, 2**50 + 3])


@st.composite
def node_specs(draw):
    offered = {"cpu": draw(amounts), "memory": draw(amounts), "pods": draw(st.integers(1, 3))}
    return [(name, amount) for name, amount in offered.items() if amount]


@st.composite
def plain_pods(draw):
    cpu, memory = draw(amounts) // 3 + 1, draw(amounts) // 3 + 1
    return PodSpec(
        requests=(("cpu", cpu), ("memory", memory)),
        nonzero_cpu_milli=cpu + draw(st.sampled_from([0, 100])),
        nonzero_memory_bytes=memory,
    )


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated"])
@examples(100)
@given(
    kinds=st.lists(node_specs(), min_size=12, max_size=12),
    bound=st.lists(plain_pods(), max_size=8),
    pods=st.lists(plain_pods(), min_size=3, max_size=3),
)
def test_each_pod_passes_and_scores_on_its_nodes_as_alone(strategy, kinds, bound, pods):
    nodes = [NodeSpec(f"n{i}", allocatable=tuple(sorted(offered))) for i, offered in enumerate(kinds)]
    cache, profile = ClusterSnapshot(Cluster(nodes, [], {})).cache, default_profile(strategy)
    for turn, spec in enumerate(bound):  # whether it fits or not: nodes may be overcommitted
        cache.assume(np.array((turn,)), compile_demand(spec, cache.schema), group_of(spec))
    demands = [compile_demand(spec, cache.schema) for spec in pods]
    asked = RequestedResources(
        np.stack([demand.request for demand in demands], axis=1)[:, :, None],
        np.stack([demand.nonzero for demand in demands], axis=1),
    )
    passed, scores = profile.evaluate_each(asked, cache.side_by_side(slice(12), (3, 4)))
    for row, demand in enumerate(demands):
        of_all, score = profile.evaluate(demand, cache.view(None, cards=False))
        own = slice(4 * row, 4 * row + 4)
        assert of_all is not None
        assert (passed[row] == of_all[own]).all()
        assert (scores[row] == score[own]).all()


@examples(100)
@given(data=st.data())
def test_what_fits_side_by_side_is_what_fits_alone(data):
    numbers = st.integers(0, 5)
    shape = (3, 2, 4)
    column = st.lists(numbers, min_size=24, max_size=24).map(
        lambda values: np.array(values, np.int64).reshape(shape)
    )
    allocatable, requested = data.draw(column), data.draw(column)
    requests = np.array(data.draw(st.lists(numbers, min_size=6, max_size=6)), np.int64).reshape(3, 2, 1)
    together = each_fits(allocatable, requested, requests)
    for pod in range(2):
        assert (together[pod] == fits(allocatable[:, pod], requested[:, pod], requests[:, pod, 0])).all()


def test_only_a_profile_all_of_whose_dynamic_plugins_can_looks_side_by_side():
    assert default_profile().side_by_side is not None
    weights = Weighted(ResourcesFit.name, 1, {"resources": [{"name": "cpu", "weight": 2}]})
    assert REGISTRY.profile((weights,)).side_by_side is None
