"""The what-if of nodes that are not there: what they get, what stays, and what becomes of bad input."""

import json

import pytest
from unit.hossctl.made_up_platform import amounts, gathered, spec

from hoss.errors import InvalidInput, NotFound
from hoss.model.node import NOISY_LABEL, NodeSpec, Taint, Toleration
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.resources import DEVICE_RESOURCE
from hossctl.choices import RebalanceGoal
from hossctl.rebalance.gathering import Fixed
from hossctl.rebalance.new_nodes import NewNodes, new_nodes_sentence, read_new_nodes
from hossctl.rebalance.plans import plan_document
from hossctl.rebalance.running import read_plan
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.rebalance.movable_pods import PlanLimits
from scheduler_worker.core.rebalance.plan_state import WaitingPods

HOSTNAME = "kubernetes.io/hostname"
BATCH = Taint("dedicated", "batch")
FIT, EMPTY = RebalanceGoal.FIT_PENDING, RebalanceGoal.EMPTY_NODES


TOLERANT = spec(800, tolerations=(Toleration("dedicated", value="batch"),))
OLD = NodeSpec(
    "old",
    labels=((HOSTNAME, "old"), (NOISY_LABEL, "true"), ("pool", "a")),
    taints=(BATCH, Taint("node.kubernetes.io/memory-pressure")),
    unschedulable=True,
    allocatable=amounts(1000),
)


def plan(of, new, goal=FIT, **options):
    return plan_document(of, default_profile(), goal, PlanLimits(), new=new, **options)


def test_what_waits_is_put_on_copies_of_a_node_and_what_stays_says_why():
    cluster = gathered([OLD], waiting=[WaitingPods("default/web", TOLERANT, 3)])
    document = plan(cluster, NewNodes(2, "old"))
    assert [(at["node"], at["afterMoves"]) for at in document["placements"]] == [
        ("old-new-1", 0),
        ("old-new-2", 0),
    ]
    [left] = document["impossible"]
    assert left["subject"] == "1 of 3 pods of default/web"
    assert left["why"].startswith("0/3 nodes are available: ")
    new = document["newNodes"]
    assert (new["nodes"], new["pods"], [node["name"] for node in new["used"]]) == (
        2,
        2,
        ["old-new-1", "old-new-2"],
    )
    assert {"resource": "cpu", "allocatable": 2000, "requested": 1600} in new["resources"]
    assert "2 of 2 like old get pods, 2 in all; requested of these nodes: cpu 80%" in new_nodes_sentence(new)


def test_a_copy_keeps_a_node_s_taints_and_labels_but_not_its_state():
    """The node is cordoned and under memory pressure, so its copies would take nothing if they were so
    too."""
    cluster = gathered([OLD], waiting=[WaitingPods("default/plain", spec(100), 1)])
    assert "untolerated taint" in plan(cluster, NewNodes(1, "old"))["impossible"][0]["why"]
    copy = cluster.snapshot.cache.catalogue.specs[1]
    assert copy.labels == ((HOSTNAME, "old-new-1"), ("pool", "a"))
    assert copy.taints == (BATCH,)
    assert not copy.unschedulable


def test_new_nodes_that_get_nothing_are_said_to_stay_empty():
    cluster = gathered([NodeSpec("n", allocatable=amounts(1000))])
    new = plan(cluster, NewNodes(5, "n"))["newNodes"]
    assert (new["used"], new["pods"]) == ([], 0)
    assert new_nodes_sentence(new) == "none of 5 like n gets a pod"


def test_pods_that_every_node_has_take_their_room_on_the_copies():
    agent = spec(300, devices=DeviceRequest(1, 400))
    node = NodeSpec("n", allocatable=amounts(1000, **{DEVICE_RESOURCE: 1}), cards=1)
    waiting = [WaitingPods("default/big", spec(800), 1), WaitingPods("default/fits", spec(700), 2)]
    cluster = gathered([node], [("kube-system/agent", 0, agent)], waiting, fixed=Fixed.DAEMON)
    document = plan(cluster, NewNodes(1, "n"))
    assert document["newNodes"]["pods"] == 1
    assert [entry["subject"] for entry in document["impossible"]] == ["default/big"]
    assert cluster.snapshot.cache.cards.used[1, 0] == 400


def test_a_shape_from_a_file_may_offer_what_no_node_has_yet(tmp_path):
    file = tmp_path / "kind.yaml"
    file.write_text(
        'apiVersion: v1\nkind: Node\nmetadata: {name: fpga}\nstatus: {allocatable: {cpu: "1", memory: 1Gi,'
        ' pods: "9", example.com/fpga: "2"}}\n'
    )
    wants = PodSpec(requests=(("example.com/fpga", 1),))
    cluster = gathered([NodeSpec("n", allocatable=amounts(1000))], waiting=[WaitingPods("d/f", wants, 3)])
    document = plan(cluster, read_new_nodes(1, str(file)))
    assert [at["node"] for at in document["placements"]] == ["fpga-new-1"] * 2
    assert document["impossible"][0]["subject"] == "1 of 3 pods of d/f"


def test_an_old_pool_moves_to_a_new_kind_of_node():
    """The copies have the label of the pool that is drained, and are not drained."""
    nodes = [replaced(f"a{i}") for i in range(2)]
    cluster = gathered(nodes, [("d/p", 0, TOLERANT), ("d/q", 1, TOLERANT)])
    document = plan(cluster, NewNodes(2, "a0"), drain="pool=a")
    assert (document["before"], document["after"], len(document["moves"])) == (2, 0, 2)
    assert {move["to"] for move in document["moves"]} == {"a0-new-1", "a0-new-2"}


def test_nodes_are_emptied_onto_a_larger_kind_and_that_one_counts_as_used():
    small = [NodeSpec(f"s{i}", allocatable=amounts(1000)) for i in range(3)]
    pods = [(f"d/p{i}", i, spec(900)) for i in range(3)]
    large = NewNodes(1, "large.yaml", NodeSpec("large", allocatable=amounts(4000)))
    document = plan(gathered(small, pods), large, EMPTY)
    assert (document["before"], document["after"]) == (3, 1)
    assert document["newNodes"]["pods"] == 3
    assert plan(gathered(small, pods), None, EMPTY)["after"] == 3


def test_pods_do_not_change_places_with_nodes_as_small_as_theirs():
    small = [NodeSpec(f"s{i}", allocatable=amounts(1000)) for i in range(2)]
    document = plan(gathered(small, [(f"d/p{i}", i, spec(900)) for i in range(2)]), NewNodes(2, "s0"), EMPTY)
    assert (document["before"], document["after"], document["moves"]) == (2, 2, [])


def test_a_label_that_happens_to_be_the_name_of_a_shape_stays():
    shape = NodeSpec("gpu", (("pool", "gpu"),), allocatable=amounts(1000))
    cluster = gathered([OLD])
    plan(cluster, NewNodes(1, "gpu.yaml", shape))
    assert dict(cluster.snapshot.cache.catalogue.specs[1].labels) == {"pool": "gpu", HOSTNAME: "gpu-new-1"}


def test_names_of_nodes_that_are_there_are_not_taken_again():
    nodes = [NodeSpec(name, allocatable=amounts(1000)) for name in ("n", "n-new-1")]
    cluster = gathered(nodes, waiting=[WaitingPods("d/w", spec(1000), 3)])
    placed = plan(cluster, NewNodes(1, "n"))["placements"]
    assert sorted(at["node"] for at in placed) == ["n", "n-new-1", "n-new-2"]


def test_each_shard_s_indexes_stay_its_own():
    """The snapshot of a platform with several shards: node i belongs to shard i modulo their number."""
    cluster = gathered([NodeSpec(f"n{i}", allocatable=amounts(100)) for i in range(3)])
    cluster.snapshot.cache.shards = 4
    cluster.snapshot.cache.seqs.update({1: 7, 2: 9})
    assert cluster.snapshot.with_nodes([replaced(f"b{i}") for i in range(3)]) == [3, 4, 5]
    assert cluster.snapshot.cache.seqs == {0: 2, 1: 8, 2: 9, 3: 1}
    assert cluster.snapshot.cache.present.tolist()[:6] == [True] * 6


def test_a_node_that_is_not_there_is_named():
    with pytest.raises(NotFound, match="no node and no file is named m9"):
        plan(gathered([OLD]), NewNodes(1, "m9"))


def test_a_file_of_several_nodes_is_refused(tmp_path):
    file = tmp_path / "two.yaml"
    one = "apiVersion: v1\nkind: Node\nmetadata: {{name: n{}}}\nstatus: {{allocatable: {{cpu: 1}}}}\n"
    file.write_text("---\n".join(one.format(i) for i in range(2)))
    with pytest.raises(InvalidInput, match="holds 2 nodes; write the one"):
        read_new_nodes(1, str(file))


def test_a_plan_that_relies_on_new_nodes_is_not_carried_out(tmp_path):
    document = plan(gathered([OLD]), NewNodes(1, "old"))
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match="relies on nodes that are not there; add them, and plan again"):
        read_plan(file)
    file.write_text(json.dumps(plan(gathered([OLD]), None)))
    assert read_plan(file)["newNodes"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"moves": [{"pod": 1, "from": "a", "to": "b"}]}, "lacks what a plan has"),
        ({"seen": {"0": -1}}, "lacks what a plan has"),
        ({"impossible": [{"why": "no room"}]}, "lacks what a plan has: KeyError"),
        ({"impossible": [{"subject": "web", "why": 3}]}, "lacks what a plan has: TypeError"),
        ({"kind": "Pod"}, "is no plan"),
    ],
)
def test_a_plan_that_was_written_by_hand_is_refused_before_anything_moves(tmp_path, change, words):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan(gathered([OLD]), None) | change))
    with pytest.raises(InvalidInput, match=words):
        read_plan(file)


def test_a_plan_that_is_nested_without_end_is_refused(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("[" * 100_000)
    with pytest.raises(InvalidInput, match="is no JSON"):
        read_plan(file)


def test_of_a_plan_that_is_too_large_no_more_is_read_than_shows_it(tmp_path):
    file = tmp_path / "plan.json"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # a terabyte that takes no room
    with pytest.raises(InvalidInput, match="has more than 16,777,216 bytes"):
        read_plan(file)


def replaced(name):
    return NodeSpec(name, ((HOSTNAME, name), ("pool", "a")), taints=(BATCH,), allocatable=amounts(1000))
