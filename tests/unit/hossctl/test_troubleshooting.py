"""docs/troubleshooting.md quotes what the code says: a symptom that is worded otherwise by now cannot be
found by whoever meets it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from written_commands import ROOT

_PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
_ROWS = [line.split(" | ")[0].removeprefix("| ") for line in _PAGE.splitlines() if line.startswith("| ")]
# Those that are the name of something, and no sentence: a column, a metric, a code.
_QUOTED = [quote for row in _ROWS for quote in re.findall(r"`([^`]+)`", row) if not quote.startswith("hoss ")]


@cache
def _sources() -> list[tuple[Path, ast.Module]]:
    """Every module that is installed, parsed."""
    return [
        (path, ast.parse(path.read_text("utf-8")))
        for package in ("hoss", "hossctl", "dispatcher", "scheduler_worker", "resolver")
        for path in (ROOT / package).rglob("*.py")
        if "v1" not in path.parts
    ]


@cache
def _texts() -> str:
    """Every text in the sources, f-strings with their holes as a mark."""
    strings = (ast.JoinedStr, ast.Constant)
    return "\n".join(
        _text_of(node) for _, module in _sources() for node in ast.walk(module) if isinstance(node, strings)
    )


def _text_of(node: ast.expr) -> str:
    """A string or f-string, holes as a mark; empty for what is none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _sentences(node: ast.AST) -> Iterator[str]:
    """Texts of several words below a node, a docstring and what is in the holes of others left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and (text := _text_of(child)):
            if " " in text.strip():
                yield text
        elif not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield from _sentences(child)


def _problems() -> Iterator[str]:
    """What `hoss status` can say as a problem: what is put under `problems`, what functions of that name say,
    what the resolver says of nodes in quarantine, and why the policy sends pods nowhere."""
    status = ROOT / "hossctl" / "views" / "status.py"
    for path, module in _sources():
        if path != status and path.relative_to(ROOT).parts[0] not in ("dispatcher", "resolver"):
            continue
        for node in ast.walk(module):
            match node:
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Attribute(attr="problems") | ast.Name(id="problems"))]
                ):
                    yield from _sentences(node)
                case ast.FunctionDef(name="problems" | "_problems" | "misplaced"):
                    yield from _sentences(node)
                case ast.Call(func=ast.Attribute(attr="append", value=ast.Attribute(attr="quarantined"))):
                    yield from _sentences(node)
                case ast.Call(func=ast.Name(id="Target")):
                    yield from _sentences(node)


_STATUS_ROWS = _PAGE.partition("## `hoss status` names a problem")[2].partition("\n## ")[0].splitlines()
_STATUS_QUOTES = [
    quote
    for row in _STATUS_ROWS
    for quote in re.findall(r"`([^`]+)`", row.removeprefix("| ").split(" | ")[0])
]


def test_every_problem_that_hoss_status_names_stands_on_the_page() -> None:
    problems = set(_problems())
    assert len(problems) >= 20
    assert any("does not answer" in sentence for sentence in problems)
    missing = [
        sentence
        for sentence in sorted(problems)
        if not any(all(part.strip() in sentence for part in quote.split("...")) for quote in _STATUS_QUOTES)
    ]
    assert not missing, f"docs/troubleshooting.md has no row for {missing}"


def test_the_page_has_symptoms() -> None:
    assert len(_QUOTED) > 40


@pytest.mark.parametrize("quote", _QUOTED)
def test_a_quoted_symptom_is_what_the_code_says(quote: str) -> None:
    for part in quote.split("..."):
        assert part.strip(" ()") in _texts(), f"no text in the sources has {part!r}"
