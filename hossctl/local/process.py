"""Processes of the local platform: started, waited for, and ended by process id, never by name."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, Protocol

import orjson
import psutil

from hoss.errors import HossError

READY_SECONDS = 120.0  # half a second on an idle machine; a service that fails is noticed at once
STOP_SECONDS = 8.0  # services drain for some seconds; later they are killed
_POLL_SECONDS = 0.02
_LOG_LINES = 12


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Finds a process again after the program that started it has ended.

    `started` is the process's start time in seconds since the epoch. It tells the process from a later one
    with the same id."""

    name: str
    pid: int
    started: float
    log: str
    address: str = ""
    dashboard: str = ""  # URL; only of a dashboard
    metrics: str = ""  # host:port of the endpoint for Prometheus

    def find(self) -> psutil.Process | None:
        """The process if it is alive, else None."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > 1 or has_ended(process):
                return None
        except psutil.NoSuchProcess:
            return None
        return process

    def as_json(self) -> dict[str, Any]:
        """The fields, for the state file."""
        return asdict(self)


def has_ended(process: psutil.Process) -> bool:
    """Whether nothing of it runs any more, reaped or not: an init may leave the dead as zombies for a while.

    A process that is killed is a zombie as soon as its first thread has ended. Its other threads keep what
    they listen on until they have ended too, and another process cannot listen there before that."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def record_of(name: str, pid: int, log: Path, address: str = "") -> ProcessRecord:
    """The record of a process that was started just now."""
    try:
        started = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:  # it has ended, and another than us has reaped it: `find` finds nothing
        started = 0.0
    return ProcessRecord(name, pid, started, str(log), address)


def end_with_parent() -> None:
    """Have this process, which multiprocessing has spawned, end when its parent does, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


class Launched(Protocol):
    """A started process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        ...


def launch_python(
    module: str,
    arguments: Sequence[str],
    log: IO[bytes],
    *,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Launched:
    """Start `python -m module`; `log` gets its output. `prefix`: the command that runs it, and `environment`:
    its variables, beside ours."""
    # A session of its own: Ctrl-C in the terminal reaches only us, and we stop our services in order.
    return let_go_on(
        subprocess.Popen(  # noqa: S603 - our own modules
            [*prefix, sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    )


# Children of ours that may outlive us. One that has ended is forgotten with the next that is started.
_going_on: list[subprocess.Popen[bytes]] = []


def let_go_on(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Keep the handle of a child that nobody waits for: without one, a child that has ended stays a
    zombie."""
    _going_on[:] = [child for child in _going_on if child.poll() is None]
    _going_on.append(process)
    return process


def private_directory(path: Path) -> None:
    """Make a directory whose files only its user reaches, also of one that was there before."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # it is another user's, who reads what is in it anyway
        path.chmod(0o700)


class ServiceProcess:
    """A HOSS service as a process. It outlives us if it is not stopped."""

    # (module, arguments, log) -> Launched. Tests replace it, and fork a process that has imported the module.
    launch = staticmethod(launch_python)

    def __init__(self, name: str, module: str, arguments: Sequence[str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._ready = directory / f"{name}.ready"
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = self.launch(module, [*arguments, "--ready-file", str(self._ready)], log)
        self.record = record_of(name, self._process.pid, self.log)

    def wait_ready(self, deadline: float) -> ProcessRecord:
        """Wait until the service serves, and return the record with its addresses. `deadline` is on the
        monotonic clock. Raises HossError with the log's last lines when the process ends or is late."""
        while not self._ready.exists():
            code = self._process.poll()
            if code is not None:
                raise HossError(f"{self.name} ended with code {code} before it served\n{log_tail(self.log)}")
            if time.monotonic() > deadline:
                raise HossError(f"{self.name} did not serve in time\n{log_tail(self.log)}")
            time.sleep(_POLL_SECONDS)
        ready = orjson.loads(self._ready.read_bytes())
        address, metrics = (
            f"127.0.0.1:{ready[port]}" if ready.get(port) else "" for port in ("port", "metrics_port")
        )
        scheme = "https" if ready.get("dashboard_tls") else "http"
        dashboard = f"{scheme}://127.0.0.1:{ready['dashboard_port']}/" if ready.get("dashboard_port") else ""
        self.record = replace(self.record, address=address, metrics=metrics, dashboard=dashboard)
        return self.record


def stop_all(records: Sequence[ProcessRecord], *, grace_seconds: float = STOP_SECONDS) -> list[str]:
    """Terminate the processes, wait for them, and kill those that are late. Returns the names of the
    killed."""
    running = [(record.name, process) for record in records if (process := record.find()) is not None]
    for _, process in running:
        _signal(process.terminate)
    late = _wait(running, grace_seconds)
    for _, process in late:
        _signal(process.kill)
    _wait(late, grace_seconds)
    return [name for name, _ in late]


def kill_children() -> None:
    """Kill all descendants of this process."""
    for child in psutil.Process().children(recursive=True):
        _signal(child.kill)


def _wait(running: list[tuple[str, psutil.Process]], seconds: float) -> list[tuple[str, psutil.Process]]:
    """The processes that have not ended in time."""
    deadline = time.monotonic() + seconds
    while running and time.monotonic() < deadline:
        running = [(name, process) for name, process in running if not _ended(process)]
        if running:
            time.sleep(_POLL_SECONDS)
    return running


def _ended(process: psutil.Process) -> bool:
    try:
        process.wait(0)  # reaps a child of ours, which would stay a zombie
    except psutil.TimeoutExpired:
        return has_ended(process)  # where it is not our child, and init has not reaped it yet
    return True


def log_tail(path: Path, lines: int = _LOG_LINES) -> str:
    """The last lines of a log, indented; a note where there are none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    except OSError:
        text = []
    return "\n".join(f"  {line}" for line in text) or f"  (nothing in {path})"


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself
        send()
