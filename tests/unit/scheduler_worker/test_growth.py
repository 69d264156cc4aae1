"""What a worker forgets: label values, taints and labels with the last node that has them, and rankings with
the last class."""

import gc

import numpy as np

from hoss.model.node import NO_SCHEDULE, NodeSpec, Taint
from hoss.model.pod import PodSpec
from hoss.model.selectors import Requirement
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.nodes import NodeCatalogue, NodeSpecs
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.plugins.nodes.taint_toleration import tolerated_nodes


def node(number: int, **labels: str) -> NodeSpec:
    own = {"kubernetes.io/hostname": f"n{number}", **labels}
    return NodeSpec(
        f"n{number}", labels=tuple(sorted(own.items())), taints=(Taint("for", f"t{number}", NO_SCHEDULE),)
    )


def test_columns_of_nodes_that_come_and_go_are_as_long_as_those_of_the_nodes_there_are():
    catalogue = NodeCatalogue()
    catalogue.grow(4)
    for number in range(100):
        catalogue.put(number % 4, node(number, **{f"only-{number}": "x"}))
    hostnames = catalogue.column("kubernetes.io/hostname")
    assert sorted(hostnames.numbers) == ["n96", "n97", "n98", "n99"]
    assert hostnames.size <= 5
    assert len(catalogue.taint_sets) <= 6
    gc.collect()
    assert catalogue.table_sizes()["labels"] == 5


def test_a_value_with_the_number_of_another_one_is_matched_as_itself():
    catalogue, at = NodeCatalogue(), np.arange(3)
    catalogue.grow(4)
    for number in range(3):
        catalogue.put(number, node(number))
    catalogue.remove(1)
    catalogue.put(1, node(7))
    hostnames = catalogue.column("kubernetes.io/hostname")

    def matching(operator: str, *values: str) -> list[bool]:
        table = hostnames.table(Requirement("kubernetes.io/hostname", operator, values))
        return table.take(hostnames.codes.take(at)).tolist()

    assert matching("In", "n1") == [False, False, False]
    assert matching("In", "n7") == [False, True, False]
    assert matching("NotIn", "n7") == [True, False, True]
    assert matching("Exists") == [True, True, True]


def test_taints_with_the_number_of_others_are_judged_as_themselves():
    catalogue = NodeCatalogue()
    nodes = NodeSpecs(catalogue, np.arange(2))
    catalogue.grow(2)
    catalogue.put(0, node(1))
    catalogue.put(1, NodeSpec("free"))
    catalogue.put(0, node(2))
    assert tolerated_nodes(PodSpec(), nodes).tolist() == [False, True]
    catalogue.put(0, NodeSpec("n2"))
    catalogue.put(1, node(3))
    assert tolerated_nodes(PodSpec(), nodes).tolist() == [True, False]


def test_a_column_that_a_rule_names_follows_a_label_that_goes_and_comes_back():
    catalogue = NodeCatalogue()
    catalogue.grow(1)
    catalogue.put(0, node(1, zone="a"))
    column = catalogue.column("zone")
    catalogue.put(0, node(1))
    catalogue.grow(2)
    catalogue.put(1, node(2, zone="b"))
    assert catalogue.column("zone") is column
    assert column.codes.tolist() == [-1, column.numbers["b"]]


def test_the_ranking_of_a_class_goes_with_the_class_unless_another_one_ranks_alike():
    scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(1))
    for number, cpu in ((1, 100), (2, 100), (3, 200)):
        scheduler.define_class(number, PodSpec(requests=(("cpu", cpu),), priority=number))
    scheduler.costs.placed(3, 1, 0.1, first=False)
    classes = scheduler._classes
    demands = [classes.get(number, None).demand for number in (1, 2, 3)]
    assert demands[0] is demands[1]
    rankings = scheduler._cycle._rankings
    for demand in demands:
        rankings.of(demand)
    scheduler.forget_classes([1, 3])
    assert [demand in rankings for demand in demands] == [True, True, False]
    scheduler.forget_classes([2])
    sizes = scheduler.table_sizes()
    assert [sizes[table] for table in ("classes", "rankings", "class_costs")] == [0, 0, 0]


def test_the_ranking_that_pods_in_hand_need_after_their_class_is_forgotten_goes_with_the_next_class():
    scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(1))
    for number, cpu in ((1, 100), (2, 200)):
        scheduler.define_class(number, PodSpec(requests=(("cpu", cpu),)))
    in_hand = scheduler._classes.get(1, None).demand
    rankings = scheduler._cycle._rankings
    scheduler.forget_classes([1])
    rankings.of(in_hand)
    assert in_hand in rankings
    scheduler.forget_classes([2])
    assert in_hand not in rankings


def test_a_ranking_that_was_made_before_a_class_had_its_demand_stays_with_the_class():
    scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(1))
    scheduler.define_class(1, PodSpec(requests=(("cpu", 100),)))
    demand = scheduler._classes.get(1, None).demand
    rankings = scheduler._cycle._rankings
    scheduler.forget_classes([1])
    rankings.of(demand)
    scheduler.define_class(2, PodSpec(requests=(("cpu", 100),)))
    scheduler.define_class(3, PodSpec(requests=(("cpu", 300),)))
    assert scheduler._classes.get(2, None).demand is demand
    scheduler.forget_classes([3])
    assert demand in rankings
