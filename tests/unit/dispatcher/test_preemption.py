"""Victim candidates for a worker that asks, and pods that wait for their victims to leave."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.bound.disruption_budgets import budgets_now, victim_candidates
from dispatcher.core.pods.table import Phase
from hoss.model.cluster import PodDisruptionBudget, Threshold
from hoss.model.pod import PodSpec
from hoss.model.selectors import LabelSelector, Requirement

WEB = LabelSelector((Requirement("app", "In", ("web",)),))


def bind(bench, name, replicas, *, node, **fields):
    """A job whose pods are all bound to a node."""
    rows = bench.job(name, replicas, spec=PodSpec(**fields))
    bench.answer("w1", m.OutcomeCode.BOUND, node=node)
    return rows


@pytest.fixture
def bench(bench):
    bench.join("w1")
    return bench


def asked(bench, nodes, *, priority=10, limit=100):
    found = victim_candidates(bench.machine.registry, np.array(nodes, np.uint32), priority, limit)
    return sorted(found.rows.tolist()), found.nodes_seen


def test_bound_pods_of_lower_priority_on_the_nodes_asked_about_are_named(bench):
    mine = bind(bench, "a", 2, node=3)
    bind(bench, "b", 1, node=4)
    bind(bench, "c", 1, node=3, priority=10)
    waiting = bench.job("d", 1)
    assert asked(bench, [5, 3, 0xFFFFFFFF]) == (mine.tolist(), 3)
    assert bench.all_are(waiting, Phase.SCHEDULING)


def test_nodes_are_taken_in_the_order_asked_until_there_are_enough(bench):
    by_node = {node: bind(bench, f"j{node}", 1, node=node).tolist() for node in (1, 2, 3)}
    assert asked(bench, [3, 7, 1, 2], limit=1) == (by_node[3], 2)
    assert asked(bench, [3, 7, 1, 2], limit=2) == (sorted(by_node[3] + by_node[1]), 3)
    assert asked(bench, [], limit=2) == ([], 0)


def test_a_work_batch_says_the_lowest_priority_there_is(bench):
    bind(bench, "low", 1, node=1, priority=-5)
    bench.job("high", 1, spec=PodSpec(priority=7))
    assert bench.sent["w1"].pop().lowest_priority == -5


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({"min_available": Threshold(3)}, 1),
        ({"min_available": Threshold(50, percent=True)}, 1),
        ({"max_unavailable": Threshold(1)}, 0),
        ({"max_unavailable": Threshold(4)}, 2),
        ({}, 0),
    ],
)
def test_a_budget_allows_what_is_bound_beyond_what_must_stay_of_all_that_were_accepted(
    bench, limits, allowed
):
    bind(bench, "web", 4, node=3, labels=(("app", "web"),))
    deleted = bench.job("gone", 1, spec=PodSpec(labels=(("app", "web"),)))
    bench.handle(m.Deleted(deleted))
    bench.job("waits", 2, spec=PodSpec(labels=(("app", "web"),)))
    bind_other = PodSpec(labels=(("app", "web"),), namespace="other")
    bench.job("other", 5, spec=bind_other)
    (now,) = budgets_now(bench.machine.registry, [PodDisruptionBudget("default", "b", WEB, **limits)])
    assert (now.namespace, now.selector, now.allowed) == ("default", WEB, allowed)


def test_after_a_gap_in_the_feed_the_shards_bound_pods_are_looked_up(bench):
    on_shard_1 = bind(bench, "a", 2, node=3)
    bind(bench, "b", 1, node=4)
    bench.handle(m.HistoryMissed(shard=1, shards=2, seq=1))
    assert [verify.rows.tolist() for verify in bench.instructions(m.Verify)] == [on_shard_1.tolist()]


def bind_while_others_leave(bench, milliseconds):
    rows = bench.job("urgent", 1)
    work = bench.sent["w1"].pop(0)
    told = m.OutcomesArrived(
        link=work.link,
        batch=work.batch,
        positions=np.zeros(1, np.uint32),
        codes=np.array([m.OutcomeCode.BOUND], np.uint8),
        nodes=np.array([3], np.uint32),
        reasons=None,
        texts=(),
        commits={0: np.array([1], np.uint64)},
        leaving_ms=np.array([milliseconds], np.uint32),
    )
    revision = bench.machine.log.revision
    bench.handle(told)
    return rows, revision


def test_a_pod_whose_victims_are_leaving_is_told_as_bound_when_they_are_gone(bench):
    rows, revision = bind_while_others_leave(bench, 2000)
    nominations = bench.machine.settlement.nominations
    assert nominations.is_nominated(int(rows[0]))
    assert [confirm.rows.tolist() for confirm in bench.instructions(m.Confirm)] == [rows.tolist()]
    bench.pass_time(1.9)
    assert bench.machine.log.since(revision) == []
    bench.pass_time(0.2)
    (logged,) = bench.machine.log.since(revision)
    assert (logged.phases.tolist(), logged.nodes.tolist()) == ([Phase.BOUND], [3])
    assert not nominations.is_nominated(int(rows[0]))


def test_a_nominated_pod_that_is_deleted_gives_its_claim_back_and_is_never_told_as_bound(bench):
    rows, _ = bind_while_others_leave(bench, 2000)
    bench.handle(m.Deleted(rows))
    assert [release.rows.tolist() for release in bench.instructions(m.Release)] == [rows.tolist()]
    revision = bench.machine.log.revision
    bench.pass_time(3.0)
    assert bench.machine.log.since(revision) == []
