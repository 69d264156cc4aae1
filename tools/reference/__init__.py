"""The pages under docs/reference, generated from the code: `python -m tools.reference`. Here are the parts of
Markdown that all pages use."""

from collections.abc import Iterable, Sequence

GENERATED = "Made by `make docs` from the code. A change belongs there."


def cell(text: str) -> str:
    """Text for a cell of a table: one line, its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def rows(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    table = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)
