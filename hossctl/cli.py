"""The command table of `hoss`: names, summaries, and what an error looks like.

Exit codes: 0 done; 1 it failed, was not found, or an invariant is broken; 2 wrong usage or bad input; 3 the platform
cannot be reached.
"""

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from hoss.errors import HossError, InvalidInput, LedgerUnavailable, NotFound, Overloaded, TransportError
from hossctl.examples import add_examples

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3

QUIET = "HOSS_QUIET"  # set: as with --quiet
_QUIET = ("-q", "--quiet")
_HELP_OPTIONS = ["-h", "--help"]
# What typer imports with its help, and uses for help in Markdown and for its own tracebacks: we have neither.
_UNUSED_BY_HELP = ("rich.markdown", "rich.traceback")

# What a person can do about files and disks. A command that can say more raises a HossError of its own.
_ELSEWHERE = "name a place that you may write to (for the local platform with HOSS_HOME)"
_REMEDIES = {
    errno.ENOSPC: "make room on that disk, or name another (for the local platform with HOSS_HOME)",
    errno.EDQUOT: "make room on that disk, or name another (for the local platform with HOSS_HOME)",
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOTDIR: _ELSEWHERE,
}

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
    "trace": ("trace", "One pod's way from Submit to its node, span by span, from a file of traces."),
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
    "simulate": ("simulate", "Play clusters and hours that no laptop holds, on virtual time."),
    "completion": ("completion", "Print a shell's completion script."),
}

# Typer's own flags are None where they are not given, and it loads pydantic, for as long as all the rest takes, to check
# that. False, which means the same, it takes as it is.
_HELP = {"help": False}
_FLAGS_NOT_GIVEN = {
    **_HELP,
    "install_completion": False,
    "show_completion": False,
    **dict.fromkeys(COMMANDS, _HELP),
}


class CommandTable(TyperGroup):
    """Loads a command when it is called for, and turns HOSS's errors into one line and an exit code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins that know their name and summary: enough for help, completion and the correction of typing errors.
        self.commands = {name: TyperCommand(name, help=summary) for name, (_, summary) in COMMANDS.items()}
        self._loaded: set[str] = set()

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run, with those options of the root in front that people write anywhere."""
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        anywhere = [word for word in given[:end] if word in _QUIET]
        if any(word in _HELP_OPTIONS for word in given[:end]):
            _load_help()
        return super().main([*anywhere, *(w for w in given[:end] if w not in _QUIET), *given[end:]], *rest, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is about to run."""
        name = args[0] if args else ""
        if name in COMMANDS and name not in self._loaded:
            module = importlib.import_module(f"hossctl.commands.{COMMANDS[name][0]}")
            self.commands[name] = get_group(module.app).commands[name]
            add_examples(name, self.commands[name])
            if ctx.resilient_parsing and not isinstance(self.commands[name], TyperGroup):
                self.commands[name].parse_args = partial(_take_words, self.commands[name])  # type: ignore[method-assign]
            self._loaded.add(name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except HossError as exc:
            report(exc)
            raise typer.Exit(exit_code(exc)) from exc
        except BrokenPipeError:
            # Whoever read our output has enough, as `head` has. Nothing more is written, not at the end either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None


def _take_words(command: Any, ctx: Any, args: list[str]) -> list[str]:
    """Parse what stands before a Tab and leave it as words: whoever pressed Tab does not wait for pydantic to check them."""
    words, rest, _ = command.make_parser(ctx).parse_args(args=args)
    for parameter in command.get_params(ctx):
        value, source = parameter.consume_value(ctx, words)
        ctx.params[parameter.name] = value
        ctx.set_parameter_source(parameter.name, source)
    ctx.args = list(rest)
    return list(rest)


def _load_help() -> None:
    """Import what typer writes help with, without what it does not use: that would be a third of the time that help takes."""
    absent = [name for name in _UNUSED_BY_HELP if name not in sys.modules]
    for name in absent:
        sys.modules[name] = stand_in = ModuleType(name)
        stand_in.__getattr__ = lambda wanted: type(wanted, (), {})  # type: ignore[method-assign]  # a name is all it takes
    try:
        importlib.import_module("typer.rich_utils")
    finally:
        for name in absent:
            del sys.modules[name]


app = typer.Typer(
    cls=CommandTable,
    help="HOSS: many schedulers, one ledger. Parallel pod scheduling that never overcommits a node.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP_OPTIONS, "default_map": _FLAGS_NOT_GIVEN},
    epilog="Exit codes: 0 done; 1 failed, not found, or a broken invariant; 2 wrong usage or bad input; 3 cannot be reached.",
)


@app.callback()
def root(
    context: typer.Context,
    *,
    quiet: Annotated[
        bool, typer.Option(*_QUIET, help="Say nothing but results and errors; may also stand after the command.")
    ] = False,
) -> None:
    """Options of all commands."""
    if quiet and QUIET not in os.environ:
        os.environ[QUIET] = "1"
        context.call_on_close(lambda: os.environ.pop(QUIET))


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
    elif isinstance(error, OSError) and error.errno in _REMEDIES:
        place = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {place}{error.strerror}; {_REMEDIES[error.errno]}", err=True)
    else:
        text = f"error: {type(error).__name__}: {error}; this is a fault in hoss, run again with HOSS_DEBUG=1 for the place"
        typer.echo(text, err=True)
