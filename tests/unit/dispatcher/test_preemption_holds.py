"""Rebalancing before preemption: who waits for moves before it preempts, and for how long."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.bound.preemption_holds import (
    ASKS_NO_MORE_SECONDS,
    MOST_HOLDS,
    PREEMPTS_SECONDS,
    REPORT_LASTS_SECONDS,
    PreemptionHolds,
)
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from dispatcher.workers.preemption import PreemptionAnswers
from hoss.model.pod import PodSpec
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import U32, encode

NOW_MS = 1_700_000_000_000
CLASS = 7


@pytest.fixture
def holds():
    """A controller has just said, at 0, that pods up to priority 100 wait for 30 seconds."""
    found = PreemptionHolds()
    found.report(30.0, 100, 0, 0.0)
    return found


def asks(holds, now, *, class_id=CLASS, priority=10):
    return holds.holds(class_id, priority, now, NOW_MS + int(now * 1000))


def test_nobody_waits_where_no_controller_wants_it():
    holds = PreemptionHolds()
    assert not asks(holds, 0.0)
    holds.report(0.0, 100, 0, 0.0)
    assert not asks(holds, 0.0)
    assert len(holds) == 0


def test_more_urgent_pods_and_those_of_a_controller_that_fell_silent_do_not_wait(holds):
    assert not asks(holds, 0.0, priority=101)
    assert not asks(holds, REPORT_LASTS_SECONDS)
    assert len(holds) == 0


def test_a_class_waits_until_its_time_is_over_then_preempts_for_a_while_and_only_then_waits_again(holds):
    assert asks(holds, 1.0)
    holds.report(30.0, 100, 0, 30.9)
    assert asks(holds, 30.9)
    assert holds.ended(30.9) == []
    assert not asks(holds, 31.0)
    assert holds.ended(31.0) == [CLASS]
    assert holds.ended(31.1) == []
    assert not asks(holds, 40.0)
    after = 40.0 + PREEMPTS_SECONDS
    holds.report(30.0, 100, 0, after - 0.1)
    assert holds.ended(after - 0.1) == []
    assert len(holds) == 1
    assert holds.ended(after) == []
    assert len(holds) == 0
    assert asks(holds, after)


def test_pods_that_are_queued_for_long_after_a_hold_preempt_all_the_same(holds):
    asks(holds, 1.0)
    holds.report(30.0, 100, 0, 30.9)
    assert holds.ended(31.0) == [CLASS]
    late = 31.0 + 10 * PREEMPTS_SECONDS
    holds.report(30.0, 100, 0, late)
    assert holds.ended(late) == []
    assert not asks(holds, late)
    again = late + PREEMPTS_SECONDS - 1
    assert not asks(holds, again)
    assert holds.ended(late + PREEMPTS_SECONDS) == []
    assert len(holds) == 1
    assert holds.ended(again + PREEMPTS_SECONDS) == []
    assert len(holds) == 0


def test_nobody_waits_any_longer_for_a_controller_that_is_gone(holds):
    asks(holds, 1.0)
    holds.report(600.0, 100, 0, 2.0)
    assert holds.ended(2.0 + REPORT_LASTS_SECONDS - 0.1) == []
    assert holds.ended(2.0 + REPORT_LASTS_SECONDS) == [CLASS]
    assert not asks(holds, 2.0 + REPORT_LASTS_SECONDS)


def test_a_class_that_asks_before_the_end_of_its_hold_was_told_is_woken_all_the_same(holds):
    asks(holds, 1.0)
    assert not asks(holds, 31.0)
    assert holds.ended(31.1) == [CLASS]


def test_a_class_that_asks_no_more_is_forgotten(holds):
    asks(holds, 1.0)
    holds.ended(31.0)
    holds.ended(31.0 + ASKS_NO_MORE_SECONDS)
    assert len(holds) == 0


def test_a_hold_that_the_controller_has_looked_at_ends_and_later_ones_do_not(holds):
    asks(holds, 1.0)
    first = holds.going_on(2.0)[CLASS]
    asks(holds, 2.0, class_id=8)
    holds.report(30.0, 100, first, 3.0)
    assert holds.ended(3.0) == [CLASS]
    assert asks(holds, 3.0, class_id=8)


def test_all_holds_end_when_the_controller_can_move_nothing_more(holds):
    asks(holds, 1.0)
    holds.report(0.0, 100, 0, 3.0)
    assert not asks(holds, 3.0)
    assert holds.ended(3.0) == [CLASS]


def test_holds_have_numbers_of_their_own_also_those_of_one_moment(holds):
    asks(holds, 1.0, class_id=1)
    asks(holds, 1.0, class_id=2)
    assert holds.going_on(2.0) == {1: NOW_MS + 1000, 2: NOW_MS + 1001}
    assert holds.going_on(31.0) == {}


def test_there_are_only_so_many_holds_and_further_classes_preempt(holds):
    assert all(asks(holds, 1.0, class_id=number) for number in range(MOST_HOLDS))
    assert not asks(holds, 1.0, class_id=MOST_HOLDS)
    assert len(holds) == MOST_HOLDS
    first = min(holds.going_on(1.0).values())
    holds.report(30.0, 100, first, 2.0)
    assert len(holds.ended(2.0)) == 1
    assert asks(holds, 2.0, class_id=MOST_HOLDS)
    assert len(holds) == MOST_HOLDS


# --- the dispatcher ---


def question(uid, nodes=(3,)):
    return pb.PreemptionQuestion(
        id=5, priority=10, nodes=encode(np.array(nodes), U32), limit=100, uid=bytes(uid)
    )


@pytest.fixture
def answers(bench):
    """Answers of a dispatcher with a pod on node 3. A controller wants pods to wait."""
    bench.join("w1")
    bench.job("low", 1)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    runtime = Runtime(bench.machine, None, None, clock=lambda: bench.now)
    bench.machine.preemption_holds.report(30.0, 100, 0, bench.now)
    return PreemptionAnswers(runtime, ClusterNodes())


def test_pods_that_wait_for_moves_are_told_no_victims_and_are_tried_again_when_the_hold_is_over(
    bench, answers
):
    rows = bench.job("high", 2, spec=PodSpec(priority=10))
    uid = bench.machine.registry.pods.uid[rows[0]]
    told = answers.answer(question(uid), "w1").preemption
    assert (told.id, told.nodes_seen, told.uids) == (5, 1, b"")
    assert told.held == "waits for moves that may make room, for 30 s at most"
    # A controller that planned now would not find them: a worker has them.
    assert bench.machine.latest_hold(bench.now) == 0
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE)
    assert bench.machine.latest_hold(bench.now) > 0
    other = bench.job("other", 1, spec=PodSpec(priority=11))
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE)
    for _ in range(29):
        bench.pass_time(1.0)
        bench.machine.preemption_holds.report(30.0, 100, 0, bench.now)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    bench.pass_time(1.5)
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert bench.machine.latest_hold(bench.now) == 0
    assert bench.all_are(other, Phase.UNSCHEDULABLE)
    assert bench.machine.queues.incoming["active", "PreemptionAllowed"] == 2
    told = answers.answer(question(uid), "w1").preemption
    assert (told.held, len(told.uids)) == ("", 16)
    assert bench.machine.table_sizes()["preemption_holds"] == 1
    bench.pass_time(PREEMPTS_SECONDS + 1)
    assert bench.machine.table_sizes()["preemption_holds"] == 0


def test_pods_whose_answer_comes_after_the_end_of_their_hold_do_not_wait_for_the_next_change(bench, answers):
    rows = bench.job("high", 2, spec=PodSpec(priority=10))
    assert answers.answer(question(bench.machine.registry.pods.uid[rows[0]]), "w1").preemption.held
    bench.machine.preemption_holds.report(0.0, 100, 0, bench.now)
    bench.pass_time(0.2)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE)
    assert bench.all_are(rows, Phase.BACKOFF)


def test_a_hold_is_looked_at_when_all_pods_of_its_class_are_back_and_no_later_one_before_it(bench, answers):
    uid = bench.machine.registry.pods.uid
    first = bench.job("first", 2, spec=PodSpec(priority=10))
    assert answers.answer(question(uid[first[0]]), "w1").preemption.held
    later = bench.job("later", 1, spec=PodSpec(priority=11))
    assert answers.answer(question(uid[later[0]]), "w1").preemption.held
    numbers = sorted(bench.machine.preemption_holds.going_on(bench.now).values())
    pods = bench.machine.registry.pods
    before = pods.phase.copy()
    pods.phase[[first[0], later[0]]] = Phase.UNSCHEDULABLE
    assert bench.machine.latest_hold(bench.now) == 0
    pods.phase[first] = Phase.UNSCHEDULABLE
    assert bench.machine.latest_hold(bench.now) == numbers[1]
    pods.phase[later] = Phase.SCHEDULING
    assert bench.machine.latest_hold(bench.now) == numbers[0]
    pods.phase[:] = before


def test_a_worker_that_does_not_say_which_pod_asks_and_one_whose_pod_is_gone_get_victims(bench, answers):
    for uid in (b"", bytes(range(16))):
        assert len(answers.answer(question(uid), "w1").preemption.uids) == 16
