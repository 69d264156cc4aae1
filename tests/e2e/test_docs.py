"""Every `hoss` command of the documents is run as it stands there, in order, on a platform of its own.

What cannot be run here is in WHY_NOT with the reason; tests/unit/hossctl/test_written_commands.py has the
real parser read those, too. A command that is new in a document is run by this test without further ado."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fork_server import ADDRESS_VARIABLE, FORK_SERVER, shell_command
from waiting import COMMAND_SECONDS
from written_commands import ROOT, Command, commands_of, documents, simple

pytestmark = pytest.mark.timeout(1800)

CLUSTER = "needs a Kubernetes cluster; tests/e2e/kubernetes has one, and runs what these do"
WHY_NOT = {
    # document, or "" for all: what a line has to match to be left out, and why
    "": {
        r"^hoss (bench|simulate)\b": (
            "takes from a minute to hours; tests/unit/hossctl and tests/simulation run them with small sizes"
        ),
        r"^python -m tools\.bench\b": (
            "takes minutes; tests/integration and tests/e2e run them with small sizes"
        ),
        r"^hoss replay\b": (
            "the traces are not part of the repository; tests/unit/hossctl/traces and"
            " tests/e2e/test_platform_loads.py have small ones"
        ),
        r"--kubeconfig|kubectl|^helm|--secrets": CLUSTER,
        r"^(docker|kind|minikube)\b|docker compose|--dispatcher (127\.0\.0\.1|localhost):70": (
            "needs Docker; tests/e2e/test_compose.py has the services as the compose file starts them"
        ),
        r"^make (?!demo)": "`make test` runs this very test; .ci/run runs the others",
        r"^make demo$|^\. \.venv/bin/activate$": (
            "the environment is the one that this test runs in; tests/e2e/test_platform.py runs the demo"
        ),
    },
    "docs/reference/cli.md": {r"": "examples of arguments, read by the parser"},
    "docs/kubernetes.md": {r"": CLUSTER},
    "docs/operations/kubernetes.md": {r"": CLUSTER},
    "docs/operations/failures.md": {
        r"^hoss retry pod NAME$": "needs a pod that failed; tests/e2e/test_waking.py makes one",
    },
    "docs/operations/fragmentation.md": {
        r"^hoss up --rebalance": (
            "a platform runs already; tests/e2e/test_rebalance_controller.py starts one so"
        ),
        r"--usage usage.json": "needs measurements of these minutes; tests/e2e/test_rebalance.py writes them",
    },
    "docs/operations/observe.md": {
        r"^hoss dashboard --listen": "runs until it is stopped; tests/e2e/test_dashboard.py uses one",
        r"^hoss describe pod web-3$": "shows what a pod of an earlier day went through",
    },
    "docs/operations/policy.md": {
        r"^hoss describe pod web-3$": "needs a pod that was evicted; tests/e2e/test_preemption.py makes one",
    },
    "docs/operations/security.md": {
        r"^hoss login lab": (
            "needs a platform elsewhere; tests/e2e/test_foreign_tokens.py logs in with a command"
        ),
    },
    "docs/operations/upgrade.md": {
        r"^hoss ledger restore FILE$": "needs an empty ledger; tests/e2e/test_rebuild.py has one",
    },
    "docs/python.md": {
        r"^hoss up": "a platform runs already; tests/e2e/test_readme.py runs the document's blocks on one",
    },
    "docs/reliability.md": {
        r"^python -m tools.simulation --seed": (
            "a seed of an earlier day; tests/simulation/test_simulation.py has one"
        ),
        r"^python -m tools.faults": (
            "takes minutes, and network faults take root; tests/faults strikes once with each kind"
        ),
    },
    "docs/plugins.md": {
        r"^hoss plugin check green": "tests/unit/hossctl/test_plugin_check.py checks the document's plugin",
        r"^hoss plugin check-scheduler": "tests/e2e/test_scheduler_check.py checks the tutorial's",
    },
    "docs/tutorials/algorithm.md": {
        r"^hoss plugin check": "tests/unit/hossctl/test_plugin_check.py checks the tutorial's class",
        r"^hoss worker add mine": (
            "needs the module on the path; tests/e2e/test_algorithms.py starts workers with theirs"
        ),
    },
    "docs/tutorials/plugin.md": {
        r"^hoss plugin check": "tests/unit/hossctl/test_plugin_check.py checks the tutorial's class",
        r"^hoss up --config": (
            "needs the package; tests/e2e/test_worker_faults.py starts workers with plugins of packages"
        ),
    },
    "docs/tutorials/scheduler.md": {
        r"": (
            "runs until it is stopped; tests/e2e/test_sdk.py runs it, and certificates as"
            " docs/operations/security.md has them"
        ),
    },
    "docs/tutorials/go.md": {
        r"^(hoss|examples)": "runs until it is stopped; tests/e2e/test_go_scheduler.py runs it"
    },
    "docs/benchmarks-details.md": {r"^hoss (up|steer)": "sets the stage for a benchmark"},
}
# Of commands whose exit code says something else than "done", in documents that say so.
CODES = {"hoss policy set -f policy.yaml --if-version 3": 2}
# What documents call by a name of their own, and files that they take for granted.
NAMES = {"NAME": "web-0", "FILE": "ledger.jsonl"}
FILES = {
    "pods.yaml": "examples/web.yaml",
    "policy.yaml": "deploy/policy.yaml",
    "new.yaml": "deploy/policy.yaml",
}


def why_not(command: Command) -> str:
    """Why it is not run; empty: it is."""
    for document in ("", command.document):
        for pattern, reason in WHY_NOT.get(document, {}).items():
            if re.search(pattern, command.text):
                return reason
    return ""


RUN = {
    str(path.relative_to(ROOT)): found
    for path in documents()
    if (found := [command for command in commands_of(path) if not why_not(command)])
}


def test_the_documents_that_teach_are_run() -> None:
    assert {
        "README.md",
        "docs/quickstart.md",
        "docs/concepts.md",
        "docs/troubleshooting.md",
        "docs/operations.md",
        "docs/operations/policy.md",
        "docs/operations/failures.md",
    } <= set(RUN)


def test_every_reason_still_has_a_command() -> None:
    lines = [command for path in documents() for command in commands_of(path)]
    for document, reasons in WHY_NOT.items():
        for pattern in reasons:
            assert any(re.search(pattern, line.text) and document in ("", line.document) for line in lines), (
                f"{document}: no command matches {pattern!r} any more"
            )


def _sittings() -> list[list[str]]:
    """Documents that start a platform have it to themselves; all others share one."""
    own = [[name] for name, lines in RUN.items() if simple(lines[0].text)[0][:2] == ["hoss", "up"]]
    return [*own, [name for name in RUN if [name] not in own]]


@pytest.mark.parametrize("sitting", _sittings(), ids=" ".join)
def test_the_commands_do_what_the_documents_say(sitting: list[str], tmp_path: Path, hoss) -> None:
    place = _place(tmp_path)
    environment = {**os.environ, "HOSS_HOME": str(hoss.home), "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    environment[ADDRESS_VARIABLE] = FORK_SERVER.address
    for name in ("HOSS_DISPATCHER", "HOSS_RESOLVER"):
        environment.pop(name, None)
    commands = [command for document in sitting for command in RUN[document]]
    if simple(commands[0].text)[0][:2] != ["hoss", "up"]:
        hoss("up", "--nodes", "100", "--workers", "2")
        hoss("submit", "-f", str(ROOT / "examples" / "web.yaml"), "--wait")
    for command in commands:
        text = " ".join(NAMES.get(word, word) for word in command.text.split(" "))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=place, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == CODES.get(command.text, 0), (
            f"{command}\n{done.stdout}\n{done.stderr}\n{hoss.logs()}"
        )
        assert "Traceback" not in done.stdout + done.stderr, str(command)


def _place(scratch: Path) -> Path:
    """A directory like the repository's for who follows a document, with `hoss` and `python` on the
    PATH."""
    place = scratch / "place"
    (place / "bin").mkdir(parents=True)
    for name in ("examples", "deploy", "tests"):
        (place / name).symlink_to(ROOT / name)
    for name, source in FILES.items():
        (place / name).symlink_to(ROOT / source)
    # As in an active environment: a Debian has no `python` of its own.
    python = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
    for name, script in (("hoss", shell_command("hossctl")), ("python", python)):
        (place / "bin" / name).write_text(script)
        (place / "bin" / name).chmod(0o755)
    return place
