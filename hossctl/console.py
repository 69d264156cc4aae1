"""What commands write: a document, a table or a summary on stdout, and messages for people on stderr.

This module is the only one that prints tables and documents. Tables, lines and messages have no control
characters but its own, wherever they go. Documents (JSON, YAML, what a template makes of one) are escaped on
a terminal alone."""

import contextlib
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
import typer

from hoss.errors import printable
from hossctl.cli import QUIET
from hossctl.jsonpath import Template, written

Document = dict[str, Any]  # what -o json prints: JSON's own types only

_IN_A_ROW = str.maketrans({"\n": "\\n", "\t": "\\t"})  # a row is one line, and a tab no column of others
_GAP = "   "  # between a table's columns
_SUMMARY_GAP = "  "
PATIENCE_SECONDS = 2.0  # so long, nobody needs to be told that something happens
_LEAST_VALUE_WIDTH = 20  # of a summary on a narrow terminal


class Format(str, Enum):
    """The formats of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def for_people(self) -> bool:
        """Whether people read the output, and not programs."""
        return self in (Format.TABLE, Format.WIDE)


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: its heading and how a row's cell is computed. Wide columns show with `-o wide`
    only."""

    heading: str
    cell: Callable[[Document], object]
    wide: bool = False


def print_document(document: Document, output: Format, template: Template | None = None) -> None:
    """One document on stdout: as JSON, as YAML, or as a template filled in from it."""
    if template is not None:
        text = written(template, document).rstrip("\n") + "\n"
    elif output is Format.YAML:
        import yaml  # noqa: PLC0415 - only this format needs it

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    else:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def print_rows(
    rows: Sequence[Document], columns: Sequence[Column], *, wide: bool = False, headings: bool = True
) -> None:
    """A table on stdout. On a terminal its lines are cut at the right edge, unless `wide`; elsewhere nothing
    is cut."""
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() and not wide else None
    for line in table_lines(rows, columns, wide=wide, headings=headings):
        sys.stdout.write((line if most is None or len(line) <= most else line[: most - 1] + "…") + "\n")


def table_lines(
    rows: Sequence[Document], columns: Sequence[Column], *, wide: bool = False, headings: bool = True
) -> list[str]:
    """A table as kubectl writes it: capital headings, columns set apart by spaces, no rules. A row is one
    line."""
    shown = [column for column in columns if wide or not column.wide]
    cells = [[_cell(column.cell(row)).translate(_IN_A_ROW) for column in shown] for row in rows]
    if headings:
        cells.insert(0, [column.heading for column in shown])
    widths = [max((len(line[i]) for line in cells), default=0) for i in range(len(shown))]
    return [
        _GAP.join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def print_lines(lines: Iterable[str]) -> None:
    """Lines on stdout."""
    for line in lines:
        sys.stdout.write(printable(line) + "\n")


def print_summary(title: str, lines: Iterable[tuple[str, object]], *, to_stderr: bool = False) -> None:
    """A title, and below it names and values in two columns. Long values continue on the next line."""
    cells = [(printable(name), _cell(value)) for name, value in lines]
    name_width = max((len(name) for name, _ in cells), default=0)
    indent = " " * name_width + _SUMMARY_GAP
    width = max(_LEAST_VALUE_WIDTH, shutil.get_terminal_size().columns - len(indent))
    if title:
        typer.secho(printable(title), bold=True, err=to_stderr)
    for name, text in cells:
        parts = [
            part
            for line in text.splitlines()
            for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]
        ]
        typer.echo(_SUMMARY_GAP.join((_dim(name, name_width), *parts[:1])), err=to_stderr)
        for part in parts[1:]:
            typer.echo(indent + part, err=to_stderr)


def _dim(name: str, width: int) -> str:
    return typer.style(name, dim=True) + " " * (width - len(name))


def say(text: str) -> None:
    """A line for people, on stderr; nothing with --quiet."""
    if not os.environ.get(QUIET):
        typer.echo(printable(text), err=True)


@contextlib.contextmanager
def announced(text: str, *, after_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """While the block takes longer than people wait without a sign, say on a terminal that `text` goes on."""
    if os.environ.get(QUIET) or not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        pause = after_seconds
        while not ended.wait(pause):
            say(f"{text}: {time.monotonic() - began:.0f} s so far")
            pause *= 2  # the longer it takes, the less there is to say

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


@contextlib.contextmanager
def on_interrupt(text: str) -> Iterator[None]:
    """Where Ctrl-C ends the block, say what goes on or stays without this command."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted: {text}")
        raise


def warn(text: str) -> None:
    """A problem that does not stop the command, on stderr; nothing with --quiet."""
    say(f"warning: {text}")


def complain(text: str) -> None:
    """The failure of one of several things that a command was given, on stderr. The others were done."""
    typer.echo(printable(f"error: {text}"), err=True)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "<none>"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.1f}" if isinstance(value, float) else printable(str(value))
