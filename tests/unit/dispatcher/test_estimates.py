"""Estimates of how long pods take a worker, from measurements."""

import numpy as np
import pytest

from dispatcher.core.dispatch.estimates import DEFAULT_MICROS, Estimates
from dispatcher.core.workers.membership import Batch, Worker
from dispatcher.core.workers.reports import REMEMBERED_CLASSES, ClassCosts, CostReport, Heartbeat


def report(**micros):
    """k7=3.0: a pod of class 7 takes 3 microseconds."""
    classes = np.array([int(name[1:]) for name in micros], np.uint32)
    return CostReport(classes, np.array(list(micros.values()), np.float64))


def ids(*classes):
    return np.array(classes, np.uint32)


def batch(serial, classes, counts, new_classes=0):
    rows = np.arange(sum(counts), dtype=np.uint32)
    return Batch(serial, rows, len(rows), 0, ids(*classes), ids(*counts), new_classes)


@pytest.fixture
def estimates():
    return Estimates()


def test_an_unmeasured_class_takes_what_the_workers_pods_take_on_the_whole(estimates):
    fresh, seasoned = Worker("w1", 0), Worker("w2", 1, heartbeat=Heartbeat(seen_micros=70.0))
    assert estimates.per_pod(fresh, ids(1)).tolist() == [DEFAULT_MICROS]
    assert estimates.per_pod(seasoned, ids(1)).tolist() == [70.0]


def test_a_worker_s_own_measure_comes_before_that_of_others(estimates):
    slow, quick, new = Worker("slow", 0), Worker("quick", 1), Worker("new", 2)
    estimates.learn(slow, report(c1=900.0))
    estimates.learn(quick, report(c1=100.0, c2=5.0))
    assert estimates.per_pod(slow, ids(2, 1)).tolist() == [5.0, 900.0]
    assert estimates.per_pod(quick, ids(1)).tolist() == [100.0]
    assert 100.0 < estimates.per_pod(new, ids(1))[0] < 900.0


def test_classes_new_to_the_worker_cost_what_its_first_pods_take_more(estimates):
    worker = Worker("w", 0, heartbeat=Heartbeat(first_micros=50.0))
    estimates.learn(worker, report(c1=2.0, c2=3.0))
    assert estimates.price(worker, ids(1, 2), ids(100, 10), new_classes=2) == 200 + 30 + 100


def test_outstanding_work_is_priced_anew_when_costs_are_reported(estimates):
    worker = Worker("w", 0)
    sent = batch(1, (1,), (100,))
    sent.micros = estimates.price(worker, sent.classes, sent.counts, 0)
    worker.add_batch(sent)
    worker.answered(sent, 40)
    assert worker.work_micros == pytest.approx(60 * DEFAULT_MICROS)
    estimates.learn(worker, report(c1=1000.0))
    assert worker.work_micros == pytest.approx(60_000.0)


def test_nothing_in_hand_is_no_work(estimates):
    worker = Worker("w", 0)
    for serial in range(3):
        sent = batch(serial, (1, 2), (30, 41))
        sent.micros = 0.1 + serial
        worker.add_batch(sent)
    for sent in list(worker.batches.values()):
        worker.answered(sent, 30)
        worker.answered(sent, 41)
    assert (worker.work_micros, worker.outstanding, worker.batches) == (0.0, 0, {})


def test_of_many_classes_the_latest_are_remembered():
    costs = ClassCosts()
    for start in range(0, 3 * REMEMBERED_CLASSES, 256):
        classes = np.arange(start, start + 256, dtype=np.uint32)
        costs.learn(CostReport(classes, classes + 0.5))
    assert len(costs.classes) == REMEMBERED_CLASSES
    assert costs.of(ids(3 * REMEMBERED_CLASSES - 1)).tolist() == [3 * REMEMBERED_CLASSES - 0.5]
    assert np.isnan(costs.of(ids(0))).all()


def test_a_new_figure_moves_the_old_one_by_its_weight():
    costs = ClassCosts()
    costs.learn(report(c5=10.0))
    costs.learn(report(c5=20.0, c4=1.0), weight=0.3)
    assert costs.of(ids(4, 5)).tolist() == [1.0, 13.0]
