"""One process of the local platform: started, waited for, and ended by its own id, never by a name."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

import orjson
import psutil

from hoss.errors import HossError

READY_SECONDS = (
    120.0  # a service takes half a second, and one that fails is told at once; a loaded machine is given time
)
STOP_SECONDS = 8.0  # services drain for up to some seconds, then they are killed
_POLL_SECONDS = 0.02
_LOG_LINES = 12


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Enough to find a process again after the program that started it is gone.

    `started` is the process's start time, seconds since the epoch: an id that was given to another process since has another.
    """

    name: str
    pid: int
    started: float
    log: str
    address: str = ""
    dashboard: str = ""  # URL, of a dispatcher that shows one
    metrics: str = ""  # host:port of what Prometheus reads

    def find(self) -> psutil.Process | None:
        """The process, if it is still this one and alive."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > 1 or process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.NoSuchProcess:
            return None
        return process

    def as_json(self) -> dict[str, Any]:
        """The fields, for the state file."""
        return asdict(self)


def record_of(name: str, pid: int, log: Path, address: str = "") -> ProcessRecord:
    """The record of a process that runs now."""
    return ProcessRecord(name, pid, psutil.Process(pid).create_time(), str(log), address)


class Launched(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        ...


def launch_python(module: str, arguments: Sequence[str], log: IO[bytes]) -> Launched:
    """Start `python -m module` with what it says in `log`."""
    # A session of its own: Ctrl-C in the terminal is for us, and we stop our services in order.
    return subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


class Service:
    """A HOSS service as a process that outlives us if it is not stopped."""

    # How its process is started: (module, arguments, log) -> Launched. Tests fork it from one that has imported it already.
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
        """The record with the service's address, once it serves.

        `deadline` is on the monotonic clock. Raises HossError with the log's last lines when the process ends or is late.
        """
        while not self._ready.exists():
            code = self._process.poll()
            if code is not None:
                raise HossError(f"{self.name} ended with code {code} before it served\n{log_tail(self.log)}")
            if time.monotonic() > deadline:
                raise HossError(f"{self.name} did not serve in time\n{log_tail(self.log)}")
            time.sleep(_POLL_SECONDS)
        ready = orjson.loads(self._ready.read_bytes())
        address, metrics = (f"127.0.0.1:{ready[port]}" if ready.get(port) else "" for port in ("port", "metrics_port"))
        dashboard = f"http://127.0.0.1:{ready['dashboard_port']}/" if ready.get("dashboard_port") else ""
        self.record = replace(self.record, address=address, metrics=metrics, dashboard=dashboard)
        return self.record


def stop_all(records: Sequence[ProcessRecord], *, grace_seconds: float = STOP_SECONDS) -> list[str]:
    """Ask the processes to end, wait for them, kill what is left. Returns the names of those that had to be killed."""
    running = [(record.name, process) for record in records if (process := record.find()) is not None]
    for _, process in running:
        _signal(process.terminate)
    late = _wait(running, grace_seconds)
    for _, process in late:
        _signal(process.kill)
    _wait(late, grace_seconds)
    return [name for name, _ in late]


def kill_children() -> None:
    """End at once whatever this process has started and not ended, and what that has started."""
    for child in psutil.Process().children(recursive=True):
        _signal(child.kill)


def _wait(running: list[tuple[str, psutil.Process]], seconds: float) -> list[tuple[str, psutil.Process]]:
    """Those that have not ended in time."""
    deadline = time.monotonic() + seconds
    while running and time.monotonic() < deadline:
        running = [(name, process) for name, process in running if not _ended(process)]
        if running:
            time.sleep(_POLL_SECONDS)
    return running


def _ended(process: psutil.Process) -> bool:
    try:
        process.wait(0)  # takes the exit code of a child of ours, so that it does not stay as a zombie
    except psutil.TimeoutExpired:
        # The others are init's children by now, and some inits take their time to notice the dead.
        try:
            return bool(process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True
    return True


def log_tail(path: Path, lines: int = _LOG_LINES) -> str:
    """The last lines of a log, indented; a remark where there are none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    except OSError:
        text = []
    return "\n".join(f"  {line}" for line in text) or f"  (nothing in {path})"


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end by itself between the look and the signal
        send()
