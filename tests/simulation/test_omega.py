"""The shapes of Omega's figures, on a small scale: half an hour, and a fuller cell so that little time
suffices."""

from functools import cache

import pytest

from hossctl.simulate.omega import (
    Architecture,
    OmegaCell,
    OmegaSetting,
    SimulatedConflicts,
    Transactions,
    simulate,
)

CELL = OmegaCell(nodes=4000, fill=0.7)
# The shapes hold of both; `make test` shows each with one of them.
CONFLICTS = [
    SimulatedConflicts.RESOURCE_FIT,
    pytest.param(SimulatedConflicts.SEQUENCE_NUMBER, marks=pytest.mark.thorough),
]
TRANSACTIONS = [
    Transactions.INCREMENTAL,
    pytest.param(Transactions.ALL_OR_NOTHING, marks=pytest.mark.thorough),
]


@cache
def run(
    t_job,
    architecture=Architecture.SHARED_STATE,
    conflicts=SimulatedConflicts.RESOURCE_FIT,
    transactions=Transactions.INCREMENTAL,
    seed=1,
):
    return simulate(
        OmegaSetting(
            architecture, t_job, conflicts, transactions, horizon_seconds=1800.0, cell=CELL, seed=seed
        )
    )


def service(*args, **kwargs):
    return run(*args, **kwargs).figures["service"]


def test_the_same_seed_gives_the_same_figures_and_another_seed_others():
    setting = OmegaSetting(Architecture.SHARED_STATE, 5.0, horizon_seconds=600.0, cell=CELL)
    first, again = simulate(setting), simulate(setting)
    assert first.figures == again.figures
    assert first.busyness == again.busyness
    assert (
        first.figures
        != simulate(
            OmegaSetting(Architecture.SHARED_STATE, 5.0, horizon_seconds=600.0, cell=CELL, seed=2)
        ).figures
    )


def test_all_points_of_a_sweep_get_the_same_jobs():
    counts = {tuple(f.submitted for f in run(t_job).figures.values()) for t_job in (0.1, 5.0, 50.0)}
    assert len(counts) == 1


def test_the_service_scheduler_gets_busier_with_its_decision_time_until_it_is_saturated():
    busy = [run(t_job).busyness["service"] for t_job in (0.1, 1.0, 5.0, 10.0, 50.0)]
    assert busy == sorted(busy)
    assert busy[0] < 0.05
    assert busy[-1] > 0.95


@pytest.mark.parametrize("conflicts", CONFLICTS)
def test_conflicts_grow_with_the_decision_time(conflicts):
    quick, slow, slower = (service(t, conflicts=conflicts).task_conflict_share for t in (0.1, 10.0, 50.0))
    assert quick < slow < slower


@pytest.mark.parametrize("transactions", TRANSACTIONS)
def test_sequence_numbers_conflict_several_times_more_than_lack_of_room(transactions):
    fine = service(10.0, conflicts=SimulatedConflicts.RESOURCE_FIT, transactions=transactions)
    coarse = service(10.0, conflicts=SimulatedConflicts.SEQUENCE_NUMBER, transactions=transactions)
    assert coarse.conflict_fraction > 2 * fine.conflict_fraction


@pytest.mark.parametrize("conflicts", CONFLICTS)
def test_all_or_nothing_refuses_several_times_more_tasks_and_takes_more_tries(conflicts):
    part = service(50.0, conflicts=conflicts, transactions=Transactions.INCREMENTAL)
    whole = service(50.0, conflicts=conflicts, transactions=Transactions.ALL_OR_NOTHING)
    assert whole.task_conflict_share > 2 * part.task_conflict_share
    assert whole.transactions / whole.scheduled > part.transactions / part.scheduled


def test_batch_jobs_do_not_wait_for_slow_service_decisions_where_each_has_a_scheduler():
    waits = [run(t_job).figures["batch"].mean_wait for t_job in (0.1, 10.0, 50.0)]
    assert max(waits) < 1.0


def test_batch_jobs_wait_at_the_head_of_the_line_of_a_single_scheduler():
    alone = run(10.0).figures["batch"].mean_wait
    multi = run(10.0, Architecture.MULTI_PATH).figures["batch"].mean_wait
    single = run(10.0, Architecture.SINGLE_PATH).figures["batch"].mean_wait
    assert single > 10 * multi > 100 * alone


def test_one_scheduler_alone_meets_no_conflict():
    for architecture in (Architecture.SINGLE_PATH, Architecture.MULTI_PATH):
        assert all(f.conflicted == 0 for f in run(10.0, architecture).figures.values())


@pytest.mark.parametrize(
    ("conflicts", "transactions"),
    [
        (SimulatedConflicts.RESOURCE_FIT, Transactions.INCREMENTAL),
        (SimulatedConflicts.SEQUENCE_NUMBER, Transactions.ALL_OR_NOTHING),
        pytest.param(
            SimulatedConflicts.RESOURCE_FIT, Transactions.ALL_OR_NOTHING, marks=pytest.mark.thorough
        ),
        pytest.param(
            SimulatedConflicts.SEQUENCE_NUMBER, Transactions.INCREMENTAL, marks=pytest.mark.thorough
        ),
    ],
)
def test_no_node_is_ever_overcommitted_and_every_job_is_placed_where_there_is_time(conflicts, transactions):
    result = run(0.1, conflicts=conflicts, transactions=transactions)
    assert result.overcommitted == 0
    assert all(f.scheduled >= f.submitted - 1 for f in result.figures.values())


def test_a_cell_too_full_leaves_jobs_waiting_and_overcommits_nothing():
    result = simulate(
        OmegaSetting(
            Architecture.SHARED_STATE, 0.1, horizon_seconds=900.0, cell=OmegaCell(nodes=100, fill=0.9)
        )
    )
    assert result.overcommitted == 0
    assert result.utilisation > 0.95
    assert result.figures["batch"].scheduled < result.figures["batch"].submitted
