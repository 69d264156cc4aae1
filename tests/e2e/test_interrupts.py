"""Ctrl-C, and a reader that has gone: every long command ends with the exit code of shells, leaves no process
and no half-drawn terminal behind, and says what goes on without it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS, lives, wait_until

from hossctl.cli import EXIT_INTERRUPTED

GIANT = """\
apiVersion: batch/v1
kind: Job
metadata: {name: giant}
spec:
  parallelism: 2
  template:
    spec:
      containers: [{name: c, image: i, resources: {requests: {cpu: 10000}}}]
"""
STAYS = "interrupted: what was submitted before stays so: `hoss get jobs` lists it"


@pytest.fixture(scope="module")
def platform(shared_hoss):
    shared_hoss("up", "--nodes", "5", "--workers", "1")
    (shared_hoss.home.parent / "giant.yaml").write_text(GIANT)
    shared_hoss("submit", "-f", str(shared_hoss.home.parent / "giant.yaml"))
    return shared_hoss


class Command:
    """A `hoss` command that runs, with what it writes in files."""

    def __init__(self, home: Path, directory: Path, arguments: list[str], stdout: int | None = None) -> None:
        self.out, self.err = directory / "out", directory / "err"
        environment = {**os.environ, "HOSS_HOME": str(home), "COLUMNS": "200"}
        with self.out.open("wb") as out, self.err.open("wb") as err, Path(os.devnull).open("rb") as nothing:
            self.process = FORK_SERVER.start(
                "hossctl",
                arguments,
                stdin=nothing,
                stdout=out if stdout is None else stdout,
                stderr=err,
                env=environment,
                cwd=directory,
            )
        self._arguments = arguments

    def until_at_work(self) -> None:
        """It has a connection to the platform, or has written something."""
        found = psutil.Process(self.process.pid)

        def works() -> bool:
            connected = any(one.status == psutil.CONN_ESTABLISHED for one in found.net_connections("tcp"))
            return connected or bool(self.out.stat().st_size)

        wait_until(works, lambda: f"{self._arguments} to be at work; it says {self.err.read_text()}")

    def wait(self) -> int | None:
        return self.process.wait(DEADLINE_SECONDS)

    def interrupt(self) -> int | None:
        self.process.send_signal(signal.SIGINT)
        return self.wait()


@contextlib.contextmanager
def begun(hoss, directory: Path, *arguments: str, stdout: int | None = None) -> Iterator[Command]:
    command = Command(hoss.home, directory, list(arguments), stdout)
    try:
        yield command
    finally:
        command.process.kill()
        command.wait()


@pytest.mark.parametrize(
    "arguments",
    [
        "wait --for=bound job/giant --timeout 5m",
        "get pods --watch",
        "get workers --watch -o json",
        "events --watch",
        "logs dispatcher --follow",
    ],
)
def test_ctrl_c_ends_a_command_that_follows_the_platform(platform, tmp_path, arguments):
    with begun(platform, tmp_path, *arguments.split()) as command:
        command.until_at_work()
        assert command.interrupt() == EXIT_INTERRUPTED
        told = command.err.read_text()
        assert "Traceback" not in told
        assert "Aborted" not in told


def test_a_submission_that_is_no_longer_awaited_says_that_it_stays(platform, tmp_path):
    (tmp_path / "late.yaml").write_text(GIANT.replace("giant", "late"))
    platform("cordon", "worker", "w1")  # nobody decides about the pods
    try:
        with begun(platform, tmp_path, "submit", "-f", "late.yaml", "--wait") as command:
            wait_until(lambda: "late" in platform("get", "jobs").stdout, "the job to be accepted")
            assert command.interrupt() == EXIT_INTERRUPTED
            assert STAYS in command.err.read_text()
    finally:
        platform("uncordon", "worker", "w1")
    assert "late" in platform("get", "jobs").stdout


def test_ctrl_c_ends_top_and_gives_the_terminal_back(platform, tmp_path):
    shown, terminal = os.openpty()
    with begun(platform, tmp_path, "top", "--interval", "60", stdout=terminal) as command:
        os.close(terminal)
        seen = b""
        while b"WORKER" not in seen:
            seen += os.read(shown, 4096)
        assert command.interrupt() == EXIT_INTERRUPTED
        with contextlib.suppress(OSError):  # of a terminal that nobody has open any more
            while part := os.read(shown, 4096):
                seen += part
        os.close(shown)
        for on, off in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h")):
            assert on in seen
            assert seen.rindex(off) > seen.rindex(on)
        assert "Traceback" not in command.err.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        "up --nodes 5",
        pytest.param("demo --nodes 50 --pods 500", marks=pytest.mark.thorough),
        pytest.param("bench throughput --nodes 50", marks=pytest.mark.thorough),
    ],
)
def test_ctrl_c_ends_what_a_command_has_started(hoss, tmp_path, arguments):
    command = subprocess.Popen(
        [sys.executable, "-m", "hossctl", *arguments.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "HOSS_HOME": str(hoss.home)},
        cwd=tmp_path,
    )
    found = psutil.Process(command.pid)
    children = wait_until(lambda: found.children(recursive=True), "its first process")
    command.send_signal(signal.SIGINT)
    _, told = command.communicate(timeout=DEADLINE_SECONDS)
    assert command.returncode == EXIT_INTERRUPTED, told
    assert b"Traceback" not in told
    wait_until(lambda: not any(lives(child) for child in children), "its processes to end")
    hoss("status", code=3)  # no platform is half there


@pytest.mark.parametrize("arguments", ["get pods --watch", "events --watch", "logs dispatcher --follow"])
def test_a_reader_that_has_gone_ends_a_command_without_a_word(platform, tmp_path, arguments):
    reading, writing = os.pipe()
    with begun(platform, tmp_path, *arguments.split(), stdout=writing) as command:
        os.close(writing)
        assert os.read(reading, 1)
        os.close(reading)
        name = tmp_path.name[-20:].replace("_", "-").lower().strip("-")
        (tmp_path / "more.yaml").write_text(GIANT.replace("giant", f"more-{name}"))
        platform("submit", "-f", str(tmp_path / "more.yaml"))  # something new, that is written nowhere
        assert command.wait() == 0
        assert command.err.read_text() == ""


def test_ctrl_c_before_a_command_has_begun_is_no_traceback(tmp_path):
    """While its modules are imported: the import of one of them sends it."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "hossctl", "status"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")
