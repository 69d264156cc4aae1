"""docs/troubleshooting.md quotes what the code says: a symptom that is worded otherwise by now cannot be found by whoever meets it."""

import ast
import re

import pytest
from written_commands import ROOT

_PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
_ROWS = [line.split(" | ")[0].removeprefix("| ") for line in _PAGE.splitlines() if line.startswith("| ")]
# Those that are the name of something, and no sentence: a column, a metric, a code.
_QUOTED = [quote for row in _ROWS for quote in re.findall(r"`([^`]+)`", row) if not quote.startswith("hoss ")]


def _texts() -> str:
    """Every text in the sources, f-strings with their holes as a mark."""
    found: list[str] = []
    for package in ("hoss", "hossctl", "dispatcher", "scheduler_worker", "resolver"):
        for path in (ROOT / package).rglob("*.py"):
            if "v1" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(p.value if isinstance(p, ast.Constant) else "\0" for p in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


_TEXTS = _texts()


def test_the_page_has_symptoms() -> None:
    assert len(_QUOTED) > 40


@pytest.mark.parametrize("quote", _QUOTED)
def test_a_quoted_symptom_is_what_the_code_says(quote: str) -> None:
    for part in quote.split("..."):
        assert part.strip(" ()") in _TEXTS, f"no text in the sources has {part!r}"
