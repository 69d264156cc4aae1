"""What commands write: one document or table on stdout, everything for people on stderr."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
import typer
import yaml
from rich.console import Console
from rich.table import Table

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


def print_document(document: Document, output: Format) -> None:
    """One document on stdout, as JSON or YAML."""
    if output is Format.YAML:
        sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_rows(rows: Sequence[Document], columns: Sequence[Column], *, wide: bool, headings: bool = True) -> None:
    """A plain table as kubectl prints it: capital headings, columns set apart by spaces, nothing cut."""
    shown = [column for column in columns if wide or not column.wide]
    cells = [[_cell(column.cell(row)) for column in shown] for row in rows]
    if headings:
        cells.insert(0, [column.heading for column in shown])
    widths = [max((len(line[i]) for line in cells), default=0) for i in range(len(shown))]
    for line in cells:
        sys.stdout.write(
            "   ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n"
        )


def print_summary(title: str, lines: Iterable[tuple[str, object]], *, to_stderr: bool = False) -> None:
    """A summary of names and values."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, _cell(value))
    Console(stderr=to_stderr, highlight=False, markup=False).print(table)


def say(text: str) -> None:
    """A line for people, on stderr."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    """Something that was left out or looks wrong, and does not stop the command."""
    typer.echo(f"warning: {text}", err=True)


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
