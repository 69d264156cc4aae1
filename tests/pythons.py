"""Installs the built wheel on the oldest and the newest Python of this machine: `make test-pythons`.

The oldest Python gets the lowest releases that pyproject.toml allows, the newest Python the newest releases.
On each, the wheel goes into an empty environment, which runs `hoss demo`; a second environment with grpcio
and protobuf alone runs a client; and a third one runs a smoke of the tests. Interpreters are those called
python3.N on PATH, and those that pyenv has. Exits with 1 where one of them fails, after the other was tried.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = (3, 10)  # as pyproject.toml has it
DEMO = ("demo", "--nodes", "100", "--pods", "2000", "--workers", "2")
# Of each layer something: numbers, messages, what Kubernetes says, scripts in Redis, the command and all
# services.
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

PYTEST = ("-n", "auto", "--dist", "loadfile", "-m", "not thorough", "-rs")

_ASKED = "import ensurepip, sys; print(*sys.version_info[:2], sys.version_info.releaselevel, sys.executable)"

Version = tuple[int, int]


def interpreters() -> dict[Version, str]:
    """By version, those that HOSS can use. One that does not run (pyenv has such on PATH), or has no pip, is
    none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [*map(Path, os.get_exec_path()), *pyenv.glob("versions/*/bin")]
    named = [
        file
        for folder in folders
        for file in folder.glob("python3.*")
        if re.fullmatch(r"python3\.\d+", file.name)
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


# Needs no more than grpcio and protobuf, as a program that submits jobs and asks about them.
CLIENT = """
import sys
from hoss.client.sync import BlockingDispatcherClient
from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
heavy = sorted({"numpy", "redis", "pydantic", "yaml", "aiohttp", "orjson"} & {m.partition(".")[0] for m in sys.modules})
assert not heavy, heavy
with BlockingDispatcherClient([sys.argv[1]]) as dispatcher:
    for request in submission([Workload("client", PodTemplate(PodSpec()), 3)]):
        dispatcher.submit(request)
    assert sum(job.replicas for job in dispatcher.list_jobs("default")) == 3
"""


def tried(executable: str, *, lowest: bool) -> bool:
    """Whether the demo, a client and the smoke pass there."""
    with tempfile.TemporaryDirectory(prefix="hoss-python-") as directory:
        here = Path(directory)
        shutil.copytree(ROOT, here / "hoss", ignore=_not_copied)
        (here / "lowest.txt").write_text("\n".join(_lower_bounds() if lowest else ()))
        (here / "client.py").write_text(CLIENT)
        steps = _Steps(here, executable)
        return (
            steps.environment("demo")
            and steps.run("demo", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "..", ".", folder="hoss")
            and steps.install("demo", f"{steps.wheel}[local]")
            and steps.run("demo", "-m", "hossctl", *DEMO)
            and steps.environment("client")
            and steps.install("client", "--no-deps", steps.wheel)
            and steps.install("client", "grpcio", "protobuf")
            and steps.run("demo", "-m", "hossctl", "up", "--nodes", "10", "--workers", "1")
            and steps.run("client", "client.py", steps.dispatcher)
            and steps.run("demo", "-m", "hossctl", "down")
            and steps.environment("tests")
            and steps.install("tests", f"{steps.wheel}[test]")
            and steps.run("tests", "-m", "pytest", *PYTEST, *SMOKE, folder="hoss")
        )


class _Steps:
    """Programs of one interpreter's environments, one after the other; each says how long it took."""

    def __init__(self, here: Path, executable: str) -> None:
        self._here, self._executable = here, executable
        self._home = here / "home"

    @property
    def wheel(self) -> str:
        return str(next(self._here.glob("hoss-*.whl"), ""))

    @property
    def dispatcher(self) -> str:
        state = json.loads((self._home / "platform.json").read_text())
        return str(state["dispatcher"])

    def environment(self, name: str) -> bool:
        return self._ran((self._executable, "-m", "venv", str(self._here / name)), self._here)

    def install(self, name: str, *what: str) -> bool:
        constrained = ("--constraint", str(self._here / "lowest.txt"))
        return self.run(
            name, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constrained, *what
        )

    def run(self, name: str, *arguments: str, folder: str = "") -> bool:
        return self._ran((str(self._here / name / "bin" / "python"), *arguments), self._here / folder)

    def _ran(self, command: tuple[str, ...], folder: Path) -> bool:
        kept = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, env={**kept, "HOSS_HOME": str(self._home)}, check=False)
        _say(f"{time.monotonic() - began:6.0f} s: {' '.join(command[1:4])} ...")
        return done.returncode == 0


def _lower_bounds() -> Iterator[str]:
    """`name==version` of everything that the project needs at run time, as low as pyproject.toml allows."""
    for requirement in metadata.requires("hoss") or ():
        if re.search(r"extra == .(test|dev|local)", requirement):
            continue
        if found := re.match(r"([\w.-]+)(?:\[.*?\])?>=([\w.]+)", requirement):
            yield f"{found[1]}=={found[2]}"


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
        if not tried(versions[version], lowest=version == OLDEST):
            failed.append(name)
    _say(f"failed: {', '.join(failed)}" if failed else "passed on all of them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
