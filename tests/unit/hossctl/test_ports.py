"""Ports: no two processes are given the same one, and where nearly all are taken that is said."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis_topologies
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS, wait_until

from hoss.errors import HossError, InvalidInput
from hossctl.local import ports

PROCESSES, EACH = 4, 120
# Each says what it was given, and keeps it until its input ends.
ASKING = """\
import json, sys
from hossctl.local import ports

def main():
    ports._FIRST, ports._PORTS = map(int, sys.argv[1:3])
    print(json.dumps([port for _ in range(int(sys.argv[3])) for port in ports.free_ports(1)]), flush=True)
    sys.stdin.read()
"""

# Gives an interface the address 10.1.2.3.
ANOTHER_ADDRESS = (
    "import fcntl, socket, struct; "
    "fcntl.ioctl(socket.socket(), 0x8916, struct.pack('16sHH4s8x', b'lo', 2, 0, bytes((10, 1, 2, 3))))"
)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """So few to choose from that processes which knew nothing of each other would choose alike. Nobody else
    is given any of them."""
    monkeypatch.setattr(ports, "_FIRST", 32_100)
    monkeypatch.setattr(ports, "_PORTS", 600)
    return ports._FIRST, ports._PORTS


@pytest.fixture
def given(few, tmp_path: Path, monkeypatch) -> Iterator[Callable[[int, int], list[list[int]]]]:
    """`given(2, 5)`: five ports for each of two other processes, which hold them until the test ends."""
    (tmp_path / "asking").mkdir()
    (tmp_path / "asking" / "__main__.py").write_text(ASKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reading, writing = os.pipe()  # their input
    asking = []

    def ask(processes: int, each: int) -> list[list[int]]:
        said = [tmp_path / f"{number}.json" for number in range(processes)]
        for file in said:
            with file.open("wb") as out:
                arguments = [*map(str, few), str(each)]
                asking.append(FORK_SERVER.start("asking", arguments, stdin=reading, stdout=out))
        wait_until(
            lambda: all(file.read_bytes().endswith(b"\n") for file in said), "all to say what they were given"
        )
        return [json.loads(file.read_bytes()) for file in said]

    yield ask
    os.close(writing)
    assert [process.wait(DEADLINE_SECONDS) for process in asking] == [0] * len(asking)
    os.close(reading)


def test_two_processes_are_never_given_the_same_port(given):
    every = [port for of_one in given(PROCESSES, EACH) for port in of_one]
    assert len(set(every)) == len(every) == PROCESSES * EACH


def test_a_port_that_another_process_was_given_is_not_even_tried(given, monkeypatch):
    """A try takes it for a moment, and in that moment the server that it is for may start."""
    ((port,),) = given(1, 1)
    monkeypatch.setattr(ports, "_FIRST", port)
    monkeypatch.setattr(ports, "_PORTS", 1)
    tried = []

    class Probe(socket.socket):
        def bind(self, address):
            tried.append(address)
            super().bind(address)

    monkeypatch.setattr(ports.socket, "socket", Probe)
    with pytest.raises(HossError, match="nearly all ports of loopback"):
        ports.free_ports(1)
    assert tried == []


def test_nobody_is_given_the_port_on_which_a_redis_of_a_cluster_hears_the_others():
    """It is 10,000 above the port that the Redis was given, and nobody holds a lock on it."""
    assert ports._FIRST + redis_topologies._BUS_PORT_OFFSET >= ports._FIRST + ports._PORTS


def test_a_port_on_which_something_listens_is_left_to_others_once_that_has_ended(few, monkeypatch):
    [port] = ports.free_ports(1)
    ports._release(port)
    monkeypatch.setattr(ports, "_FIRST", port)
    monkeypatch.setattr(ports, "_PORTS", 1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        with pytest.raises(HossError, match="nearly all ports of loopback"):
            ports.free_ports(1)
    assert ports.free_ports(1) == [port]


def test_ports_of_one_call_are_different_and_nobody_listens_there(few):
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    for port in found:
        ports.check_free(port, where="--port")


def test_where_nearly_all_are_taken_that_is_said_and_not_tried_for_ever(monkeypatch):
    monkeypatch.setattr(ports, "_FIRST", 32_730)
    monkeypatch.setattr(ports, "_PORTS", 10)
    with pytest.raises(HossError, match="nearly all ports of loopback from 32730 to 32740 are in use"):
        ports.free_ports(11)


@pytest.fixture
def few_files() -> Iterator[None]:
    """This process may open some twenty more files."""
    ports._lock_file()  # which stays open
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_to_try_all_of_them_takes_no_more_files_than_to_find_some(monkeypatch, few_files):
    monkeypatch.setattr(ports, "_FIRST", 32_742)
    monkeypatch.setattr(ports, "_PORTS", 1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 32_742))
        # A thousand tries, of one port.
        monkeypatch.setattr(ports, "range", lambda _: range(1000), raising=False)
        with pytest.raises(HossError, match="nearly all ports of loopback"):
            ports.free_ports(1)


def test_that_no_more_files_may_be_opened_is_not_taken_for_ports_that_are_in_use(few, few_files):
    with pytest.raises(OSError, match="Too many open files"):
        ports.free_ports(100)


@pytest.mark.parametrize(
    ("prepared", "told"),
    [
        (":", "127.0.0.1 cannot be reached (Network is unreachable): see that the loopback interface is up"),
        (
            f'"$0" -c "{ANOTHER_ADDRESS}"',
            "127.0.0.1 cannot be reached (Cannot assign requested address): see that the loopback interface",
        ),
        (
            "echo 32800 32800 > /proc/sys/net/ipv4/ip_local_port_range",
            "the system gives fewer than 16 ports of loopback (Address already in use): end what holds them",
        ),
    ],
    ids=["loopback is down", "loopback is down and another address is there", "one port for everybody"],
)
def test_a_machine_on_which_processes_cannot_reach_each_other_says_what_it_lacks(prepared: str, told: str):
    own_network = [shutil.which("unshare") or "no unshare", "--net", "sh", "-c"]
    try:
        subprocess.run([*own_network, ":"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces on this machine")
    program = "from hossctl.local.ports import check_loopback as check; check()"
    done = subprocess.run(
        [*own_network, f'{prepared} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1].startswith(f"hoss.errors.HossError: {told}")


def test_a_port_that_is_taken_is_refused_before_anything_starts(few):
    [port] = ports.free_ports(1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        with pytest.raises(InvalidInput, match=f"--port: {port} is in use: stop what holds it"):
            ports.check_free(port, where="--port")
    ports.check_free(0, where="--port")
