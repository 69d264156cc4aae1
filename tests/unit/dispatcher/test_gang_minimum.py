"""Gangs whose pods are created one by one, as in a cluster: they wait for the minimum, and then for no other
pod."""

from itertools import count

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.pods.sets import NO_RULE, GangRule, NewGang, NewPods, Order
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Match, Rule, Selector
from hoss.model.pod import PodSpec
from hoss.model.slices import finished

BOUND, UNSCHEDULABLE, RETURNED = m.OutcomeCode.BOUND, m.OutcomeCode.UNSCHEDULABLE, m.OutcomeCode.RETURNED
NOWHERE = 0xFFFFFFFF


@pytest.fixture
def accept(bench):
    """Gives rows to pods of a gang, which come in a message of their own."""
    numbers = count()

    def accept(*names, minimum=3, gates=(), spec=None, rule=NO_RULE):
        template = bench._template(spec or PodSpec(), gates=gates)
        pods = NewPods(names, np.zeros(len(names), np.uint32), None, np.ones(len(names), np.uint32))
        gang = NewGang("default", "train", minimum, "default/train", rule)
        return bench.accept(Order(f"arrival-{next(numbers)}", (template,), (), pods, (gang,)))

    return accept


@pytest.fixture
def arrive(bench, accept):
    """These pods of the gang come together; returns their rows."""

    def arrive(*names, **options):
        submission = accept(*names, **options)
        bench.handle(m.Admitted(submission))
        (pods,) = submission.sets
        return np.arange(pods.first, pods.first + pods.count, dtype=np.uint32)

    return arrive


def why(bench, rows):
    """Texts, and the plugins behind them."""
    reasons = bench.machine.registry.reasons
    numbers = set(bench.machine.registry.pods.reason[rows].tolist())
    return {(reasons.texts[number], *reasons.refused_by[number]) for number in numbers}


def there(pods, needed=3):
    return {(f"gang train: {pods} of the {needed} pods it needs are there", "GangScheduling")}


def sent(bench, worker="w1"):
    """(pods, minimum) of the batches that are with a worker."""
    return [(len(work.uids), work.gang_minimum) for work in bench.sent.get(worker, [])]


def test_pods_of_a_gang_wait_with_a_reason_until_the_minimum_is_there_and_leave_together(bench, arrive):
    bench.join("w1")
    first = arrive("a")
    bench.pass_time(0.1)
    assert (bench.phases(first), why(bench, first)) == ([Phase.UNSCHEDULABLE], there(1))
    revision = bench.machine.log.revision
    second = np.append(first, arrive("b"))
    bench.pass_time(0.1)
    assert bench.all_are(second, Phase.UNSCHEDULABLE)
    assert why(bench, second) == there(2)
    told = np.concatenate([batch.uids for batch in bench.machine.log.since(revision)])
    assert len(told) == 2, "of both it is known"
    bench.pass_time(400.0)
    assert not sent(bench), "time does not help"
    arrive("c", "d")
    bench.pass_time(0.1)
    assert sent(bench) == [(4, 3)]
    assert why(bench, second) == {("",)}


def test_a_gang_of_which_enough_come_at_once_waits_for_nothing(bench, arrive):
    bench.join("w1")
    arrive("a", "b", "c")
    assert sent(bench) == [(3, 3)]


def test_what_comes_later_and_what_comes_in_the_place_of_others_is_placed_by_itself(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c")
    bench.answer("w1", BOUND)
    assert bench.all_are(rows, Phase.BOUND)
    arrive("d")
    assert sent(bench) == [(1, 0)]
    bench.answer("w1", BOUND)
    bench.handle(m.Deleted(rows))
    arrive("e")
    assert sent(bench) == [(1, 0)]


def test_when_all_of_a_gang_are_gone_the_next_pods_are_another_gang(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c")
    bench.answer("w1", BOUND)
    bench.handle(m.Deleted(rows))
    again = arrive("d", "e")
    bench.pass_time(0.1)
    assert (sent(bench), why(bench, again)) == ([], there(2))


def test_a_gang_that_loses_a_pod_while_it_waits_is_not_made_smaller(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b")
    bench.pass_time(0.1)
    bench.handle(m.Deleted(rows[:1]))
    bench.pass_time(0.1)
    assert why(bench, rows[1:]) == there(1)
    arrive("c")
    bench.pass_time(0.1)
    assert not sent(bench)
    arrive("d")
    bench.pass_time(0.1)
    assert sent(bench) == [(3, 3)]


def test_a_gang_that_loses_a_pod_while_it_is_queued_is_not_sent(bench, arrive):
    rows = arrive("a", "b", "c")
    bench.handle(m.Deleted(rows[:1]))
    bench.join("w1")
    bench.pass_time(0.1)
    assert (sent(bench), why(bench, rows[1:])) == ([], there(2))
    arrive("d")
    bench.pass_time(0.1)
    assert sent(bench) == [(3, 3)]


def test_pods_that_come_while_a_gang_is_queued_are_found_when_all_the_others_have_gone(bench, arrive):
    rows = arrive("a", "b", "c")
    late = arrive("d")
    bench.handle(m.Deleted(rows))
    bench.pass_time(2.0)
    bench.pass_time(0.1)
    assert why(bench, late) == there(1)
    bench.join("w1")
    arrive("e", "f")
    bench.pass_time(0.1)
    assert sent(bench) == [(3, 3)]


def test_pods_that_come_while_a_gang_is_queued_go_where_a_new_policy_sends_it(bench, arrive):
    arrive("a", "b", "c")
    arrive("d")
    bench.set_policy(Rule("all", Match(), Selector(())))
    bench.pass_time(0.1)
    bench.join("w1")
    assert sent(bench) == [(4, 3)]


def test_a_new_policy_loses_nobody_who_came_while_a_gang_was_queued_of_which_the_others_have_gone(
    bench, arrive
):
    rows = arrive("a", "b", "c")
    arrive("d", "e", "f")
    bench.handle(m.Deleted(rows))
    bench.set_policy(Rule("all", Match(), Selector(())))
    bench.pass_time(0.1)
    bench.join("w1")
    assert sent(bench) == [(3, 3)]


def test_a_pod_that_comes_while_the_others_are_with_a_worker_follows_them(bench, arrive):
    bench.join("w1")
    arrive("a", "b", "c")
    arrive("d")
    bench.pass_time(0.1)
    assert sent(bench) == [(3, 3)]
    bench.answer("w1", BOUND)
    assert sent(bench) == [(1, 0)]


def test_pods_that_did_not_fit_are_tried_again_with_one_that_comes(bench, arrive):
    bench.join("w1")
    arrive("a", "b", "c")
    bench.answer(
        "w1",
        UNSCHEDULABLE,
        reason="gang train: 2 of the 3 pods it needs fit",
        refused_by=("NodeResourcesFit",),
    )
    arrive("d", spec=PodSpec(requests=(("cpu", 1),)))
    bench.pass_time(1.1)
    assert sent(bench) == [(4, 3)]


def test_pods_that_did_not_fit_are_tried_again_with_one_that_came_while_they_were_with_a_worker(
    bench, arrive
):
    bench.join("w1")
    arrive("a", "b", "c")
    arrive("d")
    bench.answer(
        "w1",
        UNSCHEDULABLE,
        reason="gang train: 2 of the 3 pods it needs fit",
        refused_by=("NodeResourcesFit",),
    )
    bench.pass_time(1.1)
    assert sent(bench) == [(4, 3)]
    bench.answer(
        "w1",
        UNSCHEDULABLE,
        reason="gang train: 2 of the 3 pods it needs fit",
        refused_by=("NodeResourcesFit",),
    )
    bench.pass_time(5)
    assert sent(bench) == [], "nobody has come since"


def test_a_pod_with_gates_is_not_there_and_keeps_nobody_waiting(bench, arrive):
    bench.join("w1")
    gated = arrive("gated", minimum=2, gates=("wait",))
    rows = arrive("a", minimum=2)
    bench.pass_time(0.1)
    assert why(bench, rows) == there(1, needed=2)
    arrive("b", minimum=2)
    bench.pass_time(0.1)
    assert sent(bench) == [(2, 2)]
    bench.handle(m.GatesRemoved(gated, frozenset({"wait"})))
    bench.answer("w1", BOUND)
    assert sent(bench) == [(1, 0)]


def test_a_gang_that_waits_for_the_gate_of_one_of_its_pods_goes_when_it_is_removed(bench, arrive):
    bench.join("w1")
    gated = arrive("gated", gates=("wait",))
    arrive("a", "b")
    bench.pass_time(0.1)
    bench.handle(m.GatesRemoved(gated, frozenset({"wait"})))
    bench.pass_time(0.1)
    assert sent(bench) == [(3, 3)]


def test_pods_that_did_not_fit_are_tried_again_with_one_whose_gate_is_removed(bench, arrive):
    bench.join("w1")
    gated = arrive("gated", gates=("wait",))
    arrive("a", "b", "c")
    bench.pass_time(0.1)
    bench.answer(
        "w1",
        UNSCHEDULABLE,
        reason="gang train: 2 of the 3 pods it needs fit",
        refused_by=("NodeResourcesFit",),
    )
    bench.handle(m.GatesRemoved(gated, frozenset({"wait"})))
    bench.pass_time(1.1)
    assert sent(bench) == [(4, 3)]


def test_of_different_minimums_the_largest_counts(bench, arrive):
    bench.join("w1")
    arrive("a", "b", minimum=3)
    arrive("c", minimum=4)
    arrive("d", minimum=2)
    bench.pass_time(0.1)
    assert sent(bench) == [(4, 4)]


def test_what_is_reserved_of_a_gang_that_lost_a_pod_meanwhile_is_given_back(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c")
    bench.handle(m.Deleted(rows[:1]))
    bench.answer("w1", BOUND, node=7)
    assert (
        sorted(row for release in bench.instructions(m.Release) for row in release.rows.tolist())
        == rows.tolist()
    )
    assert Phase.BOUND not in bench.phases(rows)
    bench.handle(m.Released(rows))
    bench.pass_time(0.1)
    assert why(bench, rows[1:]) == there(2)


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits", "while it is queued"])
def test_a_gang_of_which_somebody_else_has_bound_a_pod_has_begun(bench, arrive, waits):
    rows = arrive("a", "b") if waits else arrive("a", "b", "c")
    late = arrive("late") if not waits else rows[:0]
    bench.pass_time(0.1)
    bench.handle(m.Assigned(rows[:1], np.array([7], np.uint32)))
    bench.join("w1", window=2)
    bench.pass_time(0.1)
    bench.machine.check()
    assert {minimum for _, minimum in sent(bench)} == {0}
    bench.answer("w1", BOUND)
    assert Phase.QUEUED not in bench.phases(np.append(rows, late))


def test_a_dispatcher_that_starts_gives_back_a_part_that_nobody_confirmed_and_waits_for_the_rest(
    bench, accept
):
    parts = [accept("a", "b"), accept("c")]
    rows = np.arange(3, dtype=np.uint32)
    bench.machine.restore_bound(rows[:2], np.array([1, 2], np.uint32))
    (release,) = finished(bench.machine.restore_gangs(rows[:2], bench.now))
    assert release.rows.tolist() == [0, 1]
    for part in parts:
        bench.handle(m.Admitted(part))
    bench.join("w1")
    assert not sent(bench)
    bench.handle(m.Released(release.rows))
    bench.pass_time(0.1)
    assert sent(bench) == [(3, 3)]


def test_a_dispatcher_that_starts_takes_a_gang_that_is_confirmed_as_begun(bench, accept):
    parts = [accept("a"), accept("b")]
    bench.machine.restore_bound(np.array([0], np.uint32), np.array([1], np.uint32))
    assert not finished(bench.machine.restore_gangs(np.empty(0, np.uint32), bench.now))
    for part in parts:
        bench.handle(m.Admitted(part))
    bench.join("w1")
    assert sent(bench) == [(1, 0)]


def test_a_pod_of_a_gang_that_has_begun_waits_ever_longer_when_its_binding_is_refused(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c")
    bench.answer("w1", BOUND, node=7)
    for _ in range(4):
        bench.handle(m.BindingRefused(rows[:1], ("a webhook says no",)))
        bench.handle(m.Released(rows[:1]))
        if bench.phases(rows[:1]) == [Phase.SCHEDULING]:
            bench.answer("w1", BOUND, node=7)
    assert bench.phases(rows) == [Phase.BACKOFF, Phase.BOUND, Phase.BOUND]


def test_a_gang_is_forgotten_with_the_last_of_its_pods(bench, arrive):
    rows = [arrive("a"), arrive("b")]
    bench.pass_time(0.1)
    for part, left in zip(rows, (1, 0), strict=True):
        bench.handle(m.Deleted(part))
        bench.pass_time(2.0)
        assert [len(gang.rows) for gang in bench.machine.registry.gangs] == [left] * left


MISSING = GangRule(missing="PodGroup default/train does not exist")


def ruled(bench, rule):
    """The PodGroup says this now."""
    bench.handle(m.GangRulesChanged({"default/train": rule}))
    bench.pass_time(0.1)


def test_a_gang_whose_pod_group_does_not_exist_waits_whatever_comes_and_starts_when_it_does(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c", minimum=0, rule=MISSING)
    bench.pass_time(0.1)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    said = {("gang train: PodGroup default/train does not exist", "GangScheduling")}
    assert why(bench, rows) == said
    bench.pass_time(400.0)
    assert not sent(bench), "time does not help"
    ruled(bench, GangRule(4))
    assert (sent(bench), why(bench, rows)) == ([], there(3, needed=4))
    ruled(bench, MISSING)
    assert why(bench, rows) == said, "it was deleted"
    arrive("d", minimum=0, rule=MISSING)
    bench.pass_time(0.1)
    assert (sent(bench), why(bench, rows)) == ([], said), "four are there, as it last said"
    ruled(bench, GangRule(3))
    assert sent(bench) == [(4, 3)]


def test_pods_that_declare_a_minimum_themselves_do_not_wait_for_a_pod_group_and_the_larger_minimum_counts(
    bench, arrive
):
    bench.join("w1")
    arrive("a", "b", minimum=2, rule=MISSING)
    bench.pass_time(0.1)
    assert sent(bench) == [(2, 2)]
    bench.answer("w1", UNSCHEDULABLE, reason="too little room", refused_by=("NodeResourcesFit",))
    ruled(bench, GangRule(3))
    bench.pass_time(20.0)
    assert not sent(bench)
    arrive("c", minimum=2, rule=GangRule(3))
    bench.pass_time(20.0)
    assert sent(bench) == [(3, 3)]


def test_a_group_that_goes_leaves_pods_that_declare_a_minimum_with_that(bench, arrive):
    bench.join("w1")
    arrive("a", minimum=2, rule=GangRule(5))
    rows = arrive("b", minimum=2, rule=GangRule(5))
    bench.pass_time(0.1)
    assert (sent(bench), why(bench, rows)) == ([], there(2, needed=5))
    ruled(bench, MISSING)
    assert sent(bench) == [(2, 2)]


def test_a_pod_that_declares_a_minimum_of_one_frees_those_that_wait_for_their_group(bench, arrive):
    bench.join("w1")
    arrive("a", minimum=0, rule=GangRule(3))
    ruled(bench, MISSING)
    assert not sent(bench)
    arrive("b", minimum=1, rule=MISSING)
    bench.pass_time(0.1)
    assert sent(bench) == [(2, 1)]


def test_a_minimum_that_is_lowered_wakes_a_gang_that_did_not_fit(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c", minimum=0, rule=GangRule(3))
    bench.pass_time(0.1)
    bench.answer("w1", UNSCHEDULABLE, reason="too little room", refused_by=("NodeResourcesFit",))
    bench.pass_time(20.0)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    ruled(bench, GangRule(2))
    assert sent(bench) == [(3, 2)]


@pytest.mark.parametrize("at_first", [GangRule(1), GangRule(3), MISSING])
def test_pods_of_a_group_of_one_are_ordinary_pods(bench, arrive, at_first):
    bench.join("w1")
    rows = arrive("a", "b", minimum=0, rule=at_first)
    bench.pass_time(0.1)
    ruled(bench, GangRule(1))
    assert sent(bench) == [(2, 0)]
    bench.answer("w1", BOUND)
    assert bench.all_are(rows, Phase.BOUND)
    ruled(bench, GangRule(5))
    arrive("c", minimum=0, rule=GangRule(5))
    bench.pass_time(0.1)
    assert sent(bench) == [(1, 0)], "the gang has begun"


def test_a_pod_group_that_goes_while_its_gang_is_with_a_worker_does_not_lower_the_minimum(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c", minimum=0, rule=GangRule(3))
    bench.pass_time(0.1)
    ruled(bench, MISSING)
    bench.outcomes(bench.sent["w1"][0], [0, 1], BOUND)
    (release,) = bench.instructions(m.Release)
    assert release.rows.tolist() == rows[:2].tolist(), "two of the three that it needed are too few"


def test_a_gang_that_is_placed_while_its_pod_group_goes_has_begun(bench, arrive):
    bench.join("w1")
    rows = arrive("a", "b", "c", minimum=0, rule=GangRule(3))
    ruled(bench, MISSING)
    bench.answer("w1", BOUND)
    assert bench.all_are(rows, Phase.BOUND)


def test_a_dispatcher_that_starts_without_the_pod_group_gives_back_what_nobody_confirmed(bench, accept):
    accept("a", "b", minimum=0, rule=MISSING)
    rows = np.arange(2, dtype=np.uint32)
    bench.machine.restore_bound(rows, np.array([1, 2], np.uint32))
    (release,) = finished(bench.machine.restore_gangs(rows, bench.now))
    assert release.rows.tolist() == [0, 1], "whether it is all of the gang is unknown"


def test_a_minimum_that_is_lowered_while_a_worker_has_the_gang_outdates_its_refusal(bench, arrive):
    bench.join("w1")
    arrive("a", "b", "c", minimum=0, rule=GangRule(3))
    bench.pass_time(0.1)
    ruled(bench, GangRule(2))
    bench.answer("w1", UNSCHEDULABLE, reason="too little room", refused_by=("NodeResourcesFit",), seen=0)
    bench.pass_time(2.0)
    assert sent(bench) == [(3, 2)]


def test_pods_that_come_while_a_worker_has_their_gang_outdate_its_refusal(bench, arrive):
    bench.join("w1")
    arrive("a", "b", "c")
    arrive("d")
    bench.answer("w1", UNSCHEDULABLE, reason="too little room", refused_by=("NodeResourcesFit",), seen=0)
    bench.pass_time(2.0)
    assert sent(bench) == [(4, 3)]
