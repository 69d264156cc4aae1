"""What a look says, and what of it a viewer is told."""

import base64

import numpy as np
import pytest

from dispatcher.core.messages import OutcomeCode
from dispatcher.dashboard.broadcaster import message
from dispatcher.dashboard.nodes import NodeTable
from dispatcher.dashboard.snapshot import (
    GAP_SECONDS,
    MOST_GROUPS,
    NO_REASON_GIVEN,
    PHASES,
    Curves,
    DashboardSnapshot,
    dominant,
    pending_groups,
    percentile,
)
from hoss.model.statistics import BOUNDS_SECONDS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "0/5 nodes are available: 3 Insufficient cpu, 2 node(s) had untolerated taint(s).",
            "Insufficient cpu",
        ),
        ("0/5 nodes are available: 1 Insufficient cpu, 4 Too many pods.", "Too many pods"),
        ("0/4 nodes are available: 2 Insufficient cpu, 2 Insufficient memory.", "Insufficient cpu"),
        (
            "gang t: 6 of the 8 pods it needs fit; for the others 0/5 nodes are available: 5 Too many pods.",
            "Too many pods",
        ),
        ("0/2 nodes are available: 2 node(s) had taint {a: b, c: d}.", "node(s) had taint {a: b, c: d}"),
        (
            "0/9 nodes are available: 2 Too many pods, 7 Insufficient nvidia.com/gpu. preemption: 0/9 nodes are available: 9 Preemption is not helpful.",
            "Insufficient nvidia.com/gpu",
        ),
        ("scheduling gates: example.com/wait", "scheduling gates: example.com/wait"),
        ("", NO_REASON_GIVEN),
    ],
)
def test_the_dominant_reason_is_what_most_nodes_gave(text, reason):
    assert dominant(text) == reason


def test_pending_pods_are_grouped_by_dominant_reason_with_a_pod_of_each(bench):
    bench.join("w1")
    bench.job("big", 3)
    bench.answer("w1", OutcomeCode.UNSCHEDULABLE, reason="0/9 nodes are available: 9 Insufficient cpu.")
    bench.job("more", 2)
    bench.answer(
        "w1",
        OutcomeCode.UNSCHEDULABLE,
        reason="0/9 nodes are available: 5 Insufficient cpu, 4 Too many pods.",
    )
    assert pending_groups(bench.machine) == [
        {"reason": "Insufficient cpu", "pods": 5, "example": "default/big-0"}
    ]


def test_queued_pods_wait_for_their_turn_and_bound_ones_do_not_wait(bench):
    bench.join("w1", window=4)
    bench.job("early", 6)
    assert pending_groups(bench.machine) == [
        {"reason": NO_REASON_GIVEN, "pods": 2, "example": "default/early-4"}
    ]
    while bench.sent.get("w1"):
        bench.answer("w1", OutcomeCode.BOUND)
    assert pending_groups(bench.machine) == []


def test_queued_pods_that_nobody_takes_wait_for_a_worker(bench):
    bench.job("early", 4)
    assert [(g["reason"], g["pods"]) for g in pending_groups(bench.machine)] == [
        ("no worker is registered", 4)
    ]


def test_many_reasons_become_one_group_at_the_end(bench):
    bench.join("w1")
    for number in range(MOST_GROUPS + 3):
        bench.job(f"job-{number}", 1)
        bench.answer("w1", OutcomeCode.UNSCHEDULABLE, reason=f"reason {number}")
    groups = pending_groups(bench.machine)
    assert len(groups) == MOST_GROUPS + 1
    assert groups[-1] == {"reason": "other reasons", "pods": 3, "example": ""}


def _histograms(**pods):
    counts = {phase: np.zeros(len(BOUNDS_SECONDS) + 1, np.int64) for phase in PHASES}
    for phase, (bucket, count) in pods.items():
        counts[phase][bucket] = count
    return counts


def test_a_point_is_of_the_time_between_two_looks():
    curves = Curves()
    curves.sample({"bound": 1000}, _histograms(queued=(3, 1000)), 10.0, 1)
    assert not curves.points
    curves.sample({"bound": 1500, "refused": 10}, _histograms(queued=(5, 500)), 12.0, 2001)
    (point,) = curves.points
    assert (point.at_ms, point.per_second) == (2001, (250.0, 0.0, 5.0))


def test_what_passed_while_nobody_looked_is_no_point():
    curves = Curves()
    curves.sample({}, _histograms(), 10.0, 1)
    curves.sample({"bound": 10_000}, _histograms(), 10.1 + GAP_SECONDS, 2)
    assert not curves.points


def test_a_percentile_is_the_bound_of_its_bucket_and_none_of_nothing():
    counts = np.zeros(len(BOUNDS_SECONDS) + 1, np.int64)
    assert percentile(counts, 0.5) is None
    counts[2], counts[7] = 98, 2
    assert percentile(counts, 0.5) == BOUNDS_SECONDS[2]
    assert percentile(counts, 0.99) == BOUNDS_SECONDS[7]


def _unpacked(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype).tolist()


def test_the_first_message_tells_all(feed):
    table = NodeTable()
    table.apply(feed({0: ("a", 1000, 500)}, snapshot=True))
    told = message(DashboardSnapshot(7, {"queues": {"BOUND": 1}}, table.cells()), None)
    assert (told["at"], told["whole"], told["sections"]) == (7, True, {"queues": {"BOUND": 1}})
    assert told["nodes"]["names"] == ("a",)
    assert _unpacked(told["nodes"]["values"], "u1") == [100, 255, 255, 255, 0]


def test_later_messages_tell_what_differs(feed):
    table = NodeTable()
    table.apply(feed({i: (f"n{i}", 1000, 0) for i in range(3)}, snapshot=True))
    first = DashboardSnapshot(1, {"queues": 1, "workers": 2}, table.cells())
    table.apply(feed({1: ("n1", 1000, 250)}))
    second = DashboardSnapshot(2, {"queues": 1, "workers": 3}, table.cells())
    told = message(second, first)
    assert told["sections"] == {"workers": 3}
    assert _unpacked(told["nodes"]["changed"], "<u4") == [1]
    assert _unpacked(told["nodes"]["values"], "u1")[0] == 50
    assert message(second, second) == {"at": 2, "whole": False}


def test_other_nodes_are_told_with_their_names(feed):
    table = NodeTable()
    table.apply(feed({0: ("a", 1000, 0)}, snapshot=True))
    first = DashboardSnapshot(1, {}, table.cells())
    table.apply(feed({5: ("f", 1000, 0)}))
    assert message(DashboardSnapshot(2, {}, table.cells()), first)["nodes"]["names"] == ("a", "f")
