"""The algorithms that choose among eligible workers."""

import random
from collections import Counter

import pytest

from dispatcher.core.dispatch.balance import WorkerLoad, make_balancer
from dispatcher.core.policy.rules import Algorithm, Balance


def load(name, outstanding=0, *, weight=1.0, micros=1.0, window=2000):
    return WorkerLoad(name, outstanding, window, weight, outstanding * micros)


def choices(algorithm, loads, times, *, bucket=0, **parameters):
    balancer, chance = make_balancer(Balance(algorithm, **parameters)), random.Random(1)
    return [loads[balancer.choose(loads, bucket, chance)].name for _ in range(times)]


def test_least_outstanding_counts_work_and_not_pods():
    loads = [load("quick", 1000, micros=2.0), load("slow", 100, micros=40.0)]
    assert set(choices(Algorithm.LEAST_OUTSTANDING, loads, 10)) == {"quick"}


def test_equally_loaded_workers_are_chosen_alike_often():
    counts = Counter(choices(Algorithm.LEAST_OUTSTANDING, [load("a"), load("b"), load("c")], 3000))
    assert all(800 < counts[name] < 1200 for name in "abc")


def test_of_two_choices_the_busiest_of_all_is_never_taken():
    counts = Counter(
        choices(Algorithm.POWER_OF_TWO_CHOICES, [load("a", 10), load("b", 20), load("c", 30)], 3000)
    )
    assert counts["c"] == 0
    assert counts["a"] > counts["b"] > 0


def test_weighted_round_robin_is_in_proportion_and_smooth():
    loads = [load("a", weight=2.0), load("b"), load("c")]
    assert choices(Algorithm.WEIGHTED_ROUND_ROBIN, loads, 8) == ["a", "b", "c", "a", "a", "b", "c", "a"]


def test_consistent_hash_moves_only_the_lost_workers_buckets():
    loads = [load(name) for name in ("a", "b", "c", "d")]
    before = {b: choices(Algorithm.CONSISTENT_HASH, loads, 1, bucket=b)[0] for b in range(64)}
    after = {b: choices(Algorithm.CONSISTENT_HASH, loads[:3], 1, bucket=b)[0] for b in range(64)}
    assert all(after[b] == before[b] for b in before if before[b] != "d")
    assert set(before.values()) == {"a", "b", "c", "d"}


def test_consistent_hash_passes_an_overloaded_worker_by():
    idle = [load("a"), load("b")]
    (home,) = choices(Algorithm.CONSISTENT_HASH, idle, 1, bucket=3)
    loads = [load(name, 2000 if name == home else 0) for name in ("a", "b")]
    assert choices(Algorithm.CONSISTENT_HASH, loads, 1, bucket=3) != [home]


def test_consistent_hash_counts_work_and_not_pods():
    idle = [load("a"), load("b")]
    (home,) = choices(Algorithm.CONSISTENT_HASH, idle, 1, bucket=3)
    loads = [load(name, 1200, micros=50.0 if name == home else 1.0) for name in ("a", "b")]
    assert choices(Algorithm.CONSISTENT_HASH, loads, 1, bucket=3) != [home]


def test_a_wider_bound_keeps_a_bucket_where_it_is():
    idle = [load("a"), load("b")]
    (home,) = choices(Algorithm.CONSISTENT_HASH, idle, 1, bucket=3)
    loads = [load(name, 1000 if name == home else 100, window=100) for name in ("a", "b")]
    assert choices(Algorithm.CONSISTENT_HASH, loads, 1, bucket=3) != [home]
    assert choices(Algorithm.CONSISTENT_HASH, loads, 1, bucket=3, bound=2.0) == [home]


def test_more_choices_find_the_least_loaded_more_often():
    loads = [load(name, 10 * i) for i, name in enumerate("abcdefgh")]
    two = Counter(choices(Algorithm.POWER_OF_TWO_CHOICES, loads, 2000))
    four = Counter(choices(Algorithm.POWER_OF_TWO_CHOICES, loads, 2000, choices=4))
    assert four["a"] > 1.5 * two["a"]
    assert set(choices(Algorithm.POWER_OF_TWO_CHOICES, loads, 20, choices=8)) == {"a"}


def test_random_takes_any_however_loaded():
    counts = Counter(choices(Algorithm.RANDOM, [load("a", 2000, micros=900.0), load("b"), load("c")], 3000))
    assert all(800 < counts[name] < 1200 for name in "abc")


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_single_worker_is_always_chosen(algorithm):
    assert choices(algorithm, [load("only", 50)], 3) == ["only"] * 3
