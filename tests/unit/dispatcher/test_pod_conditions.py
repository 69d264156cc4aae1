"""Pod conditions: what they say, how often they are written, and how long changes are collected."""

import pytest

from dispatcher.core.kubernetes.conditions import (
    BURST_SECONDS,
    QUIET_SECONDS,
    REPEAT_SECONDS,
    Debounce,
    PodConditions,
    RateLimiter,
    WaitingPod,
)


def waiting(message="0/2 nodes are available: 2 Insufficient cpu.", number=1):
    return WaitingPod(bytes([number]) * 16, "default", f"p{number}", message)


@pytest.fixture
def conditions():
    return PodConditions()


def messages(conditions, now, limit=10):
    return [pod.message for pod in conditions.take_due(now, limit)]


def test_the_condition_of_a_waiting_pod_is_due_at_once_and_once(conditions):
    conditions.update(waiting("full"), 100.0)
    assert messages(conditions, 100.0) == ["full"]
    conditions.update(waiting("full"), 200.0)
    assert not messages(conditions, 200.0)


def test_a_pod_that_a_plugin_cannot_judge_is_not_called_unschedulable_so_that_no_autoscaler_adds_nodes():
    assert waiting().condition_reason == "Unschedulable"
    assert waiting()._replace(failed=True).condition_reason == "SchedulerError"


def test_a_reason_of_another_kind_is_due_though_its_words_are_the_same(conditions):
    conditions.update(waiting("full"), 100.0)
    messages(conditions, 100.0)
    conditions.update(waiting("full")._replace(failed=True), 101.0)
    (pod,) = conditions.take_due(101.0 + REPEAT_SECONDS, 10)
    assert pod.condition_reason == "SchedulerError"


def test_another_reason_is_due_a_while_later_and_only_the_latest(conditions):
    conditions.update(waiting("a"), 100.0)
    messages(conditions, 100.0)
    for text in ("b", "c"):
        conditions.update(waiting(text), 101.0)
    assert not messages(conditions, 101.0)
    (pod,) = conditions.take_due(100.0 + REPEAT_SECONDS, 10)
    assert (pod.message, pod.first) == ("c", False)


def test_a_reason_that_is_the_old_one_again_is_not_due(conditions):
    conditions.update(waiting("a"), 100.0)
    messages(conditions, 100.0)
    conditions.update(waiting("b"), 101.0)
    conditions.update(waiting("a"), 102.0)
    assert not messages(conditions, 200.0)


class CountedNow(float):
    """A time that counts how often it is compared."""

    compared = 0

    def __ge__(self, other):
        CountedNow.compared += 1
        return float(self) >= other


def test_a_look_at_what_is_due_costs_what_is_due_however_many_pods_wait(conditions):
    pods = [WaitingPod(number.to_bytes(16, "big"), "default", f"p{number}", "full") for number in range(3000)]
    for pod in pods:
        conditions.update(pod, 100.0)
    assert len(conditions.take_due(100.0, len(pods))) == len(pods)
    for pod in pods:
        conditions.update(pod._replace(message="fuller"), 101.0)
    CountedNow.compared = 0
    assert not conditions.take_due(CountedNow(102.0), 10)
    assert len(conditions.take_due(CountedNow(100.0 + REPEAT_SECONDS), 10)) == 10
    assert CountedNow.compared <= 20


def test_pods_that_come_and_go_leave_nothing_behind(conditions):
    for number in range(3000):
        pod = waiting(number=number % 200)
        conditions.update(pod, 100.0)
        conditions.remove([pod.uid])
    conditions.update(waiting("left"), 100.0)
    assert messages(conditions, 100.0) == ["left"]
    assert len(conditions) == 0


def test_a_pod_that_waits_no_longer_has_nothing_due_and_begins_anew_if_it_waits_again(conditions):
    conditions.update(waiting("a"), 100.0)
    conditions.remove([waiting().uid])
    assert not messages(conditions, 100.0)
    conditions.update(waiting("a"), 101.0)
    assert messages(conditions, 101.0) == ["a"]


def test_what_could_not_be_written_is_retried_later_unless_there_is_a_newer_condition(conditions):
    conditions.update(waiting("a"), 100.0)
    (pod,) = conditions.take_due(100.0, 10)
    conditions.retry(pod, 100.0)
    assert not messages(conditions, 100.5)
    assert messages(conditions, 101.5) == ["a"]
    conditions.update(waiting("b"), 102.0)
    conditions.retry(pod, 102.0)
    assert messages(conditions, 200.0) == ["b"]


def test_what_could_not_be_written_for_a_pod_that_is_gone_is_dropped(conditions):
    conditions.update(waiting("a"), 100.0)
    (pod,) = conditions.take_due(100.0, 10)
    conditions.remove([pod.uid])
    conditions.retry(pod, 100.0)
    assert not messages(conditions, 200.0)


def test_no_more_are_taken_than_asked_for(conditions):
    for number in range(5):
        conditions.update(waiting(number=number), 100.0)
    assert [len(conditions.take_due(100.0, 3)) for _ in range(3)] == [3, 2, 0]


def test_an_allowance_saves_up_and_runs_out():
    limiter = RateLimiter(2.0, burst_seconds=2.0)
    assert [limiter.take(10.0) for _ in range(5)] == [True] * 4 + [False]
    assert [limiter.take(10.6) for _ in range(2)] == [True, False]
    assert [limiter.take(99.0) for _ in range(5)] == [True] * 4 + [False]


def test_an_allowance_of_nothing_allows_nothing():
    assert not RateLimiter(0.0).take(10.0)


def test_a_pod_that_comes_alone_waits_a_moment_only():
    debounce = Debounce()
    debounce.observe(1)
    assert debounce.seconds == QUIET_SECONDS


def test_what_comes_in_a_burst_is_collected_for_longer_until_it_is_over():
    debounce = Debounce()
    debounce.observe(8)
    assert debounce.seconds == BURST_SECONDS
    debounce.observe(80)  # as many a second as before
    assert debounce.seconds == BURST_SECONDS
    debounce.observe(8)
    assert debounce.seconds == QUIET_SECONDS
