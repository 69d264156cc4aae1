"""Pods whose reservation the ledger removed in favour of others."""

from types import SimpleNamespace

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.bound.feed_updates import RESERVED_ELSEWHERE
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.workers.preemption import PreemptionAnswers
from hoss.v1 import resolver_pb2

NOWHERE = 0xFFFFFFFF


def evicted(bench, rows, *, node=3, by="default/urgent"):
    uids = bench.machine.registry.pods.uid[rows].copy()
    reasons = (f"preempted by {by} on node n{node}",) * len(rows)
    return m.Evicted(uids, np.full(len(rows), node, np.uint32), reasons)


def bound_job(bench, replicas=3):
    bench.join("w1")
    rows = bench.job("job", replicas)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    return rows


def reason(bench, row):
    registry = bench.machine.registry
    return registry.reasons.texts[int(registry.pods.reason[row])]


def test_a_victim_is_queued_again_with_the_reason_and_as_if_never_tried(bench):
    rows = bound_job(bench)
    bench.machine.registry.pods.attempts[rows] = 7
    revision = bench.machine.log.revision
    bench.handle(evicted(bench, rows[:1]))
    assert bench.phases(rows) == [Phase.SCHEDULING, Phase.BOUND, Phase.BOUND]
    assert reason(bench, rows[0]) == "preempted by default/urgent on node n3"
    assert bench.machine.registry.pods.attempts[rows[0]] == 0
    (logged,) = bench.machine.log.since(revision)
    assert (logged.phases.tolist(), logged.texts) == (
        [Phase.QUEUED],
        ("preempted by default/urgent on node n3",),
    )
    bench.answer("w1", m.OutcomeCode.BOUND, node=4)
    assert bench.phases(rows) == [Phase.BOUND] * 3
    assert reason(bench, rows[0]) == ""
    texts, last = bench.machine.registry.reasons.texts, bench.machine.registry.pods.eviction
    assert [texts[i] for i in last[rows]] == ["preempted by default/urgent on node n3", "", ""]
    assert not bench.instructions(m.Verify)


def test_an_eviction_reported_twice_counts_once(bench):
    rows = bound_job(bench)
    told = evicted(bench, rows)
    bench.handle(told)
    work = bench.sent["w1"][-1]
    bench.handle(told)
    assert bench.sent["w1"] == [work]
    assert bench.machine.counters["evicted"] == 3


def test_pods_bound_elsewhere_deleted_or_unknown_are_passed_over(bench):
    rows = bound_job(bench)
    bench.handle(m.Deleted(rows[:1]))
    bench.handle(evicted(bench, rows[:1]))
    bench.handle(evicted(bench, rows[1:], node=5))
    strangers = np.full((2, 16), 0xAB, np.uint8)
    bench.handle(m.Evicted(strangers, np.full(2, 3, np.uint32), ("preempted", "preempted")))
    assert bench.phases(rows) == [Phase.DELETED, Phase.BOUND, Phase.BOUND]


def test_a_pod_evicted_before_its_worker_says_that_it_is_bound_is_looked_up_then(bench):
    bench.join("w1")
    rows = bench.job("job", 2)
    bench.handle(evicted(bench, rows[:1]))
    assert bench.all_are(rows, Phase.SCHEDULING)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    (verify,) = bench.instructions(m.Verify)
    assert verify.rows.tolist() == rows[:1].tolist()
    bench.handle(m.Verified(verify.rows, verify.uids, np.array([NOWHERE], np.uint32)))
    assert bench.phases(rows) == [Phase.SCHEDULING, Phase.BOUND]
    texts, last = bench.machine.registry.reasons.texts, bench.machine.registry.pods.eviction
    assert [texts[i] for i in last[rows]] == ["preempted by default/urgent on node n3", ""]
    assert reason(bench, rows[0]) == "preempted by default/urgent on node n3"
    assert bench.machine.counters["evicted"] == 1


def test_a_reservation_lost_later_for_another_reason_is_not_laid_to_an_eviction_of_before(bench):
    bench.join("w1")
    rows = bench.job("job", 1)
    uids = bench.machine.registry.pods.uid[rows].copy()
    bench.handle(evicted(bench, rows))
    bench.answer("w1", m.OutcomeCode.BOUND, node=4)
    bench.handle(m.Verified(rows, uids, np.array([4], np.uint32)))
    bench.handle(m.Verified(rows, uids, np.array([NOWHERE], np.uint32)))
    assert reason(bench, rows[0]) == ""
    assert (bench.machine.counters["evicted"], bench.machine.counters["reservations_lost"]) == (0, 1)


def test_an_eviction_of_a_pod_with_events_out_of_order_is_published_with_its_reason(bench):
    rows = bound_job(bench, 1)
    uids = bench.machine.registry.pods.uid[rows].copy()
    bench.machine.registry.pods.uncertain[rows] = True
    bench.handle(evicted(bench, rows, by="default/later"))
    bench.handle(m.Verified(rows, uids, np.array([NOWHERE], np.uint32)))
    assert reason(bench, rows[0]) == "preempted by default/later on node n3"


def test_an_eviction_that_a_lookup_found_first_does_not_count_against_a_later_place(bench):
    rows = bound_job(bench, 1)
    uids = bench.machine.registry.pods.uid[rows].copy()
    bench.handle(m.Verified(rows, uids, np.array([NOWHERE], np.uint32)))
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    bench.emitted.clear()
    bench.handle(evicted(bench, rows))
    assert bench.phases(rows) == [Phase.BOUND]
    assert [verify.rows.tolist() for verify in bench.instructions(m.Verify)] == [rows.tolist()]
    bench.handle(m.Verified(rows, uids, np.array([3], np.uint32)))
    assert bench.phases(rows) == [Phase.BOUND]


def test_a_victim_is_no_suspect_for_what_happened_before_it_was_bound_and_the_journal_gets_it(bench):
    bench.join("w1")
    rows = bench.job("job", 1)
    bench.handle(m.LinkClosed(bench.machine.members.get("w1").link))
    bench.sent["w1"] = []
    bench.handle(m.Fenced("w1", np.array([NOWHERE], np.uint32), {}))
    bench.join("w1")
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    registry = bench.machine.registry
    assert registry.pods.faults[rows[0]] == 1
    registry.attempts_changed.clear()
    bench.handle(evicted(bench, rows))
    assert registry.pods.faults[rows[0]] == 0
    assert not registry.faults.of(rows[0])
    assert [tried.tolist() for tried in registry.attempts_changed] == [rows.tolist()]


def test_watchers_see_a_moved_pod_bound_to_its_new_node_and_only_moves_of_bound_pods_count(bench):
    rows = bound_job(bench, 2)
    uids = bench.machine.registry.pods.uid[rows].copy()
    bench.handle(m.Deleted(rows[1:]))
    before = bench.machine.log.revision
    bench.handle(m.Moved(rows, uids, np.array([7, 7], np.uint32)))
    assert bench.machine.registry.pods.node[rows[0]] == 7
    assert bench.phases(rows) == [Phase.BOUND, Phase.DELETED]
    assert bench.machine.counters["moved"] == 1
    assert bench.machine.log.revision > before
    bench.handle(m.Moved(rows, uids, np.array([7, 7], np.uint32)))  # told twice
    assert bench.machine.counters["moved"] == 1


def test_watchers_of_a_pod_that_a_lookup_finds_on_another_node_are_told_first_that_the_placement_ended(bench):
    """As of a pod whose node was removed, and that another scheduler has bound since: the webhook reserved
    that, and the mirror is yet to show it."""
    (row,) = rows = bound_job(bench, 1)
    uids, log = bench.machine.registry.pods.uid[rows].copy(), bench.machine.log
    revision = log.revision
    bench.handle(m.Verified(rows, uids, bench.machine.registry.pods.node[rows].copy()))
    assert log.revision == revision
    bench.handle(m.NodesGone(np.array([3], np.uint32), 5))
    (verify,) = bench.instructions(m.Verify)
    bench.handle(m.Verified(verify.rows, verify.uids, np.array([7], np.uint32)))
    told = [(Phase(b.phases[0]), int(b.nodes[0]), *b.texts) for b in log.since(revision)]
    assert told == [(Phase.BACKOFF, NOWHERE, RESERVED_ELSEWHERE), (Phase.BOUND, 7)]
    transitions = bench.machine.registry.history.of_pod(row)[-2:]
    assert [(each.event, each.node) for each in transitions] == [("ReservationLost", NOWHERE), ("", 7)]
    assert (bench.phases(rows), reason(bench, row)) == ([Phase.BOUND], "")
    bench.pass_time(20)
    assert not bench.sent["w1"], "no queue holds it"


def test_a_feed_that_begins_before_the_restored_reservations_evicts_nobody_again(bench):
    rows = bound_job(bench)
    runtime = SimpleNamespace(machine=bench.machine, handle=bench.handle)
    answers = PreemptionAnswers(runtime, ClusterNodes())
    answers.restored({0: 8})
    victim = bench.machine.registry.pods.uid[rows[:1]].tobytes()
    eviction = resolver_pb2.Eviction(uid=bytes(16), node=3, victim_uids=victim)
    answers.read(resolver_pb2.FeedMessage(shard=0, seq=8, evictions=[eviction]))
    assert bench.phases(rows) == [Phase.BOUND] * 3  # it was evicted, and bound there again by 8
    answers.read(resolver_pb2.FeedMessage(shard=0, seq=9, evictions=[eviction]))
    assert bench.phases(rows) == [Phase.SCHEDULING, Phase.BOUND, Phase.BOUND]
    assert answers.high_watermark(0) == 9
