"""What a worker says of pods that no node takes, besides the words."""

from hoss.model.node import Taint
from scheduler_worker.messages import outcomes


def refusal(harness):
    harness.place()
    (columns,) = harness.scheduler.take_outcomes()
    return columns


def test_every_plugin_that_is_the_first_to_refuse_some_node_is_named(make_ledger, harness_of, make_pod):
    ledger = make_ledger(2)
    ledger.add(2, taints=(Taint("a"),)).add(3, unschedulable=True)
    harness = harness_of(ledger)
    harness.submit((make_pod(9000), 3))
    columns = refusal(harness)
    assert columns.refused_by == (frozenset({"NodeResourcesFit", "TaintToleration", "NodeUnschedulable"}),)
    message = outcomes(columns).outcomes
    assert list(message.refused_by[0].plugins) == ["NodeResourcesFit", "NodeUnschedulable", "TaintToleration"]


def test_a_plugin_that_another_forestalls_on_every_node_is_not_named(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2, taints=(Taint("a"),)))
    harness.submit((make_pod(9000), 1))
    assert refusal(harness).refused_by == (frozenset({"TaintToleration"}),)


def test_a_refusal_says_how_far_the_view_had_followed_the_feed(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(9000), 1))
    harness.place()
    first = harness.ledger.seq
    harness.cache.apply_feed(harness.ledger.reserve([0], [[100, 0, 0, 1]]))
    (columns,) = harness.scheduler.take_outcomes()
    assert columns.seen == ((0, first),), "it was refused before that"
    harness.submit((make_pod(9000), 1))
    assert refusal(harness).seen == ((0, first + 1),)
    assert outcomes(columns).outcomes.seen[0].seq == first


def test_bound_pods_need_no_such_words(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(100), 1))
    (proposal,) = harness.place()
    harness.scheduler.settle(proposal.batch_id, harness.ledger.commit(proposal)[0])
    (columns,) = harness.scheduler.take_outcomes()
    assert (columns.refused_by, columns.seen) == ((), ())
