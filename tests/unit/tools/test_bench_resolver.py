"""bench resolver: what it says of its goals."""

from tools.bench.resolver import Case, Driven, goals


def case(
    batch: int, pods_per_second: int, *, shards: int = 1, conflict_percent: int = 0, hot_node: bool = False
) -> Case:
    driven = Driven(pods=pods_per_second, committed=pods_per_second, seconds=1.0)
    return Case(
        1, shards, batch, conflict_percent, hot_node, driven, 2.0, 1000.0, {"redis": pods_per_second * 4e-6}
    )


def test_of_each_batch_size_the_median_ratio_is_told_and_its_range_over_the_grid():
    cases = [case(10, 300), case(100, 700), case(100, 900, shards=4), case(100, 800, shards=16)]
    told = dict(goals([*cases, case(100, 100, conflict_percent=50)]))
    assert told["through gRPC, batch 10"] == "0.30 of it (goal 0.8)"
    assert told["through gRPC, batch 100"] == "0.80 of it (goal 0.8); 0.70 to 0.90 in 3 cases"


def test_one_node_for_all_is_held_against_the_same_batch_spread_out():
    told = dict(goals([case(100, 800), case(100, 400, hot_node=True), case(1000, 900)]))
    assert told["every pod for one node"] == "0.50 of the same spread out (goal 0.33)"
    assert told["p99 of a batch of 100"] == "2.00 ms (goal 5)"
    assert told["Redis, by its CPU time"] == "250,000 pods/s of one core (goal 250,000)"


def test_goals_of_cases_that_were_not_measured_are_left_out():
    assert goals([case(10, 300, shards=4, conflict_percent=10)]) == []
