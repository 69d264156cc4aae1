"""`hoss plugin check-scheduler`: it runs a scheduler as a process, on a platform of its own, and sees what it
says."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hossctl.checking.schedulers import check_scheduler
from hossctl.commands.plugin import app

EXAMPLES = Path(__file__).parents[2] / "examples"
FLAGS = ("--name", "{name}", "--dispatcher", "{dispatcher}", "--resolver", "{resolver}")
PATIENT = "60"  # seconds, for a busy machine; nothing waits for it in an honest run

# The example, with another way to send messages.
ALTERED = f"""
import sys

from hoss.client.worker_link import DispatcherLink

sys.path.append({str(EXAMPLES)!r})
from emptiest_first import EmptiestFirst
from hoss.sdk import main

print("begun", flush=True)
send = DispatcherLink.send

def altered(link, message):
    {{}}

DispatcherLink.send = altered
sys.exit(main(EmptiestFirst()))
"""
TWICE = "[send(link, message) for _ in range(2 if message.HasField('outcomes') else 1)]"
SILENT = "message.HasField('outcomes') or send(link, message)"


def checked(*command: str) -> tuple[int, dict]:
    done = CliRunner().invoke(
        app, ["plugin", "check-scheduler", "--timeout", PATIENT, "-o", "json", *command]
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def altered(directory: Path, send: str) -> list[str]:
    program = directory / "altered.py"
    program.write_text(ALTERED.format(send))
    return [sys.executable, str(program), *FLAGS]


def test_a_scheduler_that_reports_twice_is_found_and_all_its_pods_are_bound(tmp_path):
    code, document = checked(*altered(tmp_path, TWICE))
    assert code == 1
    (problem,) = document["problems"]
    assert "twice: only the first counts" in problem
    assert document["bound"] == 60
    assert document["output"]


@pytest.mark.thorough
def test_a_scheduler_that_never_answers_is_told_so_and_what_it_wrote_is_shown(tmp_path):
    """It may take long to start and to get pods; that it says nothing then is seen after any time."""
    found = check_scheduler(altered(tmp_path, SILENT), timeout_seconds=1, start_seconds=float(PATIENT))
    unanswered = r"did not answer for \d pods?: pods that select nodes by a label \(within 1 s\)"
    assert any(re.fullmatch(unanswered, problem) for problem in found.problems)
    assert "begun" in found.output


@pytest.mark.thorough
def test_the_scheduler_of_the_tutorial_passes():
    code, document = checked(sys.executable, str(EXAMPLES / "emptiest_first.py"), *FLAGS)
    assert document["problems"] == []
    assert document["warnings"] == []
    assert (code, document["bound"]) == (0, 60)


@pytest.mark.thorough
def test_a_program_that_ends_at_once_is_told_so_with_its_exit_code():
    code, document = checked(sys.executable, "-c", "raise SystemExit(7)")
    assert code == 1
    assert document["problems"] == [
        "did not register: it has to call {dispatcher}, as {name} (and ended with code 7)"
    ]


def test_a_program_that_is_not_there_is_named_before_anything_starts():
    done = CliRunner().invoke(app, ["plugin", "check-scheduler", "/nowhere/mine"])
    assert str(done.exception) == "/nowhere/mine: is no program that can be run"
