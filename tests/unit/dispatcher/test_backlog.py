"""Waiting pods cost nothing: sending a pod takes as many operations behind a short queue as behind a long
one."""

import sys

import numpy as np
import pytest

from dispatcher.core import machine as machine_module
from dispatcher.core import messages as m
from dispatcher.core.pods.sets import NewGang, NewJob, Order
from hoss.model.pod import PodSpec

BOUND = m.OutcomeCode.BOUND


def operations(action):
    """How many functions it calls, Python's and C's, generators' steps included."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def admit_gang(bench, number):
    template, gang = bench._template(PodSpec()), NewGang("default", f"g{number}", 4)
    return bench.admit_order(
        Order(f"gang-{number}", (template,), (NewJob(f"g{number}", 0, 4, 0),), None, (gang,))
    )


def a_worker_and_this_many_waiting(bench, gangs, jobs):
    bench.join("w1", window=8)
    for number in range(gangs):
        admit_gang(bench, number)
    for number in range(jobs):
        bench.job(f"waits-{number}", 4)


def operations_of_ten_seconds(bench):
    """Batches are answered, what was bound is over and forgotten, and what is new joins the queue."""

    def ten_seconds():
        for _ in range(10):
            work = bench.answer("w1", BOUND, node=1)
            rows = bench.machine.registry.directory.rows_of_uids(work.uids)
            bench.handle(m.Deleted(rows))
            bench.handle(m.Released(rows))
            bench.pass_time(1.0)

    forgotten = len(bench.instructions(m.Forget))
    counted = operations(ten_seconds)
    assert len(bench.instructions(m.Forget)) >= forgotten + 10
    return counted


@pytest.mark.parametrize("kind", ["gangs", "jobs"])
def test_pods_are_sent_and_forgotten_in_as_many_operations_however_many_wait(new_bench, kind):
    def counted(waiting):
        bench = new_bench()
        a_worker_and_this_many_waiting(bench, **{"gangs": 0, "jobs": 0, kind: waiting})
        return operations_of_ten_seconds(bench)

    assert counted(600) < 1.05 * counted(60)


def test_a_gang_that_must_wait_is_passed_over_in_as_many_operations_however_many_wait_behind_it(new_bench):
    def counted(waiting):
        bench = new_bench()
        a_worker_and_this_many_waiting(bench, gangs=waiting, jobs=0)
        return operations(bench.pump)

    assert counted(600) == counted(60)


def test_pods_deleted_while_they_wait_are_swept_out_the_rarer_the_more_wait(bench, monkeypatch):
    monkeypatch.setattr(machine_module, "SWEEP_SECONDS_PER_ENTRY", 0.1)
    jobs = [bench.job(f"waits-{number}", 2) for number in range(50)]
    bench.pass_time(1.0)
    forgotten = []
    for rows in jobs[:12]:
        bench.handle(m.Deleted(rows))
        bench.pass_time(1.0)
        forgotten.append(len(bench.instructions(m.Forget)))
    # 50 entries keep the next sweep off for 5 seconds, the 49 to 44 that are left then for 4.9 to 4.4.
    assert forgotten == [1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 11, 11]


def test_nothing_is_swept_where_no_pod_was_deleted_while_it_waited(bench, monkeypatch):
    bench.join("w1", window=8)
    bench.job("ends", 4)
    bench.job("waits", 100)
    swept = []
    monkeypatch.setattr(bench.machine.queues, "sweep", lambda: swept.append(True) or 0)
    work = bench.answer("w1", BOUND, node=1)
    rows = bench.machine.registry.directory.rows_of_uids(work.uids)
    bench.handle(m.Deleted(rows))
    bench.handle(m.Released(rows))
    bench.pass_time(2.0)
    assert (len(bench.instructions(m.Forget)), swept) == (1, [])


def test_a_pod_assigned_by_others_while_it_waited_is_swept_out_before_its_row_is_anothers(bench):
    rows = bench.job("waits", 3)
    bench.handle(m.Assigned(rows, np.full(3, 7, np.uint32)))
    bench.handle(m.Deleted(rows))
    bench.handle(m.Released(rows))
    bench.pass_time(2.0)
    assert len(bench.instructions(m.Forget)) == 1
    assert bench.machine.queues.all_rows().tolist() == []
