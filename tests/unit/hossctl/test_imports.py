"""What is not imported: help, completion and services do not wait for what they do not use.

What is imported is the same on every machine, and a time is not. One process asks for everything, one thing
after another, and says what was there after each."""

import json
import os
import subprocess
import sys

import pytest

# Of ours, what stands for a layer; of others, what takes longer than ten milliseconds.
ANY_WORK = (
    "hoss.client", "hoss.model", "hoss.v1", "hoss.wire",
    "aiohttp", "asyncio", "cryptography", "google.protobuf", "grpc", "jinja2", "kubernetes", "matplotlib",
    "numpy",
    "opentelemetry", "redis", "structlog", "uvloop", "yaml",
)  # fmt: skip
UNUSED_BY_HELP = (*ANY_WORK, "importlib.metadata", "psutil", "pydantic", "rich.markdown", "rich.traceback")
UNUSED_BY_COMPLETION = (*ANY_WORK, "importlib.metadata", "pydantic", "rich")
UNUSED_WITHOUT_A_PLATFORM = (*ANY_WORK, "pydantic", "rich")
# What a platform answers to `hoss get` and `hoss status` is messages and a table.
UNUSED_BY_LISTS = (
    "cryptography.x509",
    "hoss.manifests",
    "hoss.model.cluster",
    "hoss.model.pod",
    "jinja2",
    "numpy",
    "opentelemetry",
    "pydantic",
    "redis",
    "rich",
    "structlog",
    "yaml",
)
# The resolver's client gives each call the context of a trace.
UNUSED_BY_STATUS = tuple(name for name in UNUSED_BY_LISTS if name != "structlog")
UNUSED_BY_DEFAULT = (
    "dispatcher.kubernetes.mode", "dispatcher.tracing", "hoss.kube.api",
    "hoss.telemetry.tracing",
    "resolver.kubernetes.mode", "resolver.tracing", "resolver.kubernetes.webhook.server",
    "scheduler_worker.tracing",
    "aiohttp", "cryptography.x509", "jinja2", "kubernetes", "matplotlib", "opentelemetry", "psutil", "rich",
    "yaml", "prometheus_client", "requests",
)  # fmt: skip

_EVERY_HELP = """
from typer import Context
from typer.main import get_command
from hossctl.cli import app
from hossctl.command_table import COMMANDS
table = get_command(app)
for words in ("", "get pods", "bench compare"):
    done(words, lambda: table([*words.split(), "--help"], prog_name="hoss"))
context = table.make_context("hoss", ["status"])
for name in COMMANDS:  # whose help is written as that of those above
    done(name, lambda: table.resolve_command(context, [name]))
"""
_COMPLETIONS = """
from hossctl.__main__ import main
sys.argv = ["hoss"]
for words in (
    "hoss ", "hoss get ", "hoss get po", "hoss get pods w", "hoss describe pod -",
    "hoss delete pod -n shop w",
):
    os.environ |= {"_HOSS_COMPLETE": "complete_bash", "COMP_WORDS": words}
    os.environ["COMP_CWORD"] = str(words.count(" "))
    done(f"completion of {words!r}", main)
"""
_COMPLETIONS_OF_CHOICES = """
from hossctl.__main__ import main
sys.argv = ["hoss"]
for words in (
    "hoss worker add w1 --profile ", "hoss worker add w1 --algorithm ", "hoss explain pod web-0 --profile ",
    "hoss bench compare --modes ", "hoss bench compare --loads ", "hoss bench compare --schedulers ",
):
    os.environ |= {"_HOSS_COMPLETE": "complete_bash", "COMP_WORDS": words}
    os.environ["COMP_CWORD"] = str(words.count(" "))
    done(f"completion of {words!r}", main)
"""
_NO_PLATFORM = """
from hossctl.__main__ import main
for words in ("completion bash", "get nosuch", "get pods", "get nodes -o json", "describe pod web-0"):
    sys.argv = ["hoss", *words.split()]
    done(words, main)
"""
_LISTS = """
import importlib
done("lists", lambda: [importlib.import_module(f"hossctl.views.{name}") for name in ("listing", "showing")])
"""
_STATUS = """
import importlib
for name in ("hoss.client.dispatcher", "hoss.client.resolver", "hossctl.views.status"):
    done(name, lambda: importlib.import_module(name))
"""
_SERVICES = """
import importlib
for service in ("scheduler_worker", "resolver", "dispatcher"):
    done(service, lambda: importlib.import_module(f"{service}.__main__"))
"""
_AROUND = """
import contextlib, io, json, os, sys
unused, found = json.loads(sys.argv.pop()), {{}}
def done(what, act):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        act()
    known = [name for names in found.values() for name in names]
    if new := [name for name in unused if name in sys.modules and name not in known]:
        found[what] = new
{acts}
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("acts", "unused"),
    [
        (_EVERY_HELP, UNUSED_BY_HELP),
        (_COMPLETIONS, UNUSED_BY_COMPLETION),
        (_COMPLETIONS_OF_CHOICES, UNUSED_BY_COMPLETION),
        (_NO_PLATFORM, UNUSED_WITHOUT_A_PLATFORM),
        (_LISTS, UNUSED_BY_LISTS),
        (_STATUS, UNUSED_BY_STATUS),
        (_SERVICES, UNUSED_BY_DEFAULT),
    ],
    ids=["help", "completion", "completion-of-choices", "no-platform", "lists", "status", "services"],
)
def test_what_is_not_used_is_not_imported(tmp_path, acts, unused):
    named = {"HOSS_DISPATCHER", "HOSS_RESOLVER", "HOSS_LOG"}
    environment = {name: value for name, value in os.environ.items() if name not in named}
    run = subprocess.run(
        [sys.executable, "-c", _AROUND.format(acts=acts), json.dumps(unused)],
        env=environment | {"HOSS_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {}
