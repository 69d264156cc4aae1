"""Bound pods whose node stops matching: reported, or evicted and placed anew, where the pod asks for it."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Settings
from dispatcher.core.pods.sets import NewJob, Order
from dispatcher.core.pods.table import Phase
from hoss.model.cluster import ObjectKey, PodDisruptionBudget, Threshold
from hoss.model.pod import DuringExecution, PodSpec
from hoss.model.selectors import LabelSelector
from hoss.model.slices import finished

SSD = PodSpec(node_selector=(("disk", "ssd"),))
REPORT, EVICT = DuringExecution.REPORT, DuringExecution.EVICT
MISPLACED = "node n3 doesn't match the pod's node affinity/selector any more"


def seen(bench, **labels):
    bench.handle(m.NodesSeen({3: m.KnownNode("n3", labels)}))


def bound_job(bench, asked, replicas=2):
    bench.join("w1")
    rows = bench.job("job", replicas, spec=SSD, during_execution=asked)
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    return rows


def reasons(bench, rows):
    registry = bench.machine.registry
    return [registry.reasons.texts[number] for number in registry.pods.reason[rows].tolist()]


def test_a_pod_that_asks_for_a_report_stays_and_says_why_it_should_not(bench):
    seen(bench, disk="ssd")
    rows = bound_job(bench, REPORT)
    assert reasons(bench, rows) == ["", ""]
    revision = bench.machine.log.revision
    seen(bench, disk="hdd")
    assert reasons(bench, rows) == [MISPLACED] * 2
    assert bench.all_are(rows, Phase.BOUND)
    (logged,) = bench.machine.log.since(revision)
    assert (logged.nodes.tolist(), logged.texts) == ([3, 3], (MISPLACED,))
    assert finished(bench.machine.taint_eviction.misplaced()) == {MISPLACED: 2}
    assert [warn.fields for warn in bench.instructions(m.Warn)] == [{"node": "n3", "pods": 2}]


def test_a_report_is_made_once_and_ends_when_the_node_matches_again(bench):
    rows = bound_job(bench, REPORT)
    seen(bench, disk="hdd")
    revision = bench.machine.log.revision
    seen(bench, disk="hdd", rack="7")
    assert bench.machine.log.revision == revision
    assert len(bench.instructions(m.Warn)) == 1
    seen(bench, disk="ssd")
    assert reasons(bench, rows) == ["", ""]
    assert finished(bench.machine.taint_eviction.misplaced()) == {}


def test_a_pod_that_asks_for_it_is_released_and_then_queued_again_with_the_reason(bench):
    rows = bound_job(bench, EVICT)
    seen(bench, disk="hdd")
    (evict,) = bench.instructions(m.Evict)
    assert (evict.uids == bench.machine.registry.pods.uid[rows]).all()
    assert (evict.nodes.tolist(), evict.reasons) == ([3, 3], (f"evicted: {MISPLACED}",) * 2)
    assert bench.all_are(rows, Phase.BOUND)
    bench.handle(m.Evicted(evict.uids, evict.nodes, evict.reasons))
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert reasons(bench, rows) == [f"evicted: {MISPLACED}"] * 2


def test_a_release_under_way_is_not_asked_for_twice_but_a_later_one_is(bench):
    bound_job(bench, EVICT)
    seen(bench, disk="hdd")
    seen(bench, disk="none")
    (evict,) = bench.instructions(m.Evict)
    bench.handle(m.Evicted(evict.uids, evict.nodes, evict.reasons))
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    assert len(bench.instructions(m.Evict)) == 2


def test_a_pod_that_was_placed_by_labels_of_before_is_looked_at_when_it_is_bound(bench):
    seen(bench, disk="hdd")
    rows = bound_job(bench, REPORT)
    assert reasons(bench, rows) == [MISPLACED] * 2


def test_after_a_start_the_first_word_of_the_nodes_finds_what_changed_meanwhile(new_bench):
    bench = new_bench()
    bench.join("w1")
    template = bench._template(SSD, during_execution=REPORT)
    submission = bench.accept(Order("request", (template,), (NewJob("job", 0, 2),), None))
    rows = np.arange(2, dtype=np.uint32)
    bench.machine.restore_bound(rows, np.array([3, 3], np.uint32))
    bench.handle(m.Admitted(submission))
    seen(bench, disk="hdd")
    assert reasons(bench, rows) == [MISPLACED] * 2


def test_a_lookup_that_finds_a_pod_elsewhere_looks_at_that_node(bench):
    bench.handle(m.NodesSeen({4: m.KnownNode("n4", {"disk": "hdd"})}))
    rows = bound_job(bench, REPORT, 1)
    uids = bench.machine.registry.pods.uid[rows].copy()
    bench.handle(m.Verified(rows, uids, np.array([4], np.uint32)))
    assert reasons(bench, rows) == [MISPLACED.replace("n3", "n4")]


def test_pods_of_a_node_that_is_gone_are_left_to_the_lookup_even_if_it_comes_back(bench):
    seen(bench, disk="ssd")
    bound_job(bench, EVICT)
    bench.handle(m.NodesGone(np.array([3], np.uint32), seq=10))
    seen(bench, disk="hdd")
    assert bench.instructions(m.Verify)
    assert not bench.instructions(m.Evict)


@pytest.mark.parametrize("asked", [DuringExecution.IGNORE, None])
def test_pods_that_do_not_ask_stay_as_in_kubernetes(bench, asked):
    rows = bound_job(bench, DuringExecution.IGNORE)
    if asked is None:  # beside others that do
        bench.job("other", 1, during_execution=EVICT)
    seen(bench, disk="hdd")
    assert reasons(bench, rows) == ["", ""]
    assert not bench.instructions(m.Evict)


def stays_reserved(bench, node=3, *, seq=9):
    """The ledger's answer to the last lookup: they have reservations of this seq. Nodes are removed at 10."""
    verify = bench.instructions(m.Verify)[-1]
    nodes, seqs = np.full(len(verify.rows), node, np.uint32), np.full(len(verify.rows), seq, np.uint64)
    bench.handle(m.Verified(verify.rows, verify.uids, nodes, seqs=seqs))


def test_pods_of_a_removed_node_whose_reservations_still_stand_are_released_and_queued_again(bench):
    seen(bench, disk="ssd")
    rows = bound_job(bench, DuringExecution.IGNORE)
    bench.handle(m.NodesGone(np.array([3], np.uint32), seq=10))
    stays_reserved(bench)
    (evict,) = bench.instructions(m.Evict)
    assert evict.reasons == ("evicted: node n3 was removed",) * 2
    bench.handle(m.Evicted(evict.uids, evict.nodes, evict.reasons))
    assert bench.all_are(rows, Phase.SCHEDULING)


def test_pods_whose_reservations_went_with_their_node_are_queued_again_with_that_reason(bench):
    seen(bench, disk="ssd")
    rows = bound_job(bench, DuringExecution.IGNORE)
    bench.handle(m.NodesGone(np.array([3], np.uint32), seq=10))
    verify = bench.instructions(m.Verify)[-1]
    bench.handle(m.Verified(verify.rows, verify.uids, np.full(2, 0xFFFFFFFF, np.uint32)))
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert reasons(bench, rows) == ["evicted: node n3 was removed"] * 2


def bound_after_the_removal(bench):
    bench.handle(m.NodesGone(np.array([3], np.uint32), seq=10))
    rows = bound_job(bench, EVICT)
    assert not bench.instructions(m.Evict)
    return rows


def test_a_pod_whose_worker_says_bound_after_its_node_was_removed_does_not_stay_there(bench):
    bound_after_the_removal(bench)
    stays_reserved(bench)
    assert [len(evict.uids) for evict in bench.instructions(m.Evict)] == [2]


def test_a_pod_that_was_reserved_after_the_removal_of_its_node_stays_until_the_node_is_told_of(bench):
    rows = bound_after_the_removal(bench)
    asked = len(bench.instructions(m.Verify))
    stays_reserved(bench, seq=11)
    assert (len(bench.instructions(m.Verify)), bench.instructions(m.Evict)) == (asked, [])
    assert bench.all_are(rows, Phase.BOUND)
    seen(bench, disk="hdd")  # the pod is to be where it is "ssd"
    stays_reserved(bench, seq=11)
    (evict,) = bench.instructions(m.Evict)
    assert evict.reasons == (f"evicted: {MISPLACED}",) * 2


def test_a_pod_that_was_reserved_after_the_missed_removal_of_its_node_stays(bench):
    rows = bound_job(bench, DuringExecution.IGNORE)
    bench.handle(m.HistoryMissed(0, 1, seq=10))
    stays_reserved(bench, seq=11)
    assert not bench.instructions(m.Evict)
    assert bench.all_are(rows, Phase.BOUND)


def test_a_pod_whose_reservation_was_the_last_change_before_a_snapshot_without_its_node_is_evicted(bench):
    bound_job(bench, DuringExecution.IGNORE)
    bench.handle(m.HistoryMissed(0, 1, seq=10))
    stays_reserved(bench, seq=10)
    assert len(bench.instructions(m.Evict)) == 1


def test_pods_of_nodes_that_went_while_nobody_listened_are_found_when_all_nodes_are_told_of(bench):
    rows = bound_job(bench, DuringExecution.IGNORE)
    bench.handle(m.NodesSeen({4: m.KnownNode("n4", {})}))
    bench.handle(m.HistoryMissed(0, 1, seq=10))
    stays_reserved(bench)
    (evict,) = bench.instructions(m.Evict)
    assert (evict.reasons, len(rows)) == (("evicted: its node was removed",) * 2, 2)


@pytest.mark.parametrize(
    "missed", [m.NodesGone(np.array([3], np.uint32), seq=10), m.HistoryMissed(0, 1, seq=10)]
)
def test_a_place_that_a_worker_had_got_before_a_removal_or_a_gap_is_looked_up_when_it_is_reported(
    bench, missed
):
    """The node is back when the worker's report arrives, and the pod has lost its place."""
    seen(bench, disk="ssd")
    bench.join("w1")
    rows = bench.job("job", 2, spec=SSD)
    bench.pump()
    bench.handle(missed)
    seen(bench, disk="ssd")
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    (verify,) = bench.instructions(m.Verify)
    assert sorted(verify.rows.tolist()) == rows.tolist()


def test_a_lookup_does_not_interfere_with_an_eviction_under_way(bench):
    rows = bound_job(bench, EVICT)
    seen(bench, disk="hdd")
    uids = bench.machine.registry.pods.uid[rows].copy()
    bench.handle(m.Verified(rows, uids, np.full(2, 0xFFFFFFFF, np.uint32)))
    assert bench.all_are(rows, Phase.BOUND)
    (evict,) = bench.instructions(m.Evict)
    bench.handle(m.Evicted(evict.uids, evict.nodes, evict.reasons))
    assert bench.all_are(rows, Phase.SCHEDULING)


def with_budget(bench, **limits):
    bench.handle(m.ObjectsApplied((PodDisruptionBudget("default", "ssd", LabelSelector(), **limits),)))


def test_as_many_are_evicted_as_their_budget_allows_and_the_others_say_what_keeps_them(bench):
    with_budget(bench, max_unavailable=Threshold(1))
    rows = bound_job(bench, EVICT, 3)
    seen(bench, disk="hdd")
    (evict,) = bench.instructions(m.Evict)
    assert len(evict.uids) == 1
    kept = f"{MISPLACED}; disruption budget default/ssd does not let it go yet"
    assert sorted(reasons(bench, rows)) == ["", kept, kept]
    bench.pass_time(2)
    assert len(bench.instructions(m.Evict)) == 1  # the first is still on its way
    bench.handle(m.Evicted(evict.uids, evict.nodes, evict.reasons))
    bench.pass_time(2)
    assert len(bench.instructions(m.Evict)) == 1  # and is nowhere yet
    seen_elsewhere = {4: m.KnownNode("n4", {"disk": "ssd"})}
    bench.handle(m.NodesSeen(seen_elsewhere))
    bench.answer("w1", m.OutcomeCode.BOUND, node=4)
    bench.pass_time(2)
    assert len(bench.instructions(m.Evict)) == 2


def test_who_waits_for_a_budget_leaves_once_that_is_gone_or_stays_once_the_node_matches(bench):
    with_budget(bench, min_available=Threshold(100, percent=True))
    rows = bound_job(bench, EVICT)
    seen(bench, disk="hdd")
    assert not bench.instructions(m.Evict)
    seen(bench, disk="ssd")
    assert reasons(bench, rows) == ["", ""]
    bench.pass_time(2)
    seen(bench, disk="hdd")
    bench.handle(m.ObjectsRemoved((ObjectKey("PodDisruptionBudget", "default", "ssd"),)))
    bench.pass_time(2)
    assert [len(evict.uids) for evict in bench.instructions(m.Evict)] == [2]


@pytest.mark.parametrize("asked", [REPORT, EVICT])
def test_in_a_cluster_who_should_not_stay_is_reported_and_never_evicted(new_bench, asked):
    """Also a pod that came to its node by others, and is seen there when it matches no more."""
    bench = new_bench(settings=Settings(worker_timeout_seconds=1e9, controllers_evict=True))
    rows = bound_job(bench, asked)
    seen(bench, disk="hdd")
    assert reasons(bench, rows) == [MISPLACED] * 2
    late = bench.job("late", 1, spec=SSD, during_execution=asked)
    bench.handle(m.Assigned(late, np.array([3], np.uint32)))
    assert reasons(bench, late) == [MISPLACED]
    assert not bench.instructions(m.Evict)
    seen(bench, disk="ssd")
    assert reasons(bench, [*rows, *late]) == ["", "", ""]
