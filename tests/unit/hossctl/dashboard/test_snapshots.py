"""What a look says, and what of it a viewer is told."""

import base64

import numpy as np

from hoss.statistics import BOUNDS_SECONDS
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.dashboard.broadcaster import message
from hossctl.dashboard.nodes import NodeTable
from hossctl.dashboard.snapshot import (
    GAP_SECONDS,
    PHASES,
    Curves,
    DashboardSnapshot,
    Sample,
    SnapshotTaker,
    percentile,
)


def _sample(now, at_ms=1, *, term=1, counters=(), uptime_ms=0, **pods):
    """`pods`: bucket and number by phase."""
    status = pb.DispatcherStatus(term=term, counters=dict(counters), uptime_ms=uptime_ms)
    for phase in PHASES:
        counts = np.zeros(len(BOUNDS_SECONDS) + 1, np.int64)
        bucket, counts[bucket] = pods.get(phase, (0, 0))
        status.phases.add(phase=phase, bounds_seconds=BOUNDS_SECONDS.tolist(), counts=counts.tolist())
    return Sample(now, at_ms, status, (), pb.Conflicts())


def test_a_point_is_of_the_time_between_two_samples():
    curves = Curves()
    curves.add(_sample(10.0, counters={"bound": 1000}, queued=(5, 1000)))
    assert not curves.points
    curves.add(_sample(12.0, 2001, counters={"bound": 1500, "refused": 10}, queued=(5, 1500)))
    (point,) = curves.points
    assert (point.at_ms, point.per_second) == (2001, (250.0, 0.0, 5.0))
    assert (point.p99[0], point.p99[1]) == (BOUNDS_SECONDS[5], None)


def test_what_passed_without_samples_is_no_point():
    curves = Curves()
    curves.add(_sample(10.0))
    curves.add(_sample(10.1 + GAP_SECONDS, counters={"bound": 10_000}))
    assert not curves.points


def test_the_first_sample_of_another_dispatcher_is_no_point_and_the_next_one_is():
    curves = Curves()
    curves.add(_sample(10.0, counters={"bound": 1000}))
    curves.add(_sample(11.0, term=2, counters={"bound": 5}))
    assert not curves.points
    curves.add(_sample(12.0, term=2, counters={"bound": 7}))
    assert [point.per_second[0] for point in curves.points] == [2.0]


def test_a_percentile_is_the_bound_of_its_bucket_and_none_of_nothing():
    counts = np.zeros(len(BOUNDS_SECONDS) + 1, np.int64)
    assert percentile(counts, BOUNDS_SECONDS, 0.5) is None
    counts[2], counts[7] = 98, 2
    assert percentile(counts, BOUNDS_SECONDS, 0.5) == BOUNDS_SECONDS[2]
    assert percentile(counts, BOUNDS_SECONDS, 0.99) == BOUNDS_SECONDS[7]


def test_the_start_of_a_dispatcher_does_not_move_while_it_leads():
    taker = SnapshotTaker()

    def started(sample):
        return taker.take(sample, pb.PodSummary(), NodeTable().cells(), ()).sections["platform"]["startedMs"]

    assert started(_sample(1.0, 50_000, uptime_ms=10_000)) == 40_000
    assert started(_sample(2.0, 51_003, uptime_ms=11_000)) == 40_000
    assert started(_sample(3.0, 52_000, term=2, uptime_ms=1000)) == 51_000


def test_a_tenants_viewer_is_told_of_the_tenants_pods_and_of_nothing_else():
    whole = SnapshotTaker().take(_sample(1.0), pb.PodSummary(), NodeTable().cells(), ())
    summary = pb.PodSummary(
        pods_by_phase={"BOUND": 3}, pending=[pb.PendingPods(reason="full", pods=2, example="blue/a-0")]
    )
    told = whole.of_tenant(summary).sections
    assert told["queues"] == {"BOUND": 3}
    assert told["pending"] == [{"reason": "full", "pods": 2, "example": "blue/a-0"}]
    assert told.keys() == {"platform", "problems", "queues", "pending"}
    assert told["platform"].keys() == {"version", "term", "startedMs"}


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
