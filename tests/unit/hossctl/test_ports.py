"""Ports: no two processes are given the same one, and where nearly all are taken that is said."""

import json
import os
import socket
from pathlib import Path

import pytest
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


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """So few to choose from that processes which knew nothing of each other would choose alike. Nobody else
    is given any of them."""
    monkeypatch.setattr(ports, "_FIRST", 32_100)
    monkeypatch.setattr(ports, "_PORTS", 600)
    return ports._FIRST, ports._PORTS


def test_two_processes_are_never_given_the_same_port(few, tmp_path: Path, monkeypatch):
    (tmp_path / "asking").mkdir()
    (tmp_path / "asking" / "__main__.py").write_text(ASKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = [tmp_path / f"{number}.json" for number in range(PROCESSES)]
    reading, writing = os.pipe()  # their input, which ends when all have said what they were given
    processes = []
    for file in said:
        with file.open("wb") as out:
            processes.append(
                FORK_SERVER.start("asking", [*map(str, few), str(EACH)], stdin=reading, stdout=out)
            )
    wait_until(
        lambda: all(file.read_bytes().endswith(b"\n") for file in said), "all to say what they were given"
    )
    os.close(writing)
    assert [process.wait(DEADLINE_SECONDS) for process in processes] == [0] * PROCESSES
    os.close(reading)
    given = [json.loads(file.read_bytes()) for file in said]
    every = [port for of_one in given for port in of_one]
    assert len(set(every)) == len(every) == PROCESSES * EACH


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


def test_a_port_that_is_taken_is_refused_before_anything_starts(few):
    [port] = ports.free_ports(1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        with pytest.raises(InvalidInput, match=f"--port: {port} is in use: stop what holds it"):
            ports.check_free(port, where="--port")
    ports.check_free(0, where="--port")
