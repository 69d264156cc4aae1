"""Parses kubectl's label selectors (`app=web,tier in (a, b),!canary`) like apimachinery's labels package."""

import re

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import check_key, check_label_value
from hoss.model.selectors import Requirement

_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_COMPARED = re.compile(r"([^=!<>\s]+)\s*(==|=|!=|>|<)\s*(\S*)")
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


def parse_label_selector(text: str, *, where: str) -> tuple[Requirement, ...]:
    """ANDed requirements. Empty text has none: it selects everything. Raises InvalidInput."""
    if text.count("(") != text.count(")"):
        raise InvalidInput(f"{quoted(text)} has unbalanced parentheses", where=where)
    parts = [part.strip() for part in _PART.findall(text)]
    return tuple(_requirement(part, where) for part in parts if part)


def _requirement(part: str, where: str) -> Requirement:
    if found := _SET.fullmatch(part):
        values = tuple(check_label_value(value.strip(), where) for value in found[3].split(","))
        return Requirement(check_key(found[1], where), _OPERATORS[found[2]], values)
    if found := _COMPARED.fullmatch(part):
        value = check_label_value(found[3], where)
        return Requirement(check_key(found[1], where), _OPERATORS[found[2]], (value,))
    if part.startswith("!"):
        return Requirement(check_key(part[1:].strip(), where), "DoesNotExist")
    if " " in part:
        forms = "key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
        raise InvalidInput(f"{quoted(part)} is no requirement; write {forms}", where=where)
    return Requirement(check_key(part, where), "Exists")
