"""The process of a checked scheduler: its end is seen, and its group is killed before others can have its
id."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import wait_until

from hossctl.checking import schedulers


def started(*command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, start_new_session=True)


@pytest.mark.parametrize(("text", "code"), [("exit 7", 7), ("kill -9 $$", -signal.SIGKILL)])
def test_how_a_process_ended_is_known_as_subprocess_says_it(text, code):
    process = started("sh", "-c", text)
    wait_until(lambda: schedulers._exit_code(process) is not None)
    assert schedulers._exit_code(process) == code
    schedulers._kill(process)
    assert schedulers._exit_code(process) == process.returncode == code


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="no waitid")
@pytest.mark.parametrize("refusal", [None, ProcessLookupError, PermissionError])
def test_the_group_of_a_process_that_has_ended_is_killed_while_its_id_is_not_free(monkeypatch, refusal):
    process = started("true")
    wait_until(lambda: schedulers._exit_code(process) is not None)
    killed = []

    def kill(group: int, number: int) -> None:
        killed.append((group, number, psutil.pid_exists(process.pid)))
        if refusal:
            raise refusal

    monkeypatch.setattr(os, "killpg", kill)
    schedulers._kill(process)
    assert killed == [(process.pid, signal.SIGKILL, True)]
    assert process.returncode == 0


def test_a_process_that_runs_is_killed():
    process = started(sys.executable, "-c", "input()")
    assert schedulers._exit_code(process) is None
    schedulers._kill(process)
    assert process.returncode == -signal.SIGKILL
