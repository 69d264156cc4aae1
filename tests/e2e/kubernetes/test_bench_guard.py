"""`hoss bench guard` at a size that takes seconds."""

import json
import os
import subprocess
import sys

from waiting import COMMAND_SECONDS

from hossctl.local.control_plane import ControlPlane


def test_the_proof_says_who_bound_what_and_that_the_guard_lets_nothing_be_overcommitted(
    control_plane: ControlPlane,  # skips where there are no binaries
) -> None:
    command = [
        sys.executable,
        "-m",
        "hossctl",
        "bench",
        "guard",
        "--nodes",
        "6",
        "--workers",
        "1",
        "--fill",
        "90",
    ]
    done = subprocess.run(
        [*command, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    without, with_it = document["cases"]
    assert (without["guarded"], with_it["guarded"]) == (False, True)
    assert document["pods"] == 43
    for case in (without, with_it):
        assert (case["boundByHoss"], case["boundByKubeScheduler"], case["unbound"]) == (22, 21, 0)
    assert without["denied"] == without["webhookMeanMs"] == 0
    assert with_it["overcommittedNodes"] == 0
    assert with_it["webhookMeanMs"] > 0


def test_the_latency_of_bindings_is_told_for_both_ways_of_asking_and_what_they_cost_by_process(
    control_plane: ControlPlane,  # skips where there are no binaries
) -> None:
    command = [
        sys.executable,
        "-m",
        "hossctl",
        "bench",
        "guard",
        "--latency",
        "--rate",
        "40",
        "--seconds",
        "1.5",
    ]
    done = subprocess.run(
        [*command, "--nodes", "3", "--with-claims", "50", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    asked = [(case["asked"], case["pods"]) for case in document["cases"]]
    assert asked == [(way, pods) for way in ("webhook", "API server") for pods in ("plain", "with claims")]
    for case in document["cases"]:
        assert 0 < case["p50Ms"] <= case["p90Ms"] <= case["p99Ms"] <= case["p999Ms"] <= case["maxMs"]
        assert {"resolver-1", "redis", "dispatcher", "kube-apiserver", "etcd", "client"} == set(case["cpuMs"])
    assert document["apiServer"]["meanMs"] > 0
    assert 0 <= document["apiServer"]["under5Ms"] <= document["apiServer"]["under25Ms"] <= 1
