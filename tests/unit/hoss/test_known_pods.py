"""What a watcher is told anew after a break: the pods that differ from what it was given last."""

import numpy as np
import pytest

from hoss.client.known_pods import KnownPods
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U8, U32, decode_uids, encode, numbered_uids


def bound(*nodes, **names):
    """A message about pods 0, 1, ... on these nodes, with names as `n1="worker-a"`."""
    return pb.WatchBatch(
        revision=1,
        uids=numbered_uids(b"test-prefix-", 0, len(nodes)).tobytes(),
        phases=encode(np.full(len(nodes), pb.BOUND), U8),
        nodes=encode(np.array(nodes), U32),
        node_names=[common_pb2.NodeName(index=int(key[1:]), name=name) for key, name in names.items()],
    )


def told(known, listed):
    """The numbers of the pods that are told anew."""
    return [uid[-1] for batch in known.differences([listed]) for uid in decode_uids(batch.uids).tolist()]


@pytest.fixture
def known():
    pods = KnownPods()
    pods.note(bound(1, 2, n1="worker-a", n2="worker-b"))
    return pods


def test_pods_that_are_where_they_were_are_not_told_again(known):
    assert told(known, bound(1, 2, n1="worker-a", n2="worker-b")) == []


def test_a_pod_on_another_node_that_got_the_same_index_is_told_again(known):
    assert told(known, bound(1, 2, n1="worker-c", n2="worker-b")) == [0]


def test_a_pod_whose_node_had_no_name_before_is_told_again(known):
    known.note(bound(3))
    assert told(known, bound(3, 2, n3="worker-d", n2="worker-b")) == [0]
