"""`python -m tools.peers` at a size that takes seconds: one load, in process, by kube-scheduler and by HOSS
beside it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import COMMAND_SECONDS, DEADLINE_SECONDS, lives, wait_until

from hoss.errors import HossError
from hossctl.bench.api_server import opened
from hossctl.choices import Mode
from hossctl.compare.document import Comparison, ComparisonRun
from hossctl.local.control_plane import ControlPlane


def test_the_same_load_runs_on_kube_scheduler_and_on_hoss_beside_it_and_what_the_peer_does_not_say_is_absent(
    control_plane: ControlPlane,  # skips where there are no binaries
    tmp_path: Path,
) -> None:
    size = ["--nodes", "3", "--fills", "1.0", "--workers", "2", "--modes", "single", "--loads", "constrained"]
    file = tmp_path / "out" / "comparison.json"
    command = [sys.executable, "-m", "tools.peers", *size, "--repeat", "1", "--out", str(file.parent)]
    environment = {**os.environ, "HOSS_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found = Comparison.model_validate_json(file.read_text())
    runs = {run.cell.mode: run for run in found.runs}
    assert list(runs) == [Mode.SINGLE, Mode.KUBE_SCHEDULER, Mode.KUBE_HOSS]
    single, peer, beside = runs.values()
    assert (peer.cell.workers, beside.cell.workers) == (1, 2)
    for run in (peer, beside):
        check_outcome(run, single)
        assert {"kube-apiserver", "etcd"} < run.services.keys()
    assert set(peer.services) == {"kube-apiserver", "etcd", "kube-scheduler"}
    assert set(peer.latency) == {"total"}
    untold = ("jobs", "proposals", "conflicts", "retries", "wastedDecisions", "violations")
    written = json.loads(file.read_text())["runs"][1]
    assert {written[name] for name in untold} == {None}
    assert set(beside.latency) == {"queued", "deciding", "committing", "total"}
    assert sum(worker.bound for worker in beside.workers) == beside.bound
    assert beside.violations == []
    assert found.machine.versions["kube-scheduler"].startswith("v1.")
    assert "Beside kube-scheduler: on the same API server 2 schedulers with HOSS placed" in " ".join(
        done.stdout.split()
    )
    assert "kube-scheduler, 1" in file.with_suffix(".html").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_ends_its_control_plane_and_keeps_what_was_bound(
    control_plane: ControlPlane,  # skips where there are no binaries
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    size = ["--nodes", "60", "--fills", "1.0", "--workers", "1", "--modes", "single", "--loads", "uniform"]
    file = tmp_path / "out" / "comparison.json"
    command = [sys.executable, "-m", "tools.peers", *size, "--repeat", "1", "--out", str(file.parent)]
    environment = {**os.environ, "HOSS_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    comparing = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: some_bound(tmp_path), "kube-scheduler has bound some", seconds=COMMAND_SECONDS)
    services = psutil.Process(comparing.pid).children(recursive=True)
    assert {"kube-apiserver", "etcd", "kube-scheduler"} <= {process.name() for process in services}
    comparing.send_signal(number)
    _, errors = comparing.communicate(timeout=DEADLINE_SECONDS)
    assert comparing.returncode == 130, errors
    found = Comparison.model_validate_json(file.read_text())
    assert [(run.cell.mode, run.complete) for run in found.runs] == [
        (Mode.SINGLE, True),
        (Mode.KUBE_SCHEDULER, False),
    ]
    assert 0 < found.runs[1].bound < found.runs[1].pods
    assert not list(filter(lives, services))


def some_bound(directory: Path) -> bool:
    """Whether the control plane that a comparison has made in there has pods on nodes."""

    async def ask(kubeconfig: Path) -> bool:
        async with opened(kubeconfig) as api:
            params = {"fieldSelector": "spec.nodeName!=", "limit": "1"}
            return bool((await api.get("/api/v1/pods", params, patience_seconds=0.0))["items"])

    try:
        return any(
            asyncio.run(ask(found)) for found in directory.glob("hoss-compare-*/control-plane/kubeconfig")
        )
    except (HossError, OSError):
        return False  # it has only begun


def check_outcome(run: ComparisonRun, single: ComparisonRun) -> None:
    """Some pods have no place: jobs that keep apart by host are larger than there are hosts."""
    assert run.complete
    assert (run.pods, run.seed) == (single.pods, single.seed)
    assert run.bound + run.unschedulable == run.pods
    assert 0 < run.bound < run.pods
    assert run.overcommit.nodes == 0
    assert run.pods_per_second > 0
    assert 0 < run.latency["total"].p50 <= run.latency["total"].p99
    assert 0 < run.utilisation["cpu"] <= 1
