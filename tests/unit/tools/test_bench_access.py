"""The benchmark of access measures what it says."""

import json

import pytest
from typer.testing import CliRunner

from hossctl.bench.throughput import ThroughputRun, ThroughputSetting
from hossctl.choices import Mix
from tools.bench import access
from tools.bench.__main__ import app
from tools.bench.access import GOAL_TOKEN_MICROS, TlsCost, measure_tokens


def test_a_known_token_is_checked_for_far_less_than_a_new_one():
    cost = measure_tokens(batches=5)
    assert 0 < cost.cached_micros < cost.first_micros / 2
    assert cost.as_json()["goalMicros"] == GOAL_TOKEN_MICROS == 20


class Placed:
    """The figures of a placement that are compared."""

    def __init__(self, pods_per_second: float) -> None:
        self.pods_per_second, self.bound = pods_per_second, 1000


def test_ratios_are_of_the_two_runs_of_a_pair_and_the_order_within_pairs_alternates(monkeypatch):
    # The machine is slower for each pair than for the one before it: only a pair's own two runs compare.
    speeds = {False: iter([90.0, 40.0, 8.0]), True: iter([100.0, 50.0, 10.0])}
    order = []

    class Measured:
        def __init__(self, setting: ThroughputSetting) -> None:
            order.append(setting.insecure)
            cpu = {"workers": 0.002 if setting.insecure else 0.003}
            self.runs = [ThroughputRun(Placed(next(speeds[setting.insecure])), cpu)]
            assert setting.repeat == 1

    monkeypatch.setattr(access, "measure", lambda setting, **_: Measured(setting))
    cost = access.measure_tls(ThroughputSetting(1, 1000, 1, Mix.UNIFORM, 1, repeat=3), quiet=True)
    assert order == [False, True, True, False, False, True]
    assert (cost.ratio, cost.cpu_ratio) == pytest.approx((0.8, 1.5))
    assert cost.as_json()["insecure"]["microsPerPod"] == [2.0, 2.0, 2.0]
    assert "0.80 of that without, the median of 3 pairs; goal 0.9" in str(dict(TlsCost.lines(cost)))


def measured(*flags: str):
    done = CliRunner().invoke(app, ["access", "--checks", "1", "--output", "json", *flags])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_command_measures_tokens_alone_where_no_pair_is_wanted():
    assert measured("--repeat", "0")["throughput"] is None


@pytest.mark.thorough
def test_the_command_places_every_pod_with_and_without_tls():
    flags = ("--repeat", "1", "--nodes", "50", "--pods", "500", "--workers", "1")
    found = measured(*flags)["throughput"]
    assert found["ratio"] > 0
    assert len(found["secured"]["podsPerSecond"]) == len(found["insecure"]["podsPerSecond"]) == 1
