"""What every benchmark does with its figures: `-o`, `--json FILE`, and a table and a summary for people."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer

from hoss.errors import InvalidInput, writing
from hossctl.console import Column, Document, Format, print_document, print_rows, print_summary
from hossctl.options import only

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there as well.")
]


def check(output: Format, path: Path | None) -> None:
    """Raise InvalidInput where the figures could not be printed or written: before minutes of measuring."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if path is not None and not path.parent.is_dir():
        raise InvalidInput(f"its directory {path.parent} is not there", where=f"--json {path}")


def publish(
    document: Document,
    output: Format,
    path: Path | None,
    *,
    table: tuple[Sequence[Document], Sequence[Column]] | None = None,
    title: str = "",
    lines: Iterable[tuple[str, object]] | None = None,
) -> None:
    """Write the figures to the file, if there is one, and print them: the document, or for people the rows
    and columns of a table and the lines of a summary."""
    if path is not None:
        with writing(f"--json {path}"):
            path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    if not output.for_people:
        print_document(document, output)
        return
    if table is not None:
        print_rows(*table, wide=False)
    if lines is not None:
        print_summary(title, lines)
