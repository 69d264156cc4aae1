"""docs/reference/cli.md: every command, from the parsers that read its arguments."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from hossctl.cli import app
from hossctl.command_table import COMMANDS
from tools.reference import GENERATED, cell, rows

_KINDS = {int: "whole number", float: "number", str: "text", Path: "path"}
_NOTHING: tuple[Any, ...] = (None, "", [], (), False)

_INTRODUCTION = (
    "`-q`, `--quiet` (anywhere): nothing but results and errors. `-h`, `--help`: of each command, what "
    "stands here. `hoss --version`: the version. Results go to standard "
    "output, all else to standard error. How commands find the platform, and their formats: "
    "[operations.md](../operations.md#the-command-line)."
)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words: ("hoss bench throughput", its parser)."""
    table: Any = get_command(app)
    context = table.make_context("hoss", [], resilient_parsing=True)
    for name in COMMANDS:
        _, command, _ = table.resolve_command(context, [name])
        yield from _leaves(f"hoss {name}", command)


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in sorted(command.commands):
        yield from _leaves(f"{path} {name}", command.commands[name])


def page() -> str:
    found = list(commands())
    parts = [
        "# The command line",
        GENERATED,
        f"{app.info.epilog} Anything more particular stands with its command.",
        _INTRODUCTION,
        rows(
            ("command", "does"),
            ((f"[`{path}`](#{path.replace(' ', '-')})", _first(parser.help)) for path, parser in found),
        ),
        *(_section(path, parser) for path, parser in found),
    ]
    return "\n\n".join(parts) + "\n"


def _first(text: str | None) -> str:
    return cell((text or "").split("\n\n")[0])


def _section(path: str, parser: Any) -> str:
    parameters = [p for p in parser.params if not p.hidden]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    usage = " ".join(
        [path, *(["[OPTIONS]"] if options else []), *(a.metavar or a.name.upper() for a in arguments)]
    )
    parts = [f"## {path}", f"```text\n{usage}\n```", parser.help or ""]
    if parameters:
        listed = [(f"`{a.metavar or a.name.upper()}`", *_about(a)) for a in arguments]
        listed += [(_spelling(o), *_about(o)) for o in options]
        parts.append(rows(("argument or option", "takes", "default", "meaning"), listed))
    if parser.epilog:
        parts.append("\n".join(("```sh", *parser.epilog.split("\n\n")[1:], "```")))
    return "\n\n".join(part for part in parts if part)


def _spelling(option: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _about(parameter: Any) -> tuple[str, str, str]:
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif callable(default) or any(default is nothing or default == nothing for nothing in _NOTHING):
        shown = ""
    else:
        shown = f"`{default.value if isinstance(default, Enum) else default}`"
    return _takes(parameter), shown, cell(parameter.help or "")


def _takes(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    several = get_origin(kind) is list
    kind = get_args(kind)[0] if several else kind
    if kind is bool:
        return "flag"
    if parameter.param_type_name == "option" and parameter.metavar:
        words = f"`{parameter.metavar}`"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        words = ", ".join(f"`{choice.value}`" for choice in kind)
    elif get_origin(kind) is Literal:
        words = ", ".join(f"`{choice}`" for choice in get_args(kind))
    else:
        words = _KINDS[kind]
    low, high = parameter.min, parameter.max
    if low is not None and high is not None:
        words += f", {low} to {high}"
    elif low is not None:
        words += f", {low} or more"
    elif high is not None:
        words += f", at most {high}"
    return cell(f"{words}, repeatable" if several else words)
