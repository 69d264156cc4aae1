"""Rates and counts of callers, by a clock of the test's."""

import pytest

from hoss.errors import Overloaded
from hoss.limits.callers import CallerLimits, CallerLimitsConfig, RateLimits


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


def test_a_burst_is_allowed_and_then_one_by_one(clock):
    rates = RateLimits(2.0, 3.0, clock=clock)
    assert [rates.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.seconds += 0.5
    assert [rates.take("a") for _ in range(2)] == [0, 0.5]


def test_one_key_does_not_use_up_what_others_may_have(clock):
    rates = RateLimits(1.0, 1.0, clock=clock)
    assert [rates.take("a"), rates.take("a"), rates.take("b")] == [0, 1.0, 0]


def test_keys_are_bounded_and_forgotten_when_their_burst_is_whole(clock):
    rates = RateLimits(1.0, 2.0, clock=clock, most_keys=3)
    assert [rates.take(key) for key in "abcd"] == [0, 0, 0, 2.0]
    assert len(rates) == 3
    clock.seconds += 1
    assert rates.take("d") == 0
    assert len(rates) == 1


def test_a_caller_has_so_many_streams_at_once(clock):
    limits = CallerLimits(CallerLimitsConfig(streams=2), clock=clock)
    limits.begin("a", stream=True)
    limits.begin("a", stream=True)
    with pytest.raises(Overloaded, match=r"a has 2 streams open, which is the service's limits\.streams"):
        limits.begin("a", stream=True)
    limits.begin("a", stream=False)
    limits.begin("b", stream=True)
    limits.end("a")
    limits.begin("a", stream=True)
    refused, streams = limits()
    assert dict(refused.numbers()) == {
        ("calls",): 0,
        ("identity",): 0,
        ("malformed",): 0,
        ("slow_reader",): 0,
        ("streams",): 1,
    }
    assert dict(streams.numbers()) == {(): 3}


def test_calls_beyond_the_rate_are_refused_with_the_time_to_wait(clock):
    limits = CallerLimits(CallerLimitsConfig(calls_per_second=2.0), clock=clock)
    for _ in range(20):
        limits.begin("a", stream=False)
    with pytest.raises(Overloaded, match="a makes more calls than") as refused:
        limits.begin("a", stream=True)
    assert refused.value.retry_after_seconds == 0.5
    assert limits.refused == {"calls": 1}


def test_a_limit_of_0_is_none(clock):
    limits = CallerLimits(CallerLimitsConfig(calls_per_second=0, streams=0), clock=clock)
    for _ in range(10_000):
        limits.begin("a", stream=True)
    assert not limits.refused
