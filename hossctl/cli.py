"""The command table of `hoss`: names, summaries and examples of the commands, exit codes, and how an error
is reported.

A command's module is imported when the command runs, and not before: `hoss --help` and completion must not
wait for NumPy and gRPC.

Exit codes: 0 done; 1 it failed, was not found, or an invariant is broken; 2 wrong usage or bad input; 3 the
platform cannot be reached."""

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # as in commands/completion.py
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

import hoss
from hoss.errors import (
    HossError,
    InvalidInput,
    LedgerUnavailable,
    NotFound,
    Overloaded,
    TransportError,
    printable,
)
from hoss.imports import without

ResultT = TypeVar("ResultT")


def run_async(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a command's coroutine on a new event loop, on uvloop where that is installed."""
    import asyncio  # noqa: PLC0415 - help and errors of usage need no loop

    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(main)
    result: ResultT = uvloop.run(main)
    return result


EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130  # of shells for a command that Ctrl-C ended

QUIET = "HOSS_QUIET"  # environment variable; any value means --quiet
_QUIET = ("-q", "--quiet")
_HELP_OPTIONS = ["-h", "--help"]
# typer's help imports these for Markdown and for its own tracebacks. We use neither, and they would take a
# third of the time that help takes.
_UNUSED_BY_HELP = ("rich.markdown", "rich.traceback")

# What a person can do about files and disks. A command that knows more raises a HossError of its own.
_ELSEWHERE = "name a place that you may write to (for the local platform with HOSS_HOME)"
_NO_SPACE = "make room on that disk, or name another (for the local platform with HOSS_HOME)"
_REMEDIES = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOTDIR: _ELSEWHERE,
    errno.EMFILE: "raise the number of files that a process may have open (ulimit -n)",
}
_NO_TEMPORARY_FILES = "No usable temporary directory"  # as Python's tempfile begins

# Command -> (module in hossctl.commands, summary).
COMMANDS = {
    "demo": (
        "platform.local",
        "What HOSS is for: a race of two schedulers, a whole cluster, a killed worker, an audit.",
    ),
    "up": (
        "platform.local",
        "Start the local platform: Redis, resolver, dispatcher, workers, simulated nodes.",
    ),
    "down": ("platform.local", "Stop the local platform; its data stays."),
    "status": ("platform.status", "What runs, how it does, and what waits for what."),
    "dashboard": (
        "platform.status",
        "Print links that log in to the local platform's dashboard, or serve one.",
    ),
    "top": ("platform.status", "Workers, queues and throughput, live."),
    "worker": ("platform.worker", "Add, restart, remove and list the workers of the local platform."),
    "apply": ("platform.worker", "Make the pools and the policy of the local platform those of a document."),
    "logs": ("platform.worker", "The logs of the local platform's processes."),
    "submit": (
        "objects.submit",
        "Submit Kubernetes manifests: Pod, Job, Deployment, ReplicaSet, StatefulSet, List.",
    ),
    "wait": ("objects.wait", "Wait until pods, jobs, workers or nodes are in a state."),
    "events": ("objects.wait", "What happened to jobs, pods, workers and nodes."),
    "get": (
        "objects.get",
        (
            "List pods, nodes, workers, jobs, tenants, reservations, conflicts, namespaces, services, "
            "disruption budgets."
        ),
    ),
    "describe": ("objects.get", "One pod, node, worker or job in full."),
    "trace": ("objects.explain", "The spans of one pod, from Submit to its node, from a file of traces."),
    "explain": ("objects.explain", "Why, where and with which scores a pod would be placed, node by node."),
    "fragmentation": ("rebalance", "Which of the free room pods can use, and where the rest is lost."),
    "rebalance": (
        "rebalance",
        "Plan and make moves of pods: room for waiting pods, empty nodes, less fragmented GPUs.",
    ),
    "delete": (
        "objects.delete",
        "Delete pods, jobs, or what a manifest names; what pods held is free again.",
    ),
    "ungate": (
        "objects.delete",
        "Take scheduling gates off pods or jobs; those without any left are scheduled.",
    ),
    "retry": ("objects.delete", "Put failed pods back in the queue."),
    "cordon": ("platform.nodes", "Give a node or worker nothing more; it keeps what it has."),
    "uncordon": ("platform.nodes", "Give a node or worker work again."),
    "drain": ("platform.nodes", "Cordon a worker and take back what it has not started."),
    "nodes": ("platform.nodes", "Add nodes to the pool or remove them."),
    "policy": ("platform.policy", "Show or replace the policy that routes pods to workers."),
    "steer": (
        "platform.policy",
        "Fix by hand how much workers' node preferences overlap and how many work at once.",
    ),
    "audit": (
        "ledger",
        "Check the invariants on a live system; exit 1 with the evidence when one is broken.",
    ),
    "ledger": ("ledger", "Dump the ledger to a file, restore it, or go on with what is left of a lost one."),
    "history": ("history", "Record what happens on a platform, and check whether it kept its promises."),
    "replay": ("replay", "Place a cluster trace and report how it went."),
    "plugin": ("plugin", "Begin a plugin, an algorithm or a scheduler of your own, and check it."),
    "bench": ("bench.throughput", "Measure throughput, or compare schedulers with and without HOSS."),
    "simulate": ("simulate", "Play clusters and hours that no laptop holds, on virtual time."),
    "certs": ("access", "The authority of a platform, and the certificates that it issues."),
    "redis": ("access", "The accounts of HOSS in Redis, with the keys and commands of each."),
    "token": ("access", "Bearer tokens of people and programs."),
    "login": ("access", "Remember a platform with its certificate and token, and use it from now on."),
    "context": ("access", "The platforms that this user's commands know."),
    "completion": ("completion", "Print a shell's completion script."),
}

# How help arranges the commands of COMMANDS: each stands in one of these, in their order there.
PANELS = {
    "Begin here": ("demo", "up", "submit", "get", "explain", "status", "dashboard", "down"),
    "Pods and jobs": ("describe", "events", "wait", "delete", "retry", "ungate", "trace"),
    "Workers, nodes and policy": (
        "top",
        "worker",
        "apply",
        "nodes",
        "cordon",
        "uncordon",
        "drain",
        "policy",
        "steer",
        "fragmentation",
        "rebalance",
        "logs",
    ),
    "What is promised": ("audit", "ledger", "history"),
    "Your own schedulers, measured and compared": ("plugin", "bench", "replay", "simulate"),
    "Access": ("login", "context", "certs", "token", "redis", "completion"),
}

# Command or group of commands -> examples: in its help, and in docs/reference/cli.md. A test parses each.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("hoss demo", "hoss demo --redis-url redis://127.0.0.1:6379/0 -o json"),
    "up": (
        "hoss up --nodes 1000 --workers 4",
        "hoss up --worker w1 --worker gpu:accelerator=gpu,strategy=binpack --dispatchers 2",
        "hoss up --config examples/platform.yaml",
        "hoss up --kubeconfig ~/.kube/config --guard",
    ),
    "down": ("hoss down", "hoss down --purge"),
    "status": ("hoss status", "hoss status -o json"),
    "dashboard": ("hoss dashboard", "hoss dashboard --listen 127.0.0.1:7180"),
    "top": ("hoss top", "hoss top --once"),
    "worker add": ("hoss worker add w3 gpu:accelerator=gpu --profile binpack",),
    "worker restart": ("hoss worker restart w1",),
    "worker remove": ("hoss worker remove w3",),
    "worker list": ("hoss worker list -o wide",),
    "worker logs": ("hoss worker logs w1 --tail 50",),
    "apply": (
        "hoss apply -f examples/platform.yaml --dry-run",
        "hoss apply -f examples/platform.yaml",
    ),
    "logs": ("hoss logs dispatcher", "hoss logs --follow"),
    "submit": (
        "hoss submit -f examples/web.yaml --wait",
        "kubectl get deployment web -o yaml | hoss submit -f -",
    ),
    "wait": ("hoss wait --for=bound job/web --timeout 5m", "hoss wait --for=deleted pod/web-0"),
    "events": ("hoss events", "hoss events job/web --watch"),
    "get": (
        "hoss get pods -A -o wide",
        "hoss get pods --waiting",
        "hoss get nodes -l topology.kubernetes.io/zone=zone-a --sort-by .requested.cpu",
        "hoss get reservations --worker w1 --state assumed",
    ),
    "describe": ("hoss describe pod web-0", "hoss describe node node-00001 -o yaml"),
    "trace": ("hoss trace web-0", "hoss trace web-0 -o json"),
    "explain": (
        "hoss explain pod web-0",
        "hoss explain -f pod.yaml",
        "hoss explain -f pod.yaml --nodes nodes.yaml --pods pods.yaml",
    ),
    "fragmentation": (
        "hoss fragmentation",
        "hoss fragmentation --label topology.kubernetes.io/zone -o json",
    ),
    "rebalance plan": (
        "hoss rebalance plan --goal fit-pending",
        "hoss rebalance plan --goal empty-nodes --max-moves 50 --max-pods-per-workload 2",
        "hoss rebalance plan --add-nodes 3 --like node-00001",
        "hoss rebalance plan --drain node-00001 -o json",
        "hoss rebalance plan -f examples/web.yaml",
    ),
    "rebalance controller": ("hoss rebalance controller -f examples/rebalance.yaml --check",),
    "delete": ("hoss delete pod web-0 web-1", "hoss delete job web", "hoss delete -f examples/web.yaml"),
    "ungate": ("hoss ungate pod web-0", "hoss ungate job web --gate example.com/quota"),
    "retry": ("hoss retry pod web-0", "hoss retry --failed -A"),
    "cordon": ("hoss cordon node node-00001", "hoss cordon worker w1"),
    "uncordon": ("hoss uncordon node node-00001", "hoss uncordon worker w1"),
    "drain": ("hoss drain worker w1",),
    "nodes add": ("hoss nodes add --count 100", "hoss nodes add -f nodes.yaml"),
    "nodes remove": ("hoss nodes remove node-00001",),
    "plugin new": ("hoss plugin new plugin green-energy", "hoss plugin new algorithm balanced"),
    "plugin check": (
        "hoss plugin check examples/emptiest_first.py",
        "hoss plugin check green_scheduling:GreenEnergy -f nodes.yaml",
        """hoss plugin check GreenEnergy --args '{"label": "power"}' --timeout 2""",
    ),
    "plugin check-scheduler": (
        (
            "hoss plugin check-scheduler -- python mine.py --name {name} --dispatcher {dispatcher}"
            " --resolver {resolver}"
        ),
        "hoss plugin check-scheduler -- ./mine -name {name} -dispatcher {dispatcher} -resolver {resolver}",
    ),
    "policy get": ("hoss policy get",),
    "policy set": (
        "hoss policy set -f deploy/policy.yaml",
        "hoss policy set -f deploy/policy.yaml --if-version 3",
    ),
    "policy test": (
        "hoss policy test -f examples/web.yaml",
        "hoss policy test -f examples/web.yaml --policy new.yaml --workers w1:tier=gold",
    ),
    "steer": ("hoss steer --overlap soft-partition", "hoss steer --overlap auto --workers auto"),
    "audit": ("hoss audit", "hoss audit --repair"),
    "ledger dump": ("hoss ledger dump ledger.jsonl",),
    "ledger restore": ("hoss ledger restore ledger.jsonl",),
    "ledger bootstrap": ("hoss ledger bootstrap",),
    "history record": (
        "hoss history record --out history.jsonl --seconds 60",
        "hoss history record --out history.jsonl --every 10",
    ),
    "history check": ("hoss history check history.jsonl", "hoss history check history.jsonl -o json"),
    "replay": (
        "hoss replay --format openb --nodes openb_node_list_all_node.csv --pods openb_pod_list_default.csv",
        (
            "hoss replay --format azure2020 --nodes 2000 --pods packing_trace_zone_a_v1.sqlite --from 2d "
            "--to 3d --speedup 1440"
        ),
    ),
    "bench throughput": ("hoss bench throughput --nodes 5000 --pods 100000 --repeat 3",),
    "bench compare": (
        "hoss bench compare --quick --out now",
        (
            "hoss bench compare --schedulers default,fgd,examples/emptiest_first.py:EmptiestFirst"
            " --loads openb --nodes 100"
        ),
    ),
    "bench report": ("hoss bench report now/comparison.json --html report.html",),
    "bench plan": ("hoss bench plan --pods-per-second 500000 --nodes 2000",),
    "simulate omega": ("hoss simulate omega --quick",),
    "simulate cluster": ("hoss simulate cluster --quick",),
    "simulate rebalance": ("hoss simulate rebalance --days 2 --placer emptiest",),
    "simulate check": ("hoss simulate check --measured slow.json",),
    "certs init": ("hoss certs init --authority ./authority",),
    "certs issue": (
        "hoss certs issue worker/w1 --out ./w1",
        "hoss certs issue client/ci --role submit --tenant research",
    ),
    "certs show": ("hoss certs show",),
    "certs renew": ("hoss certs renew",),
    "certs revoke": ("hoss certs revoke client/ci",),
    "certs deployment": (
        "hoss certs deployment ./credentials",
        "hoss certs deployment --secrets hoss-system",
    ),
    "redis accounts": ("hoss redis accounts", "hoss redis accounts --out ./redis"),
    "token create": ("hoss token create --role submit --tenant research --ttl 30d",),
    "token list": ("hoss token list",),
    "token revoke": ("hoss token revoke 0123456789abcdef",),
    "login": ("hoss login lab --dispatcher hoss.example.com:7100 --tls-dir ./me --token-file ./token",),
    "context list": ("hoss context list",),
    "context use": ("hoss context use lab",),
    "completion": ("source <(hoss completion bash)",),
}

# Typer loads pydantic to check a flag of its own that is None, which is what a flag is that was not given.
# That takes as long as everything else together. False means the same and is not checked.
_HELP = {"help": False}
_FLAGS_NOT_GIVEN = {
    **_HELP,
    "version": False,
    **dict.fromkeys(COMMANDS, _HELP),
}


class CommandTable(TyperGroup):
    """Loads a command when it is named, and turns HOSS's errors into one line and an exit code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Name and summary are enough for help, completion and the correction of typing errors.
        self.commands = {
            name: TyperCommand(name, help=COMMANDS[name][1], rich_help_panel=panel)
            for panel, names in PANELS.items()
            for name in names
        }
        self._loaded: set[str] = set()
        _name_no_type_of_flags(self)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run. The options -q and --quiet of the root may stand anywhere; they are moved to the front."""
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        anywhere = [word for word in given[:end] if word in _QUIET]
        if any(word in _HELP_OPTIONS for word in given[:end]):
            with without(*_UNUSED_BY_HELP, stand_ins=True):
                importlib.import_module("typer.rich_utils")
        return super().main(
            [*anywhere, *(w for w in given[:end] if w not in _QUIET), *given[end:]], *rest, **options
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is about to run."""
        name = args[0] if args else ""
        if name in COMMANDS and name not in self._loaded:
            module = importlib.import_module(f"hossctl.commands.{COMMANDS[name][0]}")
            self.commands[name] = command = get_group(module.app).commands[name]
            _add_examples(name, command)
            _take_texts_as_they_are(command)
            _name_no_type_of_flags(command)
            if ctx.resilient_parsing:
                _leave_words_unchecked(command)
            self._loaded.add(name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except HossError as exc:
            report(exc)
            raise typer.Exit(exit_code(exc)) from exc
        except typer.BadParameter as exc:
            if (problem := _wrong_option(exc)) is None:
                raise
            report(problem)
            raise typer.Exit(EXIT_BAD_INPUT) from exc
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit from None


def _wrong_option(error: typer.BadParameter) -> InvalidInput | None:
    """Typer's refusal of a value, in our words instead of pydantic's; None where it is no such refusal."""
    from annotated_types import Ge, Le  # noqa: PLC0415 - after a wrong option alone
    from pydantic import ValidationError  # noqa: PLC0415

    from hoss.document_errors import describe_value  # noqa: PLC0415

    option: Any = error.param
    if option is None or not isinstance(error.__cause__, ValidationError):
        return None
    least, most = getattr(option, "min", None), getattr(option, "max", None)
    limits = [*([] if least is None else [Ge(least)]), *([] if most is None else [Le(most)])]
    text = describe_value(error.__cause__, option.type_descriptor.annotation, limits)
    name = option.opts[-1] if option.param_type_name == "option" else option.name.upper()
    return InvalidInput(text, where=name)


def flush_output() -> None:
    """Write what stdout still buffers. Python would do so after `main`, and complain where the reader has
    closed the pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()


def _discard_output() -> None:
    """Write nothing more: the reader of stdout has closed it, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_words_unchecked(command: Any) -> None:
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            _leave_words_unchecked(below)
    else:
        command.parse_args = partial(_take_words, command)


def _take_words(command: Any, ctx: Any, args: list[str]) -> list[str]:
    """Parse the words before a Tab and leave them unchecked: checking loads pydantic, and the user waits."""
    words, rest, _ = command.make_parser(ctx).parse_args(args=args)
    for parameter in command.get_params(ctx):
        value, source = parameter.consume_value(ctx, words)
        ctx.params[parameter.name] = value
        ctx.set_parameter_source(parameter.name, source)
    ctx.args = list(rest)
    return list(rest)


class _AsItIs:
    """Takes texts and names of choices as they were given, and nothing where nothing was, as typer would.
    For all else typer builds a checker of pydantic, which takes a third of the time of `hoss get pods` to
    load."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        wanted, of_its_own = param.type_descriptor.annotation, param.type_descriptor.parameter_info.parser
        if of_its_own is None:
            if wanted is str and isinstance(value, str):
                return value
            if wanted == list[str] and isinstance(value, (list, tuple)):
                return list(value)
            if isinstance(wanted, type) and issubclass(wanted, Enum) and value in wanted._value2member_map_:
                return wanted(value)
        param._runtime_param = None  # noqa: SLF001 - then typer builds the checker
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _take_texts_as_they_are(command: Any) -> None:
    for below in getattr(command, "commands", {}).values():
        _take_texts_as_they_are(below)
    for parameter in command.params:
        parameter._runtime_param = _AS_IT_IS  # noqa: SLF001 - typer has no other way


_AS_IT_IS = _AsItIs()


def _name_no_type_of_flags(command: Any) -> None:
    """A flag takes no value, so its help names none; typer writes `<bool>`. Also of the flag --help, which
    typer makes when it is asked for."""
    for below in getattr(command, "commands", {}).values():
        _name_no_type_of_flags(below)
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    command.get_help_option = partial(_help_without_type, command.get_help_option)


def _help_without_type(make: Callable[[Any], Any], ctx: Any) -> Any:
    option = make(ctx)
    if option is not None:
        option.metavar = ""
    return option


def _add_examples(path: str, command: Any) -> None:
    """Put the examples at the end of the help of a command, and of its subcommands."""
    for name, below in getattr(command, "commands", {}).items():
        _add_examples(f"{path} {name}", below)
    if lines := EXAMPLES.get(path):
        command.epilog = "\n\n".join(("Examples:", *lines))


app = typer.Typer(
    cls=CommandTable,
    help="HOSS: many schedulers, one ledger. Parallel pod scheduling that never overcommits a node.",
    no_args_is_help=True,
    add_completion=False,  # `hoss completion` prints the script; one way is enough
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP_OPTIONS, "default_map": _FLAGS_NOT_GIVEN},
    epilog="Exit codes: 0 done; 1 failed, not found, or a broken invariant; 2 wrong usage or bad input; "
    "3 cannot be reached.",
)

completion_init()  # how the script of `hoss completion` asks, which typer else leaves out


def _print_version(context: typer.Context, *, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        typer.echo(f"hoss {hoss.version()}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    *,
    quiet: Annotated[
        bool,
        typer.Option(*_QUIET, help="Say nothing but results and errors; may also stand after the command."),
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of all commands."""
    if quiet and QUIET not in os.environ:
        os.environ[QUIET] = "1"
        context.call_on_close(lambda: os.environ.pop(QUIET))


def exit_code(error: Exception) -> int:
    """The exit code of an error."""
    if isinstance(error, (TransportError, LedgerUnavailable, Overloaded)):
        return EXIT_UNREACHABLE
    if isinstance(error, NotFound):
        return EXIT_FAILED
    return EXIT_BAD_INPUT if isinstance(error, InvalidInput) else EXIT_FAILED


def report(error: BaseException) -> None:
    """Write an error to stderr as one line; with HOSS_DEBUG=1 also its traceback."""
    if os.environ.get("HOSS_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, HossError):
        text = str(error)
    elif isinstance(error, OSError) and error.errno in _REMEDIES:
        place = f"{error.filename}: " if error.filename else ""
        text = f"{place}{error.strerror}; {_REMEDIES[error.errno]}"
    elif isinstance(error, OSError) and str(error.strerror).startswith(_NO_TEMPORARY_FILES):
        text = f"{error.strerror}: name a directory of yours with TMPDIR"
    else:
        fault = "this is a fault in hoss, run again with HOSS_DEBUG=1 for the place"
        text = f"{type(error).__name__}: {error}; {fault}"
    typer.echo(printable(f"error: {text}"), err=True)
