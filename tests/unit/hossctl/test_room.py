"""The measure of room by pools of nodes."""

from unit.hossctl.made_up_platform import amounts, gathered, spec

from hoss.model.node import NodeSpec
from hossctl.rebalance.room import fragmentation_document
from scheduler_worker.core.plugins import default_profile


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
