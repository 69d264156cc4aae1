"""`hoss` as users run it: a process, with a home of its own that is taken down whatever happens."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import redis
from fork_server import FORK_SERVER
from machine import OPENB_FILES, no_openb
from traces.make_trace import FILES as TRACE_FILES
from waiting import COMMAND_SECONDS, lives


@dataclass(frozen=True)
class Hoss:
    """Runs commands; `home` is HOSS_HOME."""

    home: Path

    def __call__(
        self, *arguments: str, stdin: str = "", code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; fails the test when it ends with another code (None: any)."""
        environment = {**os.environ, "HOSS_HOME": str(self.home), "COLUMNS": "200"}
        for name in ("HOSS_DISPATCHER", "HOSS_RESOLVER"):
            environment.pop(name, None)
        done = FORK_SERVER.run("hossctl", arguments, stdin=stdin, env=environment, timeout=COMMAND_SECONDS)
        if code is not None:
            assert done.returncode == code, (
                f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
            )
        return done

    def json(self, *arguments: str, code: int | None = 0) -> Any:
        """Run a command with -o json and read its document."""
        return json.loads(self(*arguments, "-o", "json", code=code).stdout)

    def processes(self) -> dict[str, psutil.Process]:
        """The platform's living processes by name, as its state file has them."""
        state = json.loads((self.home / "platform.json").read_text())
        return {
            p["name"]: psutil.Process(p["pid"]) for p in state["processes"] if psutil.pid_exists(p["pid"])
        }

    def redis(self) -> redis.Redis:
        """A client of the platform's own Redis."""
        address = urlsplit(json.loads((self.home / "platform.json").read_text())["redis_url"])
        password = (self.home / "security" / "redis.password").read_text()
        return redis.Redis(port=address.port, password=password)

    def logs(self) -> str:
        """The end of every service's log, for failures."""
        return "\n".join(
            f"== {log.name}\n{log.read_text()[-1500:]}" for log in sorted(self.home.glob("logs/*.log"))
        )


@pytest.fixture
def hoss(tmp_path: Path) -> Iterator[Hoss]:
    """The command; a platform that a test leaves up is taken down."""
    with _taken_down(Hoss(tmp_path / "home")) as command:
        yield command


@pytest.fixture(scope="module")
def shared_hoss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hoss]:
    """The command with a home that the tests of a module share. They tell their pods from others' by their
    names."""
    with _taken_down(Hoss(tmp_path_factory.mktemp("shared") / "home")) as command:
        yield command


@contextlib.contextmanager
def _taken_down(command: Hoss) -> Iterator[Hoss]:
    yield command
    if (command.home / "platform.json").exists():
        left = command.processes()
        command("down", code=None)
        assert not [name for name, process in left.items() if lives(process)]


@pytest.fixture
def hoss_at() -> type[Hoss]:
    """The command with a home of the test's choice, which the test takes down."""
    return Hoss


@pytest.fixture(params=["small", pytest.param("openb", marks=pytest.mark.thorough)])
def trace(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """Node and pod list of a trace: of the one in tests/traces, and of openb, which lies beside the
    repository where it is at all."""
    if request.param == "small":
        return TRACE_FILES
    if why := no_openb():
        pytest.skip(why)
    return OPENB_FILES
