"""Who has to go for whom."""

from dataclasses import replace

import pytest

from hoss.model.cluster import BoundPod, Cluster, DisruptionBudget
from hoss.model.node import NodeSpec
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.offline.preemption import preempt
from scheduler_worker.core.offline.scheduler import examine, explain_placement
from scheduler_worker.core.plugins import default_profile

HOSTNAME = "kubernetes.io/hostname"
WEB = LabelSelector((Requirement("app", "In", ("web",)),))


def spec(cpu, priority=0, **fields):
    return PodSpec(priority=priority, requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, **fields)


def pod(name, node, cpu, priority=0, started_at=0.0, **fields):
    return BoundPod(name, node, spec(cpu, priority, **fields), (("cpu", cpu),), cpu, 0, started_at=started_at)


@pytest.fixture
def preemption_for():
    def run(pending, *pods, nodes=2, budgets=(), nominated_node=""):
        specs = [
            NodeSpec(f"n{i}", ((HOSTNAME, f"n{i}"),), allocatable=(("cpu", 1000), ("pods", 10)))
            for i in range(nodes)
        ]
        ground = ClusterSnapshot(Cluster(specs, pods, budgets=budgets))
        profile = default_profile()
        subject = examine(pending, ground, profile)
        before = explain_placement(subject, ground, profile)
        found = preempt(pending, subject, ground, profile, nominated_node)
        assert explain_placement(subject, ground, profile) == before, "the ground is as it was"
        return found

    return run


def names(found):
    return [victim.name for victim in found.victims]


def test_no_more_go_than_must_and_the_most_important_stay(preemption_for):
    pods = [pod("a", "n0", 400, 1), pod("b", "n0", 300, 2), pod("c", "n0", 300, 3)]
    found = preemption_for(spec(500, 10), *pods, nodes=1)
    assert (found.node, names(found)) == ("n0", ["b", "a"])


def test_the_node_whose_most_important_victim_matters_least_is_chosen(preemption_for):
    found = preemption_for(spec(1000, 10), pod("a", "n0", 1000, 5), pod("b", "n1", 1000, 4))
    assert (found.node, names(found), sorted(found.candidates)) == ("n1", ["b"], ["n0", "n1"])


def test_of_equals_the_pod_that_started_last_goes(preemption_for):
    found = preemption_for(
        spec(1000, 10), pod("a", "n0", 1000, started_at=10.0), pod("b", "n1", 1000, started_at=20.0)
    )
    assert names(found) == ["b"]


def test_a_budget_outweighs_priority(preemption_for):
    budget = DisruptionBudget("default", WEB, 0)
    pods = [pod("a", "n0", 1000, 1, labels=(("app", "web"),)), pod("b", "n1", 1000, 9)]
    found = preemption_for(spec(1000, 10), *pods, budgets=(budget,))
    assert (found.node, found.candidates["n0"].violations) == ("n1", 1)


def test_a_budget_that_counted_the_pod_already_is_not_charged_again(preemption_for):
    budget = DisruptionBudget("default", WEB, 0, frozenset({"a"}))
    found = preemption_for(
        spec(1000, 10), pod("a", "n0", 1000, labels=(("app", "web"),)), nodes=1, budgets=(budget,)
    )
    assert found.candidates["n0"].violations == 0


def test_those_a_pod_shuns_are_victims_though_there_is_room(preemption_for):
    shuns = PodAffinity(anti_required=(PodAffinityTerm(HOSTNAME, WEB, ("default",)),))
    pods = [pod("a", "n0", 100, labels=(("app", "web"),)), pod("b", "n0", 100)]
    found = preemption_for(spec(100, 10, pod_affinity=shuns), *pods, nodes=1)
    assert names(found) == ["a"]


def test_nobody_goes_where_that_would_not_help(preemption_for):
    found = preemption_for(spec(1000, 0), pod("a", "n0", 1000), pod("b", "n1", 500, 0))
    assert (found.node, found.message) == (
        "",
        "0/2 nodes are available: 2 No preemption victims found for incoming pod.",
    )
    found = preemption_for(spec(2000, 10), pod("a", "n0", 1000))
    assert found.message == "0/2 nodes are available: 2 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("nominated_node", "leaving", "node"),
    [
        ("n0", {"deleting": True, "preempted": True}, ""),
        ("n0", {"deleting": True}, "n1"),  # by its owner
        ("n0", {"deleting": True, "preempted": True, "priority": 10}, "n1"),  # for another pod
        ("n1", {"deleting": True, "preempted": True}, "n1"),
        ("gone", {"deleting": True, "preempted": True}, "n1"),
    ],
)
def test_a_pod_whose_victims_are_still_leaving_its_nominated_node_gets_no_others(
    preemption_for, nominated_node, leaving, node
):
    left = replace(pod("a", "n0", 1000, leaving.pop("priority", 5)), **leaving)
    found = preemption_for(spec(1000, 10), left, pod("b", "n1", 1000, 4), nominated_node=nominated_node)
    assert found.node == node
    assert node or found.message == "not eligible due to a terminating pod on the nominated node."


def test_a_pod_that_never_preempts_does_not(preemption_for):
    found = preemption_for(spec(1000, 10, may_preempt=False), pod("a", "n0", 1000), nodes=1)
    assert (found.node, found.message) == ("", "not eligible due to preemptionPolicy=Never.")
