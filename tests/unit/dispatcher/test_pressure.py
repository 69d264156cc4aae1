"""Back pressure: how full the dispatcher is, and what it replies."""

import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Settings
from dispatcher.core.queue.pressure import IDLE_RETRY_SECONDS, LONGEST_PAUSE_SECONDS, PressureLimits


def full_bench(new_bench, *, pods: int = 1000, record_bytes: int = 10_000):
    return new_bench(
        settings=Settings(
            worker_timeout_seconds=1e9, limits=PressureLimits(pods, record_bytes, slow_from=0.8)
        )
    )


def refusal(bench, pods: int, record_bytes: int = 0):
    return bench.machine.pressure.refusal(pods, record_bytes, bench.now)


def test_streams_are_slowed_the_more_the_fuller_it_is(new_bench):
    bench = full_bench(new_bench)
    pauses = []
    for number in range(5):
        bench.job(f"job-{number}", 200)
        bench.now += 1.0
        pauses.append(bench.machine.pressure.pause_seconds(bench.now))
    assert pauses[:4] == [0, 0, 0, 0]
    assert pauses[4] == pytest.approx(LONGEST_PAUSE_SECONDS)


def test_what_does_not_fit_is_refused_and_what_fits_is_not(new_bench):
    bench = full_bench(new_bench)
    bench.job("job", 900)
    bench.now += 1.0
    assert "900 pods wait and 1000 may: nothing of these 101 was accepted" in refusal(bench, 101).text
    assert refusal(bench, 100) is None


def test_several_that_come_at_once_do_not_fit_together(new_bench):
    bench = full_bench(new_bench)
    assert [refusal(bench, 400) is None for _ in range(4)] == [True, True, False, False]


def test_pods_that_are_bound_make_room_and_pods_that_are_deleted_too(new_bench):
    bench = full_bench(new_bench)
    rows = bench.job("job", 1000)
    bench.now += 1.0
    assert refusal(bench, 500) is not None
    bench.join("w1")
    bench.answer("w1", m.OutcomeCode.BOUND)
    bench.now += 1.0
    assert refusal(bench, 500) is None
    bench.handle(m.Deleted(rows[500:]))
    bench.now += 1.0
    assert refusal(bench, 1000) is None


def test_how_long_to_wait_follows_from_how_fast_the_queue_drains(new_bench):
    bench = full_bench(new_bench)
    bench.job("job", 1000)
    bench.now += 1.0
    assert refusal(bench, 500).retry_after_seconds == IDLE_RETRY_SECONDS  # nothing drains
    bench.join("w1", window=100)
    bench.answer("w1", m.OutcomeCode.BOUND)  # 50 pods in a second
    bench.now += 1.0
    assert refusal(bench, 500).retry_after_seconds == pytest.approx(450 / 50)


def test_records_of_submissions_have_a_limit_of_their_own(new_bench):
    bench = full_bench(new_bench)
    bench.machine.registry.record_bytes = 9_000
    assert "deleting jobs makes room" in refusal(bench, 1, 2_000).text
    assert refusal(bench, 1, 1_000) is None
    assert bench.machine.pressure.pause_seconds(bench.now) == pytest.approx(LONGEST_PAUSE_SECONDS / 2)


@pytest.mark.parametrize(("pods", "record_bytes"), [(1001, 0), (1, 10_001)])
def test_what_never_fits_is_refused_for_good(new_bench, pods, record_bytes):
    found = refusal(full_bench(new_bench), pods, record_bytes)
    assert found.retry_after_seconds is None
    assert "submit them in parts" in found.text


def test_a_forgotten_submission_gives_its_bytes_back(bench):
    rows = bench.job("job", 10)
    submission = bench.machine.registry.set_of(int(rows[0])).submission
    submission.record_bytes = bench.machine.registry.record_bytes = 500
    bench.handle(m.Deleted(rows))
    bench.pass_time(2.0)
    assert bench.machine.registry.record_bytes == 0
