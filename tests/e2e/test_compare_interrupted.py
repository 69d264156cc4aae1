"""bench compare, interrupted: it keeps what it has, and ends all that it has started. Started as people start
it, with `python -m`."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import DEADLINE_SECONDS, lives, until, wait_until

from hoss.client.access import TLS_DIR_VARIABLE
from hossctl.compare.document import Comparison
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.local.platform import OPERATOR


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_an_interrupted_comparison_keeps_what_it_has_and_leaves_no_process(
    hoss, tmp_path, monkeypatch, number
):
    file = tmp_path / "compare.json"
    # Binding takes 40 s on the quickest machine: a slow one has as long to interrupt it.
    options = ["--modes", "single,multi-hoss", "--nodes", "200", "--fills", "0.8", "--decision-task-ms", "4"]
    command = [
        sys.executable,
        "-m",
        "hossctl",
        "bench",
        "compare",
        *options,
        "--json",
        str(file),
        "-o",
        "json",
    ]
    environment = {**os.environ, "HOSS_HOME": str(hoss.home)}
    comparing = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    services = asyncio.run(services_amid_binding(comparing.pid, monkeypatch))
    comparing.send_signal(number)
    output, errors = comparing.communicate(timeout=DEADLINE_SECONDS)
    assert comparing.returncode == 130, errors
    found = Comparison.model_validate_json(file.read_text())
    assert json.loads(output)["runs"] == json.loads(file.read_text())["runs"]
    assert not found.finished
    assert found.notes[-1].startswith("interrupted: ")
    assert [run.complete for run in found.runs] == [False]
    assert 0 < found.runs[0].bound < found.runs[0].pods
    assert not list(filter(lives, services))


async def services_amid_binding(pid, monkeypatch):
    """The services of a comparison, once its worker has bound pods twice: of the first ones the comparison
    has heard by then."""

    def services():
        return psutil.Process(pid).children(recursive=True)

    def address():
        for process in services():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "scheduler_worker" in " ".join(command := process.cmdline()):
                    return command[command.index("--dispatcher") + 1]
        return ""

    def certificate():
        for process in services():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "scheduler_worker" in " ".join(command := process.cmdline()):
                    return Path(command[command.index("--tls-dir") + 1]).parent / str(OPERATOR).replace(
                        "/", "-"
                    )
        return None

    monkeypatch.setenv(TLS_DIR_VARIABLE, str(wait_until(certificate, "a worker with a certificate")))
    async with dispatcher_of(Endpoints(wait_until(address, "a worker"), "")) as dispatcher:

        async def more_bound(than=0):
            bound = (await dispatcher.status()).counters.get("bound", 0)
            return bound if bound > than else 0

        first = await until(more_bound, "a bound pod")
        await until(lambda: more_bound(first), "another bound pod")
    return services()
