"""The command table of `hoss`: names, summaries, and what an error looks like.

Exit codes: 0 done; 1 it failed, was not found, or an invariant is broken; 2 wrong usage or bad input; 3 the platform
cannot be reached.
"""

import importlib
import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from hoss.errors import HossError, InvalidInput, LedgerUnavailable, NotFound, Overloaded, TransportError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3

# Command -> (module in hossctl.commands, summary). A module is imported when one of its commands runs, not before:
# `hoss --help` and completion must not wait for NumPy and gRPC.
COMMANDS = {
    "demo": ("demo", "A whole cluster on this machine: 1,000 nodes, 50,000 pods, an audit, a summary."),
    "up": ("local", "Start the local platform: Redis, resolver, dispatcher, workers, simulated nodes."),
    "down": ("local", "Stop the local platform; its data stays."),
    "status": ("local", "What runs, how it does, and what waits for what."),
    "top": ("top", "Workers, queues and throughput, live."),
    "submit": ("submit", "Submit Kubernetes manifests: Pod, Job, Deployment, ReplicaSet, StatefulSet, List."),
    "get": (
        "get",
        "List pods, nodes, workers, jobs, tenants, reservations, conflicts, namespaces, services, disruption budgets.",
    ),
    "describe": ("get", "One pod, node, worker or job in full."),
    "explain": ("explain", "Why, where and with which scores a pod would be placed, node by node."),
    "delete": ("delete", "Delete pods, jobs, or what a manifest names; what pods held is free again."),
    "ungate": ("ungate", "Take scheduling gates off pods or jobs; those without any left are scheduled."),
    "retry": ("retry", "Put failed pods back in the queue."),
    "cordon": ("change", "Give a node or worker nothing more; it keeps what it has."),
    "uncordon": ("change", "Give a node or worker work again."),
    "drain": ("change", "Cordon a worker and take back what it has not started."),
    "nodes": ("nodes", "Add nodes to the pool or remove them."),
    "policy": ("policy", "Show or replace the policy that routes pods to workers."),
    "steer": ("steer", "Fix by hand how much workers' node preferences overlap and how many work at once."),
    "audit": ("audit", "Check the invariants on a live system; exit 1 with the evidence when one is broken."),
    "ledger": ("ledger", "Dump the ledger to a file, restore it, or go on with what is left of a lost one."),
    "replay": ("replay", "Place a cluster trace and report how it went."),
    "bench": ("bench", "Measure throughput, or compare schedulers with and without HOSS."),
    "completion": ("completion", "Print a shell's completion script."),
}


class CommandTable(TyperGroup):
    """Loads a command when it is called for, and turns HOSS's errors into one line and an exit code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins that know their name and summary: enough for help, completion and the correction of typing errors.
        self.commands = {name: TyperCommand(name, help=summary) for name, (_, summary) in COMMANDS.items()}
        self._loaded: set[str] = set()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is about to run."""
        name = args[0] if args else ""
        if name in COMMANDS and name not in self._loaded:
            module = importlib.import_module(f"hossctl.commands.{COMMANDS[name][0]}")
            self.commands[name] = get_group(module.app).commands[name]
            self._loaded.add(name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except HossError as exc:
            report(exc)
            raise typer.Exit(exit_code(exc)) from exc


app = typer.Typer(
    cls=CommandTable,
    help="HOSS: many schedulers, one ledger. Parallel pod scheduling that never overcommits a node.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Options of all commands would stand here; there are none."""


def exit_code(error: HossError) -> int:
    """The exit code that tells scripts what kind of error it was."""
    if isinstance(error, (TransportError, LedgerUnavailable, Overloaded)):
        return EXIT_UNREACHABLE
    if isinstance(error, NotFound):
        return EXIT_FAILED
    return EXIT_BAD_INPUT if isinstance(error, InvalidInput) else EXIT_FAILED


def report(error: BaseException) -> None:
    """Say on stderr what went wrong; with HOSS_DEBUG=1 also where."""
    if os.environ.get("HOSS_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, HossError):
        typer.echo(f"error: {error}", err=True)
    else:
        text = f"error: {type(error).__name__}: {error}; this is a fault in hoss, run again with HOSS_DEBUG=1 for the place"
        typer.echo(text, err=True)
