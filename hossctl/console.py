"""What commands write: one document or table on stdout, everything for people on stderr."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
import typer

from hossctl.cli import QUIET
from hossctl.jsonpath import Template, written

Document = dict[str, Any]  # what -o json prints: JSON's own types only


class Format(str, Enum):
    """What `-o` may name."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def for_people(self) -> bool:
        """Whether the output is read by eyes and not by programs."""
        return self in (Format.TABLE, Format.WIDE)


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: its heading and how a document's cell is found. Wide ones show with `-o wide` alone."""

    heading: str
    cell: Callable[[Document], object]
    wide: bool = False


def print_document(document: Document, output: Format, template: Template | None = None) -> None:
    """One document on stdout, as JSON, as YAML, or as a template is filled in from it."""
    if template is not None:
        sys.stdout.write(written(template, document).rstrip("\n") + "\n")
    elif output is Format.YAML:
        import yaml  # noqa: PLC0415 - for this form alone

        sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_rows(rows: Sequence[Document], columns: Sequence[Column], *, wide: bool, headings: bool = True) -> None:
    """A plain table as kubectl prints it: capital headings, columns set apart by spaces. Nothing is cut, but where a
    terminal's lines end, unless `wide`."""
    shown = [column for column in columns if wide or not column.wide]
    cells = [[_cell(column.cell(row)) for column in shown] for row in rows]
    if headings:
        cells.insert(0, [column.heading for column in shown])
    widths = [max((len(line[i]) for line in cells), default=0) for i in range(len(shown))]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() and not wide else None
    for line in cells:
        text = "   ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        sys.stdout.write((text if most is None or len(text) <= most else text[: most - 1] + "…") + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Sentences beside a table, on stdout."""
    for line in lines:
        sys.stdout.write(line + "\n")


def print_summary(title: str, lines: Iterable[tuple[str, object]], *, to_stderr: bool = False) -> None:
    """A summary of names and values."""
    from rich.console import Console  # noqa: PLC0415 - what prints no summary starts sooner without it
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, _cell(value))
    Console(stderr=to_stderr, highlight=False, markup=False).print(table)


def say(text: str) -> None:
    """A line for people, on stderr; nothing with --quiet."""
    if not os.environ.get(QUIET):
        typer.echo(text, err=True)


def warn(text: str) -> None:
    """Something that was left out or looks wrong, and does not stop the command; nothing with --quiet."""
    say(f"warning: {text}")


def complain(text: str) -> None:
    """What failed of several things that were asked for, on stderr; the others were done."""
    typer.echo(f"error: {text}", err=True)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "<none>"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    return str(value)
