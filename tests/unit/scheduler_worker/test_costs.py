"""What placing pods takes, as the worker tells it."""

import numpy as np
import pytest

from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.placement.costs import REPORTED_CLASSES, CostMeter
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.work import GangInHand


def told(meter):
    columns = meter.take_changed()
    return dict(zip(columns.classes.tolist(), columns.micros.tolist(), strict=True))


def test_a_class_costs_what_its_pods_took_and_not_what_its_first_took():
    meter = CostMeter()
    meter.placed(7, 1, 0.004, first=True)
    assert told(meter) == {}
    meter.placed(7, 100, 0.001, first=False)
    assert told(meter) == {7: pytest.approx(10.0)}
    assert meter.take_changed().first == pytest.approx(4000.0)


def test_a_class_is_told_once_for_each_time_it_changed():
    meter = CostMeter()
    meter.placed(7, 10, 0.001, first=False)
    assert list(told(meter)) == [7]
    assert told(meter) == {}


def test_no_more_classes_are_told_at_once_than_fit_a_heartbeat_and_none_is_left_out():
    meter = CostMeter()
    for number in range(REPORTED_CLASSES + 10):
        meter.placed(number, 1, 0.001, first=False)
    assert len(told(meter)) == REPORTED_CLASSES
    assert list(told(meter)) == list(range(REPORTED_CLASSES, REPORTED_CLASSES + 10))


def test_what_proposing_takes_is_part_of_every_pod_s_cost():
    meter = CostMeter()
    meter.placed(7, 100, 0.001, first=False)
    meter.overhead(0.0005, 100)
    assert told(meter) == {7: pytest.approx(15.0)}


def test_forgotten_classes_are_told_no_more():
    meter = CostMeter()
    meter.placed(7, 10, 0.001, first=False)
    meter.forget([7])
    assert told(meter) == {}
    assert meter.pods_in(1.0, 7) is None


class Clock:
    """Goes on by `step` seconds whenever it is read."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def slow_harness(make_ledger, harness_of):
    """A worker for which every call of the placer takes a second."""
    harness = harness_of(make_ledger(20))
    scheduler = Scheduler(
        NodeInfoCache(),
        default_profile(),
        np.random.default_rng(1),
        SchedulerLimits(step_seconds=0.1),
        Clock(1.0),
    )
    scheduler.cache.apply_feed(harness.ledger.snapshot())
    harness.scheduler = scheduler
    return harness


def test_a_step_places_no_more_than_its_time_allows(slow_harness, make_pod):
    """Else heartbeats wait for a long run of a slow class, and the worker is taken for dead."""
    pod = make_pod(cpu=10, memory=0)
    slow_harness.submit((pod, 1))
    slow_harness.place()
    slow_harness.submit((pod, 50))
    assert slow_harness.scheduler.step() == 50  # not measured yet but for its first pod
    slow_harness.scheduler.take_proposals(0.0)
    slow_harness.submit((pod, 50))
    assert slow_harness.scheduler.step() == 5


def test_given_back_are_the_last_pods_that_were_not_started(harness_of, make_ledger, make_pod):
    harness = harness_of(make_ledger(3), proposal_pods=10)
    first, second = harness.submit((make_pod(), 20)), harness.submit((make_pod(), 20))
    harness.scheduler.step()
    harness.scheduler.give_back({first, second}, 25)
    returned = {c.batch_id: sorted(c.positions.tolist()) for c in harness.scheduler.take_outcomes()}
    assert returned == {second: list(range(20)), first: list(range(15, 20))}
    assert harness.scheduler.backlog == 5


def test_pods_of_other_batches_are_kept(harness_of, make_ledger, make_pod):
    harness = harness_of(make_ledger(3))
    first, _ = harness.submit((make_pod(), 20)), harness.submit((make_pod(), 20))
    harness.scheduler.give_back({first}, 100)
    assert [c.batch_id for c in harness.scheduler.take_outcomes()] == [first]
    assert harness.scheduler.backlog == 20


def test_a_gang_that_was_not_started_is_given_back_whole(harness_of, make_ledger, make_pod):
    harness = harness_of(make_ledger(3))
    first = harness.submit((make_pod(100), 3), (make_pod(200), 2), gang=GangInHand("a", 5))
    last = harness.submit((make_pod(100), 3), (make_pod(200), 2), gang=GangInHand("b", 5))
    harness.scheduler.give_back({first, last}, 2)
    (returned,) = harness.scheduler.take_outcomes()
    assert (returned.batch_id, sorted(returned.positions.tolist())) == (last, list(range(5)))


def test_a_gang_under_way_is_not_given_back(harness_of, make_ledger, make_pod):
    harness = harness_of(make_ledger(3))
    gang = harness.submit((make_pod(), 5), gang=GangInHand("a", 5))
    (proposal,) = harness.place()
    harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, 3))
    assert harness.scheduler.backlog == 5
    harness.scheduler.give_back({gang}, 10)
    assert harness.scheduler.backlog == 5
    assert harness.scheduler.take_outcomes() == []
