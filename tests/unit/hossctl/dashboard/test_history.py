"""What is remembered of an hour, and what of it is forgotten."""

import numpy as np
import pytest

from hoss.errors import ColumnError
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.dashboard.history import (
    HOUR_MS,
    MOST_EVENTS,
    MOST_POLICIES,
    MOST_TIMELINE_ROWS,
    MOST_WORKERS,
    WORKER_POINT_MS,
    DashboardHistory,
    TimelineHistory,
)
from hossctl.dashboard.snapshot import PHASES, Sample


def sample(seconds, *, term=1, workers=(), problems=(), counters=(), policy=1):
    status = pb.DispatcherStatus(
        term=term,
        address=f"d{term}:1",
        problems=problems,
        counters=dict(counters),
        policy=pb.Policy(version=policy),
    )
    for phase in PHASES:
        status.phases.add(phase=phase, bounds_seconds=[1.0], counts=[0, 0])
    return Sample(float(seconds), int(seconds * 1000), status, workers, pb.Conflicts())


def worker(name="w1", state="Ready", **fields):
    return pb.WorkerInfo(name=name, state=state, **fields)


def texts(history):
    return [(event["kind"], event["name"], event["text"]) for event in history.events]


def test_what_differs_between_two_samples_is_an_event():
    history = DashboardHistory()
    history.add(sample(1, workers=[worker()]))
    assert texts(history) == []  # nothing is known of the time before
    history.add(sample(2, workers=[worker(state="Lost"), worker("w2")], problems=["no room"]))
    assert texts(history) == [
        ("worker", "w1", "Ready → Lost"),
        ("worker", "w2", "Ready"),
        ("problem", "", "no room"),
    ]
    history.events.clear()
    history.add(sample(3, term=2, policy=2))
    assert texts(history) == [
        ("dispatcher", "d2:1", "leads, term 2"),
        ("worker", "w1", "is no longer listed"),
        ("worker", "w2", "is no longer listed"),
        ("policy", "", "version 2, by "),
        ("solved", "", "no room"),
    ]


def test_a_burst_of_conflicts_is_one_event_and_a_later_burst_another():
    history = DashboardHistory()
    refused = 0
    for second, more in enumerate((0, 100, 100, 0, 100)):
        refused += more
        history.add(sample(second, counters={"bound": 100 * second, "refused": refused}))
    assert [event["at"] for event in history.events] == [1000, 4000]
    assert "100 proposals a second refused, 50% of all" in history.events[0]["text"]


def test_a_workers_curve_has_a_point_in_ten_seconds_and_the_conflicts_of_that_time():
    history = DashboardHistory()
    for second, proposed, conflicts in ((0, 1000, 500), (5, 1050, 500), (10, 1100, 510), (20, 5, 5)):
        history.add(
            sample(second, workers=[worker(proposed=proposed, conflicts=conflicts, pods_per_second=2.0)])
        )
    assert [(point[0], point[1], point[3]) for point in history.worker("w1")] == [
        (0, 2.0, 0.0),  # what was before is no conflict of this time
        (WORKER_POINT_MS, 2.0, 0.1),
        (2 * WORKER_POINT_MS, 2.0, 0.0),  # another start of the worker
    ]
    assert history.worker("nobody") == []


def test_workers_events_and_policies_have_bounds_and_are_forgotten_after_an_hour():
    history = DashboardHistory()
    history.add(sample(0, workers=[worker(f"w{number}") for number in range(MOST_WORKERS + 5)]))
    assert history.worker(f"w{MOST_WORKERS + 1}") == []
    for number in range(MOST_EVENTS + 5):
        history.add(sample(number + 1, problems=[f"problem {number}"]))
    assert len(history.events) == MOST_EVENTS
    history.add(sample(HOUR_MS / 1000 + MOST_EVENTS + 100))
    assert history.worker("w0") == []
    assert all(event["at"] >= HOUR_MS for event in history.events)
    for version in range(MOST_POLICIES + 5):
        history.note_policy(pb.Policy(version=version))
    history.note_policy(pb.Policy(version=version))  # as the one before
    assert [policy["version"] for policy in history.policies] == list(range(5, MOST_POLICIES + 5))


def rows(last, *answered, names=("w1", "w2"), lane=0):
    count = len(answered)
    small = np.zeros(count, "<u4").tobytes()
    return pb.WorkTimeline(
        last=last,
        workers=names,
        worker=np.full(count, lane, "<u4").tobytes(),
        sent_ms=np.array(answered, "<u8").tobytes(),
        answered_ms=np.array(answered, "<u8").tobytes(),
        **dict.fromkeys(("queued_ms", "deciding_micros", "committing_micros", "bound", "others"), small),
    )


def answered(timeline, ms, most=100, workers=()):
    told = timeline.since(ms, most, workers)
    at, lane = told["columns"].index("answered_ms"), told["columns"].index("worker")
    return [(told["workers"][row[lane]], row[at]) for row in told["rows"]]


def test_the_timeline_tells_what_was_answered_after_a_moment_the_latest_first_to_stay():
    timeline = TimelineHistory()
    timeline.add(rows(2, 10, 20))
    timeline.add(rows(3, 30, names=("w2",)))  # another table of names
    assert timeline.last == 3
    assert answered(timeline, 10) == [("w1", 20), ("w2", 30)]
    assert answered(timeline, 0, most=2) == [("w1", 20), ("w2", 30)]
    assert answered(timeline, 0, workers=("w1",)) == [("w1", 10), ("w1", 20)]
    timeline.forget(25)
    assert answered(timeline, 0) == [("w2", 30)]


def test_the_timeline_has_a_bound_and_refuses_columns_that_disagree():
    timeline = TimelineHistory()
    for part in range(3):
        timeline.add(rows(part + 1, *range(part * 20_000, (part + 1) * 20_000)))
    assert len(timeline.since(-1, 10**6)["rows"]) <= MOST_TIMELINE_ROWS
    wrong = rows(9, 1, 2)
    wrong.bound = b"1234"
    with pytest.raises(ColumnError, match="bound"):
        timeline.add(wrong)
