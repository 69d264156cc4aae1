"""No process that tests start outlives their run, however it ends: with its last test, by Ctrl-C, SIGTERM or
SIGKILL.

A killed run executes no end of a fixture, and what it has started goes on without it. So each run marks
itself by a resource limit, which every process inherits from its parent: it cannot lose it with its parent,
session, environment or title (Redis overwrites the memory of the latter two). A watcher outside the run waits
until the pipe from the run is closed, and kills whatever has the mark. Linux; elsewhere the fork server alone
ends what it has started."""

import contextlib
import resource
import secrets
import signal
import subprocess
import sys

import psutil

# Microseconds that a process with a real-time policy may compute in one go: above three weeks they limit
# nobody.
_LIMIT = getattr(psutil, "RLIMIT_RTTIME", None)
_MARKS = 2**41


class Run:
    """This process and all that it starts from now on."""

    def __init__(self) -> None:
        """In a process of a run, as those of pytest-xdist are, it is that run."""
        self._watcher: subprocess.Popen[str] | None = None
        if _LIMIT is None or _mark_of(psutil.Process()):
            return
        mark = _MARKS + secrets.randbelow(_MARKS)
        # A session of its own: Ctrl-C and the end of a terminal reach the run alone.
        self._watcher = subprocess.Popen(
            [sys.executable, "-E", __file__, str(mark)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        resource.setrlimit(_LIMIT, (mark, resource.getrlimit(_LIMIT)[1]))

    def end(self) -> list[str]:
        """Kill whatever of it still runs, but for this process. Returns the names of the killed."""
        if self._watcher is None:
            return []
        killed, _ = self._watcher.communicate(str(psutil.Process().pid))
        self._watcher = None
        return killed.splitlines()


def leave_run() -> None:
    """For a process that is to be the first of another run, before it begins (`preexec_fn`)."""
    if _LIMIT is not None:
        most = resource.getrlimit(_LIMIT)[1]
        resource.setrlimit(_LIMIT, (most, most))


def _mark_of(process: psutil.Process) -> int:
    """0 where it has none."""
    with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
        limit = process.rlimit(_LIMIT)[0]
        if _MARKS <= limit < 2 * _MARKS and process.status() != psutil.STATUS_ZOMBIE:
            return int(limit)
    return 0


def _watch(mark: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    spared = sys.stdin.read()  # ends with the run, or when the run asks
    killed = []
    # Repeated: a process that is about to be killed may start another one.
    while left := [
        process
        for process in psutil.process_iter()
        if _mark_of(process) == mark and str(process.pid) != spared
    ]:
        for process in left:
            with contextlib.suppress(psutil.Error):
                killed.append(process.name())
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
    with contextlib.suppress(BrokenPipeError):  # a run that was killed does not read it
        sys.stdout.write("\n".join(killed))
        sys.stdout.flush()


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
