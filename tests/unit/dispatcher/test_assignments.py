"""Kubernetes mode: the API server decides where pods are, whatever workers and the ledger report."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.bound.disruption_budgets import victim_candidates
from dispatcher.core.kubernetes.assignments import ELSEWHERE
from dispatcher.core.machine import Settings
from dispatcher.core.pods.table import Phase
from hoss.model.pod import PodSpec

NOWHERE = 0xFFFFFFFF


def assigned(rows, node):
    return m.Assigned(rows, np.full(len(rows), node, np.uint32))


def refused(rows, reason="admission webhook says no"):
    return m.BindingRefused(rows, (reason,) * len(rows))


def released(bench):
    release = bench.instructions(m.Release)[-1]
    bench.handle(m.Released(release.rows))
    return release


def reserved_rows(bench):
    return [row for wanted in bench.instructions(m.Reserve) for row in wanted.rows.tolist()]


def node_of(bench, rows):
    return bench.machine.registry.pods.node[rows].tolist()


def test_a_pod_on_a_node_is_bound_and_to_be_reserved_and_no_worker_gets_it(bench):
    rows = bench.pods("a")
    bench.handle(assigned(rows, 5))
    bench.join("w1")
    assert bench.all_are(rows, Phase.BOUND)
    assert (node_of(bench, rows), reserved_rows(bench)) == ([5], rows.tolist())
    assert bench.in_hand("w1") == 0


def test_our_own_binding_is_confirmed_and_nothing_is_reserved_twice(bench):
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    bench.handle(assigned(rows, 5))
    assert bench.machine.registry.pods.assigned[rows].all()
    assert not reserved_rows(bench)


def test_a_pod_that_somebody_else_bound_meanwhile_stays_there_though_our_worker_has_a_reservation_elsewhere(
    bench,
):
    bench.join("w1")
    rows = bench.pods("a")
    bench.handle(assigned(rows, 5))
    bench.machine.check()
    bench.answer("w1", m.OutcomeCode.BOUND, node=9)
    assert node_of(bench, rows) == [5]
    assert reserved_rows(bench) == rows.tolist() * 2, "the second moves what the worker has reserved"
    bench.machine.check()


def test_a_pod_that_was_told_bound_is_told_that_this_ended_before_it_is_told_on_another_node(bench):
    """As of a binding that a lost leader had asked for, and that the API server has carried out late."""
    bench.join("w1")
    (row,) = rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=9)
    revision = bench.machine.log.revision
    bench.handle(assigned(rows, 5))
    told = [
        (Phase(batch.phases[0]), int(batch.nodes[0]), *batch.texts)
        for batch in bench.machine.log.since(revision)
    ]
    assert told == [(Phase.BACKOFF, NOWHERE, ELSEWHERE), (Phase.BOUND, 5)]
    transitions = bench.machine.registry.history.of_pod(row)[-2:]
    assert [(each.event, each.node, each.reason) for each in transitions] == [
        ("BindingRefused", NOWHERE, ELSEWHERE),
        ("Assigned", 5, ""),
    ]
    assert (bench.all_are(rows, Phase.BOUND), reserved_rows(bench)) == (True, [row])
    bench.handle(m.Deleted(rows))
    released(bench)
    bench.pass_time(2)
    assert bench.instructions(m.Forget), "no queue holds it"


def test_a_pod_whose_binding_is_confirmed_or_told_again_is_told_bound_once(bench):
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    revision = bench.machine.log.revision
    bench.handle(assigned(rows, 5))
    bench.handle(assigned(rows, 5))
    assert bench.machine.log.revision == revision


def test_a_reservation_elsewhere_that_the_ledger_shows_follows_the_api_server(bench):
    """As of a pod that another scheduler bound while a worker placed it: it may hold both places, and be
    looked up before its worker's answer comes, or while that is lost."""
    bench.join("w1")
    rows = bench.pods("a")
    bench.handle(assigned(rows, 5))
    uids = bench.machine.registry.pods.uid[rows]
    bench.handle(m.Verified(rows, uids, np.array([9], np.uint32)))
    assert node_of(bench, rows) == [5]
    assert reserved_rows(bench) == rows.tolist() * 2
    bench.machine.check()


def test_a_worker_s_refusal_of_a_pod_that_is_assigned_meanwhile_changes_nothing(bench):
    bench.join("w1")
    rows = bench.pods("a")
    bench.handle(assigned(rows, 5))
    bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE, reason="0/1 nodes are available")
    assert bench.all_are(rows, Phase.BOUND)


def test_a_reservation_that_the_ledger_lost_is_made_again_where_the_pod_is(bench):
    rows = bench.pods("a")
    bench.handle(assigned(rows, 5))
    uids = bench.machine.registry.pods.uid[rows]
    bench.handle(m.Verified(rows, uids, np.full(1, NOWHERE, np.uint32)))
    assert bench.all_are(rows, Phase.BOUND)
    assert reserved_rows(bench) == rows.tolist() * 2


def test_a_refused_binding_gives_back_its_reservation_before_the_pod_is_tried_again(bench):
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    bench.handle(refused(rows))
    assert bench.all_are(rows, Phase.BACKOFF)
    assert released(bench).nodes.tolist() == [5]
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert node_of(bench, rows) == [NOWHERE]


@pytest.mark.parametrize("attempted", [True, False])
def test_a_binding_that_fails_is_no_lack_of_nodes_but_one_that_is_not_attempted_may_be(bench, attempted):
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    bench.handle(m.BindingRefused(rows, ("admission webhook says no",), attempted=attempted))
    assert bench.machine.registry.reasons.failed[bench.machine.registry.pods.reason[rows[0]]] is attempted


def test_a_pod_whose_binding_is_refused_often_is_tried_ever_more_slowly(bench):
    bench.join("w1")
    rows = bench.pods("a")
    for _ in range(4):
        bench.answer("w1", m.OutcomeCode.BOUND, node=5)
        bench.handle(refused(rows))
        released(bench)
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.pass_time(30)
    assert bench.all_are(rows, Phase.SCHEDULING)


def test_a_binding_that_was_made_after_all_counts_though_its_reservation_is_being_given_back(bench):
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    bench.handle(refused(rows))
    bench.handle(assigned(rows, 5))
    released(bench)
    assert bench.all_are(rows, Phase.BOUND)
    assert (node_of(bench, rows), reserved_rows(bench)) == ([5], rows.tolist())


def test_a_refusal_of_a_pod_that_is_assigned_by_now_is_outdated(bench):
    rows = bench.pods("a")
    bench.handle(assigned(rows, 5))
    bench.handle(refused(rows))
    assert bench.all_are(rows, Phase.BOUND)
    assert not bench.instructions(m.Release)


def test_an_assigned_pod_that_is_deleted_gives_back_its_reservation_and_is_forgotten(bench):
    rows = bench.pods("a")
    bench.handle(assigned(rows, 5))
    bench.handle(m.Deleted(rows))
    released(bench)
    bench.pass_time(2)
    assert bench.instructions(m.Forget)


def test_the_name_of_a_deleted_pod_is_free_while_others_of_its_list_live(bench):
    rows = bench.pods("web-0", "web-1")
    bench.handle(m.Deleted(rows[:1]))
    bench.machine.registry.release_names(rows[:1])
    (again,) = bench.pods("web-0")
    assert bench.machine.registry.directory.row_of_name("default", "web-0") == again
    bench.handle(m.Deleted(rows[1:]))
    bench.pass_time(2)
    assert bench.machine.registry.directory.row_of_name("default", "web-0") == again


def victims_of(bench, rows, preemptor, *, node=5):
    uids = bench.machine.registry.pods.uid
    by = uids[preemptor].tobytes()
    nodes = np.full(len(rows), node, np.uint32)
    return m.Evicted(
        uids[rows].copy(), nodes, ("preempted by default/b on node n5",) * len(rows), (by,) * len(rows)
    )


@pytest.fixture
def cluster_bench(new_bench):
    return new_bench(settings=Settings(worker_timeout_seconds=1e9, victims_end_by_event=True))


def test_a_victim_that_is_on_a_node_is_deleted_there_and_stays_until_it_is_gone(cluster_bench):
    bench = cluster_bench
    victim, preemptor = bench.pods("a"), bench.pods("b")
    bench.handle(assigned(victim, 5))
    bench.handle(victims_of(bench, victim, preemptor[0]))
    (removal,) = bench.instructions(m.Remove)
    assert removal.rows.tolist() == victim.tolist()
    assert removal.preemptors == (bench.machine.registry.pods.uid[preemptor[0]].tobytes(),)
    assert bench.all_are(victim, Phase.BOUND)
    before = len(reserved_rows(bench))
    bench.handle(m.Verified(victim, bench.machine.registry.pods.uid[victim], np.full(1, NOWHERE, np.uint32)))
    assert len(reserved_rows(bench)) == before, "its room is another's"
    assert not len(
        victim_candidates(bench.machine.registry, np.array([5], np.uint32), 1, 10, assigned=True).rows
    )


def test_an_eviction_that_was_missed_and_is_found_in_the_ledger_has_the_victim_deleted_once(cluster_bench):
    bench = cluster_bench
    victim, preemptor = bench.pods("a"), bench.pods("b")
    bench.handle(assigned(victim, 5))
    uids = bench.machine.registry.pods.uid[victim]
    found = m.Verified(victim, uids.copy(), np.array([5], np.uint32), np.array([True]))
    bench.handle(found)
    bench.handle(found)
    (removal,) = bench.instructions(m.Remove)
    assert (removal.rows.tolist(), removal.preemptors) == (victim.tolist(), (b"",))
    assert len(bench.machine.settlement.nominations) == 0
    assert not bench.machine.settlement.nominations.has_victims(
        bench.machine.registry.pods.uid[preemptor[0]].tobytes()
    )


def test_a_victim_with_events_out_of_order_is_deleted_once_the_ledger_says_that_it_terminates(cluster_bench):
    bench = cluster_bench
    victim, preemptor = bench.pods("a"), bench.pods("b")
    bench.handle(assigned(victim, 5))
    pods = bench.machine.registry.pods
    pods.uncertain[victim] = True  # a lost ledger had it placed anew once
    bench.handle(victims_of(bench, victim, preemptor[0]))
    (verify,) = bench.instructions(m.Verify)
    assert not bench.instructions(m.Remove)
    bench.handle(m.Verified(verify.rows, verify.uids, np.array([5], np.uint32), np.array([True])))
    (removal,) = bench.instructions(m.Remove)
    assert removal.rows.tolist() == victim.tolist()
    texts = bench.machine.registry.reasons.texts
    assert texts[pods.reason[victim[0]]] == "preempted by default/b on node n5"


@pytest.mark.parametrize("node", [5, NOWHERE], ids=["reserved as before", "lost by the ledger"])
def test_a_pod_that_is_not_evicted_after_all_keeps_its_room_and_may_be_evicted_later(cluster_bench, node):
    bench = cluster_bench
    victim, preemptor = bench.pods("a"), bench.pods("b")
    bench.handle(assigned(victim, 5))
    pods = bench.machine.registry.pods
    pods.uncertain[victim] = True
    bench.handle(victims_of(bench, victim, preemptor[0]))
    of_node = bench.machine.registry, np.array([5], np.uint32), 1, 10
    assert not len(victim_candidates(*of_node, assigned=True).rows), "nobody knows yet"
    before = len(reserved_rows(bench))
    uids = pods.uid[victim].copy()
    bench.handle(m.Verified(victim, uids, np.array([node], np.uint32), np.array([False])))
    assert reserved_rows(bench)[before:] == ([] if node == 5 else victim.tolist())
    assert victim_candidates(*of_node, assigned=True).rows.tolist() == victim.tolist()


def test_a_pod_that_lost_its_node_before_it_was_bound_may_be_evicted_from_another(cluster_bench):
    bench = cluster_bench
    bench.handle(m.NodesSeen({3: m.KnownNode("n3", {})}))
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=3)
    bench.handle(m.NodesGone(np.array([3], np.uint32), seq=10))
    uids = bench.machine.registry.pods.uid[rows].copy()
    bench.handle(m.Verified(rows, uids, np.array([NOWHERE], np.uint32)))
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    bench.handle(assigned(rows, 5))
    of_node = bench.machine.registry, np.array([5], np.uint32), 1, 10
    assert victim_candidates(*of_node, assigned=True).rows.tolist() == rows.tolist()


def test_a_preemptor_waits_for_word_of_every_victim_s_end_however_long_it_takes(cluster_bench):
    bench = cluster_bench
    victims, preemptor = bench.pods("a", "c"), bench.pods("b")
    bench.handle(assigned(victims, 5))
    bench.handle(assigned(preemptor, 5))
    nominations = bench.machine.settlement.nominations
    nominations.add(preemptor, np.array([1], np.uint32), bench.now)
    bench.handle(victims_of(bench, victims, preemptor[0]))
    bench.pass_time(1000)
    assert nominations.is_nominated(int(preemptor[0]))
    for row in victims:
        assert nominations.has_victims(bench.machine.registry.pods.uid[preemptor[0]].tobytes())
        bench.handle(m.Deleted(np.array([row], np.uint32)))
    bench.pass_time(0.1)
    assert not nominations.is_nominated(int(preemptor[0]))


def test_a_preemptor_for_whom_nobody_had_to_go_waits_only_until_that_is_known(cluster_bench):
    bench = cluster_bench
    preemptor = bench.pods("b")
    bench.handle(assigned(preemptor, 5))
    nominations = bench.machine.settlement.nominations
    nominations.add(preemptor, np.array([1], np.uint32), bench.now)
    bench.pass_time(1000)
    assert nominations.victims_unknown(int(preemptor[0]))
    nominations.no_victims(int(preemptor[0]))
    bench.pass_time(0.1)
    assert not nominations.is_nominated(int(preemptor[0]))


def asking(bench, milli, *, labels=()):
    return bench._template(PodSpec(requests=(("cpu", milli),), labels=labels))


def replace_template(bench, rows, template):
    bench.handle(m.PodsChanged(tuple((row, template) for row in rows.tolist())))


@pytest.mark.parametrize(
    "changed", [{"milli": 200}, {"milli": 100, "labels": (("a", "b"),)}], ids=["size", "labels"]
)
def test_a_pod_that_changes_on_its_node_is_reserved_as_it_is_now(bench, changed):
    rows = bench.pods("a", spec=PodSpec(requests=(("cpu", 100),)))
    bench.handle(assigned(rows, 5))
    bench.emitted.clear()
    template = asking(bench, **changed)
    replace_template(bench, rows, template)
    assert [type(told) for told in bench.emitted] == [m.Reserve], (
        "in one step: nobody else can have the room in between"
    )
    assert (node_of(bench, rows), bench.all_are(rows, Phase.BOUND)) == ([5], True)
    templates = bench.machine.registry.templates
    assert templates.spec(int(bench.machine.registry.pods.template[rows[0]])) == template.spec


def test_a_change_that_the_ledger_has_nothing_of_asks_nothing_of_it(bench):
    rows = bench.pods("a", spec=PodSpec())
    bench.handle(assigned(rows, 5))
    bench.emitted.clear()
    replace_template(bench, rows, bench._template(PodSpec(images=("new",))))
    assert not bench.emitted


def test_a_pod_whose_room_is_another_s_already_gets_none_back_by_a_change(bench):
    rows = bench.pods("a", spec=PodSpec(requests=(("cpu", 100),)))
    bench.handle(assigned(rows, 5))
    bench.handle(victims_of(bench, rows, bench.pods("b")[0]))
    bench.emitted.clear()
    replace_template(bench, rows, asking(bench, 200))
    assert not bench.emitted


def test_a_preemptor_whose_worker_died_is_bound_by_nobody_before_it_is_known_who_went_for_it(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=1e9, victims_end_by_event=True))
    link = bench.join("w1")
    rows = bench.pods("a")
    bench.handle(m.LinkClosed(link))
    bench.handle(m.Fenced("w1", np.array([5], np.uint32), {0: np.array([7], np.uint64)}))
    nominations = bench.machine.settlement.nominations
    assert bench.all_are(rows, Phase.BOUND)
    assert nominations.victims_unknown(int(rows[0]))
    nominations.no_victims(int(rows[0]))
    bench.pass_time(1)
    assert not nominations.is_nominated(int(rows[0]))


@pytest.mark.parametrize("known_by", ["its dispatcher", "the ledger"])
def test_a_preemptor_whose_victims_only_a_lost_ledger_knew_is_placed_anew(cluster_bench, known_by):
    bench = cluster_bench
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    nominations = bench.machine.settlement.nominations
    if known_by == "its dispatcher":
        nominations.add(rows, np.array([1], np.uint32), bench.now)
    else:
        nominations.waits_by_ledger(rows)
    bench.handle(m.LedgerLost())
    assert not bench.all_are(rows, Phase.BOUND)
    assert len(nominations) == 0


def test_a_pod_that_is_on_its_node_is_no_preemptor_any_more_when_the_ledger_is_lost(cluster_bench):
    bench = cluster_bench
    bench.join("w1")
    rows = bench.pods("a")
    bench.answer("w1", m.OutcomeCode.BOUND, node=5)
    nominations = bench.machine.settlement.nominations
    nominations.waits_by_ledger(rows)
    bench.handle(assigned(rows, 5))
    bench.pass_time(0.1)
    assert len(nominations) == 0
    bench.handle(m.LedgerLost())
    assert bench.all_are(rows, Phase.BOUND)
