"""The cluster as the policy's warnings see it."""

from dispatcher.core.policy.checks import cluster_warnings
from dispatcher.core.policy.rules import Match, Policy, Rule, Selector
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.policy.dry_run import policy_context
from hoss.model.selectors import NodeScope, Requirement
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb

GOLD = Selector((Requirement("tier", "In", ("gold",)),))


def node(name, labels=(), cards=0, **amounts):
    spec = common_pb2.NodeSpec(name=name, cards=cards)
    spec.labels.extend(common_pb2.Label(key=key, value=value) for key, value in labels)
    spec.allocatable.extend(
        common_pb2.Amount(resource=resource, amount=amount) for resource, amount in amounts.items()
    )
    return pb.FeedMessage(shards=1, schema=["cpu"], nodes=[pb.NodeEntry(index=0, spec=spec)])


def test_a_warning_about_workers_counts_the_pods_that_wait_and_ends_when_one_comes(new_bench):
    policy = Policy((Rule("gold", workers=GOLD),))
    bench = new_bench(policy)
    nodes = ClusterNodes()
    bench.join("plain")
    bench.job("job", 1200)
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == [
        "rule gold: no registered worker matches tier=gold; its pods wait for one (1,200 wait now)"
    ]
    bench.join("w2", tier="gold")
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == []


def test_a_warning_about_nodes_ends_when_one_gets_the_label(bench):
    bench.join("w1")
    nodes = ClusterNodes()
    policy = Policy((Rule("a", nodes=NodeScope("a", GOLD.requirements)),))
    nodes.read(node("n1"))
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == [
        "rule a: no node matches tier=gold; its pods stay unschedulable"
    ]
    nodes.read(node("n1", labels=(("tier", "gold"),)))
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == []


def test_resources_are_those_that_some_node_offers_shares_of_cards_too(bench):
    bench.join("w1")
    nodes = ClusterNodes()
    policy = Policy((Rule("a", Match(resources=frozenset({"cpu", "memory", "hoss.dev/gpu-milli"}))),))
    nodes.read(node("n1", cpu=4000, memory=0))
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == [
        "rule a: no node offers the resource hoss.dev/gpu-milli",
        "rule a: no node offers the resource memory",
    ]
    nodes.read(node("n1", cards=2, cpu=4000, memory=1))
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == []


def test_priority_classes_are_those_that_pods_came_with(bench):
    bench.join("w1")
    policy = Policy((Rule("a", Match(priority_class_names=frozenset({"high"}))),))
    nodes = ClusterNodes()
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == [
        "rule a: no pod here has the priority class high"
    ]
    bench.job("job", 1, priority_class_name="high")
    assert cluster_warnings(policy, policy_context(policy, bench.machine, nodes)) == []
