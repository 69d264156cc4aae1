"""From changes of pod and node objects to changes of the registry and the ledger."""

from dataclasses import replace

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.kubernetes.mirror import ForeignNominations, NodeMirror, PodMirror, closed, gangs_of
from dispatcher.core.kubernetes.pod_groups import GroupKind, GroupRef
from dispatcher.core.kubernetes.pod_objects import GonePod, SeenPod
from dispatcher.core.kubernetes.rejections import KubeletRejection
from dispatcher.core.pods.sets import GangRule, NewGang, NewPods
from hoss.model.cluster import NominatedPod, ObjectKey
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate

NODE = NodeSpec("n1", allocatable=(("cpu", 1000),))


def uid(number):
    return number.to_bytes(16, "big")


def seen(number, node="", *, ours=True, gates=(), **fields):
    template = PodTemplate(PodSpec(scheduling_gates=gates))
    facts = {"leaving": False, "ended": False, **fields}
    return SeenPod(uid(number), "default", f"p{number}", node, ours, template=template, **facts)


@pytest.fixture
def mirror(bench):
    made = PodMirror(bench.machine.registry)
    made.nodes = {"n1": 7, "n2": 8}
    return made


@pytest.fixture
def known(bench):
    """Makes rows of pods with these numbers."""

    def make(*numbers):
        uids = np.frombuffer(b"".join(map(uid, numbers)), np.uint8).reshape(-1, 16)
        names = tuple(f"p{number}" for number in numbers)
        template = bench._template(PodSpec())
        return bench.admit((template,), (), NewPods(names, np.zeros(len(numbers), np.uint32), uids))

    return make


def test_a_known_pod_that_still_waits_may_have_changed_and_is_planned(mirror, known):
    rows = known(1)
    again = seen(1)
    plan = mirror.plan([again])
    assert plan
    assert (plan.waiting, plan.ungated) == (((int(rows[0]), again),), ())


def test_what_is_on_a_node_and_what_waits_for_us_is_new_and_the_rest_is_not_ours(mirror):
    plan = mirror.plan([seen(1, "n1", ours=False), seen(2), seen(3, ours=False)])
    assert [pod.name for pod in plan.new] == ["p1", "p2"]
    assert not len(plan.gone)


def test_of_many_events_of_a_pod_the_last_counts(mirror):
    assert not mirror.plan([seen(1), seen(1, "n1"), GonePod(uid(1))])
    (pod,) = mirror.plan([seen(2), seen(2, "n2")]).new
    assert pod.node == "n2"


def test_a_full_cluster_is_planned_in_parts_and_each_pod_is_in_one_of_them_as_it_is_last(mirror):
    changes = [seen(1), *(seen(number, "n1") for number in range(2, 8)), seen(1, "n2"), GonePod(uid(3))]
    parts = list(mirror.plans(changes, 3))
    assert [[(pod.name, pod.node) for pod in part.new] for part in parts] == [
        [("p1", "n2"), ("p2", "n1")],
        [("p4", "n1"), ("p5", "n1"), ("p6", "n1")],
        [("p7", "n1")],
    ]
    assert list(mirror.plans([], 3)) == []


def test_a_known_pod_that_is_on_a_node_now_is_assigned_there(mirror, known):
    rows = known(1, 2)
    plan = mirror.plan([seen(2, "n2")])
    assert (plan.assigned.tolist(), plan.nodes.tolist(), plan.new) == ([rows[1]], [8], ())


@pytest.mark.parametrize(
    "end",
    [GonePod(uid(1)), seen(1, "n1", ended=True), seen(1, leaving=True)],
    ids=["gone", "ended", "leaving"],
)
def test_a_known_pod_that_is_gone_has_ended_or_leaves_without_a_node_goes(mirror, known, end):
    rows = known(1)
    assert mirror.plan([end]).gone.tolist() == rows.tolist()


def test_a_pod_that_is_being_deleted_on_its_node_keeps_its_room_until_it_is_gone(mirror, known):
    known(1)
    plan = mirror.plan([seen(1, "n1", leaving=True)])
    assert (len(plan.gone), len(plan.assigned)) == (0, 1)


def test_a_pod_on_an_unknown_node_waits_until_the_node_is_known(mirror):
    assert not mirror.plan([seen(1, "n9"), seen(2, "n9")])
    assert mirror.on_unknown_nodes == {"n9": 2}
    mirror.plan([GonePod(uid(2))])
    mirror.nodes["n9"] = 9
    assert [pod.name for pod in mirror.plan(mirror.take_resolved()).new] == ["p1"]
    assert not mirror.on_unknown_nodes


def test_a_pod_that_we_cannot_place_is_remembered_as_long_as_it_waits(mirror):
    assert not mirror.plan([seen(1, problem="HOSS does not place pods with resource claims")])
    assert list(mirror.unplaceable) == [uid(1)]
    mirror.plan([seen(1, "n1", problem="HOSS does not place pods with resource claims")])
    assert not mirror.unplaceable


def test_nodes_are_upserted_when_they_differ_and_not_at_every_heartbeat(bench):
    nodes = NodeMirror(bench.machine.registry)
    plan = nodes.plan([NODE], [], {})
    assert plan.upserts == (NODE,)
    nodes.done(plan)
    assert not nodes.plan([NODE], [], {"n1": 7})


def test_a_node_without_pods_is_removed_with_its_object(bench):
    nodes = NodeMirror(bench.machine.registry)
    nodes.done(nodes.plan([NODE], [], {}))
    assert nodes.plan([], ["n1"], {"n1": 7}).removals == ("n1",)


def test_a_node_that_goes_under_its_pods_is_closed_and_removed_when_the_last_is_gone(bench, known):
    rows, nodes = known(1), NodeMirror(bench.machine.registry)
    nodes.done(nodes.plan([NODE], [], {}))
    bench.handle(m.Assigned(rows, np.array([7], np.uint32)))
    plan = nodes.plan([], ["n1"], {"n1": 7})
    assert plan.upserts == (NodeSpec("n1", unschedulable=True),)
    nodes.done(plan)
    assert not nodes.plan([], [], {"n1": 7})
    bench.handle(m.Deleted(rows))
    assert nodes.plan([], [], {"n1": 7}).removals == ("n1",)


def test_a_node_that_the_ledger_never_had_is_closed_until_the_pods_on_it_are_counted(bench):
    nodes = NodeMirror(bench.machine.registry)
    plan = nodes.plan([NODE], (), {}, {NODE.name})
    assert plan.upserts == (closed(NODE),)
    nodes.done(plan)
    assert nodes.take_held() == [NODE]
    assert nodes.plan([NODE], (), {NODE.name: 0}, {NODE.name}).upserts == (NODE,), "more pods came meanwhile"
    assert not nodes.holds_any


def test_a_node_whose_pods_an_earlier_term_counted_stays_open_and_one_that_it_left_closed_is_held(bench):
    nodes, other = NodeMirror(bench.machine.registry), replace(NODE, name="other")
    nodes.restore([NODE, closed(other)])
    assert not nodes.plan([NODE, other], (), {}, {NODE.name, "other"})  # the ledger has them so
    assert nodes.take_held() == [other]
    changed = replace(NODE, unschedulable=True)
    assert nodes.plan([changed, other], (), {}, {NODE.name, "other"}).upserts == (changed, other)


def test_a_held_node_whose_object_goes_is_not_opened(bench):
    nodes = NodeMirror(bench.machine.registry)
    nodes.done(nodes.plan([NODE], (), {}, {NODE.name}))
    nodes.plan([], [NODE.name], {NODE.name: 0}, {NODE.name})
    assert nodes.take_held() == []


def test_a_node_that_comes_back_is_as_it_was(bench, known):
    rows, nodes = known(1), NodeMirror(bench.machine.registry)
    nodes.done(nodes.plan([NODE], [], {}))
    bench.handle(m.Assigned(rows, np.array([7], np.uint32)))
    nodes.done(nodes.plan([], ["n1"], {"n1": 7}))
    assert nodes.plan([NODE], [], {"n1": 7}).upserts == (NODE,)
    assert not nodes.terminating


def test_a_node_that_the_ledger_has_from_an_earlier_time_and_that_is_not_there_goes_with_its_last_pod(
    bench, known
):
    rows, nodes = known(1), NodeMirror(bench.machine.registry)
    left, empty = closed(NodeSpec("left", allocatable=(("cpu", 1000),))), closed(NodeSpec("empty"))
    indexes = {"left": 7, "empty": 8}
    plan = nodes.plan([left, empty], [], indexes)
    assert (plan.upserts, plan.removals) == ((left, empty), ())
    nodes.done(plan)
    nodes.gone(["left", "empty"])
    bench.handle(m.Assigned(rows, np.array([7], np.uint32)))  # the pods are known by now
    plan = nodes.plan([], [], indexes)
    assert (plan.upserts, plan.removals) == ((), ("empty",))
    nodes.done(plan)
    assert nodes.terminating == {"left"}
    bench.handle(m.Deleted(rows))
    assert nodes.plan([], [], indexes).removals == ("left",)


def test_a_rejection_is_reported_once_however_often_the_pod_is_seen_and_it_ends_the_pod(mirror, known):
    rows = known(1)
    told = seen(1, "n1", ended=True, rejection=KubeletRejection("OutOfcpu", "no"))
    plan = mirror.plan([told])
    assert (plan.gone.tolist(), plan.rejected) == (rows.tolist(), (told,))
    assert not mirror.plan([told]).rejected
    mirror.plan([GonePod(told.uid)])
    assert mirror.plan([told]).rejected == (told,)


def test_pods_of_one_gang_are_accepted_as_such_and_the_largest_minimum_counts():
    train, serve = NewGang("default", "train", 2, "train"), NewGang("default", "serve", 2, "serve")
    pods = [
        seen(1, gang=train),
        seen(2),
        seen(3, gang=serve),
        seen(4, gang=NewGang("default", "train", 3, "train")),
    ]
    gangs, of_pods = gangs_of(pods, {}.get)
    assert gangs == (NewGang("default", "train", 3, "train"), serve)
    assert of_pods.tolist() == [1, 0, 2, 1]
    assert gangs_of([seen(1)], {}.get) == ((), None)


def test_pods_of_a_group_are_accepted_with_what_the_group_says():
    group, rule = GroupRef(GroupKind.VOLCANO, "default", "train"), GangRule(5)
    gang = NewGang("default", "train", 0, group.key)
    gangs, _ = gangs_of([seen(1, gang=gang, group=group)], {group: rule}.get)
    assert gangs == (replace(gang, rule=rule),)


def nominated(number, node="n1", **fields):
    return seen(number, ours=False, nominated_node=node, **fields)


def entry(number, node="n1"):
    return {
        ObjectKey("NominatedPod", "default", f"p{number}"): NominatedPod("default", f"p{number}", node, 0, ())
    }


GONE = {ObjectKey("NominatedPod", "default", "p1"): None}


@pytest.mark.parametrize(
    "ends",
    [
        seen(1, "n1", ours=False, nominated_node="n1"),
        seen(1, ours=False),
        nominated(1, leaving=True),
        nominated(1, ended=True),
        GonePod(uid(1)),
    ],
    ids=["bound", "another choice failed", "deleted", "ended", "gone"],
)
def test_a_nomination_of_another_schedulers_pod_is_followed_until_it_ends(ends):
    nominations = ForeignNominations()
    assert nominations.update(seen(1, ours=False)) == {}
    assert nominations.update(nominated(1)) == entry(1)
    assert nominations.update(nominated(1, "n2")) == {**GONE, **entry(1, "n2")}
    assert nominations.update(nominated(2)) == entry(2)
    assert nominations.update(ends) == GONE
    assert nominations.update(ends) == {}


def test_a_nomination_of_our_own_is_a_reservation_and_nothing_more():
    assert ForeignNominations().update(seen(1, nominated_node="n1")) == {}


def test_the_end_of_a_pod_leaves_the_nomination_of_a_later_one_of_its_name():
    nominations = ForeignNominations()
    nominations.update(nominated(1))
    assert nominations.update(nominated(2)._replace(name="p1")) == {
        ObjectKey("NominatedPod", "default", "p1"): NominatedPod("default", "p1", "n1", 0, ())
    }
    assert nominations.update(GonePod(uid(1))) == {}
