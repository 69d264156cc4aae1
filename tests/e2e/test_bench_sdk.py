"""bench sdk: what a scheduler of one's own costs, on a platform where it is alone."""

import json

from typer.testing import CliRunner

from tools.bench.__main__ import app
from tools.bench.sdk import SdkCost, SdkRun, SdkSetting


def test_every_pod_is_placed_by_the_scheduler_and_its_cpu_time_is_told():
    # Enough pods for the system's clock of CPU time: it counts in steps of 10 ms and may miss a burst.
    arguments = ["--nodes", "1000", "--pods", "30000", "--repeat", "1", "-o", "json"]
    done = CliRunner().invoke(app, ["sdk", *arguments])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["violations"] == []
    assert document["runs"][0]["microsPerPod"] > 0
    assert document["runs"][0]["podsPerSecond"] > 0


def test_a_load_that_finds_no_room_is_no_figure():
    done = CliRunner().invoke(app, ["sdk", "--nodes", "1", "--pods", "10", "--repeat", "1"])
    assert "0 of 10 pods were bound; give --nodes more" in str(done.exception)


def test_the_figure_is_the_median_over_the_runs():
    setting = SdkSetting("examples/emptiest_first.py:EmptiestFirst", 100, 1000, seed=1, repeat=3)
    cost = SdkCost(setting, [SdkRun(micros, 100.0, 0) for micros in (20.0, 90.0, 10.0)])
    assert cost.as_json()["podsPerSecondOfOneCore"] == 50_000
    missed = SdkCost(setting, [SdkRun(0.0, 100.0, 0)])
    assert missed.as_json()["podsPerSecondOfOneCore"] == 0
    assert ("CPU a pod", "20.0 us (20.0, 90.0, 10.0); goal 50") in cost.lines()
