"""Runs the demo and a smoke of the suite on the oldest and the newest Python of this machine: `make test-pythons`.

Each has a virtual environment, and a copy of the project in which it is installed, in a temporary directory. Interpreters are
those called python3.N on PATH, and those that pyenv has. Ends with 1 where one of them fails, after the other was tried.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = (3, 10)  # as pyproject.toml has it
DEMO = ("demo", "--nodes", "100", "--pods", "2000", "--workers", "2")
# Of each layer something: numbers, messages, what Kubernetes says, scripts in Redis, the command and all services.
SMOKE = (
    "tests/unit/model",
    "tests/unit/wire",
    "tests/unit/client",
    "tests/conformance/test_scheduling.py",
    "tests/contract/test_journal.py",
    "tests/contract/test_lease.py",
    "tests/contract/test_ledger_commits.py",
    "tests/e2e/test_platform.py",
)

_ASKED = "import ensurepip, sys; print(*sys.version_info[:2], sys.version_info.releaselevel, sys.executable)"

Version = tuple[int, int]


def interpreters() -> dict[Version, str]:
    """By version, those that HOSS can use. One that does not run (pyenv has such on PATH), or has no pip, is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [*map(Path, os.get_exec_path()), *pyenv.glob("versions/*/bin")]
    named = [
        file for folder in folders for file in folder.glob("python3.*") if re.fullmatch(r"python3\.\d+", file.name)
    ]
    found: dict[Version, str] = {}
    for file in named:
        asked = subprocess.run([file, "-c", _ASKED], capture_output=True, text=True, check=False)
        if asked.returncode:
            continue
        major, minor, level, executable = asked.stdout.split(maxsplit=3)
        version = int(major), int(minor)
        if version >= OLDEST and level == "final":
            found.setdefault(version, executable.strip())
    return found


def ends(versions: dict[Version, str]) -> list[Version]:
    """The oldest and the newest; one, where there is no other."""
    return sorted({min(versions), max(versions)})


def tried(executable: str) -> bool:
    """Whether the demo and the smoke pass there."""
    with tempfile.TemporaryDirectory(prefix="hoss-python-") as directory:
        project, environment = Path(directory) / "hoss", Path(directory) / "venv"
        shutil.copytree(ROOT, project, ignore=_not_copied)
        python = str(environment / "bin" / "python")
        surroundings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        for arguments in (
            (executable, "-m", "venv", str(environment)),
            (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", ".[test]"),
            (python, "-m", "hossctl", *DEMO),
            (python, "-m", "pytest", "-n", "auto", "--dist", "loadfile", "-m", "not thorough", "-rs", *SMOKE),
        ):
            began = time.monotonic()
            done = subprocess.run(arguments, cwd=project, env=surroundings, check=False)
            _say(f"{time.monotonic() - began:6.0f} s: {' '.join(arguments[1:4])} ...")
            if done.returncode:
                return False
    return True


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """What is hidden, and what was made: environments, caches and metadata."""
    return [
        name
        for name in names
        if name.startswith(".")
        or name == "__pycache__"
        or name.endswith(".egg-info")
        or (Path(folder) / name / "pyvenv.cfg").exists()
    ]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Try them."""
    versions = interpreters()
    if not versions:
        _say(f"no python3.N of {'.'.join(map(str, OLDEST))} or newer on PATH or in pyenv")
        return 1
    if len(versions) == 1:
        _say("this machine has one Python only; no other is tried")
    failed = []
    for version in ends(versions):
        name = f"Python {version[0]}.{version[1]}"
        _say(f"== {name}: {versions[version]}")
        if not tried(versions[version]):
            failed.append(name)
    _say(f"failed: {', '.join(failed)}" if failed else "passed on all of them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
