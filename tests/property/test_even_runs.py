"""Runs of pods that are spread by default go where they would go one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.builders_runs import GIB, Worker, pools
from property.profiles import examples

from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.selectors import LabelSelector, NodeSelectorTerm, PreferredTerm, Requirement
from scheduler_worker.core.placement.runs import MOST_BUCKETS

WEB = LabelSelector((Requirement("app", "In", ("web",)),))
SPREAD = PodSpec(
    labels=(("app", "web"),),
    requests=(("cpu", 100), ("memory", GIB // 4)),
    nonzero_cpu_milli=100,
    nonzero_memory_bytes=GIB // 4,
    default_spread=WEB,
)


# Once the nodes that are liked most are full, those liked less are worth more.
LIKED = tuple(
    PreferredTerm(weight, NodeSelectorTerm((Requirement("liked", "In", (value,)),)))
    for weight, value in ((1, "0"), (2, "1"), (5, "2"))
)


@examples(200)
@given(pools(), st.data())
def test_a_run_goes_where_its_pods_would_go_one_by_one(nodes, data):
    at_once, singly = Worker(nodes), Worker(nodes)
    there = data.draw(st.lists(st.integers(0, len(nodes) - 1), max_size=6))
    others = replace(SPREAD, labels=(("app", "api"),), default_spread=None)
    spec = data.draw(st.sampled_from([SPREAD, replace(SPREAD, requests=(), nonzero_cpu_milli=0)]))
    for worker in (at_once, singly):
        worker.put(replace(SPREAD, default_spread=None), there)
        worker.put(others, there[:2])
    for count in data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=4)):
        placed = at_once.place(spec, count)
        one_by_one = [int(node) for _ in range(count) for node in singly.place(spec, 1).nodes]
        assert placed.nodes.tolist() == one_by_one
        for node, alternates in zip(placed.nodes.tolist(), placed.alternates.tolist(), strict=True):
            assert node not in alternates


def large_pool(count=30, zones=3):
    return [
        NodeSpec(
            f"n{i}",
            labels=(("kubernetes.io/hostname", f"n{i}"), ("topology.kubernetes.io/zone", f"z{i % zones}")),
            allocatable=(("cpu", 64_000), ("memory", 64 * GIB), ("pods", 110)),
        )
        for i in range(count)
    ]


def test_a_run_with_room_is_told_at_once():
    worker = Worker(large_pool())
    ranking = worker.ranking(SPREAD)
    ranking.refresh()
    assert len(ranking.even_run(50).choices(50)) == 50


def test_what_is_not_spread_by_default_alone_is_not_told_at_once():
    worker = Worker(large_pool())
    of_others = replace(SPREAD, default_spread=LabelSelector((Requirement("app", "In", ("api",)),)))
    for spec in (of_others, replace(SPREAD, devices=None, labels=(("app", "else"),))):
        ranking = worker.ranking(spec)
        ranking.refresh()
        assert ranking.even_run(50) is None


def test_with_very_many_zones_pods_are_placed_one_by_one():
    worker = Worker(large_pool(MOST_BUCKETS + 5, MOST_BUCKETS + 5))
    ranking = worker.ranking(SPREAD)
    ranking.refresh()
    assert ranking.even_run(50).choices(50) == []
    assert len(set(worker.place(SPREAD, 50).nodes.tolist())) == 50


@pytest.mark.parametrize("seed", range(12))
def test_nodes_and_zones_that_fill_up_on_the_way_change_what_others_are_worth(seed):
    rng = np.random.default_rng(seed)
    nodes = [
        NodeSpec(
            f"n{i}",
            labels=(
                ("kubernetes.io/hostname", f"n{i}"),
                ("topology.kubernetes.io/zone", f"z{zone}"),
                ("liked", str(i % 3)),
            ),
            allocatable=(("cpu", int(cpu)), ("memory", 64 * GIB), ("pods", int(pods))),
        )
        for i, (zone, cpu, pods) in enumerate(
            zip(
                rng.choice(3, 40, p=(0.8, 0.15, 0.05)),
                rng.choice((2000, 4000, 64_000), 40),
                rng.choice((2, 4, 30), 40),
                strict=True,
            )
        )
    ]
    at_once, singly = Worker(nodes), Worker(nodes)
    there = rng.choice(40, 20).tolist()
    for worker in (at_once, singly):
        worker.put(replace(SPREAD, default_spread=None, requests=(("cpu", 10),)), there)
    spec = replace(SPREAD, preferred_node_affinity=LIKED) if seed % 2 else SPREAD
    placed = at_once.place(spec, 600).nodes.tolist()
    one_by_one = [int(node) for _ in range(600) for node in singly.place(spec, 1).nodes]
    assert placed == one_by_one
    assert len(placed) < 600
