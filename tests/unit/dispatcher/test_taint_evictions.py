"""NoExecute taints: which pods have to leave a node, and when."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Settings
from dispatcher.core.pods.sets import NewJob, Order
from dispatcher.core.pods.table import Phase
from hoss.model.cluster import PodDisruptionBudget, Threshold
from hoss.model.node import NO_EXECUTE, Taint, Toleration
from hoss.model.pod import PodSpec
from hoss.model.selectors import LabelSelector

DISK, NET = Taint("disk", "broken", NO_EXECUTE), Taint("net", "", NO_EXECUTE)
UNTOLERATED = "evicted: node n3 has taint disk=broken:NoExecute, which the pod does not tolerate"
TOO_LONG = "evicted: node n3 has taint disk=broken:NoExecute, which the pod tolerates for 30 s only"


def tolerating(*seconds, taint=DISK):
    """A spec with a toleration of the taint for each of the seconds."""
    return PodSpec(tolerations=tuple(Toleration(taint.key, "Exists", "", NO_EXECUTE, s) for s in seconds))


def told(bench, *taints, since=None, node=3):
    since_ms = bench.machine.unix_ms(bench.now) if since is None else since
    bench.handle(
        m.NodesSeen({node: m.KnownNode(f"n{node}", {}, tuple((taint, since_ms) for taint in taints))})
    )


def bound_job(bench, spec=None, *, replicas=2, node=3, name="job"):
    if bench.machine.members.get("w1") is None:
        bench.join("w1")
    rows = bench.job(name, replicas, spec=spec)
    bench.answer("w1", m.OutcomeCode.BOUND, node=node)
    return rows


def evicted(bench):
    """Reasons of all evictions asked for, and their pods."""
    return [(str(e.reasons[0]), len(e.uids)) for e in bench.instructions(m.Evict)]


def test_who_does_not_tolerate_a_taint_leaves_at_once_is_told_why_and_is_queued_again(bench):
    told(bench)
    rows = bound_job(bench)
    bystanders = bound_job(bench, node=4, name="elsewhere")
    told(bench, DISK)
    (evict,) = bench.instructions(m.Evict)
    assert (evict.nodes.tolist(), evict.reasons) == ([3, 3], (UNTOLERATED,) * 2)
    bench.handle(m.Evicted(evict.uids, evict.nodes, evict.reasons))
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert bench.all_are(bystanders, Phase.BOUND)
    registry = bench.machine.registry
    assert {registry.reasons.texts[i] for i in registry.pods.eviction[rows].tolist()} == {UNTOLERATED}


@pytest.mark.parametrize(
    ("seconds", "stays"), [((30,), 30), ((30, 60), 30), ((None, 30), 30), ((0,), 0), ((-5,), 0)]
)
def test_who_tolerates_it_for_a_time_leaves_when_the_least_of_his_tolerations_is_over(bench, seconds, stays):
    bound_job(bench, tolerating(*seconds))
    told(bench, DISK)
    bench.pass_time(max(0, stays - 1))
    assert bool(evicted(bench)) is (stays == 0)
    bench.pass_time(1.1)
    assert [pods for _, pods in evicted(bench)] == [2]
    bench.pass_time(100)
    assert len(evicted(bench)) == 1


def test_who_tolerates_it_without_an_end_stays(bench):
    bound_job(bench, tolerating(None))
    told(bench, DISK)
    bench.pass_time(10**6)
    assert evicted(bench) == []


def test_the_removal_of_the_taint_ends_the_time_that_ran(bench):
    bound_job(bench, tolerating(30))
    told(bench, DISK)
    bench.pass_time(20)
    told(bench)
    bench.pass_time(20)
    told(bench, DISK)
    bench.pass_time(29)
    assert evicted(bench) == []
    bench.pass_time(2)
    assert evicted(bench) == [(TOO_LONG, 2)]


def test_another_change_of_the_node_does_not_begin_the_time_anew(bench):
    bound_job(bench, tolerating(30))
    told(bench, DISK)
    since = bench.machine.unix_ms(bench.now)
    bench.pass_time(20)
    told(bench, DISK, NET, since=since)  # which it does not tolerate, either
    assert evicted(bench) == [
        ("evicted: node n3 has taint net:NoExecute, which the pod does not tolerate", 2)
    ]


def test_of_several_taints_the_one_that_is_over_first_counts(bench):
    spec = PodSpec(tolerations=(*tolerating(30).tolerations, *tolerating(300, taint=NET).tolerations))
    bound_job(bench, spec)
    told(bench, NET, DISK)
    bench.pass_time(31)
    assert evicted(bench) == [(TOO_LONG, 2)]


def test_time_counts_from_when_the_taint_says_that_it_came(bench):
    bound_job(bench, tolerating(30))
    bench.pass_time(100)
    told(bench, DISK, since=bench.machine.unix_ms(bench.now) - 25_000)
    bench.pass_time(4)
    assert evicted(bench) == []
    bench.pass_time(2)
    assert evicted(bench) == [(TOO_LONG, 2)]


def test_a_taint_that_says_nothing_of_its_time_came_when_it_was_first_told_of(bench):
    bound_job(bench, tolerating(30))
    told(bench, DISK, since=0)
    bench.pass_time(20)
    told(bench, DISK, since=0)
    bench.pass_time(11)
    assert evicted(bench) == [(TOO_LONG, 2)]


def test_a_pod_that_comes_to_a_tainted_node_has_its_time_from_then_on(bench):
    told(bench, DISK)
    bench.pass_time(1000)
    bound_job(bench, tolerating(30))
    bench.pass_time(20)
    bound_job(bench, tolerating(30), name="later", replicas=1)
    bench.pass_time(11)
    assert evicted(bench) == [(TOO_LONG, 2)]
    bench.pass_time(20)
    assert evicted(bench) == [(TOO_LONG, 2), (TOO_LONG, 1)]


def test_a_pod_that_was_placed_before_its_worker_heard_of_the_taint_leaves_when_it_is_bound(bench):
    told(bench, DISK)
    bound_job(bench)
    assert evicted(bench) == [(UNTOLERATED, 2)]


def test_pods_deleted_or_gone_elsewhere_when_their_time_is_over_are_let_be(bench):
    rows = bound_job(bench, tolerating(30))
    told(bench, DISK)
    bench.handle(m.Deleted(rows[:1]))
    bench.machine.registry.pods.node[rows[1]] = 4
    bench.pass_time(31)
    assert evicted(bench) == []


def test_after_a_start_the_time_goes_on_where_it_was(new_bench):
    bench = new_bench()
    bench.join("w1")
    template = bench._template(tolerating(30))
    submission = bench.accept(Order("request", (template,), (NewJob("job", 0, 2),), None))  # long ago
    bench.machine.restore_bound(np.arange(2, dtype=np.uint32), np.array([3, 3], np.uint32))
    bench.handle(m.Admitted(submission))
    told(bench, DISK, since=bench.machine.unix_ms(bench.now) - 25_000)
    assert evicted(bench) == []
    bench.pass_time(6)
    assert evicted(bench) == [(TOO_LONG, 2)]


def test_budgets_have_no_say_in_it_as_in_kubernetes(bench):
    budget = PodDisruptionBudget("default", "all", LabelSelector(), min_available=Threshold(2))
    bench.handle(m.ObjectsApplied((budget,)))
    bound_job(bench)
    told(bench, DISK)
    assert evicted(bench) == [(UNTOLERATED, 2)]


def test_no_execute_taints_of_other_nodes_cost_no_look_at_the_pods_of_a_batch(bench, monkeypatch):
    told(bench, DISK, node=7)
    looked = []
    eviction = bench.machine.taint_eviction
    monkeypatch.setattr(eviction, "_by_template_and_node", lambda rows: looked.append(len(rows)) or [])
    bound_job(bench, replicas=500)
    bench.pass_time(1000)
    assert sum(looked) == 0


def test_where_others_send_pods_away_nobody_is_evicted(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=1e9, controllers_evict=True))
    rows = bound_job(bench)
    told(bench, DISK)
    assert not evicted(bench)
    assert bench.all_are(rows, Phase.BOUND)
