"""The measure of room by pools of nodes."""

from unit.hossctl.made_up_platform import amounts, gathered, spec

from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodAffinity, PodAffinityTerm
from hoss.model.resources import DEVICE_RESOURCE
from hoss.model.selectors import LabelSelector, Requirement
from hossctl.choices import RebalanceGoal
from hossctl.rebalance.plans import plan_document, plan_for, plan_lines
from hossctl.rebalance.room import fragmentation_document
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.rebalance.movable_pods import PlanLimits
from scheduler_worker.core.rebalance.plan_state import PlanState, WaitingPods


def test_of_many_pools_the_largest_are_measured_and_the_others_counted():
    """As many pools as nodes, where the label is the hostname, would take minutes in a large cluster."""
    pools = ["a", "b", "b", "c", "c", "c"]
    nodes = [
        NodeSpec(f"n{i}", labels=(("pool", pool),), allocatable=amounts(1000)) for i, pool in enumerate(pools)
    ]
    cluster = gathered(nodes, [("d/p", 0, spec(100))])
    document = fragmentation_document(cluster, default_profile(), "pool", most_pools=2)
    assert [(pool["name"], pool["nodes"]) for pool in document["pools"]] == [("b", 2), ("c", 3)]
    assert document["morePools"] == 1
    whole = fragmentation_document(cluster, default_profile(), "pool")
    assert [pool["name"] for pool in whole["pools"]] == ["a", "b", "c"]
    assert whole["morePools"] == 0


def test_a_waiting_pod_fits_only_where_rules_about_other_pods_admit_it():
    """Nodes have room for both, but one pod of its kind a node is allowed."""
    alone = spec(
        100,
        labels=(("app", "web"),),
        pod_affinity=PodAffinity(
            anti_required=(
                PodAffinityTerm(
                    "kubernetes.io/hostname",
                    LabelSelector((Requirement("app", "In", ("web",)),)),
                    ("default",),
                ),
            )
        ),
    )
    nodes = [
        NodeSpec(f"n{i}", labels=(("kubernetes.io/hostname", f"n{i}"),), allocatable=amounts(cpu))
        for i, cpu in enumerate((1000, 50))
    ]
    cluster = gathered(nodes, [("default/web-0", 0, alone)], [WaitingPods("default/web", alone, 1)])
    [waiting] = fragmentation_document(cluster, default_profile())["waiting"]
    assert (waiting["fitting"], waiting["node"], waiting["limitedBy"]) == (0, "n1", "cpu")


def test_cards_are_joined_also_where_few_pods_request_any():
    """Two halves of cards for one whole card, among many pods without cards."""
    half = spec(10, devices=DeviceRequest(1, 500))
    nodes = [NodeSpec(f"n{i}", allocatable=amounts(1000, **{DEVICE_RESOURCE: 1}), cards=1) for i in range(4)]
    pods = [(f"d/half-{i}", i, half) for i in range(2)]
    pods.append(("d/whole", 2, spec(10, devices=DeviceRequest(1, 1000))))
    pods += [(f"d/plain-{i}", 3, spec(1 + i)) for i in range(40)]
    cluster = gathered(nodes, pods)
    state = PlanState(cluster.snapshot, default_profile(), cluster.pods, PlanLimits())
    plan = plan_for(RebalanceGoal.DEFRAGMENT_GPUS, state, cluster, None)
    assert len(plan.moves) == 1


def test_a_plan_says_what_its_moves_cost_or_that_it_has_none():
    nodes = [NodeSpec(f"n{i}", allocatable=amounts(1000)) for i in range(2)]
    cost = {}
    for pods in (1, 2):
        cluster = gathered(nodes, [(f"d/p-{i}", 0, spec(100)) for i in range(pods)])
        plan = plan_document(cluster, default_profile(), RebalanceGoal.SPREAD, PlanLimits(100))
        cost[pods] = dict(plan_lines(plan))["cost"]
    assert cost == {1: "none: the plan moves no pod", 2: "1 pod of 1 workload to start again: cpu=100m"}
