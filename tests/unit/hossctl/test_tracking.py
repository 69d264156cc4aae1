"""A load followed by columns."""

import numpy as np
import pytest

from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, encode, numbered_uids
from hossctl.load.runner import Tracker, reason_kinds

A, B = b"a" * 12, b"b" * 12


def reply(*sets: tuple[bytes, int]) -> pb.SubmitReply:
    return pb.SubmitReply(sets=[pb.PodSet(uid_prefix=prefix, count=count) for prefix, count in sets])


def events(uids, phases, nodes=None, reasons=None, texts=()) -> pb.WatchBatch:
    return pb.WatchBatch(
        uids=uids.tobytes(),
        phases=encode(phases, U8),
        nodes=encode(nodes if nodes is not None else [NONE_U32] * len(uids), U32),
        reasons=encode(reasons, U16) if reasons is not None else b"",
        reason_texts=texts,
    )


def test_pods_are_rows_in_the_order_of_submission():
    tracker = Tracker(5)
    tracker.add_reply(pb.SubmitRequest(), reply((B, 2), (A, 3)), 1.0)
    tracker.add_batch(events(numbered_uids(A, 1, 1), [pb.BOUND], [7]), 3.0)
    tracker.add_batch(events(numbered_uids(B, 0, 1), [pb.UNSCHEDULABLE]), 3.0)
    assert tracker.nodes.tolist() == [NONE_U32, NONE_U32, NONE_U32, 7, NONE_U32]
    assert tracker.phases.tolist() == [pb.UNSCHEDULABLE, 0, 0, pb.BOUND, 0]
    assert tracker.settled == 2
    assert not tracker.done


def test_events_that_come_before_the_reply_are_not_lost():
    tracker = Tracker(2)
    tracker.add_batch(events(numbered_uids(A, 0, 2), [pb.QUEUED, pb.QUEUED]), 1.5)
    tracker.add_batch(events(numbered_uids(A, 0, 2), [pb.BOUND, pb.BOUND], [1, 2]), 2.0)
    assert tracker.settled == 0
    tracker.add_reply(pb.SubmitRequest(), reply((A, 2)), 1.0)
    assert tracker.done
    assert tracker.latencies().tolist() == [1.0, 1.0]


def test_events_of_other_peoples_pods_are_passed_over():
    tracker = Tracker(1)
    tracker.add_reply(pb.SubmitRequest(), reply((A, 1)), 1.0)
    tracker.add_batch(events(numbered_uids(A, 1, 1), [pb.BOUND], [1]), 2.0)
    tracker.add_batch(events(numbered_uids(B, 0, 1), [pb.BOUND], [1]), 2.0)
    assert tracker.settled == 0


def test_the_last_of_two_states_in_one_batch_counts():
    tracker = Tracker(1)
    tracker.add_reply(pb.SubmitRequest(), reply((A, 1)), 1.0)
    tracker.add_batch(
        events(np.repeat(numbered_uids(A, 0, 1), 2, axis=0), [pb.SCHEDULING, pb.BOUND], [NONE_U32, 4]), 2.0
    )
    assert tracker.done
    assert tracker.nodes.tolist() == [4]


def test_latency_ends_with_the_first_report_as_bound():
    tracker = Tracker(1)
    tracker.add_reply(pb.SubmitRequest(), reply((A, 1)), 1.0)
    tracker.add_batch(events(numbered_uids(A, 0, 1), [pb.BOUND], [4]), 2.0)
    tracker.add_batch(events(numbered_uids(A, 0, 1), [pb.BOUND], [4]), 9.0)
    assert tracker.latencies().tolist() == [1.0]
    assert tracker.binding_seconds() == 1.0


def test_uids_that_the_client_chose_are_followed():
    given = np.arange(32, dtype=np.uint8).reshape(2, 16)
    request = pb.SubmitRequest(pods=pb.PodList(names=["x", "y"], uids=given.tobytes()))
    tracker = Tracker(3)
    tracker.add_reply(request, reply((A, 1), (B, 2)), 1.0)
    tracker.add_batch(events(given[::-1], [pb.BOUND, pb.FAILED], [5, NONE_U32]), 2.0)
    assert tracker.phases.tolist() == [0, pb.FAILED, pb.BOUND]


def test_reasons_are_counted_by_kind():
    tracker = Tracker(3)
    tracker.add_reply(pb.SubmitRequest(), reply((A, 3)), 1.0)
    texts = ["0/9 nodes are available: 9 Insufficient cpu.", "0/8 nodes are available: 8 Insufficient cpu."]
    tracker.add_batch(
        events(numbered_uids(A, 0, 3), [pb.UNSCHEDULABLE] * 3, reasons=[0, 1, NONE_U16], texts=texts), 2.0
    )
    assert tracker.reasons() == {"Insufficient cpu": 2, "no reason given": 1}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).",
        "Insufficient cpu, node(s) had untolerated taint(s)"),
        ("0/9 nodes are available: 9 Insufficient cpu. preemption: 0/9 nodes are available: 9 No preemption.",
        "Insufficient cpu"),
        ("no worker is registered", "no worker is registered"),
    ],
)  # fmt: skip
def test_a_reason_keeps_its_kinds_and_loses_its_numbers(text, kinds):
    assert reason_kinds(text) == kinds
