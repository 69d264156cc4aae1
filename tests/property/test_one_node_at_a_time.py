"""Looking at one node gives what looking at all of them gives for it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from hoss.model.cluster import Cluster
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, group_of
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.plugins import REGISTRY, default_profile
from scheduler_worker.core.plugins.profiles import PRESETS
from scheduler_worker.core.plugins.resources.resources_fit import ResourcesFit

amounts = st.sampled_from([0, 1, 100, 333, 4000, 2**40 + 7, 2**50 + 3])


@st.composite
def node_specs(draw):
    offered = {"cpu": draw(amounts), "memory": draw(amounts), "pods": draw(st.integers(1, 3))}
    return [(name, amount) for name, amount in offered.items() if amount], draw(st.integers(0, 2))


@st.composite
def pod_specs(draw):
    requests = tuple((name, amount) for name in ("cpu", "memory", "odd") if (amount := draw(amounts) // 3))
    return PodSpec(
        requests=requests if draw(st.booleans()) else requests[:2],
        nonzero_cpu_milli=dict(requests).get("cpu", 0) or draw(st.sampled_from([0, 100])),
        nonzero_memory_bytes=dict(requests).get("memory", 0),
        devices=draw(st.sampled_from([None, None, DeviceRequest(1, 300), DeviceRequest(2, 1000)])),
    )


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated"])
@examples(200)
@given(
    kinds=st.lists(node_specs(), min_size=1, max_size=5), pods=st.lists(pod_specs(), min_size=1, max_size=6)
)
def test_one_node_looked_at_alone_passes_and_scores_as_among_all(strategy, kinds, pods):
    nodes = [NodeSpec(f"n{i}", allocatable=tuple(sorted(a)), cards=c) for i, (a, c) in enumerate(kinds)]
    ground, profile = ClusterSnapshot(Cluster(nodes, [], {})), default_profile(strategy)
    for turn, spec in enumerate(pods):
        demand = compile_demand(spec, ground.cache.schema)
        cards = profile.wants_cards(demand)
        passed, scores = profile.evaluate(demand, ground.cache.view(None, cards=cards))
        for node in range(len(nodes)):
            score = profile.evaluate_one(demand, ground.cache.one(node, cards=cards))
            assert (score is not None) == (passed is None or passed[node])
            assert score is None or score == scores[node]
        # Whether it fits or not: nodes may be overcommitted.
        ground.cache.assume(np.array((turn % len(nodes),)), without_cards(demand), group_of(spec))


@pytest.mark.parametrize("preset", ["best-fit", "fgd"])
@examples(200)
@given(
    kinds=st.lists(node_specs(), min_size=1, max_size=5), pods=st.lists(pod_specs(), min_size=1, max_size=8)
)
def test_profiles_that_pack_look_at_one_node_as_at_all(preset, kinds, pods):
    nodes = [NodeSpec(f"n{i}", allocatable=tuple(sorted(a)), cards=c) for i, (a, c) in enumerate(kinds)]
    ground, profile = ClusterSnapshot(Cluster(nodes, [], {})), PRESETS[preset].profile(REGISTRY)
    assert profile.one_at_a_time is not None
    for turn, spec in enumerate(pods):
        demand = compile_demand(spec, ground.cache.schema)
        for observer in profile.observers:
            observer.observe(demand, 1 + turn)
        one = [profile.evaluate_one(demand, ground.cache.one(node, cards=True)) for node in range(len(nodes))]
        passed, scores = profile.evaluate(demand, ground.cache.view(None, cards=True))
        for node, score in enumerate(one):
            assert (score is not None) == (passed is None or passed[node])
            assert score is None or score == scores[node]
        ground.cache.assume(np.array((turn % len(nodes),)), demand, group_of(spec))


def without_cards(demand):
    return replace(demand, spec=replace(demand.spec, devices=None))


def test_strategies_that_score_columns_alone_keep_the_profile_from_looking_at_one_node():
    assert default_profile().one_at_a_time is not None
    only_cpu = Weighted(ResourcesFit.name, 1, {"resources": [{"name": "cpu", "weight": 1}]})
    assert REGISTRY.profile((only_cpu,)).one_at_a_time is None
