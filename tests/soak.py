"""New random examples for as long as told: `make soak MINUTES=60`.

The property tests run round after round, each by a seed of its own that is printed. The first round that fails is the last, and the
command that repeats it is printed. No round begins when the time is over. Only property tests leave anything to chance: the
simulator's seeds are part of its tests, and tests/contract/test_gang_crashes.py goes through every point of every course.
"""
# ruff: noqa: T201 - it is a command

import argparse
import os
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def main() -> int:
    """Of the last round: 0, or what pytest says of a failure."""
    parser = argparse.ArgumentParser(description="Property tests with new random examples.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "tests", nargs="*", default=["tests/property"], help="of which files; tests/property unless given"
    )
    wanted = parser.parse_args()
    end = time.monotonic() + 60 * wanted.minutes
    rounds = 0
    while time.monotonic() < end:
        rounds += 1
        seed = random.SystemRandom().getrandbits(32)
        command = ["-m", "pytest", *wanted.tests, f"--hypothesis-seed={seed}", "--maxfail=1"]
        print(f"round {rounds}: seed {seed}", flush=True)
        ran = subprocess.run(
            [sys.executable, *command, "-n", "auto", "--dist", "loadfile"],
            cwd=_ROOT,
            env={**os.environ, "HOSS_TESTS": "soak"},
            check=False,
        )
        if ran.returncode:
            print(f"round {rounds} failed. To repeat it:\n  HOSS_TESTS=soak {shlex.join([sys.executable, *command])}")
            return ran.returncode
    print(f"{rounds} rounds, and nothing failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
