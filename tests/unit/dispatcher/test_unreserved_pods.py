"""Pods that the ledger has reserved, and that their worker could not prepare (pre-bind)."""

import pytest

from dispatcher.core import messages as m
from dispatcher.core.pods.sets import NewGang, NewJob, Order
from dispatcher.core.pods.table import Phase
from dispatcher.core.queue.queues import PATIENT_ATTEMPTS
from hoss.model.pod import PodSpec

BOUND, UNRESERVED = m.OutcomeCode.BOUND, m.OutcomeCode.UNRESERVED


def text_of(bench, row):
    registry = bench.machine.registry
    return registry.reasons.texts[registry.pods.reason[row]]


def released(bench):
    """The ledger answers the latest release."""
    release = bench.instructions(m.Release)[-1]
    bench.handle(m.Released(release.rows, release.unreserved))
    return release


def test_such_a_pod_gives_back_its_room_with_the_reason_and_is_queued_once_that_is_done(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.answer("w1", UNRESERVED, node=7, reason="no licence is free")
    assert bench.phases(rows) == [Phase.BACKOFF]
    assert text_of(bench, rows[0]) == "no licence is free"
    assert bench.in_hand("w1") == 0, "nobody places it while it has a reservation"
    release = released(bench)
    assert (release.rows.tolist(), release.nodes.tolist()) == (rows.tolist(), [7])
    assert bench.in_hand("w1") == 1
    assert bench.instructions(m.Confirm) == []


def test_those_of_the_same_commit_are_bound_and_confirmed_after_the_release(bench):
    """A dispatcher that dies in between leaves a reservation that is not confirmed, and its successor gives
    that back."""
    bench.join("w1")
    rows = bench.job("job", 3)
    work = bench.sent["w1"].pop(0)
    bench.outcomes(work, range(3), [BOUND, UNRESERVED, BOUND], node=7)
    assert bench.phases(rows) == [Phase.BOUND, Phase.BACKOFF, Phase.BOUND]
    assert bench.instructions(m.Confirm) == []
    [release] = bench.instructions(m.Release)
    assert release.confirm is not None
    assert release.confirm.rows.tolist() == [rows[0], rows[2]]
    assert list(release.confirm.commits) == [0]


def test_after_a_few_times_it_backs_off(bench):
    bench.join("w1")
    rows = bench.pods("p")
    for _ in range(PATIENT_ATTEMPTS):
        bench.answer("w1", UNRESERVED, node=7, reason="no licence is free")
        released(bench)
    bench.answer("w1", UNRESERVED, node=7, reason="no licence is free")
    released(bench)
    assert bench.in_hand("w1") == 0
    assert bench.phases(rows) == [Phase.BACKOFF]
    bench.pass_time(10.1)
    assert bench.in_hand("w1") == 1


def test_a_gang_backs_off_as_a_whole(bench):
    bench.join("w1")
    order = Order(
        "gang",
        (bench._template(PodSpec()),),
        (NewJob("trio", 0, 3, gang=0),),
        None,
        (NewGang("default", "trio", 3),),
    )
    rows = bench.admit_order(order)
    for _ in range(PATIENT_ATTEMPTS + 1):
        assert bench.in_hand("w1") == 3
        bench.answer("w1", UNRESERVED, node=7, reason="no licence is free (the gang needs it)")
        released(bench)
    assert bench.in_hand("w1") == 0
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.pass_time(10.1)
    assert bench.in_hand("w1") == 3


def test_one_that_was_deleted_meanwhile_is_released_and_stays_deleted(bench):
    bench.join("w1")
    rows = bench.pods("p")
    bench.handle(m.Deleted(rows))
    bench.answer("w1", UNRESERVED, node=7)
    assert bench.phases(rows) == [Phase.DELETED]
    released(bench)
    assert bench.phases(rows) == [Phase.DELETED]
    assert bench.in_hand("w1") == 0


@pytest.mark.parametrize("late", [BOUND, UNRESERVED])
def test_a_second_answer_counts_no_more(bench, late):
    bench.join("w1")
    rows = bench.pods("p")
    work = bench.answer("w1", UNRESERVED, node=7)
    bench.outcomes(work, [0], late, node=7)
    assert bench.phases(rows) == [Phase.BACKOFF]
    assert len(bench.instructions(m.Release)) == 1
    assert bench.machine.counters["ignored_outcomes"] == 1
