"""What every benchmark does with its figures: `-o`, and `--json FILE`."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

from hoss.errors import InvalidInput
from hossctl.console import Document, Format, print_document
from hossctl.options import only

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there as well.")]


def check(output: Format, path: Path | None) -> None:
    """Raise InvalidInput where the figures could not be printed or written: found out before minutes of measuring, not after."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if path is not None and not path.parent.is_dir():
        raise InvalidInput(f"its directory {path.parent} is not there", where=f"--json {path}")


def publish(document: Document, output: Format, path: Path | None) -> None:
    """Write the figures, if they are wanted in a file, and print them, unless that is to be for people."""
    if path is not None:
        try:
            path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
        except OSError as exc:
            raise InvalidInput(f"cannot be written: {exc.strerror}", where=f"--json {path}") from exc
    if not output.for_people:
        print_document(document, output)
