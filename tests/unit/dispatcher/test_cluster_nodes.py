"""What a feed message says has changed."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.changes import Aspect, Changes
from dispatcher.ledger.nodes import ClusterNodes
from hoss.model.node import NodeSpec, Taint
from hoss.model.pod import HostPort, PodGroup
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import FLAG_QUARANTINED, FLAG_UNSCHEDULABLE, account_dtype
from hoss.wire.convert_rules import definition_of

SCHEMA = ["cpu", "memory", "ephemeral-storage", "pods"]


def spec(name="n1", cpu=1000, **fields):
    return common_pb2.NodeSpec(
        name=name, allocatable=[common_pb2.Amount(resource="cpu", amount=cpu)], **fields
    )


def accounts(*free, flags=0):
    records = np.zeros(len(free), account_dtype(4))
    records["flags"] = flags
    records["amounts"][:, 0, 0] = free
    return pb.Accounts(
        resources=4, indexes=np.arange(len(free), dtype="<u4").tobytes(), records=records.tobytes()
    )


def read(nodes, message):
    """What the machine is told has changed."""
    events = nodes.read(message)
    return next((event.changes for event in events if isinstance(event, m.ClusterChanged)), Changes())


def started(**fields):
    cluster = ClusterNodes()
    nodes = [pb.NodeEntry(index=0, spec=spec(**fields))]
    assert read(cluster, pb.FeedMessage(seq=1, shards=1, snapshot=True, nodes=nodes, schema=SCHEMA)).anything
    return cluster


def changed(cluster, **fields):
    return read(
        cluster,
        pb.FeedMessage(seq=2, nodes=[pb.NodeEntry(index=0, spec=spec(**fields))], accounts=accounts(5)),
    )


def test_a_commit_changes_nothing_for_those_who_wait():
    assert not read(started(), pb.FeedMessage(seq=2, accounts=accounts(5)))


def test_a_release_tells_the_room_of_the_nodes_it_touched():
    changes = read(started(), pb.FeedMessage(seq=2, accounts=accounts(5, 7), released=1))
    assert changes.rooms[0].allocatable[0].tolist() == [5, 7]


@pytest.mark.parametrize("flags", [0, FLAG_UNSCHEDULABLE], ids=["open", "cordoned"])
def test_pods_that_came_and_left_are_told_whoever_knows_them(flags):
    left, came = PodGroup(host_ports=(HostPort(80),)), PodGroup(host_ports=(HostPort(81),))
    runs = [
        pb.GroupRun(group=definition_of(group), nodes=bytes(4), gone=gone)
        for group, gone in ((left, True), (came, False))
    ]
    release = pb.FeedMessage(seq=2, accounts=accounts(5, flags=flags), released=1, groups=runs)
    changes = read(started(), release)
    assert (changes.deleted_pods, changes.bound_pods) == ({left}, {came})


def test_a_commit_tells_which_pods_came():
    came = PodGroup(labels=(("app", "db"),))
    runs = [pb.GroupRun(group=definition_of(came), nodes=bytes(4))]
    assert read(started(), pb.FeedMessage(seq=2, accounts=accounts(5), groups=runs)).bound_pods == {came}


@pytest.mark.parametrize("flag", [FLAG_UNSCHEDULABLE, FLAG_QUARANTINED])
def test_a_closed_node_has_no_room_to_tell_of(flag):
    assert not read(started(), pb.FeedMessage(seq=2, accounts=accounts(5, flags=flag), released=1))


def test_the_end_of_a_quarantine_opens_the_node_and_tells_its_room():
    cluster = started()
    assert not read(cluster, pb.FeedMessage(seq=2, accounts=accounts(5, flags=FLAG_QUARANTINED)))
    assert not read(cluster, pb.FeedMessage(seq=3, accounts=accounts(4, flags=FLAG_QUARANTINED)))
    changes = read(cluster, pb.FeedMessage(seq=4, accounts=accounts(5), released=1))
    assert [(node.spec.name, node.aspects) for node in changes.nodes] == [("n1", Aspect.UNCORDONED)]
    assert changes.rooms[0].allocatable[0].tolist() == [5]
    assert not read(cluster, pb.FeedMessage(seq=5, accounts=accounts(5))), "told once"


def test_a_quarantine_that_a_snapshot_told_of_ends_like_any_other():
    cluster = ClusterNodes()
    nodes = [pb.NodeEntry(index=0, spec=spec())]
    out = accounts(5, flags=FLAG_QUARANTINED)
    read(cluster, pb.FeedMessage(seq=1, shards=1, snapshot=True, nodes=nodes, schema=SCHEMA, accounts=out))
    assert [node.spec.name for node in read(cluster, pb.FeedMessage(seq=2, accounts=accounts(5))).nodes] == [
        "n1"
    ]


def test_a_quarantined_node_that_is_removed_is_not_told_of_as_back():
    cluster = started()
    read(cluster, pb.FeedMessage(seq=2, accounts=accounts(5, flags=FLAG_QUARANTINED)))
    read(cluster, pb.FeedMessage(seq=3, nodes=[pb.NodeEntry(index=0, removed=True)]))
    assert not read(cluster, pb.FeedMessage(seq=4, accounts=accounts(5)))


def test_each_aspect_of_a_changed_node_is_told_apart():
    taint = common_pb2.Taint(key="a", effect="NoSchedule")
    label = common_pb2.Label(key="a", value="b")
    assert changed(started(taints=[taint])).nodes[0].aspects == Aspect.TAINTS
    assert changed(started(labels=[label])).nodes[0].aspects == Aspect.LABELS
    assert changed(started(labels=[label])).nodes[0].labels_before == (("a", "b"),)
    assert changed(started(unschedulable=True)).nodes[0].aspects == Aspect.UNCORDONED
    assert changed(started(declared_features=["a"])).nodes[0].aspects == Aspect.FEATURES
    assert not changed(started(), unschedulable=True)
    assert not changed(started())


def test_a_node_that_grew_tells_its_room_too():
    changes = changed(started(), cpu=2000)
    assert changes.nodes[0].aspects == Aspect.ALLOCATABLE
    assert changes.rooms[0].allocatable[0].tolist() == [5]


def test_a_node_that_opens_tells_its_room_too_which_may_have_become_free_while_it_was_closed():
    assert changed(started(unschedulable=True)).rooms[0].allocatable[0].tolist() == [5]


def test_a_node_that_comes_and_goes_is_told_of():
    cluster = started()
    message = pb.FeedMessage(seq=2, nodes=[pb.NodeEntry(index=1, spec=spec("n2"))], accounts=accounts(5))
    assert read(cluster, message).nodes[0].aspects == Aspect.ADDED
    gone = read(cluster, pb.FeedMessage(seq=3, nodes=[pb.NodeEntry(index=1, removed=True)]))
    assert (gone.nodes[0].spec.name, gone.nodes[0].aspects) == ("n2", Aspect.REMOVED)


def rebuilt(cluster):
    """The nodes of a ledger that is rebuilt now: index, name and millicores."""
    return [(index, node.name, node.allocatable[0].amount) for index, node in cluster.to_rebuild()]


def model(name="n1", cpu=1000, **fields):
    return NodeSpec(name, allocatable=(("cpu", cpu),), **fields)


def entry(index, removed=False, **fields):
    return (
        pb.NodeEntry(index=index, removed=True) if removed else pb.NodeEntry(index=index, spec=spec(**fields))
    )


def test_a_ledger_is_rebuilt_with_what_was_written_and_the_feed_has_not_shown():
    cluster = started(name="n1")
    cluster.upserted([model("n1", 500), model("n2", 700)], [0, 3])
    assert rebuilt(cluster) == [(0, "n1", 500), (3, "n2", 700)]
    cluster.removed(["n1"])
    assert rebuilt(cluster) == [(3, "n2", 700)]
    cluster.upserted([model("n1", 900)], [5])
    assert rebuilt(cluster) == [(3, "n2", 700), (5, "n1", 900)]


def test_an_index_that_another_node_has_got_is_that_nodes():
    cluster = started(name="n1")
    cluster.removed(["n1"])
    cluster.upserted([model("n2", 700)], [0])
    assert rebuilt(cluster) == [(0, "n2", 700)]


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_the_feed_has_shown_counts_from_then_on_also_if_somebody_else_changes_it(snapshot):
    cluster = started(name="n1")
    cluster.upserted([model("n1", 500, taints=(Taint("a"),))], [0])
    for shown in (entry(0, name="n1", cpu=800), entry(0, name="n1", cpu=500)):  # the second lacks the taint
        read(cluster, pb.FeedMessage(seq=2, shards=1, snapshot=snapshot, nodes=[shown]))
        assert rebuilt(cluster) == [(0, "n1", 500)], "older than what was written"
    dated = entry(
        0, name="n1", cpu=500, taints=[common_pb2.Taint(key="a", effect="NoSchedule", time_added_unix_ms=7)]
    )
    read(cluster, pb.FeedMessage(seq=3, shards=1, snapshot=snapshot, nodes=[dated]))
    read(cluster, pb.FeedMessage(seq=4, nodes=[entry(0, name="n1", cpu=600)]))
    assert rebuilt(cluster) == [(0, "n1", 600)]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_removal_that_the_feed_has_shown_is_over(snapshot):
    cluster = started(name="n1")
    cluster.removed(["n1", "never there"])
    gone = [] if snapshot else [entry(0, removed=True)]
    read(cluster, pb.FeedMessage(seq=2, shards=1, snapshot=snapshot, nodes=gone))
    read(cluster, pb.FeedMessage(seq=3, nodes=[entry(0, name="n1"), entry(1, name="never there")]))
    assert [name for _, name, _ in rebuilt(cluster)] == ["n1", "never there"]
