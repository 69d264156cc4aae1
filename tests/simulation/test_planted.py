"""Simulations find faults that were put into the product on purpose, and the same seeds keep every promise without
them. Each runs in a process of its own with a fixed hash order, as `make simulate` runs seeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.planted import FAULTS, UNDONE, planted
from waiting import COMMAND_SECONDS

from resolver.ledger import scripts

PROGRAM = Path(__file__).with_name("planted.py")
PLANS = Path(__file__).with_name("plans")
QUICK = ("retry that forgets", "victim evicted twice")


def broken(fault, what):
    """What a simulation with this fault complains of; empty: nothing."""
    command = [sys.executable, str(PROGRAM), fault, str(what)]
    root = str(PROGRAM.parents[2])
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": root}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert (done.returncode == 0) == (done.stdout == "every promise was kept\n"), done.stderr
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize("fault", QUICK)
def test_a_planted_fault_is_found_by_its_first_seed_and_is_all_that_this_seed_finds(fault):
    seed = FAULTS[fault].seeds[0]
    assert broken(fault, seed)
    assert not broken("none", seed)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in QUICK])
def test_each_planted_fault_is_found_within_three_hundred_seeds(fault):
    for seed in FAULTS[fault].seeds:
        assert seed < 300
        assert broken(fault, seed)
        assert not broken("none", seed)


@pytest.mark.parametrize(
    "name",
    [
        "index-of-a-removed-node",
        pytest.param("standby-that-still-serves", marks=pytest.mark.thorough),
        pytest.param("preemption-on-several-shards", marks=pytest.mark.thorough),
        pytest.param("pods-told-bound-and-merely-prepared", marks=pytest.mark.thorough),
    ],
)
def test_a_plan_that_found_a_fault_finds_it_again_when_the_cure_is_undone(name):
    plan = PLANS / f"{name}.json"
    assert broken(name, plan)
    assert not broken("none", plan)


@pytest.mark.parametrize("fault", [*FAULTS, *UNDONE])
def test_a_fault_is_there_while_it_is_planted_and_gone_afterwards(fault):
    def texts():
        return {script: scripts.source(script) for script in scripts._PARTS}

    before, chosen = texts(), {**FAULTS, **UNDONE}[fault]
    edited = [edit for edit in chosen.edits if hasattr(edit, "part")]
    with planted(chosen):
        assert (texts() != before) == bool(edited)
    assert texts() == before


def test_every_fault_has_a_seed_that_finds_it():
    assert all(fault.seeds for fault in FAULTS.values())
