"""Processes of the local platform: found again, waited for, ended, and never mistaken for others."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from waiting import DEADLINE_SECONDS, wait_until

from hoss.errors import HossError, InvalidInput
from hossctl.local import platform, platform_state
from hossctl.local.ports import check_free
from hossctl.local.process import ProcessRecord, ServiceProcess, launch_python, record_of, stop_all

STUBBORN = """\
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""

HALF_ENDED = """\
import ctypes, socket, threading
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture(autouse=True)
def _processes_of_their_own(monkeypatch):
    """As users have them: this is what starts them."""
    monkeypatch.setattr(ServiceProcess, "launch", staticmethod(launch_python))


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_found_by_its_record(sleeper, tmp_path):
    record = record_of("s", sleeper.pid, tmp_path / "log")
    assert ProcessRecord(**record.as_json()).find().pid == sleeper.pid


def test_another_process_with_the_same_id_is_not_ours_and_is_left_alone(sleeper, tmp_path):
    record = replace(record_of("s", sleeper.pid, tmp_path / "log"), started=time.time() - 3600)
    assert record.find() is None
    assert stop_all([record]) == []
    assert sleeper.poll() is None


def test_a_process_that_ended_is_not_found(sleeper, tmp_path):
    record = record_of("s", sleeper.pid, tmp_path / "log")
    sleeper.kill()
    sleeper.wait()
    assert record.find() is None


@pytest.fixture
def half_ended():
    """The id of a process whose first thread has ended, and the port on which another one listens."""
    process = subprocess.Popen([sys.executable, "-c", HALF_ENDED], stdout=subprocess.PIPE)
    port = int(process.stdout.readline())
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    yield process.pid, port
    process.kill()
    process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no thread ends the first one alone")
def test_a_process_whose_first_thread_has_ended_has_not_ended_while_another_listens(half_ended, tmp_path):
    """So it is for a moment after each SIGKILL; whoever starts a service again needs its port."""
    pid, port = half_ended
    record = record_of("half", pid, tmp_path / "log")
    assert record.find() is not None
    with pytest.raises(InvalidInput, match="is in use"):
        check_free(port, where="--port")
    assert stop_all([record], grace_seconds=DEADLINE_SECONDS) == []
    assert record.find() is None
    check_free(port, where="--port")


def test_a_process_that_ignores_the_request_to_end_is_killed_and_named(tmp_path):
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        record = record_of("stubborn", process.pid, tmp_path / "log")
        assert stop_all([record], grace_seconds=0.2) == ["stubborn"]
        wait_until(lambda: record.find() is None, "it to be dead")


def test_a_service_that_does_not_serve_in_time_is_an_error(tmp_path):
    service = ServiceProcess("slow", "http.server", ["--help"], tmp_path)
    with pytest.raises(HossError, match="slow"):
        service.wait_ready(time.monotonic() - 1)
    stop_all([service.record])


def test_two_ups_at_once_are_refused(tmp_path):
    with (
        platform.exclusive(tmp_path),
        pytest.raises(HossError, match="another hoss command"),
        platform.exclusive(tmp_path),
    ):
        pass


def test_a_damaged_state_file_is_named(tmp_path):
    (tmp_path / platform_state.STATE_FILE).write_text('{"dispatcher": ')
    with pytest.raises(InvalidInput, match=r"platform\.json: is no state file"):
        platform_state.load_state(tmp_path)


def test_every_process_of_a_temporary_platform_stands_in_its_state_and_is_gone_afterwards():
    options = platform.PlatformOptions(workers=(platform_state.WorkerOptions("w"),), resolvers=2)
    others = set(_children())
    with platform.temporary(options) as starter:
        living = starter.state.living()
        assert [record.name for record in living] == [
            "redis",
            "resolver-1",
            "resolver-2",
            "dispatcher",
            "worker-w",
        ]
        assert all(record.address for record in living)
        # Whatever we started and did not write down would outlive us.
        assert {record.pid for record in living} == set(_children()) - others
    assert starter.state.living() == []


def _children() -> list[int]:
    return [child.pid for child in psutil.Process(os.getpid()).children()]
