"""Services start alike from a new interpreter and from the tests' fork server, and a forked process is as
good as a new one."""

import gc
import json
import os
import signal
import subprocess
import time
import warnings
from pathlib import Path

import psutil
import pytest
from fork_server import FORK_SERVER, ForkedProcess
from waiting import DEADLINE_SECONDS, wait_until

from hoss.errors import HossError
from hossctl.local.process import Launched, ServiceProcess, has_ended, launch_python, stop_all

# A package with the shape of our services: `main` returns what `sys.exit` is to be told.
TOLD = """\
import json, os, signal, sys, time

def main():
    what, *more = sys.argv[1:]
    return globals()[what](*more)

def facts(*_arguments):
    print(json.dumps({
        "arguments": sys.argv[2:], "environment": dict(os.environ),
        "directory": os.getcwd(), "pid": os.getpid(),
        "leads": os.getsid(0) == os.getpid(), "given": sys.stdin.read(), "umlaut": "ä",
        "handlers": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    }))
    print("a word of warning", file=sys.stderr)

def end(code):
    return {"nothing": None, "words": "it cannot be done"}.get(code) if not code.isdigit() else int(code)

def leave(code):
    sys.exit(code if not code.isdigit() else int(code))

def fail():
    raise ValueError("this is a fault")

def wait(*_ready_file):
    print("here", flush=True)
    time.sleep(600)

def late(*words):
    import hossctl.__main__
    before, sys.argv = set(sys.modules), ["hoss", *words]
    try:
        hossctl.__main__.main()
    except SystemExit:
        print(json.dumps(sorted(set(sys.modules) - before)))

def refuse(*_ready_file):
    return "nonsense was asked for"

def serve(_option, ready_file):
    print("serving", os.getsid(0) == os.getpid(), repr(sys.stdin.read()), flush=True)
    with open(ready_file + ".new", "w") as file:
        json.dump({"port": 4711}, file)
    os.rename(ready_file + ".new", ready_file)
    time.sleep(600)

if __name__ == "__main__":
    sys.exit(main())
"""  # fmt: skip


@pytest.fixture(autouse=True)
def _told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "told").mkdir()
    (tmp_path / "told" / "__main__.py").write_text(TOLD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture(params=[launch_python, FORK_SERVER.launch], ids=["new interpreter", "forked"])
def _launch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServiceProcess, "launch", staticmethod(request.param))


@pytest.mark.usefixtures("_launch")
def test_a_service_serves_in_a_session_of_its_own_and_ends_when_it_is_asked_to(tmp_path):
    service = ServiceProcess("s", "told", ["serve"], tmp_path)
    record = service.wait_ready(time.monotonic() + DEADLINE_SECONDS)
    assert record.address == "127.0.0.1:4711"
    assert record.find() is not None
    assert exit_code(service) is None
    assert service.log.read_text() == "serving True ''\n"
    assert stop_all([record]) == []
    assert record.find() is None
    wait_until(lambda: exit_code(service) is not None, "who has reaped it to tell its exit code")


@pytest.mark.usefixtures("_launch")
def test_a_service_that_fails_is_an_error_with_its_exit_code_and_its_log(tmp_path):
    service = ServiceProcess("s", "told", ["refuse"], tmp_path)
    with pytest.raises(HossError, match=r"s ended with code 1 before it served\n  nonsense was asked for"):
        service.wait_ready(time.monotonic() + DEADLINE_SECONDS)


def test_a_service_that_has_ended_and_is_reaped_before_it_is_recorded_is_an_error_all_the_same(
    tmp_path, monkeypatch
):
    def launch(*arguments):
        process = FORK_SERVER.launch(*arguments)
        process.wait(DEADLINE_SECONDS)
        return process

    monkeypatch.setattr(ServiceProcess, "launch", staticmethod(launch))
    service = ServiceProcess("s", "told", ["refuse"], tmp_path)
    assert service.record.find() is None
    with pytest.raises(HossError, match=r"s ended with code 1 before it served"):
        service.wait_ready(time.monotonic() + DEADLINE_SECONDS)


@pytest.mark.usefixtures("_launch")
def test_by_which_signal_a_service_ended_is_seen(tmp_path):
    service = ServiceProcess("s", "told", ["wait"], tmp_path)
    os.kill(service.record.pid, signal.SIGKILL)
    wait_until(lambda: exit_code(service) is not None)
    assert exit_code(service) == -signal.SIGKILL


def test_whoever_starts_a_service_may_forget_it_and_none_that_has_ended_stays_a_zombie(tmp_path):
    with (tmp_path / "log").open("ab") as log:
        forgotten = launch_python("told", ["refuse"], log).pid
        wait_until(lambda: has_ended(psutil.Process(forgotten)))
        running = launch_python("told", ["wait"], log)
    assert not psutil.pid_exists(forgotten)
    os.kill(running.pid, signal.SIGKILL)


def exit_code(service: ServiceProcess) -> int | None:
    launched: Launched = service._process
    return launched.poll()


def test_a_forked_process_has_its_own_arguments_environment_directory_and_streams(tmp_path):
    environment = {"PYTHONPATH": str(tmp_path), "MINE": "yes"}
    ran = FORK_SERVER.run("told", ["facts", "a b", ""], stdin="some input", env=environment, cwd=tmp_path)
    facts = json.loads(ran.stdout)
    assert facts["arguments"] == ["a b", ""]
    assert facts["environment"].items() >= environment.items()
    assert "HOME" not in facts["environment"]
    assert (facts["directory"], facts["given"], facts["umlaut"]) == (str(tmp_path), "some input", "ä")
    assert (ran.stderr, ran.returncode) == ("a word of warning\n", 0)
    assert facts["leads"]
    assert facts["pid"] != os.getpid()


@pytest.mark.parametrize(
    "words",
    ["get pods", "status", "audit", "top --once", "policy test -f web.yaml", "submit -f web.yaml --dry-run"],
)
def test_a_forked_command_finds_all_of_ours_imported_that_it_imports_when_it_runs(tmp_path, words):
    """It costs a platform's start several times what it should where each fork imports by itself."""
    (tmp_path / "web.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
    environment = {"PYTHONPATH": str(tmp_path), "HOSS_HOME": str(tmp_path / "home")}
    ran = FORK_SERVER.run("told", ["late", *words.split()], env=environment, cwd=tmp_path)
    late = json.loads(ran.stdout.splitlines()[-1])
    assert [name for name in late if name.startswith("hoss")] == []
    assert len(late) < 10, late


def test_two_forked_processes_know_nothing_of_each_other(tmp_path):
    first, second = (
        json.loads(FORK_SERVER.run("told", ["facts"], env={"PYTHONPATH": str(tmp_path), name: "1"}).stdout)
        for name in ("FIRST", "SECOND")
    )
    assert "FIRST" not in second["environment"]
    assert first["pid"] != second["pid"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["end", "0"], 0, ""),
        (["end", "1"], 1, ""),
        (["end", "nothing"], 0, ""),
        (["end", "words"], 1, "it cannot be done\n"),
        (["leave", "7"], 7, ""),
        (["leave", "in words"], 1, "in words\n"),
    ],
)
def test_a_forked_process_ends_with_the_code_that_python_would_give(arguments, code, said):
    ran = FORK_SERVER.run("told", arguments)
    assert (ran.returncode, ran.stderr) == (code, said)


def test_a_fault_of_a_forked_process_is_told_and_leaves_the_server_as_it_was():
    ran = FORK_SERVER.run("told", ["fail"])
    assert ran.returncode == 1
    assert ran.stderr.endswith("ValueError: this is a fault\n")
    assert FORK_SERVER.run("told", ["end", "0"]).returncode == 0


def test_a_forked_process_has_the_signal_handlers_of_a_new_one():
    handlers = json.loads(FORK_SERVER.run("told", ["facts"]).stdout)["handlers"]
    assert handlers == [str(signal.default_int_handler), str(signal.SIG_DFL), str(signal.SIG_DFL)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_forked_process_and_is_told(tmp_path, number):
    process = waiting(tmp_path)
    process.send_signal(number)
    assert process.wait(DEADLINE_SECONDS) == -number
    process.send_signal(number)  # nothing, as it has ended


def test_who_does_not_wait_for_ever_is_told_that_it_runs_on(tmp_path):
    process = waiting(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    assert process.poll() is None
    process.kill()
    assert process.wait(DEADLINE_SECONDS) == process.poll() == -signal.SIGKILL


def test_nothing_stays_open_of_a_process_that_nobody_waits_for(tmp_path):
    """Also where it is forgotten as a part of a circle, as a failed test's frames are."""
    circle = [waiting(tmp_path)]
    circle.append(circle)
    process = psutil.Process(circle[0].pid)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del circle
        gc.collect()
    assert [str(warning.message) for warning in told] == []
    process.kill()


def test_the_cpu_time_of_forked_processes_is_counted_when_they_end():
    before = FORK_SERVER.ended_cpu_seconds()
    FORK_SERVER.run("told", ["end", "0"])
    assert FORK_SERVER.ended_cpu_seconds() > before


def waiting(folder: Path) -> ForkedProcess:
    """A process that has begun, and waits."""
    with (folder / "out").open("w+b") as out:
        process = FORK_SERVER.start("told", ["wait"], stdout=out)
        wait_until(lambda: (folder / "out").read_bytes() == b"here\n", "it to begin")
    return process
