"""Virtual time, processes on shared cores, and the figures simulations start from."""

import json

import pytest

from hoss.errors import InvalidInput
from hossctl.simulate.measured import ServiceTimes, read_measured
from hossctl.simulate.timeline import SLICE_SECONDS, Cores, Process, Timeline


def test_what_is_planned_happens_in_order_of_time_and_then_of_planning():
    timeline, seen = Timeline(), []
    for name, seconds in (("c", 2.0), ("a", 1.0), ("b", 1.0), ("late", 5.0)):
        timeline.after(seconds, lambda name=name: seen.append((timeline.now, name)))
    timeline.run(until=4.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert timeline.now == 4.0


def test_what_happens_again_and_again_keeps_its_interval():
    timeline, seen = Timeline(), []
    timeline.every(1.5, lambda: seen.append(timeline.now))
    timeline.run(until=5.0)
    assert seen == [1.5, 3.0, 4.5]


def processes(cores, count):
    timeline, done = Timeline(), []
    shared = Cores(timeline, cores)
    made = [Process(f"p{i}", shared) for i in range(count)]

    def do(process, seconds, name):
        process.do(seconds, lambda: done.append((timeline.now, name)))

    return timeline, made, do, done


def test_a_process_does_one_thing_after_the_other():
    timeline, [process], do, done = processes(4, 1)
    do(process, 1.0, "first")
    do(process, 2.0, "second")
    timeline.run(until=10.0)
    assert done == [(1.0, "first"), (3.0, "second")]
    assert process.busy_seconds == 3.0


def test_no_more_processes_run_at_a_time_than_there_are_cores():
    timeline, made, do, done = processes(2, 3)
    for process in made:
        do(process, 1.0, process.name)
    timeline.run(until=10.0)
    assert done == [(1.0, "p0"), (1.0, "p1"), (2.0, "p2")]


def test_a_process_with_much_to_do_takes_turns_with_others_on_one_core():
    timeline, [busy, other], do, done = processes(1, 2)
    do(busy, 1.0, "busy 1")
    do(busy, 1.0, "busy 2")
    do(other, 1.0, "other")
    timeline.run(until=10.0)
    assert [name for _, name in done] == ["busy 1", "other", "busy 2"]


def test_who_does_many_small_things_is_not_kept_waiting_by_who_does_few_large_ones():
    timeline, [small, large], do, done = processes(1, 2)
    for number in range(12):
        do(small, SLICE_SECONDS / 4, f"small {number}")
        do(large, SLICE_SECONDS, f"large {number}")
    timeline.run(until=SLICE_SECONDS * 5.9)
    # Each had as much of the core as the other, and not as many turns.
    assert sum(name.startswith("small") for _, name in done) == 12
    assert sum(name.startswith("large") for _, name in done) == 2


def test_who_slept_has_no_claim_on_the_time_it_did_not_use():
    timeline, [busy, late], do, done = processes(1, 2)
    for number in range(100):
        do(busy, SLICE_SECONDS, f"busy {number}")
    timeline.run(until=SLICE_SECONDS * 50)
    for number in range(100):
        do(late, SLICE_SECONDS, f"late {number}")
    timeline.run(until=SLICE_SECONDS * 70.5)
    assert 9 <= sum(name.startswith("late") for _, name in done) <= 11


DOCUMENT = {
    "nodes": 100,
    "pods": 5000,
    "workers": 2,
    "mix": "uniform",
    "ratio": 0.6,
    "podsPerSecond": 45_000.0,
    "runs": [
        {
            "microsPerPod": {"workers": 4.6, "dispatcher": 1.8, "resolvers": 1.5, "redis": 2.7},
            "placement": {"bound": 4900, "conflicts": conflicts},
        }
        for conflicts in (0, 100, 4900)
    ],
}


def test_service_times_are_medians_of_a_benchmark_without_what_grows_with_the_workers(tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(DOCUMENT))
    measured = read_measured(file)
    assert (measured.nodes, measured.pods, measured.workers) == (100, 5000, 2)
    assert (measured.pods_per_second, measured.ledger_ratio, measured.conflict_share) == (45_000.0, 0.6, 0.02)
    assert measured.times == ServiceTimes(
        dispatcher=1.8, worker=pytest.approx(4.6 - 2 * 0.3), resolver=pytest.approx(1.5 - 2 * 0.1), ledger=2.7
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is no JSON; make it with `hoss bench throughput --json FILE`"),
        ("{}", "is no document of `hoss bench throughput --json FILE`: no mix"),
        (
            json.dumps({**DOCUMENT, "mix": "openb"}),
            "was measured with --mix openb; only uniform pods are simulated",
        ),
        (json.dumps({**DOCUMENT, "runs": []}), "is no document of `hoss bench throughput --json FILE`"),
    ],
)
def test_a_file_that_is_no_such_benchmark_is_refused_with_the_reason(tmp_path, content, problem):
    file = tmp_path / "bench.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        read_measured(file)
    assert f"--bench {file}" in str(caught.value)
    assert problem in str(caught.value)
