"""Writes docs/reference and the schema of the chart's values; with --check it reports what differs from the
code. Needs the development extra (protoc)."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools.reference import chart, cli, configuration, protocol

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli.page,
    "configuration.md": configuration.page,
    "grpc.md": lambda: protocol.page(ROOT / "proto"),
}
SCHEMA = ROOT / "deploy" / "helm" / "hoss" / "values.schema.json"


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
        if chart.schema(SCHEMA) != SCHEMA.read_text("utf-8"):
            old.append(SCHEMA.name)
        if old:
            sys.stderr.write(f"not what the code says: {', '.join(old)}; commit what `make docs` makes\n")
        return 1 if old else 0
    SCHEMA.write_text(chart.schema(SCHEMA), "utf-8")
    DIRECTORY.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (DIRECTORY / name).write_text(make(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
