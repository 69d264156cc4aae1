"""What a feed message says has changed."""

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.changes import Aspect, Changes
from dispatcher.ledger.nodes import ClusterNodes
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import FLAG_QUARANTINED, FLAG_UNSCHEDULABLE, account_dtype

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


def test_a_node_that_comes_and_goes_is_told_of():
    cluster = started()
    message = pb.FeedMessage(seq=2, nodes=[pb.NodeEntry(index=1, spec=spec("n2"))], accounts=accounts(5))
    assert read(cluster, message).nodes[0].aspects == Aspect.ADDED
    gone = read(cluster, pb.FeedMessage(seq=3, nodes=[pb.NodeEntry(index=1, removed=True)]))
    assert (gone.nodes[0].spec.name, gone.nodes[0].aspects) == ("n2", Aspect.REMOVED)
