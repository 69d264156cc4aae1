"""Simulations in a process of their own with a fixed hash order, as `make simulate` runs them: a seed that
fails here fails there too."""

import os
import subprocess
import sys

from fork_server import FORK_SERVER, HASH_SEED, ROOT
from waiting import COMMAND_SECONDS

Done = subprocess.CompletedProcess[str]


def run_seeded(module: str, *arguments: object) -> Done:
    """Run `python -m module` with these arguments, as a fork of a process that has imported it."""
    return FORK_SERVER.run(module, [*map(str, arguments)], env=_environment(), timeout=COMMAND_SECONDS)


def simulate(*arguments: object) -> Done:
    """Run `python -m tools.simulation`."""
    return run_seeded("tools.simulation", *arguments)


def simulate_in_a_new_interpreter(*arguments: object) -> Done:
    """The same without a fork."""
    return subprocess.run(
        [sys.executable, "-m", "tools.simulation", *map(str, arguments)],
        env={**_environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": HASH_SEED}
