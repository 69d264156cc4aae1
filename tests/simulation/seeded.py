"""Simulations in a process of their own with a fixed hash order, as `make simulate` runs them: a seed that
fails here fails there too."""

import os
import subprocess
import sys
from pathlib import Path

from waiting import COMMAND_SECONDS

ROOT = Path(__file__).parents[2]


def run_seeded(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run the interpreter with these arguments."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def simulate(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run `python -m tools.simulation`."""
    return run_seeded("-m", "tools.simulation", *arguments)
