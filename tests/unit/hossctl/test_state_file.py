"""The file that says what `hoss up` has started."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hoss.errors import TransportError
from hossctl.endpoints import Endpoints
from hossctl.local.platform_state import STATE_FILE, PlatformState, load_state, save_state
from hossctl.local.process import ProcessRecord, record_of


def test_its_user_alone_may_read_it_also_after_a_command_that_was_killed_while_it_wrote(tmp_path):
    left = (tmp_path / STATE_FILE).with_suffix(".new")
    left.write_text("half a state")
    left.chmod(0o644)
    state = PlatformState(redis_url="redis://:secret@127.0.0.1:1")
    save_state(tmp_path, state)
    assert stat.S_IMODE((tmp_path / STATE_FILE).stat().st_mode) == 0o600
    assert load_state(tmp_path) == state


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Saves the state of a platform with these processes, some of them ended, as that of this user."""
    for name in ("HOSS_DISPATCHER", "HOSS_RESOLVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOSS_HOME", str(tmp_path))

    def save(**processes: ProcessRecord) -> Endpoints:
        records = tuple(processes.values())
        save_state(tmp_path, PlatformState("", "127.0.0.1:1", ("127.0.0.1:2",), records))
        return Endpoints()

    return save


def alive(name: str) -> ProcessRecord:
    return record_of(name, os.getpid(), Path(f"{name}.log"))


def ended(name: str) -> ProcessRecord:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = record_of(name, process.pid, Path(f"{name}.log"))
    process.communicate(b"\n")
    return record


def test_a_command_names_the_ended_process_without_which_nothing_answers(local):
    endpoints = local(redis=ended("redis"), d=alive("dispatcher"), r=alive("resolver-1"))
    for addresses in (endpoints.dispatcher_addresses, endpoints.resolver_addresses):
        with pytest.raises(TransportError) as refused:
            addresses()
        assert "process redis (pid " in str(refused.value)
        assert str(refused.value).endswith(
            "of the local platform has ended; see redis.log, and start the platform again with `hoss down`"
            " and "
            "`hoss up`: its data is kept"
        )


def test_an_ended_resolver_is_named_to_those_who_need_it_alone(local):
    endpoints = local(redis=alive("redis"), d=alive("dispatcher"), r=ended("resolver-1"))
    assert endpoints.dispatcher_addresses() == ["127.0.0.1:1"]
    with pytest.raises(TransportError, match="process resolver-1"):
        endpoints.resolver_addresses()


def test_one_of_several_dispatchers_may_have_ended(local):
    records = {"redis": alive("redis"), "a": ended("dispatcher-1"), "b": alive("dispatcher-2")}
    assert local(**records).dispatcher_addresses() == ["127.0.0.1:1"]
    records["b"] = ended("dispatcher-2")
    with pytest.raises(TransportError, match="process dispatcher-2"):
        local(**records).dispatcher_addresses()


def test_logs_of_an_unknown_worker_name_the_workers_and_no_other_process(hoss, local):
    local(redis=alive("redis"))
    told = hoss("worker", "logs", "w9")
    assert (told.exit_code, told.stderr) == (
        1,
        "error: w9: is no worker of the local platform; there are none\n",
    )
