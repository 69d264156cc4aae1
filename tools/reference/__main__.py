"""Writes docs/reference; with --check it reports pages that differ from the code. Needs the development extra
(protoc)."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools.reference import cli, configuration, protocol

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli.page,
    "configuration.md": configuration.page,
    "grpc.md": lambda: protocol.page(ROOT / "proto"),
}


def stale(directory: Path = DIRECTORY) -> list[str]:
    """The pages of a directory that are missing or differ from the code."""
    paths = {name: directory / name for name in PAGES}
    return [
        name for name, path in paths.items() if not path.exists() or path.read_text("utf-8") != PAGES[name]()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where --check finds a stale page."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is stale")
    if parser.parse_args(arguments).check:
        old = stale()
        if old:
            sys.stderr.write(
                f"docs/reference is not what the code says: {', '.join(old)}; commit what `make docs` makes\n"
            )
        return 1 if old else 0
    DIRECTORY.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (DIRECTORY / name).write_text(make(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
