"""Gangs in the dispatcher: queued, sent and returned as a whole until their minimum is bound."""

import numpy as np
import pytest

from dispatcher.api.intake import read_order
from dispatcher.core import messages as m
from dispatcher.core.changes import Changes, Room
from dispatcher.core.pods.sets import NewGang, NewJob, NewPods, Order
from dispatcher.core.pods.table import Phase
from hoss.errors import InvalidInput
from hoss.model.pod import PodSpec
from hoss.model.slices import finished
from hoss.v1 import dispatcher_pb2 as pb

BOUND, UNSCHEDULABLE, CONFLICT = m.OutcomeCode.BOUND, m.OutcomeCode.UNSCHEDULABLE, m.OutcomeCode.CONFLICT


@pytest.fixture
def gang_of(bench):
    """Admits a gang of jobs, (replicas, priority) each; returns its rows."""

    def admit(minimum, *jobs):
        templates = tuple(bench._template(PodSpec(priority=priority)) for _, priority in jobs)
        number = len(bench.machine.registry.directory.submissions)
        new = tuple(NewJob(f"g{number}-{i}", i, replicas, 0) for i, (replicas, _) in enumerate(jobs))
        gangs = (NewGang("default", f"g{number}", minimum),)
        submission = bench.accept(Order(f"gang-{number}", templates, new, None, gangs))
        bench.handle(m.Admitted(submission))
        return np.concatenate(
            [np.arange(s.first, s.first + s.count, dtype=np.uint32) for s in submission.sets]
        )

    return admit


def test_a_gang_of_several_jobs_leaves_in_one_batch_of_its_own(bench, gang_of):
    bench.job("before", 3)
    rows = gang_of(5, (3, 0), (4, 7))
    bench.job("after", 3)
    bench.join("w1")
    bench.pass_time(1.0)
    batches = [(len(work.uids), work.gang_minimum) for work in bench.sent["w1"]]
    assert batches == [(7, 5), (6, 0)]
    assert bench.all_are(rows, Phase.SCHEDULING)


def test_a_gang_waits_for_credit_for_all_of_it_and_is_not_overtaken_for_ever(bench, gang_of):
    bench.join("w1", window=10)
    bench.job("first", 8)
    rows = gang_of(6, (6, 0))
    bench.job("small", 2)
    assert bench.all_are(rows, Phase.QUEUED)
    bench.answer("w1", BOUND)
    while bench.sent["w1"] and not bench.sent["w1"][-1].gang_minimum:
        bench.answer("w1", BOUND)
    assert bench.all_are(rows, Phase.SCHEDULING)


def test_a_gang_larger_than_every_window_goes_to_a_worker_with_nothing_in_hand(bench, gang_of):
    bench.join("w1", window=4)
    rows = gang_of(9, (9, 0))
    assert bench.all_are(rows, Phase.SCHEDULING)


def test_a_gang_that_does_not_fit_is_tried_again_whole(bench, gang_of):
    bench.join("w1")
    gang_of(3, (2, 0), (2, 1))
    bench.answer("w1", UNSCHEDULABLE, reason="gang g0: 2 of the 3 pods it needs fit")
    bench.handle(m.ClusterChanged())
    bench.pass_time(2.0)
    (work,) = bench.sent["w1"]
    assert (len(work.uids), work.gang_minimum) == (4, 3)


def test_pods_of_a_gang_that_come_back_at_different_times_leave_together(bench, gang_of):
    bench.join("w1")
    gang_of(4, (4, 0))
    work = bench.sent["w1"].pop()
    bench.outcomes(work, [0, 1], m.OutcomeCode.RETURNED)
    assert not bench.sent["w1"]
    bench.outcomes(work, [2, 3], UNSCHEDULABLE, reason="full")
    assert not bench.sent["w1"]
    bench.handle(m.ClusterChanged())
    bench.pass_time(2.0)
    assert [len(work.uids) for work in bench.sent["w1"]] == [4]


@pytest.fixture
def large_and_small(bench):
    """Rows of a gang of two large and three small pods, with a worker; three of them are enough."""
    templates = tuple(bench._template(PodSpec(requests=(("cpu", cpu),))) for cpu in (2000, 100))
    jobs = (NewJob("large", 0, 2, 0), NewJob("small", 1, 3, 0))
    order = Order("gang", templates, jobs, None, (NewGang("default", "gang", 3),))
    bench.join("w1")
    return bench.admit_order(order)


FULL = {"reason": "full", "refused_by": ("NodeResourcesFit",)}


def test_a_change_that_helps_some_pods_of_a_gang_has_all_of_them_tried_again(bench, large_and_small):
    """Else those that it does not help keep the others waiting, until a change helps them or for five
    minutes."""
    bench.answer("w1", UNSCHEDULABLE, **FULL)
    bench.handle(room_for_a_small_pod())
    bench.pass_time(2.0)
    assert [(len(work.uids), work.gang_minimum) for work in bench.sent["w1"]] == [(5, 3)]


def test_so_it_is_if_the_view_of_the_worker_did_not_contain_the_change(bench, large_and_small):
    bench.handle(room_for_a_small_pod(seq=7))
    bench.answer("w1", UNSCHEDULABLE, seen=6, **FULL)
    bench.pass_time(2.0)
    assert [(len(work.uids), work.gang_minimum) for work in bench.sent["w1"]] == [(5, 3)]


def test_a_gang_some_of_whose_pods_the_resolver_refused_is_tried_again_whole(bench, large_and_small):
    work = bench.sent["w1"].pop()
    bench.outcomes(work, [0, 1], UNSCHEDULABLE, **FULL)
    bench.outcomes(work, [2, 3, 4], CONFLICT)
    bench.pass_time(2.0)
    assert [(len(work.uids), work.gang_minimum) for work in bench.sent["w1"]] == [(5, 3)]


def room_for_a_small_pod(seq=1):
    allocatable = np.array([[300], [10]], np.int64)
    room = Room(("cpu", "pods"), allocatable, np.zeros_like(allocatable), np.empty((0, 16), np.uint16))
    return m.ClusterChanged(Changes(rooms=(room,)), shard=0, seq=seq)


def test_once_its_minimum_is_bound_the_rest_are_ordinary_pods(bench, gang_of):
    bench.join("w1")
    rows = gang_of(3, (5, 0))
    work = bench.sent["w1"].pop()
    bench.outcomes(work, [0, 1, 2], BOUND)
    bench.outcomes(work, [3, 4], CONFLICT)
    assert bench.all_are(rows[:3], Phase.BOUND)
    assert [(len(work.uids), work.gang_minimum) for work in bench.sent["w1"]] == [(2, 0)]


def test_of_a_gang_larger_than_a_batch_the_rest_follows_when_the_minimum_is_bound(bench, gang_of):
    bench.join("w1")
    rows = gang_of(900, (1200, 0))
    assert [(len(work.uids), work.gang_minimum) for work in bench.sent["w1"]] == [(1000, 900)]
    bench.answer("w1", BOUND)
    assert bench.all_are(rows[:1000], Phase.BOUND)
    assert bench.all_are(rows[1000:], Phase.SCHEDULING)
    assert all(work.gang_minimum == 0 for work in bench.sent["w1"])


def test_invariant_5_a_part_of_a_gang_that_a_worker_bound_is_given_back_and_not_reported_as_bound(
    bench, gang_of
):
    bench.join("w1")
    rows = gang_of(4, (4, 0))
    work = bench.sent["w1"].pop()
    bench.outcomes(work, [0, 1, 2], BOUND, node=7)
    (release,) = bench.instructions(m.Release)
    assert release.rows.tolist() == rows[:3].tolist()
    assert not bench.instructions(m.Confirm)
    assert Phase.BOUND not in bench.phases(rows)
    bench.outcomes(work, [3], UNSCHEDULABLE, reason="full")
    bench.handle(m.Released(release.rows))
    bench.pass_time(2.0)
    assert [len(work.uids) for work in bench.sent["w1"]] == [4]


def test_what_a_dead_worker_reserved_of_a_gang_stands_if_it_is_enough_and_goes_back_if_not(bench, gang_of):
    link = bench.join("w1")
    enough, too_few = gang_of(2, (3, 0)), gang_of(3, (3, 0))
    bench.handle(m.LinkClosed(link))
    (fence,) = bench.instructions(m.Fence)
    reserved = np.array([1, 1, 0xFFFFFFFF, 1, 1, 0xFFFFFFFF], np.uint32)
    bench.handle(m.Fenced("w1", reserved, {0: np.array([5], np.uint64)}))
    assert bench.phases(enough) == [Phase.BOUND, Phase.BOUND, Phase.QUEUED]
    (release,) = bench.instructions(m.Release)
    assert release.rows.tolist() == too_few[:2].tolist()
    bench.handle(m.Released(release.rows))
    assert bench.all_are(too_few, Phase.QUEUED)
    assert len(fence.uids) == 6


def test_deletions_that_leave_fewer_than_the_minimum_make_the_gang_smaller(bench, gang_of):
    rows = gang_of(4, (4, 0))
    bench.handle(m.Deleted(rows[:1]))
    bench.join("w1")
    assert [(len(work.uids), work.gang_minimum) for work in bench.sent["w1"]] == [(3, 3)]


def test_a_deleted_pod_that_the_others_waited_for_sets_them_free(bench, gang_of):
    bench.join("w1")
    rows = gang_of(2, (3, 0))
    work = bench.sent["w1"].pop()
    bench.outcomes(work, [0], UNSCHEDULABLE, reason="full")
    bench.outcomes(work, [1, 2], m.OutcomeCode.RETURNED)
    bench.handle(m.Deleted(rows[:1]))
    assert [len(work.uids) for work in bench.sent["w1"]] == [2]


def test_a_gang_of_listed_pods(bench):
    bench.join("w1")
    template = bench._template(PodSpec())
    names, gangs = ("a", "b", "c"), np.array([1, 0, 1], np.uint32)
    pods = NewPods(names, np.zeros(3, np.uint32), None, gangs)
    order = Order("r", (template,), (), pods, (NewGang("default", "g", 2),))
    bench.handle(m.Admitted(bench.accept(order)))
    bench.pass_time(1.0)
    assert sorted((len(work.uids), work.gang_minimum) for work in bench.sent["w1"]) == [(1, 0), (2, 2)]


def test_a_starting_dispatcher_gives_back_half_a_gang_that_nobody_confirmed(bench, gang_of):
    template, gangs = bench._template(PodSpec()), (NewGang("default", "g", 4),)
    half = bench.accept(Order("r", (template,), (NewJob("j", 0, 4, 0),), None, gangs))
    rows = np.arange(4, dtype=np.uint32)
    bench.machine.restore_bound(rows[:2], np.array([1, 2], np.uint32))
    (release,) = finished(bench.machine.restore_gangs(rows[:2], bench.now))
    bench.handle(m.Admitted(half))
    assert release.rows.tolist() == [0, 1]
    bench.join("w1")
    assert "w1" not in bench.sent
    bench.handle(m.Released(release.rows))
    assert [len(work.uids) for work in bench.sent["w1"]] == [4]


@pytest.mark.parametrize(
    ("jobs", "gangs", "told"),
    [
        ([{"replicas": 3, "min_available": 4}], [], r"jobs\[0\].min_available: 4 is over its 3 replicas"),
        ([{"replicas": 5000, "min_available": 2000}], [], r"2000 is over its 1000 pods of a gang"),
        (
            [{"replicas": 3, "gang": 1}],
            [4],
            r"gangs\[0\].min_available: 4 is over the 3 pods of gang default/g",
        ),
        ([{"replicas": 3, "gang": 2}], [2], r"jobs\[0\].gang: 2 names no gang; there are 1"),
        ([{"replicas": 3, "gang": 1, "min_available": 2}], [2], "give one of them"),
        ([{"replicas": 3}], [0], r"gangs\[0\].min_available: 0 is not from 1 to 1000"),
        ([{"replicas": 3}], [1], "is over the 0 pods of gang default/g"),
    ],
)
def test_a_gang_that_can_never_be_is_refused_when_it_is_submitted(jobs, gangs, told):
    request = pb.SubmitRequest(
        templates=[pb.PodTemplate(spec={"namespace": "default"})],
        jobs=[pb.Job(name=f"j{i}", **job) for i, job in enumerate(jobs)],
        gangs=[pb.Gang(namespace="default", name="g", min_available=minimum) for minimum in gangs],
    )
    with pytest.raises(InvalidInput, match=told):
        read_order(request)
