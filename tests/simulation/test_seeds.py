"""No promise is broken by any seed that was searched, in whole platforms in one process.

Seeds run in a process of their own with a fixed hash order, as `make simulate` runs them, so that a seed that
fails here fails there too."""

import subprocess
import sys

import psutil
import pytest
from fork_server import ROOT
from simulation.seeded import simulate
from waiting import DEADLINE_SECONDS, wait_until

AT_ONCE = 20  # a line for each that fails


@pytest.mark.parametrize(
    "first",
    [
        *range(0, 200, AT_ONCE),
        *(
            pytest.param(first, marks=pytest.mark.thorough)
            for start, end in ((200, 300), (600, 700), (2000, 2140))
            for first in range(start, end, AT_ONCE)
        ),
    ],
)
def test_no_promise_is_broken_by_seeds_from(first):
    done = simulate("--seeds", AT_ONCE, "--first", first)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_simulation_that_is_killed_leaves_no_process(jobs):
    command = [sys.executable, "-m", "tools.simulation", "--seeds", "1000", "--jobs", str(jobs)]
    simulation = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        process = psutil.Process(simulation.pid)

        def all_that_run():
            found = process.children(recursive=True)
            return found if sum(one.name().endswith("-server") for one in found) >= jobs else []

        children = wait_until(all_that_run, "a Redis for each job")
    finally:
        simulation.kill()
        simulation.wait()
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert alive == []
