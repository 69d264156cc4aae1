"""What PodGroups say about their pods, and what is written about these into their status."""

import pytest

from dispatcher.core.kubernetes.conditions import REPEAT_SECONDS
from dispatcher.core.kubernetes.pod_group_status import CHANGE_SECONDS, PodGroupStatuses, status_of
from dispatcher.core.kubernetes.pod_groups import (
    GroupKind,
    GroupRef,
    Member,
    MemberCounts,
    PodGroups,
    read_group,
    read_workload,
)
from dispatcher.core.pods.sets import GangRule

COSCHEDULING, VOLCANO, WORKLOAD, _ = GroupKind
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"
WAITING, ON_NODE = Member(on_node=False, phase="Pending"), Member(on_node=True, phase="Pending")
RUNNING, DONE, BROKEN = (Member(on_node=True, phase=phase) for phase in ("Running", "Succeeded", "Failed"))
OTHER = {"type": "DisruptionTarget", "status": "False"}
FEW = "gang train: 2 of the 3 pods it needs are there"


def written(kind, minimum=3, *, status=None, namespace="default", **spec):
    """A PodGroup object of the kind."""
    if kind is WORKLOAD and minimum is not None:
        spec["schedulingPolicy"] = {"gang": {"minCount": minimum}}
    elif minimum is not None:
        spec["minMember"] = minimum
    metadata = {"name": "train", "namespace": namespace, "uid": "u", "resourceVersion": "7", "generation": 2}
    return {"metadata": metadata, "spec": spec, "status": status or {}}


def train(kind=COSCHEDULING, minimum=3, **more):
    return read_group(kind, written(kind, minimum, **more))


def ref(kind=COSCHEDULING, namespace="default"):
    return GroupRef(kind, namespace, "train")


def counted(*members):
    groups = PodGroups()
    for number, member in enumerate(members):
        groups.pod_seen(bytes([number]), ref(), member)
    return groups.counts(ref())


@pytest.fixture
def groups():
    return PodGroups()


@pytest.mark.parametrize(
    ("kind", "item", "rule"),
    [
        (COSCHEDULING, written(COSCHEDULING), GangRule(3)),
        (VOLCANO, written(VOLCANO), GangRule(3)),
        (WORKLOAD, written(WORKLOAD), GangRule(3)),
        (WORKLOAD, written(WORKLOAD, None, schedulingPolicy={"basic": {}}), GangRule(1)),
        (VOLCANO, written(VOLCANO, None), GangRule(1)),
        (VOLCANO, written(VOLCANO, 0), GangRule(1)),
        (COSCHEDULING, written(COSCHEDULING, 0), GangRule(1)),
        (
            COSCHEDULING,
            written(COSCHEDULING, -1),
            "spec.minMember: is -1; it must lie between 0 and 4294967295",
        ),
        (
            WORKLOAD,
            written(WORKLOAD, 0),
            "spec.schedulingPolicy.gang.minCount: is 0; it must lie between 1 and 4294967295",
        ),
        (VOLCANO, written(VOLCANO, networkTopology={"mode": "soft"}), GangRule(3)),
        (
            COSCHEDULING,
            written(COSCHEDULING, 1001),
            "its minimum is 1001; 1000 at most, which is as many as the ledger decides at once",
        ),
        (
            COSCHEDULING,
            written(COSCHEDULING, "3"),
            "spec.minMember: is '3', where a whole number belongs",
        ),
        (
            VOLCANO,
            written(VOLCANO, networkTopology={"mode": "hard"}),
            "spec.networkTopology with mode hard is not supported",
        ),
        (
            WORKLOAD,
            written(WORKLOAD, schedulingConstraints={"topology": [{"key": "rack"}]}),
            "spec.schedulingConstraints.topology is not supported",
        ),
    ],
)
def test_a_group_says_how_many_of_its_pods_start_together_or_why_it_cannot(groups, kind, item, rule):
    groups.apply(read_group(kind, item))
    if isinstance(rule, str):
        rule = GangRule(missing=f"PodGroup default/train: {rule}")
    assert groups.rule(ref(kind)) == rule


@pytest.mark.parametrize("spec", [None, "x", {"minMember": []}, {"networkTopology": "hard"}])
@pytest.mark.parametrize("status", [None, "x", {"conditions": "x"}, {"conditions": ["x", OTHER]}])
def test_what_is_no_group_and_no_status_ends_nothing(groups, spec, status):
    item = {**written(VOLCANO), "spec": spec, "status": status}
    groups.apply(read_group(VOLCANO, item))
    rule = groups.rule(ref(VOLCANO))
    assert (rule == GangRule(1)) == (spec is None)
    assert rule.missing.startswith("" if spec is None else "PodGroup default/train: ")
    found = status_of(read_group(VOLCANO, {**item, "spec": {}}), counted(WAITING), FEW, NOW)["conditions"]
    assert [condition["type"] for condition in found if condition != OTHER] == ["Unschedulable"]


def test_a_group_of_another_namespace_or_kind_is_another_group(groups):
    groups.apply(train())
    missing = GangRule(missing="PodGroup other/train does not exist")
    assert groups.rule(ref(namespace="other")) == missing
    assert groups.rule(ref(VOLCANO)) == GangRule(missing="PodGroup default/train does not exist")


def test_pods_are_told_why_no_group_of_a_kind_is_known_and_when_that_is_over(groups):
    groups.pod_seen(b"1", ref(), WAITING)
    groups.set_unread(COSCHEDULING, "the cluster has none")
    assert groups.take_rules() == {ref().key: GangRule(missing="the cluster has none")}
    groups.set_unread(COSCHEDULING, "the cluster has none")
    assert groups.take_rules() == {}
    groups.set_unread(COSCHEDULING, "")
    assert groups.take_rules()[ref().key].missing == "PodGroup default/train does not exist"


def test_only_a_change_of_what_a_group_says_is_told(groups):
    groups.apply(train())
    assert groups.take_rules() == {ref().key: GangRule(3)}
    groups.apply(train(status={"phase": "Running"}))
    assert groups.take_rules() == {}
    groups.apply(train(minimum=4))
    assert groups.take_rules() == {ref().key: GangRule(4)}
    groups.remove(ref())
    assert groups.take_rules()[ref().key].missing


def workload(*entries, name="train"):
    metadata = {"name": name, "namespace": "default", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {"podGroups": list(entries)}}


def entry(name, minimum):
    return {"name": name, "policy": {"gang": {"minCount": minimum}} if minimum else {"basic": {}}}


def inside(name, replica=""):
    return GroupRef(GroupKind.IN_WORKLOAD, "default", name, replica)


def apply_workload(groups, *entries):
    groups.apply_workload("default", "train", read_workload(workload(*entries)))


def test_a_workload_of_kubernetes_1_35_has_a_rule_for_each_of_its_groups_and_for_every_replica(groups):
    groups.pod_seen(b"1", inside("train/workers", "0"), WAITING)
    groups.pod_seen(b"2", inside("train/workers", "1"), WAITING)
    missing = GangRule(missing="pod group workers of Workload default/train does not exist")
    assert groups.rule(inside("train/workers", "0")) == missing
    apply_workload(groups, entry("driver", 0), entry("workers", 4))
    assert groups.take_rules() == {
        inside("train/driver").key: GangRule(1),
        inside("train/workers").key: GangRule(4),
        inside("train/workers", "0").key: GangRule(4),
        inside("train/workers", "1").key: GangRule(4),
    }
    assert groups.take_touched() == set(), "a Workload of 1.35 has no status"


def test_a_group_that_a_workload_no_longer_has_is_gone_and_so_are_all_with_it(groups):
    apply_workload(groups, entry("driver", 0), entry("workers", 4))
    groups.pod_seen(b"1", inside("train/workers", "0"), WAITING)
    groups.take_rules()
    apply_workload(groups, entry("driver", 0))
    assert groups.take_rules()[inside("train/workers", "0").key].missing
    apply_workload(groups)
    groups.pod_gone(b"1")
    assert len(groups) == 0


@pytest.mark.parametrize(
    ("item", "rule"),
    [
        (
            workload(entry("workers", 1001)),
            "pod group workers of Workload default/train: its minimum is 1001",
        ),
        (
            workload(entry("workers", "x")),
            "pod group workers of Workload default/train: spec.schedulingPolicy",
        ),
        (workload("workers"), "pod group workers of Workload default/train does not exist"),
        ({**workload(), "spec": "x"}, "pod group workers of Workload default/train does not exist"),
    ],
)
def test_a_workload_that_cannot_be_read_says_so_to_its_pods(groups, item, rule):
    groups.apply_workload("default", "train", read_workload(item))
    assert groups.rule(inside("train/workers")).missing.startswith(rule)


def test_a_group_is_forgotten_with_its_object_and_the_last_pod_that_names_it(groups):
    groups.apply(train())
    groups.pod_seen(b"1", ref(), WAITING)
    groups.pod_seen(b"2", ref(), WAITING)
    groups.pod_seen(b"2", None, WAITING)
    groups.remove(ref())
    assert (len(groups), groups.counts(ref()).total) == (1, 1)
    groups.pod_gone(b"1")
    groups.pod_gone(b"never seen")
    assert (len(groups), groups.counts(ref()).total) == (0, 0)
    groups.apply(train())
    groups.remove(ref())
    assert len(groups) == 0


def test_pods_are_counted_as_the_api_server_has_them():
    assert counted(WAITING, ON_NODE, RUNNING, DONE, BROKEN) == MemberCounts(5, 4, 1, 1, 1)


@pytest.mark.parametrize(
    ("members", "phases"),
    [
        ([WAITING] * 2, ("Pending", "Pending")),
        ([WAITING] * 3, ("Scheduling", "Inqueue")),
        ([ON_NODE] * 3, ("Scheduling", "Running")),
        ([RUNNING, RUNNING, ON_NODE], ("Scheduling", "Running")),
        ([RUNNING, RUNNING, WAITING], ("Scheduling", "Unknown")),
        ([RUNNING] * 3, ("Running", "Running")),
        ([DONE, RUNNING, RUNNING], ("Running", "Running")),
        ([DONE] * 3, ("Finished", "Completed")),
        ([DONE, DONE, BROKEN], ("Failed", "Completed")),
    ],
)
def test_a_phase_is_in_the_words_of_its_kind(members, phases):
    pods = counted(*members)
    found = [status_of(train(kind), pods, "", NOW) for kind in (COSCHEDULING, VOLCANO)]
    assert tuple(status["phase"] for status in found) == phases
    for status in found:
        counts = status["running"], status["succeeded"], status["failed"]
        assert counts == (pods.running, pods.succeeded, pods.failed)


def test_the_time_since_when_a_gang_is_scheduled_is_written_once():
    pods = counted(*[WAITING] * 3)
    assert status_of(train(), pods, "", NOW)["scheduleStartTime"] == NOW
    started = train(status={"scheduleStartTime": NOW})
    assert "scheduleStartTime" not in status_of(started, pods, "", LATER)


@pytest.mark.parametrize(
    ("kind", "before", "pods", "condition"),
    [
        (VOLCANO, [], 2, ("Unschedulable", "True", "NotEnoughTasks", FEW, LATER)),
        (VOLCANO, [], 3, ("Unschedulable", "True", "NotEnoughResources", FEW, LATER)),
        (WORKLOAD, [], 2, ("PodGroupScheduled", "False", "Unschedulable", FEW, LATER)),
        (
            WORKLOAD,
            [{"type": "PodGroupScheduled", "status": "False", "lastTransitionTime": NOW}],
            3,
            ("PodGroupScheduled", "False", "Unschedulable", FEW, NOW),
        ),
    ],
)
def test_a_condition_says_why_a_gang_waits_and_since_when_and_leaves_others_alone(
    kind, before, pods, condition
):
    group = train(kind, status={"conditions": [OTHER, *before]})
    other, ours = status_of(group, counted(*[WAITING] * pods), FEW, LATER)["conditions"]
    names = ("type", "status", "reason", "message", "lastTransitionTime")
    assert (other, tuple(ours[name] for name in names)) == (OTHER, condition)


def test_a_gang_that_is_scheduled_says_so_and_a_lost_pod_does_not_take_it_back():
    before = {"type": "PodGroupScheduled", "status": "False", "lastTransitionTime": NOW}
    group = train(WORKLOAD, status={"conditions": [before]})
    (ours,) = status_of(group, counted(*[ON_NODE] * 3), "", LATER)["conditions"]
    said = {"type": "PodGroupScheduled", "status": "True", "reason": "Scheduled", "message": ""}
    assert ours == {**said, "lastTransitionTime": LATER, "observedGeneration": 2}
    group = train(WORKLOAD, status={"conditions": [ours]})
    assert status_of(group, counted(ON_NODE, ON_NODE, WAITING), "no room", LATER) == {}


class Writing:
    """A group whose status is written by `statuses`."""

    def __init__(self, **more):
        self.groups, self.now, self.why = PodGroups(), 0.0, ""
        self.statuses = PodGroupStatuses(self.groups)
        self.more = more
        self.apply()

    def apply(self, **status):
        self.groups.apply(train(**self.more, status=status))

    def pods(self, *members):
        for number, member in enumerate(members):
            self.groups.pod_seen(bytes([number]), ref(self.more.get("kind", COSCHEDULING)), member)

    def due(self, seconds=0.0, utc_now=NOW):
        """After so many seconds: the statuses that are written, and what is overdue."""
        self.now += seconds
        statuses, overdue = self.statuses.due(lambda _: self.why, self.now, utc_now)
        return [due.status for due in statuses], [item.text for item in overdue]


def test_groups_without_pods_of_ours_are_left_alone():
    writing = Writing()
    assert writing.due() == ([], [])
    writing.pods(WAITING)
    ((status,), _) = writing.due()
    assert status["phase"] == "Pending"


def test_a_status_is_written_when_it_changes_and_once_a_second_at_most():
    writing = Writing()
    writing.pods(WAITING, WAITING)
    ((first,), _) = writing.due()
    writing.pods(WAITING, WAITING, WAITING)
    assert writing.due(CHANGE_SECONDS / 2) == ([], [])
    ((second,), _) = writing.due(CHANGE_SECONDS)
    assert (first["phase"], second["phase"]) == ("Pending", "Scheduling")
    assert writing.due(400.0) == ([], []), "it has not changed"


def test_a_reason_that_changes_with_every_attempt_is_written_now_and_then():
    writing = Writing(kind=VOLCANO)
    writing.pods(WAITING)
    writing.why = "0/1 nodes"
    assert len(writing.due()[0]) == 1
    writing.why = "0/2 nodes"
    assert writing.due(5.0) == ([], [])
    writing.why = "0/3 nodes"
    ((status,), _) = writing.due(10.0)
    assert status["conditions"][0]["message"] == "0/3 nodes"


def test_what_somebody_else_wrote_over_ours_is_not_written_again_until_ours_changes():
    writing = Writing()
    writing.pods(*[ON_NODE] * 3)
    writing.due()
    writing.apply(phase="Pending")
    assert writing.due(100.0) == ([], [])
    writing.pods(*[RUNNING] * 3)
    ((status,), _) = writing.due(1.0)
    assert status["phase"] == "Running"


def test_a_status_that_is_there_already_is_not_written_by_the_next_leader():
    writing = Writing()
    writing.pods(*[RUNNING] * 3)
    writing.apply(phase="Running", running=3)
    assert writing.due() == ([], [])


def test_another_group_of_the_name_gets_a_status_of_its_own():
    writing = Writing()
    writing.pods(WAITING)
    writing.due()
    writing.groups.remove(ref())
    writing.groups.apply(read_group(COSCHEDULING, other_uid(written(COSCHEDULING))))
    ((status,), _) = writing.due()
    assert status["phase"] == "Pending"


def other_uid(item):
    return {**item, "metadata": {**item["metadata"], "uid": "other"}}


def test_a_write_that_failed_is_repeated_a_little_later():
    writing = Writing()
    writing.pods(WAITING)
    writing.due()
    writing.statuses.retry(ref(), soon=True)
    assert writing.due(CHANGE_SECONDS / 2) == ([], [])
    ((status,), _) = writing.due(CHANGE_SECONDS)
    assert status["phase"] == "Pending"


def test_a_write_that_was_refused_is_repeated_now_and_then():
    writing = Writing()
    writing.pods(*[WAITING] * 3)
    assert "scheduleStartTime" in writing.due()[0][0]
    writing.statuses.retry(ref(), soon=False)
    assert writing.due(REPEAT_SECONDS / 2, LATER) == ([], [])
    ((status,), _) = writing.due(REPEAT_SECONDS)
    assert status["phase"] == "Scheduling"


def test_a_gang_that_waits_longer_than_its_group_allows_is_overdue_once():
    writing = Writing(scheduleTimeoutSeconds=60)
    writing.why = FEW
    writing.pods(WAITING, WAITING)
    assert writing.due()[1] == []
    assert writing.due(59.0)[1] == []
    said = f"not scheduled within 60 s (scheduleTimeoutSeconds): {FEW}"
    assert writing.due(1.0)[1] == [said]
    assert writing.due(600.0)[1] == []
    writing.pods(*[ON_NODE] * 3)
    assert writing.due(1.0)[1] == []
    writing.pods(ON_NODE, ON_NODE, WAITING)
    writing.due(1.0)
    assert writing.due(60.0)[1] == [said], "it has waited anew"


def test_what_was_written_of_a_group_is_forgotten_with_it():
    writing = Writing(scheduleTimeoutSeconds=1)
    writing.pods(WAITING)
    writing.due()
    writing.due(2.0)
    assert len(writing.statuses) == 2, "it was written, and is looked at again"
    writing.groups.remove(ref())
    writing.groups.pod_gone(bytes([0]))
    writing.due(2.0)
    assert len(writing.statuses) == 0
