"""`python -m tools.bench sync`, `reconnect`, `rebuild`, `takeover` and `mirror` on real platforms."""

import json

import pytest
from typer.testing import CliRunner

from tools.bench.__main__ import app
from tools.bench.losses import moved_pods


def test_every_way_of_synchronising_places_the_same_load_and_overcommits_nothing():
    arguments = ["--nodes", "20", "--workers", "2", "--fill", "95"]
    done = CliRunner().invoke(app, ["sync", *arguments, "-o", "json"])
    assert done.exit_code == 0, done.output
    cases = json.loads(done.stdout)["cases"]
    assert [(case["mode"], case["intervalMs"]) for case in cases] == [
        ("push", 0), ("pull", 10), ("pull", 100), ("pull", 1000), ("refusal", 0),
    ]  # fmt: skip
    assert len({case["bound"] for case in cases}) == 1
    assert {case["overcommittedNodes"] for case in cases} == {0}
    assert all(case["podsPerSecond"] > 0 for case in cases)


def test_a_worker_that_comes_back_is_timed_beside_what_the_others_place():
    arguments = ["--nodes", "50", "--pods", "1000", "--workers", "1"]
    done = CliRunner().invoke(app, ["reconnect", *arguments, "-o", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert 0 < found["fillSeconds"] < found["startSeconds"]
    assert found["podsPerSecond"] > 0
    assert found["violations"] == []


def test_an_emptied_redis_is_timed_until_the_next_pod_is_bound_and_no_bound_pod_moves():
    done = CliRunner().invoke(app, ["rebuild", "--nodes", "20", "--pods", "500", "-o", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert 0 < found["servingSeconds"] < found["boundSeconds"]
    assert (found["movedPods"], found["violations"]) == (0, [])


def test_a_takeover_is_timed_until_the_next_dispatcher_knows_every_pod_and_no_bound_pod_moves():
    done = CliRunner().invoke(app, ["takeover", "--nodes", "20", "--pods", "500", "-o", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["servingSeconds"] > 0
    assert (found["movedPods"], found["violations"]) == (0, [])


@pytest.mark.thorough
def test_a_mirror_is_measured_at_its_start_and_at_a_takeover():
    done = CliRunner().invoke(app, ["mirror", "--nodes", "10", "--pods", "2100", "-o", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["terms"] >= 2
    assert found["startSeconds"] > 0
    assert found["takeoverSeconds"] > 0
    assert set(found["peakMib"]) == set(found["cpuSeconds"]) == {"dispatcher-1", "dispatcher-2", "resolver-1"}
    assert min(found["peakMib"].values()) > 0


def test_a_pod_has_moved_whose_reservation_is_gone_or_on_another_node():
    assert moved_pods({b"stays": 1, b"moves": 2, b"goes": 3}, {b"stays": 1, b"moves": 3, b"comes": 3}) == 2


def test_a_fill_of_more_than_there_is_is_refused_before_anything_starts():
    done = CliRunner().invoke(app, ["sync", "--fill", "150"])
    assert done.exit_code != 0
    assert "--fill" in str(done.exception) + done.output
