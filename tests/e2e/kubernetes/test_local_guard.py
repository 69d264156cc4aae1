"""`hoss up --kubeconfig F --guard` as a user runs it, and `hoss down`."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes.api import Api
from waiting import COMMAND_SECONDS, wait_until

from hossctl.local.binding_webhook import CONFIGURATIONS, LOCAL_NAME
from hossctl.local.control_plane import ControlPlane

Hoss = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hoss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hoss]:
    """Runs the command, on a platform of this test alone."""
    monkeypatch.setenv("HOSS_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "hossctl", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)

    yield run
    run("down")


def test_up_has_every_binding_judged_and_down_leaves_the_cluster_as_it_was(
    hoss: Hoss, api: Api, control_plane: ControlPlane
) -> None:
    api.create_node("n1", cpu="1")
    before = _configurations(api)
    done = hoss("up", "--kubeconfig", str(control_plane.kubeconfig), "--guard", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "guard: bindings of every scheduler are judged" in done.stdout + done.stderr
    fitting, greedy = api.create_pod("fitting", cpu="700m"), api.create_pod("greedy", cpu="700m")
    assert api.bind(fitting, "n1")[0] == 201
    status, answer = api.bind(greedy, "n1")
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert "asks for 700m of cpu, and 300m is free" in answer["message"]
    own = api.create_pod("own", cpu="200m", scheduler="hoss")  # passes by its reservation
    wait_until(lambda: api.pod("own")["spec"].get("nodeName") == "n1", "our own pod is bound")
    counters = json.loads(hoss("status", "-o", "json").stdout)["resolver"]["counters"]
    assert counters["guard_standing"] >= 1
    assert hoss("down").returncode == 0
    assert _configurations(api) == before
    wait_until(lambda: api.bind(greedy, "n1")[0] == 201, "nobody is asked any more")
    assert own["spec"]["schedulerName"] == "hoss"


def test_down_says_how_to_take_the_guard_out_where_it_cannot(
    hoss: Hoss, own_control_plane: ControlPlane
) -> None:
    kubeconfig = str(own_control_plane.kubeconfig)
    assert hoss("up", "--kubeconfig", kubeconfig, "--guard", "--workers", "1").returncode == 0
    own_control_plane.kill("kube-apiserver")
    done = hoss("down")
    assert done.returncode == 0
    assert (
        f"kubectl --kubeconfig {kubeconfig} delete validatingwebhookconfiguration {LOCAL_NAME}" in done.stderr
    )


def test_a_guard_without_a_cluster_is_refused(hoss: Hoss) -> None:
    done = hoss("up", "--guard")
    assert done.returncode == 2
    assert "--guard: was given without --kubeconfig" in done.stderr


def _configurations(api: Api) -> list[Any]:
    return [item["metadata"]["name"] for item in api("GET", CONFIGURATIONS)["items"]]
