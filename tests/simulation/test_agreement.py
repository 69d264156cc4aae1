"""The simulator put beside measured runs."""

import pytest

from hossctl.choices import Mode
from hossctl.compare.document import (
    Cell,
    Comparison,
    ComparisonRun,
    DecisionTimes,
    Latency,
    MachineInfo,
    ServiceFigures,
)
from hossctl.simulate.agreement import AgreementFigure, Beside, Check
from hossctl.simulate.measured import ServiceTimes

MACHINE = MachineInfo(cpu="c", cores=2, memory_mib=1, system="s", python="3", versions={})
SERVICES = {"dispatcher": 2.0, "workers": 4.0, "resolvers": 1.0, "redis": 3.0}  # microseconds a pod


def a_run(
    mode=Mode.HOSS,
    workers=4,
    *,
    pods=18_816,
    pods_per_second=6500.0,
    conflicts=20,
    committing_ms=7.5,
    micros=None,
    **fields,
):
    cell = Cell(
        mode=mode,
        load=fields.pop("load", "uniform"),
        workers=workers,
        nodes=300,
        fill=0.98,
        decision=DecisionTimes(job_ms=10, task_ms=0.5),
    )
    services = {
        name: ServiceFigures(cpu_seconds=used * pods / 1e6, peak_mib=1)
        for name, used in {**SERVICES, **(micros or {})}.items()
    }
    return ComparisonRun.model_construct(
        cell=cell,
        complete=fields.pop("complete", True),
        pods=pods,
        bound=pods,
        pods_per_second=pods_per_second,
        proposals=pods,
        conflicts=conflicts,
        latency={"committing": Latency(p50=committing_ms, p99=0, p999=0)},
        services=services,
        **fields,
    )


def checked(*runs, seeds=2):
    return Check(Comparison.model_construct(machine=MACHINE, runs=list(runs)), seeds)


@pytest.mark.parametrize(
    ("measured", "simulated", "said"),
    [
        ([100.0], 119.0, "agrees"),
        ([100.0], 121.0, "apart"),
        ([80.0, 100.0, 120.0], 119.0, "agrees"),  # their mean is known to 11.5
        ([80.0, 100.0, 120.0], 143.0, "unclear"),
        ([80.0, 100.0, 120.0], 144.0, "apart"),
        ([99.0, 100.0, 101.0], 122.0, "apart"),
        ([0.004], 0.001, "agrees"),  # both as good as nothing
        ([0.004], 0.006, "apart"),
        ([0.006], 0.004, "apart"),
        ([0.0], 0.004, "agrees"),
    ],
)
def test_figures_agree_within_a_fifth_of_the_mean_and_are_unclear_where_that_is_not_known_well(
    measured, simulated, said
):
    figure = AgreementFigure(measured, simulated, negligible=0.005)
    assert (figure.agrees, figure.unclear) == (said == "agrees", said == "unclear")


def test_a_cell_is_unclear_if_nothing_worse_keeps_it_from_agreeing():
    good, unclear, apart = (
        AgreementFigure([100.0], 100.0),
        AgreementFigure([80.0, 120.0], 130.0),
        AgreementFigure([100.0], 200.0),
    )
    cell = a_run().cell

    def said(*figures):
        beside = Beside(cell, 1, *figures)
        return beside.agrees, beside.unclear

    assert said(good, good) == (True, False)
    assert said(good, unclear) == said(unclear, unclear) == (False, True)
    assert said(unclear, apart) == said(good, apart) == (False, False)


def test_what_each_worker_adds_to_the_cost_of_a_pod_is_told_by_runs_with_several_numbers_of_workers():
    runs = [a_run(workers=workers, micros={"workers": 2.0 + 0.8 * workers}) for workers in (1, 2, 8)]
    times = checked(*runs).times
    assert (times.worker, times.feed) == pytest.approx((2.0, 0.8))
    assert (times.resolver, times.follower) == pytest.approx((1.0, 0.0))
    assert (times.dispatcher, times.ledger) == pytest.approx((2.0, 3.0))


def test_of_runs_with_one_number_of_workers_it_is_assumed():
    times = checked(a_run(workers=4), a_run(workers=4)).times
    # Of the workers' 4 us 0.3 for each worker that hears of the pod, of the resolvers' 0.1.
    assert (times.worker, times.feed) == pytest.approx((4.0 - 4 * 0.3, 0.3))
    assert (times.resolver, times.follower) == pytest.approx((1.0 - 4 * 0.1, 0.1))


def test_messages_take_what_a_commit_takes_besides_the_services_in_runs_that_do_not_wait_for_one_another():
    # A proposal of 1,000 pods takes the resolver 0.6 ms without what it tells the four workers, and the
    # ledger 3 ms.
    assert checked(a_run(), a_run(committing_ms=9.0)).times.hop_seconds == pytest.approx(
        (8.25 - 3.6) / 2 / 1000
    )
    assert checked(a_run(committing_ms=1.0)).times.hop_seconds == ServiceTimes().hop_seconds


def test_other_modes_and_loads_and_interrupted_runs_are_counted_and_not_played():
    runs = a_run(), a_run(Mode.LOCKED), a_run(load="gangs"), a_run(complete=False)
    check = checked(*runs)
    assert (len(check.cells), check.not_played) == (1, 3)


def test_slow_schedulers_on_full_nodes_are_simulated_as_fast_as_they_can_be_and_with_conflicts():
    one, four = checked(a_run(Mode.SINGLE, 1, pods_per_second=1920, conflicts=0), a_run()).beside()
    assert one.pods_per_second.simulated == pytest.approx(1920, rel=0.05)
    assert (one.conflict_share.simulated, one.agrees) == (0, True)
    assert four.pods_per_second.simulated > 3 * one.pods_per_second.simulated
    assert four.conflict_share.simulated > 0.005
