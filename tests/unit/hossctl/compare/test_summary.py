"""Medians, spreads, and what is called a difference."""

import random

import pytest
from unit.hossctl.compare.made_up import comparison, run

from hossctl.choices import Load, Mode
from hossctl.compare.catalogue import THROUGHPUT, figures
from hossctl.compare.document import Cell
from hossctl.compare.report.summary import CellRuns, NoiseTest, pairs, summarise

CELL = Cell(mode=Mode.HOSS, load=Load.UNIFORM, workers=4, nodes=100, fill=0.9)


def group(*rates: float, cell: Cell = CELL) -> CellRuns:
    return CellRuns(
        cell, tuple(run(cell, repetition=i, pods_per_second=rate) for i, rate in enumerate(rates))
    )


def test_repetitions_of_a_cell_are_one_group_with_its_median_and_whole_range():
    found = summarise(comparison(loads=(Load.UNIFORM,), workers=(1, 4), fills=(0.8,), repetitions=3))
    assert {len(each.runs) for each in found.groups.values()} == {3}
    spread = group(10.0, 30.0, 20.0).spread(THROUGHPUT.of)
    assert (spread.low, spread.median, spread.high) == (10.0, 20.0, 30.0)


def test_an_interrupted_run_counts_for_no_median_and_is_kept_apart():
    made = comparison(loads=(Load.UNIFORM,), workers=(1,), fills=(0.8,), repetitions=2)
    broken = made.runs[-1].model_copy(update={"complete": False})
    found = summarise(made.model_copy(update={"runs": [made.runs[0], broken]}))
    assert found.incomplete == (broken,)
    assert [len(each.runs) for each in found.groups.values()] == [1]


def test_what_one_run_of_each_shows_is_never_beyond_the_noise():
    one, other = group(100.0), group(900.0)
    assert not NoiseTest(THROUGHPUT.of, [one, other]).difference(one, other).beyond_noise


def test_runs_that_happen_to_agree_are_judged_by_what_is_typical():
    one, other = group(100.0, 100.0), group(110.0, 110.0)
    assert NoiseTest(THROUGHPUT.of, [one, other]).difference(one, other).beyond_noise
    unsteady = [group(80.0, 120.0, cell=CELL.model_copy(update={"workers": n})) for n in range(5, 9)]
    assert not NoiseTest(THROUGHPUT.of, [one, other, *unsteady]).difference(one, other).beyond_noise


def test_a_difference_under_five_per_cent_is_none_however_steady_the_runs():
    one, other = group(100.0, 100.1, 99.9), group(104.0, 104.1, 103.9)
    assert not NoiseTest(THROUGHPUT.of, [one, other]).difference(one, other).beyond_noise


def test_nothing_against_much_is_a_difference_without_a_ratio():
    one, other = group(0.0, 0.0, 0.0), group(290.0, 300.0, 310.0)
    found = NoiseTest(THROUGHPUT.of, [one, other]).difference(one, other)
    assert found.beyond_noise
    assert found.ratio is None


@pytest.mark.parametrize("repetitions", [2, 3, 5])
def test_of_cells_that_do_not_differ_at_most_one_in_twenty_is_said_to(repetitions):
    chance = random.Random(repetitions)

    def drawn(number: int) -> CellRuns:
        cell = CELL.model_copy(update={"nodes": number + 1})
        return group(*(chance.gauss(1000, 100) for _ in range(repetitions)), cell=cell)

    wrong = 0
    for _ in range(40):
        groups = [drawn(number) for number in range(20)]
        test = NoiseTest(THROUGHPUT.of, groups)
        wrong += sum(
            test.difference(a, b).beyond_noise for a, b in zip(groups[::2], groups[1::2], strict=True)
        )
    assert wrong <= 0.05 * 400


@pytest.mark.parametrize("repetitions", [3, 5])
def test_a_real_difference_of_half_is_nearly_always_found(repetitions):
    chance = random.Random(9)
    found = 0
    for _ in range(100):
        one = group(*(chance.gauss(1000, 50) for _ in range(repetitions)))
        other = group(*(chance.gauss(1500, 75) for _ in range(repetitions)))
        found += NoiseTest(THROUGHPUT.of, [one, other]).difference(one, other).beyond_noise
    assert found >= 95


def test_modes_are_compared_in_equal_settings_at_the_most_workers_and_single_with_one():
    found = summarise(comparison(loads=(Load.UNIFORM,), workers=(1, 2, 4), fills=(0.5, 0.8)))
    assert [
        (a.cell.workers, b.cell.workers, a.cell.fill == b.cell.fill) for a, b in pairs(found, Mode.SINGLE)
    ] == [
        (1, 4, True),
        (1, 4, True),
    ]
    assert {a.cell.workers for a, _ in pairs(found, Mode.LOCKED)} == {4}


def test_every_figure_has_a_column_of_its_own():
    keys = [figure.key for figure in figures(comparison().runs)]
    assert len(keys) == len(set(keys))
