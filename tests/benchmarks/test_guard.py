"""The guard itself: that it finds what got slower, and lets a slow moment pass. Part of the ordinary
tests."""

from dataclasses import replace
from itertools import count

import pytest
from benchmarks.bench_ratios import read_limits
from benchmarks.conftest import CASES
from benchmarks.measuring import Bench, Limit, lowest, ratio, ratio_table


def costing(*seconds: float) -> Bench:
    """A case whose actions cost these seconds in turn."""
    now = [0.0]
    numbers = count()

    def fresh():
        def action() -> None:
            now[0] += seconds[next(numbers) % len(seconds)]

        return action

    return Bench(fresh, lambda: now[0])


def test_a_ratio_is_by_operation():
    assert ratio((costing(6.0), 3), (costing(1.0), 1), rounds=3) == pytest.approx(2.0)


def test_what_configuration_explains_does_not_count():
    explained = replace(costing(5.0), explained_seconds=3.0)
    assert ratio((explained, 1), (costing(1.0), 1), rounds=3) == pytest.approx(2.0)


def test_neither_the_first_action_nor_a_slow_one_counts():
    assert ratio((costing(99.0, 2.0, 2.0, 50.0, 2.0, 2.0), 1), (costing(1.0), 1), rounds=5) == pytest.approx(
        2.0
    )


def test_a_slow_moment_passes_and_a_slower_program_does_not():
    tries = iter([3.0, 1.4, 9.0])
    assert lowest(lambda: next(tries), 1.5) == 1.4
    assert next(tries) == 9.0  # it was not asked again
    assert lowest(lambda: 2.0, 1.5) == 2.0


def test_what_is_beyond_its_limit_is_marked_in_the_table():
    limit = Limit("a claim", "a", "b", usual=1.0, margin=1.5, rounds=3, warm_ups=1)
    table = ratio_table([(1.4, limit), (1.6, limit)])
    assert [line.endswith("BEYOND") for line in table] == [False, False, True]


def test_every_limit_is_of_two_cases_and_leaves_room_for_noise():
    limits = read_limits()
    assert len({limit.claim for limit in limits}) == len(limits)
    for limit in limits:
        assert limit.over in CASES
        assert limit.under in CASES
        assert limit.margin >= 1.3


def test_every_core_is_guarded_and_every_case_of_a_platform():
    parts = {name.partition(":")[0] for limit in read_limits() for name in (limit.over, limit.under)}
    assert parts == {"dispatcher", "worker", "resolver", "ledger", "wire", "platform"}
    measured = {name for limit in read_limits() for name in (limit.over, limit.under)}
    assert {name for name in CASES if name.startswith("platform:")} <= measured
