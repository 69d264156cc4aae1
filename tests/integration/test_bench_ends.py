"""Benchmarks and commands that are asked to end do so, and nothing that they started outlives them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import DEADLINE_SECONDS, lives, wait_until

BENCHES = {
    "resolver": ["--resolvers", "2", "--pods", "1000000"],
    "dispatch": ["--repeat", "50"],
    "reconnect": ["--nodes", "50", "--pods", "200000", "--workers", "1"],
}
WHEN = {"while it starts": 1, "in its midst": 2}  # how many processes it has started then
QUICK = {("resolver", "while it starts"), ("resolver", "in its midst"), ("reconnect", "in its midst")}


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A benchmark whose processes run; its temporary files are in `tmp_path`. In an interpreter of its own:
    what it starts are its children."""
    command = [sys.executable, "-m", "tools.bench", request.param, *BENCHES[request.param]]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("bench", "started"),
    [
        pytest.param(
            name, started, id=f"{name} {when}", marks=() if (name, when) in QUICK else (pytest.mark.thorough,)
        )
        for name in BENCHES
        for when, started in WHEN.items()
    ],
    indirect=["bench"],
)
def test_a_benchmark_that_is_asked_to_end_leaves_no_process_and_no_file(
    bench: subprocess.Popen[bytes], started: int, tmp_path: Path
) -> None:
    def its_processes() -> list[psutil.Process]:
        assert bench.poll() is None
        found = psutil.Process(bench.pid).children(recursive=True)
        return found if len(found) >= started else []

    processes = wait_until(its_processes, "its processes to start")
    bench.terminate()
    assert bench.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
    left = [process for process in processes if not _ends(process)]
    for process in left:
        process.kill()
    assert left == []
    # One file of locks on ports stays, for all of a user's processes.
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith("hoss-ports-")] == []


INTERRUPTED = """\
import subprocess, time, typer.main, hossctl.__main__ as command
def begin(prog_name):
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    time.sleep(60)
typer.main.get_command = lambda app: begin
command.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_the_command_had_only_just_started_is_ended_too(number: int) -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        process.send_signal(number)
        assert process.wait(DEADLINE_SECONDS) == 128 + number
    assert _ends(child)


AMID_A_STREAM = """\
import os, signal, typer.main, grpc.aio, hossctl.__main__ as command
from hossctl.cli import run_async
async def outgoing():
    os.kill(os.getpid(), signal.SIGTERM)
    yield b""
async def call():
    try:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            await channel.stream_unary("/any/method")(outgoing(), wait_for_ready=True)
    finally:
        print("cleaned up", flush=True)
typer.main.get_command = lambda app: lambda prog_name: run_async(call())
command.main()
"""


def test_a_command_that_is_asked_to_end_while_grpc_asks_it_for_a_message_does_so() -> None:
    """gRPC drops what is raised there."""
    amid = subprocess.run(
        [sys.executable, "-c", AMID_A_STREAM], stdout=subprocess.PIPE, timeout=DEADLINE_SECONDS, check=False
    )
    assert (amid.stdout, amid.returncode) == (b"cleaned up\n", 128 + signal.SIGTERM)


def _ends(process: psutil.Process) -> bool:
    """Whether it is gone, or is so soon, long before it would end by itself: who is killed takes some time to
    die."""
    deadline = time.monotonic() + 20
    while lives(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
