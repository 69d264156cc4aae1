"""Runs of pods that limit each other by domains go where they would go one by one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.builders_pods import HOSTNAME, ZONE, affinities, constraints
from property.builders_runs import GIB, Worker, pools
from property.profiles import examples

from hoss.model.node import NodeSpec
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.placement.runs import MOST_BUCKETS, BoundRun


def app(name):
    return LabelSelector((Requirement("app", "In", (name,)),))


def term(key, name):
    return PodAffinityTerm(key, app(name), ("default",))


WEB = PodSpec(
    labels=(("app", "web"),),
    requests=(("cpu", 100), ("memory", GIB // 4)),
    nonzero_cpu_milli=100,
    nonzero_memory_bytes=GIB // 4,
)
API = replace(WEB, labels=(("app", "api"),))
RULES = {
    "apart by host": {"pod_affinity": PodAffinity(anti_required=(term(HOSTNAME, "web"),))},
    "apart by zone": {"pod_affinity": PodAffinity(anti_required=(term(ZONE, "web"),))},
    "away from others": {"pod_affinity": PodAffinity(anti_required=(term(HOSTNAME, "api"),))},
    "near others": {"pod_affinity": PodAffinity(required=(term(ZONE, "api"),))},
    "near others and apart": {
        "pod_affinity": PodAffinity(required=(term(ZONE, "api"),), anti_required=(term(HOSTNAME, "web"),))
    },
    "over zones": {"spread": (SpreadConstraint(1, ZONE, app("web")),)},
    "loosely over zones": {"spread": (SpreadConstraint(3, ZONE, app("web")),)},
    "over more zones than there are": {"spread": (SpreadConstraint(2, ZONE, app("web"), min_domains=9),)},
    "over hosts": {"spread": (SpreadConstraint(1, HOSTNAME, app("web")),)},
    "by where others are": {"spread": (SpreadConstraint(2, ZONE, app("api")),)},
    "over zones and apart": {
        "spread": (SpreadConstraint(1, ZONE, app("web")),),
        "pod_affinity": PodAffinity(anti_required=(term(HOSTNAME, "web"),)),
    },
}


def both_ways(nodes, spec, bound, counts):
    """Where runs of these lengths go at once and one by one."""
    at_once, singly = Worker(nodes), Worker(nodes)
    for worker in (at_once, singly):
        for other, there in bound:
            worker.put(other, there)
    for count in counts:
        one_by_one = [int(node) for _ in range(count) for node in singly.place(spec, 1).nodes]
        yield at_once.place(spec, count), one_by_one


@examples(300)
@given(pools(), st.sampled_from([*RULES]), st.data())
def test_a_run_goes_where_its_pods_would_go_one_by_one(nodes, rule, data):
    some = st.lists(st.integers(0, len(nodes) - 1), max_size=6)
    bound = [
        (WEB, data.draw(some)),
        (API, data.draw(some)),
        (replace(API, **RULES["near others"]), data.draw(some)),
    ]
    counts = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=3))
    for placed, one_by_one in both_ways(nodes, replace(WEB, **RULES[rule]), bound, counts):
        assert placed.nodes.tolist() == one_by_one
        for node, alternates in zip(placed.nodes.tolist(), placed.alternates.tolist(), strict=True):
            assert node not in alternates


@examples(300)
@given(pools(), affinities, st.lists(constraints, max_size=2).map(tuple), st.data())
def test_so_it_does_with_any_rules(nodes, affinity, spread, data):
    some = st.lists(st.integers(0, len(nodes) - 1), max_size=4)
    bound = [(WEB, data.draw(some)), (replace(API, pod_affinity=data.draw(affinities)), data.draw(some))]
    counts = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=2))
    for placed, one_by_one in both_ways(
        nodes, replace(WEB, pod_affinity=affinity, spread=spread), bound, counts
    ):
        assert placed.nodes.tolist() == one_by_one


def large_pool(count=60, zones=3):
    return [
        NodeSpec(
            f"n{i}",
            labels=((HOSTNAME, f"n{i}"), (ZONE, f"z{i % zones}")),
            allocatable=(("cpu", 4000), ("memory", 8 * GIB), ("pods", 110)),
        )
        for i in range(count)
    ]


def told_at_once(worker, spec, count):
    ranking = worker.ranking(spec)
    ranking.refresh()
    run = ranking.even_run(count)
    return len(run.choices(count)) if isinstance(run, BoundRun) else 0


@pytest.mark.parametrize(
    "rule", ["apart by host", "away from others", "near others", "over zones", "over zones and apart"]
)
def test_a_run_with_room_is_told_at_once(rule):
    worker = Worker(large_pool())
    worker.put(API, [0, 1, 2])
    assert told_at_once(worker, replace(WEB, **RULES[rule]), 50) == 50


def test_with_very_many_domains_pods_are_placed_one_by_one():
    worker = Worker(large_pool(MOST_BUCKETS + 5, MOST_BUCKETS + 5))
    assert told_at_once(worker, replace(WEB, **RULES["over zones"]), 50) == 0
    assert len(set(worker.place(replace(WEB, **RULES["over zones"]), 50).nodes.tolist())) == 50


def test_pods_that_attract_each_other_or_go_by_wishes_are_placed_one_by_one():
    near_itself = PodAffinity(required=(term(ZONE, "web"),))
    wished = (SpreadConstraint(1, ZONE, app("web"), required=False),)
    for rules in ({"pod_affinity": near_itself}, {"spread": wished}):
        assert told_at_once(Worker(large_pool()), replace(WEB, **rules), 50) == 0


def test_pods_that_limit_each_other_have_no_alternates():
    worker = Worker(large_pool())
    worker.put(API, [0, 1, 2])
    assert (worker.place(replace(WEB, **RULES["apart by host"]), 30).alternates == -1).all()
    assert (worker.place(replace(WEB, **RULES["near others"]), 20).alternates >= 0).all()
