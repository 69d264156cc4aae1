"""No promise is broken by any seed that was searched, in whole platforms in one process.

Seeds run in a process of their own with a fixed hash order, as `make simulate` runs them, so that a seed that
fails here fails there too."""

import os
import subprocess
import sys

import psutil
import pytest
from fork_server import HASH_SEED, ROOT
from simulation.seeded import simulate
from waiting import COMMAND_SECONDS, wait_until

AT_ONCE = 20  # a line for each that fails
SHORT_AT_ONCE = 50
SHORT_SEEDS = int(os.environ.get("HOSS_TEST_SEEDS", "5000"))  # make test-all SEEDS=...
LONG_SEEDS = int(os.environ.get("HOSS_TEST_LONG_SEEDS", "540"))  # make test-all LONG=...
LONG = (*range(0, 300, AT_ONCE), *range(600, 700, AT_ONCE), *range(2000, 2140, AT_ONCE))


def thorough(parts):
    return [pytest.param(first, marks=pytest.mark.thorough) for first in parts]


@pytest.mark.parametrize("first", [*LONG[:5], *thorough(LONG[5 : LONG_SEEDS // AT_ONCE])])
def test_no_promise_is_broken_by_seeds_from(first):
    done = simulate("--seeds", AT_ONCE, "--first", first)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "first", [*range(0, 100, SHORT_AT_ONCE), *thorough(range(100, SHORT_SEEDS, SHORT_AT_ONCE))]
)
def test_no_promise_is_broken_by_short_plans_of_seeds_from(first):
    done = simulate("--short", "--seeds", SHORT_AT_ONCE, "--first", first)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("first", thorough(range(2000, 2020, 10)))
def test_no_promise_is_broken_in_clusters_where_pods_are_moved_by_seeds_from(first):
    done = simulate("--kubernetes", "--moves", "--seeds", 10, "--first", first)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_simulation_that_is_killed_leaves_no_process(jobs):
    command = [sys.executable, "-m", "tools.simulation", "--seeds", "1000", "--jobs", str(jobs)]
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    simulation = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        process = psutil.Process(simulation.pid)

        def all_that_run():
            found = process.children(recursive=True)
            return found if sum(one.name().endswith("-server") for one in found) >= jobs else []

        children = wait_until(all_that_run, "a Redis for each job", seconds=COMMAND_SECONDS)
    finally:
        simulation.kill()
        simulation.wait()
    _, alive = psutil.wait_procs(children, timeout=COMMAND_SECONDS)
    for one in alive:
        one.kill()
    assert alive == []
