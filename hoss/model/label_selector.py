"""Label selectors as kubectl takes them: `app=web,tier in (a, b),!canary`, after apimachinery's labels package."""

import re

from hoss.errors import InvalidInput
from hoss.model.names import check_key, check_label_value
from hoss.model.selectors import Requirement

_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_COMPARED = re.compile(r"([^=!<>\s]+)\s*(==|=|!=|>|<)\s*(\S*)")
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


def parse_label_selector(text: str, *, where: str) -> tuple[Requirement, ...]:
    """ANDed requirements; none for empty text, which selects everything. Raises InvalidInput naming the bad part."""
    if text.count("(") != text.count(")"):
        raise InvalidInput(f"{text!r} has unbalanced parentheses", where=where)
    parts = [part.strip() for part in _PART.findall(text)]
    return tuple(_requirement(part, where) for part in parts if part)


def _requirement(part: str, where: str) -> Requirement:
    if found := _SET.fullmatch(part):
        values = tuple(check_label_value(value.strip(), where) for value in found[3].split(","))
        return Requirement(check_key(found[1], where), _OPERATORS[found[2]], values)
    if found := _COMPARED.fullmatch(part):
        return Requirement(check_key(found[1], where), _OPERATORS[found[2]], (check_label_value(found[3], where),))
    if part.startswith("!"):
        return Requirement(check_key(part[1:].strip(), where), "DoesNotExist")
    if " " in part:
        raise InvalidInput(
            f"{part!r} is no requirement; write key=value, key!=value, key in (a,b), key notin (a,b), key or !key",
            where=where,
        )
    return Requirement(check_key(part, where), "Exists")
