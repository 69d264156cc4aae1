"""NodeResourcesFit's strategies against scores worked out by hand from kube-scheduler 1.36's rules."""

import numpy as np
import pytest

from hoss.errors import ConfigError
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.plugins.resources.resources_fit import ResourcesFit
from scheduler_worker.core.plugins.resources.scoring_strategies import read_shape

GIB = 2**30
PACK = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]


@pytest.fixture
def scores(make_ledger, harness_of, make_pod):
    """Scores of two nodes: 4 cores and 8 GiB, empty; the same with 1 core and 6 GiB in use, and 2 of 4
    widgets."""

    def of(pod, **args):
        ledger = make_ledger()
        ledger.schema = (*ledger.schema, "example.com/widget")
        amounts = {"cpu": 4000, "memory": 8 * GIB, "pods": 110}
        ledger.add(0, allocatable=amounts)
        ledger.add(1, allocatable={**amounts, "example.com/widget": 4})
        ledger.reserve([1], [np.array([1000, 6 * GIB, 0, 1, 0, 0, 2])])
        cache = harness_of(ledger).cache
        return (
            ResourcesFit(**args)
            .score(compile_demand(pod, cache.schema), cache.view(None, cards=False))
            .tolist()
        )

    return of


def test_least_allocated_weighs_resources(scores, make_pod):
    # cpu: 100 x 3000 // 4000 = 75, then 100 x 2000 // 4000 = 50; memory: 100 x 7 // 8 = 87, then 12.
    weights = [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}]
    assert scores(make_pod(cpu=1000, memory=GIB), resources=weights) == [
        (3 * 75 + 87) // 4,
        (3 * 50 + 12) // 4,
    ]


def test_most_allocated_weighs_resources(scores, make_pod):
    weights = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 4}]
    expected = [(25 + 4 * 12) // 5, (50 + 4 * 87) // 5]
    assert scores(make_pod(cpu=1000, memory=GIB), strategy="MostAllocated", resources=weights) == expected


def test_equal_weights_given_are_the_default(scores, make_pod):
    weights = [{"name": "memory", "weight": 1}, {"name": "cpu", "weight": 1}]
    pod = make_pod(cpu=1000, memory=GIB)
    for strategy in ("LeastAllocated", "MostAllocated"):
        assert scores(pod, strategy=strategy, resources=weights) == scores(pod, strategy=strategy)


def test_an_extended_resource_counts_only_for_pods_that_ask_for_it(scores, make_pod):
    weights = [{"name": "cpu", "weight": 1}, {"name": "example.com/widget", "weight": 1}]
    without, asking = make_pod(cpu=1000), make_pod(cpu=1000, more=[("example.com/widget", 1)])
    assert scores(without, strategy="MostAllocated", resources=weights) == [25, 50]
    # The first node has none: left out there. The second: (50 + 100 x 3 // 4) // 2.
    assert scores(asking, strategy="MostAllocated", resources=weights) == [25, 62]


def test_the_number_of_pods_is_not_scored(scores, make_pod):
    # kube-scheduler passes over `pods`: no container requests it.
    weights = [{"name": "cpu", "weight": 1}, {"name": "pods", "weight": 9}]
    assert scores(make_pod(cpu=1000), strategy="MostAllocated", resources=weights) == [25, 50]


def test_requested_to_capacity_ratio_rounds_the_mean_and_leaves_zeros_out(scores, make_pod):
    args = {"strategy": "RequestedToCapacityRatio", "shape": PACK}
    # Utilizations 25 and 12, then 50 and 87: means 18.5 and 68.5, rounded up.
    assert scores(make_pod(cpu=1000, memory=GIB), **args) == [19, 69]
    # Of 0 % cpu the score is 0, which counts for nothing at all: only memory's 12 is left on the first node.
    assert scores(make_pod(cpu=0, memory=GIB), **args) == [12, 56]


def test_a_shape_is_a_broken_line_that_stays_at_its_ends():
    shape = read_shape(
        [{"utilization": 20, "score": 10}, {"utilization": 50, "score": 4}, {"utilization": 90, "score": 5}]
    )
    # Falling from 100 to 40 within 30 points, rising from 40 to 50 within 40; quotients truncated towards
    # zero.
    assert [shape[u] for u in (0, 20, 21, 35, 50, 53, 54, 90, 100)] == [100, 100, 98, 70, 40, 40, 41, 50, 50]
    assert (
        read_shape([{"utilization": 0, "score": 10}, {"utilization": 30, "score": 9}])[7] == 98
    )  # 100 - 70 // 30


@pytest.mark.parametrize(
    ("args", "where", "problem"),
    [
        ({"strategy": "Tight"}, "strategy", "is 'Tight'"),
        ({"strategy": "RequestedToCapacityRatio"}, "shape", "is missing"),
        ({"shape": PACK}, "shape", "was given"),
        ({"resources": []}, "resources", "is []"),
        ({"resources": ["cpu"]}, "resources[0]", "is 'cpu'"),
        ({"resources": [{"name": "cpu", "weight": 0}]}, "resources[0].weight", "is 0"),
        ({"resources": [{"name": "cpu", "wait": 1}]}, "resources[0].wait", "is none of name, weight"),
        ({"resources": [{"name": "cpu"}, {"name": "cpu"}]}, "resources[1].name", "given twice"),
        (
            {"strategy": "RequestedToCapacityRatio", "shape": [PACK[1], PACK[0]]},
            "shape[1].utilization",
            "above the one",
        ),
        (
            {"strategy": "RequestedToCapacityRatio", "shape": [{"utilization": 0, "score": 11}]},
            "shape[0].score",
            "is 11",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_their_field(args, where, problem):
    with pytest.raises(ConfigError) as caught:
        ResourcesFit(**args)
    assert caught.value.where == where
    assert problem in caught.value.text
