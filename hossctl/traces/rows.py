"""Lines of a table by column name: CSV text or JSON lines, gzipped or not. Files of any size are read as a
stream."""

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, cast

import orjson

from hoss.errors import InvalidInput
from hoss.model.resources import MAX_AMOUNT

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class Row:
    """One line. A missing column counts as an empty cell."""

    __slots__ = ("_cells", "_line", "_path")

    def __init__(self, path: Path, line: int, cells: Mapping[str, object]) -> None:
        self._path, self._line, self._cells = path, line, cells

    def has(self, column: str) -> bool:
        """Whether the line has the column, be it empty."""
        return column in self._cells

    def text(self, column: str, *, optional: bool = False) -> str:
        """The cell, without spaces around it. InvalidInput where it is empty and not optional."""
        value = self._cells.get(column)
        cell = "" if value is None else str(value).strip()
        if not cell and not optional:
            raise self.error(column, "is empty")
        return cell

    def number(self, column: str, *, most: int = MAX_AMOUNT) -> int:
        """The cell as a whole number from 0 to `most`."""
        cell = self.text(column)
        # Some traces write whole numbers as 12.0.
        digits = cell.removesuffix(".0")
        if not (digits.isascii() and digits.isdigit()):
            raise self.error(column, f"is {cell!r}; a whole number belongs here")
        if len(digits) > 20 or int(digits) > most:
            raise self.error(column, f"is {cell}; it is {most} at most")
        return int(digits)

    def fraction(self, column: str) -> float | None:
        """The cell as a number from 0 to 1, None where it is empty."""
        cell = self.text(column, optional=True)
        if not cell:
            return None
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not 0 <= value <= 1:
            raise self.error(column, f"is {cell!r}; a share of the largest machine belongs here, 0 to 1")
        return value

    def error(self, column: str, problem: str) -> InvalidInput:
        """An error with file, line and column."""
        return InvalidInput(problem, where=f"{self._path} line {self._line}, column {column}")


def rows(path: Path, columns: Sequence[str], spellings: Mapping[str, str] | None = None) -> Iterator[Row]:
    """The lines of a CSV file or of JSON lines, whichever the file is. Members of nested JSON objects are
    columns with a dot in their names. A line may lack columns that are not among `columns`. `spellings`:
    other names of columns and the names used here; their cells may be empty, but a CSV header must have them.
    InvalidInput names file and line."""
    with _opened(path) as file:
        read = _json_rows if file.peek(1)[:1] == b"{" else _csv_rows
        yield from read(path, file, columns, spellings or {})


def _csv_rows(
    path: Path, file: BufferedReader, columns: Sequence[str], spellings: Mapping[str, str]
) -> Iterator[Row]:
    try:
        # Closed here: who stops at a wrong row drops this generator, and with it the text around the file.
        with TextIOWrapper(file, encoding="utf-8", newline="") as text:
            lines = csv.reader(text, strict=True)
            header = [spellings.get(name, name) for name in next(lines, [])]
            _refuse_missing(path, 1, [*columns, *dict.fromkeys(spellings.values())], header)
            for cells in lines:
                if not cells:
                    continue
                if len(cells) != len(header):
                    short = f"; {header[len(cells)]} is missing" if len(cells) < len(header) else ""
                    raise InvalidInput(
                        f"has {len(cells)} columns where {len(header)} belong{short}",
                        where=f"{path} line {lines.line_num}",
                    )
                yield Row(path, lines.line_num, dict(zip(header, cells, strict=True)))
    except (csv.Error, UnicodeDecodeError) as exc:
        raise InvalidInput(f"is no CSV text: {exc}", where=str(path)) from exc


def _json_rows(
    path: Path, file: BufferedReader, columns: Sequence[str], spellings: Mapping[str, str]
) -> Iterator[Row]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise InvalidInput(f"is no JSON: {exc}", where=f"{path} line {number}") from exc
        if not isinstance(found, dict):
            raise InvalidInput("is no JSON object; a line is one", where=f"{path} line {number}")
        cells = {spellings.get(name, name): value for name, value in _flat(found)}
        if not cells.keys() >= set(columns):
            _refuse_missing(path, number, columns, list(cells))
        yield Row(path, number, cells)


def _flat(members: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in members.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", cell) for inner, cell in value.items())
        else:
            yield name, value


def _refuse_missing(path: Path, line: int, columns: Sequence[str], found: Sequence[str]) -> None:
    missing = [column for column in columns if column not in found]
    if missing:
        there = ", ".join(found) or "nothing"
        raise InvalidInput(f"has no column {', '.join(missing)}; found {there}", where=f"{path} line {line}")


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """The file's bytes, unpacked and without a byte order mark. Read errors become InvalidInput."""
    try:
        with path.open("rb") as raw:
            file = cast("BufferedReader", gzip.GzipFile(fileobj=raw)) if raw.peek(2)[:2] == _GZIP else raw
            if file.peek(3)[:3] == _BOM:
                file.read(3)
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
        raise InvalidInput(f"is damaged gzip: {exc}", where=str(path)) from exc
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror or exc}", where=str(path)) from exc
