"""Of a test run that is killed nothing is left."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from fork_server import ROOT
from left_processes import leave_run
from waiting import lives, wait_until

# A server, a service of the fork server, and a process in a session of its own without a parent and an
# environment.
STARTS = """
import json, os, signal, subprocess

def test_that_never_ends(redis_server, request):
    script = "setsid sleep 3600 >/dev/null 2>&1 & echo $!"
    orphan = int(subprocess.check_output(["/usr/bin/env", "-i", "/bin/sh", "-c", script]))
    # Afterwards, because it opens a channel: a fork amid calls may end gRPC's process.
    request.getfixturevalue("start_resolver")(redis_server.url)
    with open("started.new", "w") as file:
        json.dump([os.getpid(), redis_server.pid, orphan], file)
    os.rename("started.new", "started")
    signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the limits of a process")
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_run_that_is_killed_leaves_no_process(tmp_path, number, processes):
    (tmp_path / "test_starts.py").write_text(STARTS)
    options = [
        "-n",
        str(processes),
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "--basetemp",
            str(tmp_path / "basetemp"),
            "test_starts.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=leave_run,  # noqa: PLW1509 - it takes no lock
        text=True,
    )
    with run:
        try:
            wait_until(
                lambda: (tmp_path / "started").exists() or run.poll() is not None,
                "the processes to be started",
            )
            assert run.poll() is None, run.stdout.read()
            told = map(psutil.Process, json.loads((tmp_path / "started").read_text()))
            started = {*told, *psutil.Process(run.pid).children(recursive=True)}
            run.send_signal(number)
            run.wait()
            wait_until(lambda: not any(map(lives, started)), "all to end")
        finally:
            run.kill()
    assert len(started) >= 5  # with the fork server, and its child
