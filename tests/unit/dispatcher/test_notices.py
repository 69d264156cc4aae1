"""What pods are told of why they wait, and how often."""

import pytest

from dispatcher.core.notices import AGAIN_SECONDS, Allowance, Notices, Waiting


def waiting(message="0/2 nodes are available: 2 Insufficient cpu.", number=1):
    return Waiting(bytes([number]) * 16, "default", f"p{number}", message)


@pytest.fixture
def notices():
    return Notices()


def messages(notices, now, limit=10):
    return [pod.message for pod in notices.take_due(now, limit)]


def test_a_pod_that_waits_is_told_at_once_and_once(notices):
    notices.waits(waiting("full"), 100.0)
    assert messages(notices, 100.0) == ["full"]
    notices.waits(waiting("full"), 200.0)
    assert not messages(notices, 200.0)


def test_another_reason_is_told_a_while_later_and_only_the_latest(notices):
    notices.waits(waiting("a"), 100.0)
    messages(notices, 100.0)
    for text in ("b", "c"):
        notices.waits(waiting(text), 101.0)
    assert not messages(notices, 101.0)
    (pod,) = notices.take_due(100.0 + AGAIN_SECONDS, 10)
    assert (pod.message, pod.first) == ("c", False)


def test_a_reason_that_is_the_old_one_again_is_not_told(notices):
    notices.waits(waiting("a"), 100.0)
    messages(notices, 100.0)
    notices.waits(waiting("b"), 101.0)
    notices.waits(waiting("a"), 102.0)
    assert not messages(notices, 200.0)


def test_a_pod_that_waits_no_longer_is_told_nothing_more_and_begins_anew_if_it_waits_again(notices):
    notices.waits(waiting("a"), 100.0)
    notices.over([waiting().uid])
    assert not messages(notices, 100.0)
    notices.waits(waiting("a"), 101.0)
    assert messages(notices, 101.0) == ["a"]


def test_what_could_not_be_told_is_told_later_unless_there_is_newer_word(notices):
    notices.waits(waiting("a"), 100.0)
    (pod,) = notices.take_due(100.0, 10)
    notices.failed(pod, 100.0)
    assert not messages(notices, 100.5)
    assert messages(notices, 101.5) == ["a"]
    notices.waits(waiting("b"), 102.0)
    notices.failed(pod, 102.0)
    assert messages(notices, 200.0) == ["b"]


def test_what_could_not_be_told_to_a_pod_that_is_gone_is_dropped(notices):
    notices.waits(waiting("a"), 100.0)
    (pod,) = notices.take_due(100.0, 10)
    notices.over([pod.uid])
    notices.failed(pod, 100.0)
    assert not messages(notices, 200.0)


def test_no_more_are_taken_than_asked_for(notices):
    for number in range(5):
        notices.waits(waiting(number=number), 100.0)
    assert [len(notices.take_due(100.0, 3)) for _ in range(3)] == [3, 2, 0]


def test_an_allowance_saves_up_and_runs_out():
    allowance = Allowance(2.0, burst_seconds=2.0)
    assert [allowance.take(10.0) for _ in range(5)] == [True] * 4 + [False]
    assert [allowance.take(10.6) for _ in range(2)] == [True, False]
    assert [allowance.take(99.0) for _ in range(5)] == [True] * 4 + [False]


def test_an_allowance_of_nothing_allows_nothing():
    assert not Allowance(0.0).take(10.0)
