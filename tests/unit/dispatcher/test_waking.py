"""Which waiting pods a change of the cluster wakes, and which it leaves alone."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.changes import Aspect, Changes, NodeChange, Room
from dispatcher.core.pods.table import Phase
from hoss.model.node import NodeSpec, Taint
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodGroup, PodSpec
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import NONE_U32

SCHEMA = ("cpu", "memory", "ephemeral-storage", "pods")
SMALL, BIG = PodSpec(requests=(("cpu", 1000),)), PodSpec(requests=(("cpu", 8000),))
FULL = {"reason": "0/1 nodes are available: 1 Insufficient cpu.", "refused_by": ("NodeResourcesFit",)}


def freed(cpu, seq):
    allocatable = np.array([[cpu], [0], [0], [9]], np.int64)
    room = Room(SCHEMA, allocatable, np.zeros_like(allocatable), np.empty((0, 16), np.uint16))
    return m.ClusterChanged(Changes(rooms=(room,)), shard=0, seq=seq)


def refuse(bench, *, seen=0, **why):
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, seen=seen, **(why or FULL))


def test_room_for_the_small_pod_wakes_the_small_pod_and_not_the_big_one(bench):
    bench.join("w1")
    small = bench.pods("small", spec=SMALL)
    refuse(bench)
    big = bench.pods("big", spec=BIG)
    refuse(bench)
    bench.pass_time(2.0)
    bench.handle(freed(2000, seq=1))
    assert bench.phases(small) == [Phase.SCHEDULING]
    assert bench.phases(big) == [Phase.UNSCHEDULABLE]


def test_a_removed_taint_does_not_wake_a_pod_that_lacked_room(bench):
    bench.join("w1")
    lacks_room = bench.pods("room", spec=SMALL)
    refuse(bench)
    kept_off = bench.pods("taint", spec=SMALL)
    refuse(bench, reason="1 node(s) had untolerated taint(s)", refused_by=("TaintToleration",))
    bench.pass_time(2.0)
    still = NodeChange(NodeSpec("n1", taints=(Taint("b"),)), Aspect.TAINTS)
    bench.handle(m.ClusterChanged(Changes(nodes=(still,)), 0, 1))
    bench.pass_time(0.1)
    assert bench.in_hand("w1") == 0
    bench.handle(m.ClusterChanged(Changes(nodes=(NodeChange(NodeSpec("n1"), Aspect.TAINTS),)), 0, 2))
    bench.pass_time(0.1)
    assert bench.phases([*lacks_room, *kept_off]) == [Phase.UNSCHEDULABLE, Phase.SCHEDULING]


def test_a_wake_waits_for_the_backoff(bench):
    bench.join("w1")
    rows = bench.pods("p", spec=SMALL)
    refuse(bench)
    bench.handle(freed(2000, seq=1))
    assert bench.phases(rows) == [Phase.BACKOFF]
    bench.pass_time(1.1)
    assert bench.phases(rows) == [Phase.SCHEDULING]


def test_the_urgent_pod_that_came_later_goes_first(bench):
    bench.join("w1", window=2)
    for name, priority in (("first", 0), ("second", 0), ("urgent", 9)):
        bench.pods(name, spec=PodSpec(requests=SMALL.requests, priority=priority))
        refuse(bench)
    bench.pass_time(2.0)
    rows = {
        name: bench.machine.registry.directory.row_of_name("default", name) for name in ("first", "urgent")
    }
    bench.handle(freed(2000, seq=1))
    sent = [bench.machine.registry.directory.rows_of_uids(work.uids).tolist() for work in bench.sent["w1"]]
    assert sent == [[rows["urgent"]], [rows["first"]]]


def test_a_refusal_on_an_older_view_is_tried_again_when_what_it_missed_may_help(bench):
    bench.join("w1")
    small, big = bench.pods("small", spec=SMALL), bench.pods("big", spec=BIG)
    bench.handle(freed(2000, seq=5))
    refuse(bench, seen=4)
    refuse(bench, seen=4)
    assert bench.phases([*small, *big]) == [Phase.BACKOFF, Phase.UNSCHEDULABLE]


def test_a_refusal_that_knew_of_the_change_is_not_tried_again(bench):
    bench.join("w1")
    rows = bench.pods("p", spec=SMALL)
    bench.handle(freed(2000, seq=5))
    refuse(bench, seen=5)
    assert bench.phases(rows) == [Phase.UNSCHEDULABLE]


def away_from(app):
    term = PodAffinityTerm("zone", LabelSelector((Requirement("app", "In", (app,)),)), ("default",))
    return PodSpec(pod_affinity=PodAffinity(anti_required=(term,)))


SHUNNED = {
    "reason": "1 node(s) didn't match pod anti-affinity rules",
    "refused_by": ("InterPodAffinity",),
}


def left(seq, **labels):
    """The feed's entry about a pod that left its node, whoever placed it."""
    return m.ClusterChanged(Changes(deleted_pods=frozenset([PodGroup(labels=tuple(labels.items()))])), 0, seq)


def test_a_pod_that_left_wakes_the_one_that_shuns_it(bench):
    bench.join("w1")
    shuns_it, shuns_another = bench.pods("a", spec=away_from("db")), bench.pods("b", spec=away_from("cache"))
    for _ in range(2):
        refuse(bench, **SHUNNED)
    bench.pass_time(2.0)
    bench.handle(left(seq=7, app="db"))
    assert bench.phases([*shuns_it, *shuns_another]) == [Phase.SCHEDULING, Phase.UNSCHEDULABLE]


def test_a_refusal_by_a_view_that_did_not_show_a_release_yet_is_tried_again(bench):
    bench.join("w1")
    bench.handle(left(seq=7, app="db"))
    bench.pass_time(2.0)
    old, new = bench.pods("old", spec=away_from("db")), bench.pods("new", spec=away_from("db"))
    refuse(bench, seen=6, **SHUNNED)
    refuse(bench, seen=7, **SHUNNED)
    assert bench.phases([*old, *new]) == [Phase.BACKOFF, Phase.UNSCHEDULABLE]


def moved(rows, uids):
    return m.Moved(rows, uids, np.array([7], np.uint32))


def evicted(_rows, uids):
    return m.Evicted(uids, np.array([3], np.uint32), ("preempted by default/urgent on node n3",))


def lost(rows, uids):
    return m.Verified(rows, uids, np.array([NONE_U32], np.uint32))


@pytest.mark.parametrize("leaves", [moved, evicted, lost])
def test_a_pod_that_leaves_its_node_wakes_those_that_wait_when_the_feed_shows_it_and_not_before(
    bench, leaves
):
    bench.join("w1")
    bound = bench.pods("bound")
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    waiting = bench.pods("waiting")
    refuse(bench, reason="without names of plugins: any change wakes it")
    bench.pass_time(2.0)
    bench.handle(leaves(bound, bench.machine.registry.pods.uid[bound].copy()))
    bench.pass_time(2.0)
    assert bench.phases(waiting) == [Phase.UNSCHEDULABLE]
    bench.handle(left(seq=7, app="db"))
    assert bench.phases(waiting)[0] in (Phase.QUEUED, Phase.SCHEDULING)


def test_pods_that_no_change_helped_are_tried_after_five_minutes_and_not_before(bench):
    bench.join("w1")
    rows = bench.pods("p", spec=BIG)
    refuse(bench)
    for seq in range(1, 299):
        bench.pass_time(1.0)
        bench.handle(freed(2000, seq))
    assert bench.phases(rows) == [Phase.UNSCHEDULABLE]
    bench.pass_time(3.0)
    assert bench.phases(rows) == [Phase.SCHEDULING]


def all_refused(bench, seen=0):
    """The worker finds room for none of its pods, however often it gets some."""
    while bench.sent["w1"]:
        refuse(bench, seen=seen)


def test_very_many_waiting_pods_are_woken_in_parts_and_each_once(bench, monkeypatch):
    monkeypatch.setattr("dispatcher.core.queue.queues._WOKEN_AT_ONCE", 20)
    link = bench.join("w1", window=10)
    rows = bench.job("job", 50, spec=SMALL)
    all_refused(bench)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    bench.handle(m.LinkClosed(link))
    bench.pass_time(20)  # their backoff is over
    bench.handle(freed(1000, 1))
    waiting = []
    for _ in range(4):
        waiting.append(bench.phases(rows).count(Phase.UNSCHEDULABLE))
        bench.pass_time(0.01)
    assert waiting == [30, 10, 0, 0]
    assert bench.all_are(rows, Phase.QUEUED)


def test_who_was_refused_after_a_change_is_not_woken_by_the_rest_of_it(bench, monkeypatch):
    monkeypatch.setattr("dispatcher.core.queue.queues._WOKEN_AT_ONCE", 10)
    bench.join("w1", window=10)
    rows = bench.job("job", 30, spec=SMALL)
    all_refused(bench)
    bench.pass_time(20)
    bench.handle(freed(1000, 1))
    attempts = []
    for _ in range(6):
        bench.pass_time(0.01)
        all_refused(bench, seen=1)
        attempts.append(int(bench.machine.registry.pods.attempts[rows].sum()))
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    assert attempts[-1] == 2 * len(rows)


def test_pods_of_very_many_classes_are_looked_at_in_parts_and_each_is_woken_once(bench, monkeypatch):
    monkeypatch.setattr("dispatcher.core.queue.queues._LOOKED_AT_AT_ONCE", 4)
    link = bench.join("w1", window=20)
    rows = [bench.pods(f"p{i}", spec=PodSpec(requests=(("cpu", 100 + i),)))[0] for i in range(10)]
    all_refused(bench)
    bench.handle(m.LinkClosed(link))
    bench.pass_time(20)
    bench.handle(freed(105, 1))
    waiting = []
    for _ in range(4):
        waiting.append(bench.phases(rows).count(Phase.UNSCHEDULABLE))
        bench.pass_time(0.01)
    assert waiting == [6, 4, 4, 4]  # the first six of the ten ask for 105 at most
    assert bench.phases(rows) == [Phase.QUEUED] * 6 + [Phase.UNSCHEDULABLE] * 4


def test_pods_that_waited_for_five_minutes_are_tried_again_in_parts(bench, monkeypatch):
    monkeypatch.setattr("dispatcher.core.queue.queues._WOKEN_AT_ONCE", 20)
    link = bench.join("w1", window=10)
    rows = bench.job("job", 50, spec=BIG)
    all_refused(bench)
    bench.handle(m.LinkClosed(link))
    bench.now += 301
    waiting = []
    for _ in range(4):
        bench.pass_time(0.01)
        waiting.append(bench.phases(rows).count(Phase.UNSCHEDULABLE))
    assert waiting == [30, 10, 0, 0]


def test_a_class_that_ends_before_it_was_looked_at_is_passed_over(bench, monkeypatch):
    monkeypatch.setattr("dispatcher.core.queue.queues._LOOKED_AT_AT_ONCE", 4)
    bench.join("w1", window=20)
    rows = [bench.pods(f"p{i}", spec=PodSpec(requests=(("cpu", 100 + i),)))[0] for i in range(10)]
    all_refused(bench)
    bench.now += 20
    bench.handle(freed(1, 1))
    bench.handle(m.Deleted(np.array(rows[4:], np.uint32)))
    bench.machine.queues.sweep()
    for _ in range(5):
        bench.pass_time(3.0)
    assert len(bench.machine.registry.templates.live_ids()) == 4  # the others are forgotten
    assert bench.phases(rows[:4]) == [Phase.UNSCHEDULABLE] * 4


def beside(app):
    term = PodAffinityTerm("zone", LabelSelector((Requirement("app", "In", (app,)),)), ("default",))
    return PodSpec(pod_affinity=PodAffinity(required=(term,)))


LONELY = {"reason": "1 node(s) didn't match pod affinity rules", "refused_by": ("InterPodAffinity",)}


def came(seq, **labels):
    """The feed's entry about a pod that was reserved on a node, whichever scheduler placed it."""
    return m.ClusterChanged(Changes(bound_pods=frozenset([PodGroup(labels=tuple(labels.items()))])), 0, seq)


def test_a_pod_that_came_wakes_the_one_that_must_be_beside_it(bench):
    bench.join("w1")
    beside_db, beside_cache = bench.pods("a", spec=beside("db")), bench.pods("b", spec=beside("cache"))
    for _ in range(2):
        refuse(bench, **LONELY)
    bench.pass_time(2.0)
    bench.handle(came(seq=7, app="db"))
    assert bench.phases([*beside_db, *beside_cache]) == [Phase.SCHEDULING, Phase.UNSCHEDULABLE]


def test_a_refusal_by_a_view_that_did_not_show_a_pod_beside_it_yet_is_tried_again(bench):
    bench.join("w1")
    bench.handle(came(seq=7, app="db"))
    bench.pass_time(2.0)
    old, new = bench.pods("old", spec=beside("db")), bench.pods("new", spec=beside("db"))
    refuse(bench, seen=6, **LONELY)
    refuse(bench, seen=7, **LONELY)
    assert bench.phases([*old, *new]) == [Phase.BACKOFF, Phase.UNSCHEDULABLE]
