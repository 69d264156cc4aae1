"""What a command writes arrives whole, however its process is stopped and continued meanwhile."""

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios

import psutil
import pytest
from waiting import wait_until

SIZE = 700_000  # more than a pipe holds
WRITER = (
    f"import sys; from hossctl.__main__ import write_whole; write_whole(); sys.stdout.write('x' * {SIZE})"
)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_document_is_whole_though_its_writer_was_stopped_at_a_full_pipe(unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, env=environment) as writer:
        pipe, process = writer.stdout.fileno(), psutil.Process(writer.pid)
        capacity = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) if hasattr(fcntl, "F_GETPIPE_SZ") else 65_536
        wait_until(
            lambda: _held(pipe) == capacity and process.status() == psutil.STATUS_SLEEPING, "a full pipe"
        )
        writer.send_signal(signal.SIGSTOP)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the stop")
        writer.send_signal(signal.SIGCONT)
        wait_until(lambda: process.status() != psutil.STATUS_STOPPED, "the continuation")
        assert len(writer.stdout.read()) == SIZE
    assert writer.returncode == 0


def _held(pipe: int) -> int:
    """Bytes that wait in it."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]
