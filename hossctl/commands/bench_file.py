"""`--json FILE` of every benchmark."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

from hoss.errors import InvalidInput
from hossctl.console import Document

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there as well.")]


def check_writable(path: Path | None) -> None:
    """Raise InvalidInput where the figures could not be written: found out before minutes of measuring, not after."""
    if path is not None and not path.parent.is_dir():
        raise InvalidInput(f"its directory {path.parent} is not there", where=f"--json {path}")


def write(path: Path | None, document: Document) -> None:
    """Write the figures, if they are wanted in a file."""
    if path is None:
        return
    try:
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as exc:
        raise InvalidInput(f"cannot be written: {exc.strerror}", where=f"--json {path}") from exc
