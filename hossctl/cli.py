"""The command line of `hoss`: how a command is found, its help written, its errors reported, and exit codes.

A command's module is imported when the command runs, and not before: `hoss --help` and completion must not
wait for NumPy and gRPC.

Exit codes: 0 done; 1 it failed, was not found, or an invariant is broken; 2 wrong usage or bad input; 3 the
platform cannot be reached."""

import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from types import FrameType
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
from hossctl.command_table import COMMANDS, EXAMPLES, PANELS

ResultT = TypeVar("ResultT")


class Terminated(SystemExit):
    """SIGTERM came. Carries the exit code of shells for a command that SIGTERM ended."""


def end(number: int, _frame: FrameType | None) -> None:
    """The command's handler of SIGTERM. Raises Terminated."""
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise Terminated(EXIT_TERMINATED)


def run_async(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a command's coroutine on a new event loop, on uvloop where that is installed. SIGTERM cancels it,
    as asyncio has Ctrl-C do, and Terminated is raised once it has cleaned up: raised by the handler, it may
    meet code that drops it, such as gRPC's that asks for the next message of a stream."""
    import asyncio  # noqa: PLC0415 - help and errors of usage need no loop

    if signal.getsignal(signal.SIGTERM) is not end:  # nobody's, or of a command that does something else
        return _run(main)
    terminated = False

    async def cancelled_by_sigterm() -> ResultT:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def cancel(number: int, _frame: FrameType | None) -> None:
            nonlocal terminated
            terminated = True
            signal.signal(number, signal.SIG_IGN)
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGTERM, cancel)
        return await main

    try:
        return _run(cancelled_by_sigterm())
    finally:
        if terminated:  # also where it came too late to cancel anything
            raise Terminated(EXIT_TERMINATED)
        signal.signal(signal.SIGTERM, end)


def _run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    import asyncio  # noqa: PLC0415 - as above

    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(main)
    result: ResultT = uvloop.run(main)
    return result


EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 128 + signal.SIGINT  # of shells for a command that Ctrl-C ended
EXIT_TERMINATED = 128 + signal.SIGTERM

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
