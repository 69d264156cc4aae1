"""How long pods took in each phase, and which jobs the ledger ever refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.core.workers.work_timeline import MOST_ROWS, WorkTimeline
from hoss.statistics import BOUNDS_SECONDS, Histogram


def answer_bound(bench, work, *, deciding=0.0, committing=0.0, refused=None):
    pods = len(work.uids)
    bench.handle(
        m.OutcomesArrived(
            work.link,
            work.batch,
            np.arange(pods, dtype=np.uint32),
            np.full(pods, m.OutcomeCode.BOUND, np.uint8),
            np.zeros(pods, np.uint32),
            None,
            (),
            {0: np.array([1], np.uint64)},
            deciding_seconds=deciding,
            committing_seconds=committing,
            refused=None if refused is None else np.array(refused, np.uint32),
        )
    )


def bucket_of(histogram):
    (bucket,) = np.flatnonzero(histogram.counts)
    return bucket


def test_a_time_is_counted_in_the_bucket_whose_bounds_hold_it():
    histogram = Histogram()
    histogram.add(np.array([0.0, 1e-4, 0.0105, 1e6]))
    histogram.add_equal(0.0105, 3)
    at = np.flatnonzero(histogram.counts)
    assert histogram.counts[at].tolist() == [2, 4, 1]
    assert BOUNDS_SECONDS[at[1] - 1] < 0.0105 <= BOUNDS_SECONDS[at[1]]
    assert at[2] == len(BOUNDS_SECONDS)


def test_a_pod_is_queued_from_its_admission_to_its_dispatch(bench):
    bench.job("early", 3)
    bench.pass_time(0.5)
    bench.join("w")
    times = bench.machine.settlement.times
    assert times.queued.counts.sum() == 3
    # Submissions of the test carry the time 0; admission is what counts.
    assert BOUNDS_SECONDS[bucket_of(times.queued)] == pytest.approx(0.5, rel=0.2)


def test_a_workers_times_count_once_for_each_pod_it_bound(bench):
    bench.join("w")
    bench.job("a", 5)
    answer_bound(bench, bench.sent["w"].pop(), deciding=0.2, committing=0.01)
    times = bench.machine.settlement.times
    assert times.deciding.counts.sum() == times.committing.counts.sum() == 5
    assert BOUNDS_SECONDS[bucket_of(times.deciding)] == pytest.approx(0.2, rel=0.2)
    assert BOUNDS_SECONDS[bucket_of(times.committing)] == pytest.approx(0.01, rel=0.2)


def test_a_worker_that_does_not_tell_its_times_counts_in_no_bucket(bench):
    bench.join("w")
    bench.job("a", 5)
    answer_bound(bench, bench.sent["w"].pop())
    assert not bench.machine.settlement.times.deciding.counts.any()


def test_a_job_that_was_refused_counts_once_however_often_it_was(bench):
    bench.join("w")
    bench.job("a", 5)
    answer_bound(bench, bench.sent["w"].pop(), refused=[0, 1, 0])
    assert bench.machine.counters["jobs_refused"] == 1


def test_each_pod_of_a_list_counts_as_a_job_of_its_own(bench):
    bench.join("w")
    bench.pods("a", "b", "c")
    answer_bound(bench, bench.sent["w"].pop(), refused=[0, 2, 0])
    assert bench.machine.counters["jobs_refused"] == 2


def test_refused_positions_outside_the_batch_are_passed_over(bench):
    bench.join("w")
    bench.job("a", 2)
    answer_bound(bench, bench.sent["w"].pop(), refused=[7])
    assert bench.machine.counters["jobs_refused"] == 0


def test_a_pod_counts_as_scheduled_from_its_submission_once_it_is_bound(bench):
    bench.join("w")
    bench.job("a", 5)
    bench.job("b", 2)
    before = bench.machine.unix_ms(bench.now)  # submissions of the test carry the time 0
    while bench.sent["w"]:
        bench.answer("w", m.OutcomeCode.BOUND)
    scheduled = bench.machine.settlement.times.scheduled
    assert scheduled.counts.sum() == 7
    assert scheduled.total_seconds == pytest.approx(7 * before / 1000)


def test_pods_that_waited_for_gates_or_lost_a_place_do_not_count_as_scheduled(bench):
    bench.join("w")
    gated = bench.job("gated", 3, gates=("a.io/quota",))
    bench.handle(m.GatesRemoved(gated, frozenset({"a.io/quota"})))
    bench.answer("w", m.OutcomeCode.BOUND)
    rows = bench.job("evicted", 2)
    bench.answer("w", m.OutcomeCode.BOUND)
    times = bench.machine.settlement.times
    assert times.scheduled.counts.sum() == 2
    pods = bench.machine.registry.pods
    bench.handle(m.Evicted(pods.uid[rows], pods.node[rows], ("made way",) * 2))
    bench.answer("w", m.OutcomeCode.BOUND)
    assert bench.all_are(rows, Phase.BOUND)
    assert times.scheduled.counts.sum() == 2


def test_the_timeline_has_a_row_for_each_message_with_its_phases(bench):
    bench.job("early", 3)
    bench.pass_time(0.5)
    bench.join("w")
    answer_bound(bench, bench.sent["w"].pop(), deciding=0.2, committing=0.01)
    timeline = bench.machine.work_timeline
    (row,) = timeline.after(0)
    assert (row["bound"], row["others"]) == (3, 0)
    assert (row["deciding_micros"], row["committing_micros"]) == (200_000, 10_000)
    assert row["queued_ms"] == pytest.approx(500, abs=2)
    assert row["sent_ms"] <= row["answered_ms"]
    assert bench.machine.members.name_of(int(row["worker"])) == "w"
    assert len(timeline.after(timeline.last)) == 0


def test_the_timeline_keeps_the_latest_rows_and_answers_who_knows_of_another_term(bench):
    worker = SimpleNamespace(number=1)
    timeline = WorkTimeline()
    for serial in range(MOST_ROWS + 10):
        batch = SimpleNamespace(sent_ms=serial, queued_ms=0)
        timeline.add(worker, batch, serial, bound=1, others=0, deciding_seconds=0.0, committing_seconds=0.0)
    assert timeline.after(0)["sent_ms"].tolist() == list(range(10, MOST_ROWS + 10))
    assert timeline.after(MOST_ROWS + 8)["sent_ms"].tolist() == [MOST_ROWS + 8, MOST_ROWS + 9]
    assert len(timeline.after(10**9)) == MOST_ROWS
