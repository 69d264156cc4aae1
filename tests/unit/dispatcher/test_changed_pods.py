"""Pods that change while they wait: later decisions are about the pod as it is now."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.bound.settlement import CHANGED
from dispatcher.core.pods.sets import NewPods, Order
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Match, Rule, Selector
from hoss.model.pod import PodSpec
from hoss.model.selectors import Requirement

NOWHERE = 0xFFFFFFFF
SMALL, LARGE = PodSpec(requests=(("cpu", 100),)), PodSpec(requests=(("cpu", 900),))


def change(bench, rows, spec, **kind):
    template = bench._template(spec, **kind)
    bench.handle(m.PodsChanged(tuple((row, template) for row in rows.tolist())))


def sent_spec(bench, worker):
    """Of the latest batch, the only class it has."""
    (class_id,) = bench.sent[worker][-1].run_classes.tolist()
    return bench.machine.registry.templates.pod_spec(class_id)


def test_a_queued_pod_is_sent_as_it_is_by_then(bench):
    rows = bench.pods("a", spec=LARGE)
    change(bench, rows, SMALL)
    bench.join("w1")
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert sent_spec(bench, "w1") == SMALL


def test_an_unschedulable_pod_that_changed_is_tried_again_when_its_backoff_is_over(bench):
    bench.join("w1")
    rows = bench.pods("a", spec=LARGE)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("NodeResourcesFit",))
    other = bench.pods("b", spec=LARGE)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("NodeResourcesFit",))
    change(bench, rows, SMALL)
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.pass_time(1.1)
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert sent_spec(bench, "w1") == SMALL
    assert bench.all_are(other, Phase.UNSCHEDULABLE), "nothing has changed for others"


def test_what_a_worker_says_of_a_pod_that_has_changed_since_it_was_sent_keeps_it_from_nothing(bench):
    bench.join("w1")
    rows = bench.pods("a", spec=LARGE)
    change(bench, rows, SMALL)
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("NodeResourcesFit",))
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert sent_spec(bench, "w1") == SMALL
    assert bench.machine.registry.pods.attempts[rows].tolist() == [0]
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes", refused_by=("NodeResourcesFit",))
    assert bench.all_are(rows, Phase.UNSCHEDULABLE), "this was said of the pod as it is"


def test_a_reservation_of_what_the_pod_was_is_given_back_and_the_pod_is_placed_anew(bench):
    bench.join("w1")
    rows = bench.pods("a", spec=SMALL)
    change(bench, rows, LARGE)
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    assert not bench.instructions(m.Confirm)
    (release,) = bench.instructions(m.Release)
    assert (release.rows.tolist(), release.nodes.tolist()) == (rows.tolist(), [5])
    registry = bench.machine.registry
    assert registry.reasons.texts[int(registry.pods.reason[rows[0]])] == CHANGED
    bench.handle(m.Released(rows))
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert sent_spec(bench, "w1") == LARGE
    bench.answer("w1", m.OutcomeCode.BOUND, node=6)
    assert bench.all_are(rows, Phase.BOUND)


def test_a_pod_that_changed_while_it_was_being_bound_is_counted_as_it_is_now(bench):
    bench.join("w1")
    rows = bench.pods("a", spec=SMALL)
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    change(bench, rows, LARGE)
    assert bench.all_are(rows, Phase.BOUND), "the API server may have bound it already"
    assert not bench.instructions(m.Reserve)
    bench.handle(m.Assigned(rows, np.array([5], np.uint32)))
    (reserve,) = bench.instructions(m.Reserve)
    assert reserve.rows.tolist() == rows.tolist()


def test_a_binding_that_was_not_asked_for_is_withdrawn_and_counts_as_no_attempt(bench):
    bench.join("w1")
    rows = bench.pods("a", spec=SMALL)
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    change(bench, rows, LARGE)
    bench.handle(m.BindingRefused(rows, (CHANGED,), attempted=False))
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.handle(m.Released(rows))
    assert sent_spec(bench, "w1") == LARGE
    assert bench.machine.registry.pods.attempts[rows].tolist() == [0]


def test_a_queued_pod_whose_labels_the_policy_sends_elsewhere_goes_there(bench):
    gold, plain = (Selector((Requirement("kind", "In", (kind,)),)) for kind in ("gold", "plain"))
    tier = Match(labels=Selector((Requirement("tier", "In", ("gold",)),)))
    bench.set_policy(Rule("gold", match=tier, workers=gold), Rule("rest", workers=plain))
    rows = bench.pods("a", spec=SMALL)
    change(bench, rows, PodSpec(requests=SMALL.requests, labels=(("tier", "gold"),)))
    bench.join("w1", kind="plain")
    bench.pass_time(0.1)
    assert bench.all_are(rows, Phase.QUEUED)
    bench.join("w2", kind="gold")
    bench.pass_time(0.1)
    assert bench.in_hand("w2") == 1


def test_a_gated_pod_that_changes_stays_gated_and_loses_its_gate_as_it_is_then(bench):
    bench.join("w1")
    rows = bench.job("job", 1, spec=LARGE, gates=("a.io/quota",))
    change(bench, rows, SMALL)
    bench.pass_time(10)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    bench.handle(m.GatesRemoved(rows, frozenset(["a.io/quota"])))
    assert sent_spec(bench, "w1") == SMALL


@pytest.mark.parametrize("end", [Phase.DELETED, Phase.BACKOFF])
def test_a_change_of_a_pod_that_is_gone_or_waits_for_its_time_does_nothing_by_itself(bench, end):
    bench.join("w1")
    rows = bench.pods("a", spec=SMALL)
    for _ in range(4):
        bench.answer("w1", m.OutcomeCode.CONFLICT)
    if end is Phase.DELETED:
        bench.handle(m.Deleted(rows))
    change(bench, rows, LARGE)
    assert bench.all_are(rows, end)


def test_what_is_reserved_when_a_dispatcher_starts_is_counted_anew_where_it_is(bench):
    """Nobody looked meanwhile."""
    template = bench._template(SMALL)
    pods = NewPods(("a", "b", "c"), np.zeros(3, np.uint32), None)
    submission = bench.accept(Order("request", (template,), (), pods))
    bench.machine.restore_bound(np.array([0, 1], np.uint32), np.array([5, 5], np.uint32))
    bench.machine.restore_mirrored(submission, np.empty(0, np.uint32))
    bench.handle(m.Assigned(np.array([0], np.uint32), np.array([5], np.uint32)))
    bench.handle(m.Admitted(submission))
    assert [wanted.rows.tolist() for wanted in bench.instructions(m.Reserve)] == [[0]]
    bench.handle(m.Assigned(np.array([1], np.uint32), np.array([5], np.uint32)))
    assert bench.instructions(m.Reserve)[1].rows.tolist() == [1], "it was reserved and not yet bound"
    bench.join("w1")
    assert bench.in_hand("w1") == 1
