"""Kubectl's JSONPath templates: text with expressions in braces, as in '{.items[*].name}'.

Supported (kubernetes.io/docs/reference/kubectl/jsonpath): `.field`, `['field']`, `[n]`, `[from:to]`, `[*]`,
`.*`, `[?(@.field == value)]` with ==, !=, <, <=, >, >=, `[?(@.field)]` for a field that exists, `{range
EXPRESSION}...{end}`, and "text" in double quotes. A missing field prints nothing."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import orjson

from hoss.errors import InvalidInput

_WHERE = "-o jsonpath"
_PIECE = re.compile(r"\{((?:[^{}\"']|\"(?:[^\"\\]|\\.)*\"|'[^']*')*)\}|([^{}]+)")
_STEP = re.compile(
    r"""\.(?P<field>[A-Za-z_][\w-]*) | \.?\[\s*'(?P<quoted>[^']*)'\s*\] | (?P<every>\.\*|\[\*\])
      | \[(?P<slice>-?\d*:-?\d*)\] | \[(?P<index>-?\d+)\] | \[\?\(\s*@(?P<tested>[^\s=!<>)]+)\s*
        (?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*)?\)\]""",
    re.VERBOSE,
)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}

Step = Callable[[Any], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Path:
    """One expression. Each step maps a value to the values below it."""

    steps: tuple[Step, ...]

    def values(self, root: Any) -> list[Any]:
        """All values that the steps lead to, in document order."""
        found = [root]
        for step in self.steps:
            found = [value for parent in found for value in step(parent)]
        return found


@dataclass(frozen=True, slots=True)
class Range:
    """The parts between {range} and {end}, written once for each value of the path."""

    path: Path
    parts: "Sequence[str | Path | Range]"


Template = Sequence["str | Path | Range"]


def read_path(text: str, *, where: str = _WHERE) -> Path:
    """A path such as `.a.b[0]`; `$` in front and a missing first dot are allowed. Raises InvalidInput with
    the part that cannot be read."""
    rest = text.strip().removeprefix("$")
    rest = rest if rest.startswith((".", "[")) or not rest else f".{rest}"
    steps, position = [], 0
    while position < len(rest) and rest != ".":
        found = _STEP.match(rest, position)
        if found is None:
            raise InvalidInput(
                f"{text!r} cannot be read from {rest[position:]!r} on; write .field, [n] or [*]", where=where
            )
        steps.append(_step(found, where))
        position = found.end()
    return Path(tuple(steps))


def read_template(text: str) -> Template:
    """A template's parts. Raises InvalidInput for braces that do not close, and an {end} or {range} without
    the other."""
    open_ranges: list[Path] = []
    levels: list[list[str | Path | Range]] = [[]]
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise InvalidInput(f"a brace at {text[position:]!r} has no other; write {{.field}}", where=_WHERE)
        position = piece.end()
        expression = (piece[1] or "").strip()
        if piece[2] is not None:
            levels[-1].append(piece[2])
        elif expression.startswith('"'):
            levels[-1].append(_text(expression))
        elif expression.startswith("range "):
            open_ranges.append(read_path(expression.removeprefix("range ")))
            levels.append([])
        elif expression == "end":
            if not open_ranges:
                raise InvalidInput("{end} has no {range}", where=_WHERE)
            inner = levels.pop()
            levels[-1].append(Range(open_ranges.pop(), inner))
        else:
            levels[-1].append(read_path(expression.removeprefix("@")))
    if open_ranges:
        raise InvalidInput("{range} has no {end}", where=_WHERE)
    return levels[0]


def written(template: Template, root: Any) -> str:
    """The template filled in from a document. Several values of an expression are separated by spaces, as in
    kubectl."""
    text = []
    for part in template:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, Path):
            text.append(" ".join(map(_written, part.values(root))))
        else:
            text += [written(part.parts, value) for value in part.path.values(root)]
    return "".join(text)


def _text(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except json.JSONDecodeError as exc:
        raise InvalidInput(f'{quoted} is no text; write it as in {{"\\n"}}', where=_WHERE) from exc


def _step(found: "re.Match[str]", where: str) -> Step:
    if (name := found["field"] or found["quoted"]) is not None:
        return lambda parent: iter([parent[name]] if isinstance(parent, dict) and name in parent else [])
    if found["every"]:
        return lambda parent: iter(parent.values() if isinstance(parent, dict) else _items(parent))
    if found["slice"]:
        first, last = (int(bound) if bound else None for bound in found["slice"].split(":"))
        return lambda parent: iter(_items(parent)[first:last])
    if found["index"]:
        index = int(found["index"])
        return lambda parent: iter(_items(parent)[index : index + 1 or None])
    return _filter(found, where)


def _filter(found: "re.Match[str]", where: str) -> Step:
    tested = read_path(found["tested"], where=where)
    if found["operator"] is None:
        return lambda parent: (item for item in _items(parent) if tested.values(item))
    compare, literal = _OPERATORS[found["operator"]], _literal(found["value"])

    def holds(item: Any) -> bool:
        try:
            return any(compare(value, literal) for value in tested.values(item))
        except TypeError:  # a text and a number have no order
            return False

    return lambda parent: (item for item in _items(parent) if holds(item))


def _literal(text: str) -> Any:
    if text[0] in "'\"":
        return text[1:-1]
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _written(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
