"""`hoss bench kubernetes` at a size that takes seconds."""

import json
import os
import subprocess
import sys

import pytest
from waiting import COMMAND_SECONDS

from hossctl.local.control_plane import ControlPlane


@pytest.mark.parametrize(
    "claim",
    [
        "nothing",
        pytest.param("volume", marks=pytest.mark.thorough),
        pytest.param("device", marks=pytest.mark.thorough),
    ],
)
def test_hoss_and_kube_scheduler_bind_the_same_pods_in_turns_and_the_figures_say_at_what_cost(
    control_plane: ControlPlane,  # skips where there are no binaries
    claim: str,
) -> None:
    size = ["--nodes", "5", "--initial-pods", "5", "--pods", "40", "--claim", claim]
    command = [sys.executable, "-m", "hossctl", "bench", "kubernetes", *size, "-o", "json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["claim"] == claim
    assert [turn["scheduler"] for turn in document["turns"]] == ["kube-scheduler", "hoss"]
    for turn in document["turns"]:
        assert turn["unbound"] == 0
        assert turn["writesPerPod"]["bindings"] == 1.0
        if claim != "nothing":
            assert turn["writesPerPod"]["others"] >= 1.0
        assert set(turn["millisPerPod"]) == {"scheduler", "kubeApiserver", "etcd", "client"}
        assert turn["millisPerPod"]["kubeApiserver"] > 0
    rates = document["podsPerSecond"]
    assert abs(document["ratio"] - rates["hoss"] / rates["kubeScheduler"]) < 0.02
