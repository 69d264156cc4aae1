"""New random examples for as long as told: `make soak MINUTES=60`.

Files of property tests run one after the other, as many at a time as there are cores, each by a seed of its
own that is printed; after the last comes the first again. The first that fails ends it, and the command that
repeats it is printed. No file begins when the time is over. Only property tests leave anything to chance: the
simulator's seeds are part of its tests, and tests/contract/test_gang_crashes.py goes through every point of
every course.
"""
# ruff: noqa: T201 - it is a command

import argparse
import itertools
import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).parents[1]


class Soak:
    """Goes on until the time is over or a test fails."""

    def __init__(self, files: list[str], seconds: float) -> None:
        self.runs = 0
        self.failed = False
        self._end = time.monotonic() + seconds
        self._files: Iterator[str] = itertools.cycle(files)
        self._lock = threading.Lock()

    def work(self) -> None:
        """Run one file after the other."""
        while time.monotonic() < self._end and not self.failed:
            with self._lock:
                file, seed = next(self._files), random.SystemRandom().getrandbits(32)
            command = [sys.executable, "-m", "pytest", file, f"--hypothesis-seed={seed}", "--maxfail=1"]
            environment = {**os.environ, "HOSS_TESTS": "soak", "PYTHONUNBUFFERED": "1"}
            ran = subprocess.run(
                command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
            )
            with self._lock:
                self.runs += 1
                print(f"{file}, seed {seed}: {ran.stdout.rstrip().rpartition(chr(10))[2]}", flush=True)
                if ran.returncode and not self.failed:
                    self.failed = True
                    print(
                        ran.stdout,
                        ran.stderr,
                        f"To repeat it:\n  HOSS_TESTS=soak {shlex.join(command)}",
                        sep="\n",
                    )


def main() -> int:
    """1 where a test failed."""
    parser = argparse.ArgumentParser(description="Property tests with new random examples.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("files", nargs="*", help="those of tests/property unless given")
    wanted = parser.parse_args()
    known = [
        str(file.relative_to(_ROOT)) for file in sorted((_ROOT / "tests" / "property").glob("test_*.py"))
    ]
    soak = Soak(wanted.files or known, 60 * wanted.minutes)
    at_a_time = os.cpu_count() or 1
    with ThreadPoolExecutor(at_a_time) as pool:
        for working in [pool.submit(soak.work) for _ in range(at_a_time)]:
            working.result()
    print(f"{soak.runs} runs of files, and {'a test failed' if soak.failed else 'nothing failed'}")
    return int(soak.failed)


if __name__ == "__main__":
    sys.exit(main())
