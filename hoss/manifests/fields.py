"""Fields and names of Kubernetes objects from YAML or JSON, checked.

Functions return a field's value with the right type and raise InvalidInput with the field's path otherwise. A
missing or null field has its default, as in Kubernetes. Names, labels and resource names follow
apimachinery's validation, and kubectl's label selectors its labels package."""

import re
from datetime import datetime
from functools import lru_cache
from typing import Any

from hoss.errors import InvalidInput, quoted
from hoss.model.resources import Pairs
from hoss.model.selectors import Requirement

Object = dict[str, Any]  # one mapping of a parsed manifest


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MAX_LABEL = 63
_MAX_SUBDOMAIN = 253
_ENDS = "beginning and ending with a letter or digit"
_QUALIFIED_RULE = f"at most {_MAX_LABEL} letters, digits, '-', '_' and '.', {_ENDS}"


def _place(path: str, key: str) -> str:
    """Of a field; `path` is "" at the document's root."""
    return f"{path}.{key}" if path else key


def text(parent: Object, key: str, path: str, default: str = "") -> str:
    """A string."""
    value = parent.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise wrong_type(value, "a string", _place(path, key))
    return value


def choice(parent: Object, key: str, path: str, allowed: tuple[str, ...], default: str = "") -> str:
    """One of the allowed strings. An empty string counts as missing. Without a default it must be given."""
    value = text(parent, key, path) or default
    if value not in allowed:
        given = f"is {quoted(value)}" if value else "is missing"
        raise InvalidInput(f"{given}; allowed: {', '.join(allowed)}", where=_place(path, key))
    return value


def integer(parent: Object, key: str, path: str, *, least: int, most: int, default: int) -> int:
    """A whole number from `least` to `most`."""
    value = parent.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(value, "a whole number", _place(path, key))
    if not least <= value <= most:
        raise InvalidInput(f"is {value}; it must lie between {least} and {most}", where=_place(path, key))
    return value


def read_weight(parent: Object, path: str) -> int:
    """The weight of a preference, which must be given."""
    weight = integer(parent, "weight", path, least=1, most=100, default=0)
    if not weight:
        raise InvalidInput("is missing; a preference has a weight from 1 to 100", where=f"{path}.weight")
    return weight


def moment(parent: Object, key: str, path: str, default: float) -> float:
    """A time as Kubernetes writes it (RFC 3339), in seconds since the epoch."""
    written = text(parent, key, path)
    if not written:
        return default
    try:
        return datetime.fromisoformat(written.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        problem = f"{quoted(written)} is no time; write it as 2026-01-02T03:04:05Z"
        raise InvalidInput(problem, where=_place(path, key)) from None


def boolean(parent: Object, key: str, path: str) -> bool:
    """True or false; missing is false."""
    value = parent.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(value, "true or false", _place(path, key))
    return value


def mapping(parent: Object, key: str, path: str) -> Object:
    """A mapping; missing is empty."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type(value, "a mapping", _place(path, key))
    return value


def mappings(parent: Object, key: str, path: str) -> list[Object]:
    """A list of mappings; missing is empty."""
    return _items(parent, key, path, dict, "a mapping")


def texts(parent: Object, key: str, path: str) -> tuple[str, ...]:
    """A list of strings; missing is empty."""
    return tuple(_items(parent, key, path, str, "a string"))


def _items(parent: Object, key: str, path: str, item_type: type, expected: str) -> list[Any]:
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(value, "a list", _place(path, key))
    for i, item in enumerate(value):
        if not isinstance(item, item_type):
            raise wrong_type(item, expected, f"{_place(path, key)}[{i}]")
    return value


def wrong_type(value: object, expected: str, path: str) -> InvalidInput:
    """The error for a value that is not `expected`."""
    if isinstance(value, (dict, list)):
        given = "a mapping" if isinstance(value, dict) else "a list"
    else:
        given = "null" if value is None else str(value).lower() if isinstance(value, bool) else quoted(value)
    # Without quotes, YAML reads yes, 1.20 and 007 as a truth value or a number.
    remedy = "; put it in quotes" if expected == "a string" and isinstance(value, (int, float)) else ""
    return InvalidInput(f"is {given}, where {expected} belongs{remedy}", where=path)


def read_labels(parent: Object, key: str, path: str) -> Pairs:
    """A mapping of labels, checked and sorted by key."""
    labels = mapping(parent, key, path)
    if not labels:
        return ()
    place = _place(path, key)
    return tuple(
        sorted((check_key(k, place), check_label_value(v, f"{place}[{k}]")) for k, v in labels.items())
    )


def read_name(metadata: Object, kind: str) -> str:
    """metadata.name, which must be given. `kind`: for the error."""
    name = text(metadata, "name", "metadata")
    if not name:
        raise InvalidInput(f"is missing; a {kind} has a name", where="metadata.name")
    return check_name(name, "metadata.name")


def api_group(api_version: str) -> str:
    """The group of an apiVersion, "" for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


@lru_cache(maxsize=4096)
def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _MAX_SUBDOMAIN and _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= _MAX_LABEL and _QUALIFIED_PART.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _is_label_value(value: str) -> bool:
    return not value or (len(value) <= _MAX_LABEL and _QUALIFIED_PART.fullmatch(value) is not None)


def check_key(key: object, path: str) -> str:
    """The key of a label or taint, or the name of a resource: an optional DNS prefix with a slash, then at
    most 63 characters."""
    if not isinstance(key, str):
        raise wrong_type(key, "a string", path)
    if not _is_qualified(key):
        rule = f"{_QUALIFIED_RULE}, with an optional prefix as in example.com/name"
        raise InvalidInput(f"{quoted(key)} is no valid key: {rule}", where=path)
    return key


def check_label_value(value: object, path: str) -> str:
    """The value of a label: empty, or at most 63 characters."""
    if not isinstance(value, str):
        raise wrong_type(value, "a string", path)
    if not _is_label_value(value):
        raise InvalidInput(f"{quoted(value)} is no valid label value: {_QUALIFIED_RULE}", where=path)
    return value


def check_name(name: str, path: str) -> str:
    """The name of an object: a DNS subdomain."""
    if len(name) > _MAX_SUBDOMAIN or not _DNS_SUBDOMAIN.fullmatch(name):
        rule = f"at most {_MAX_SUBDOMAIN} lower-case letters, digits, '-' and '.', {_ENDS}"
        raise InvalidInput(f"{quoted(name)} is no valid name: {rule}", where=path)
    return name


def check_namespace(name: str, path: str) -> str:
    """The name of a namespace: a DNS label."""
    if len(name) > _MAX_LABEL or not _DNS_LABEL.fullmatch(name):
        rule = f"at most {_MAX_LABEL} lower-case letters, digits and '-', {_ENDS}"
        raise InvalidInput(f"{quoted(name)} is no valid namespace: {rule}", where=path)
    return name


# Of a label selector such as `app=web,tier in (a, b),!canary`.
_SELECTOR_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_SET_PART = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_COMPARED_PART = re.compile(r"([^=!<>\s]+)\s*(==|=|!=|>|<)\s*(\S*)")
_SELECTOR_OPERATORS = {
    "=": "In",
    "==": "In",
    "!=": "NotIn",
    ">": "Gt",
    "<": "Lt",
    "in": "In",
    "notin": "NotIn",
}


def parse_label_selector(text: str, *, where: str) -> tuple[Requirement, ...]:
    """The ANDed requirements of a label selector such as `app=web,tier in (a, b),!canary`. Empty text has
    none: it selects everything. Raises InvalidInput."""
    if text.count("(") != text.count(")"):
        raise InvalidInput(f"{quoted(text)} has unbalanced parentheses", where=where)
    parts = [part.strip() for part in _SELECTOR_PART.findall(text)]
    return tuple(_requirement(part, where) for part in parts if part)


def _requirement(part: str, where: str) -> Requirement:
    if found := _SET_PART.fullmatch(part):
        values = tuple(check_label_value(value.strip(), where) for value in found[3].split(","))
        return Requirement(check_key(found[1], where), _SELECTOR_OPERATORS[found[2]], values)
    if found := _COMPARED_PART.fullmatch(part):
        value = check_label_value(found[3], where)
        return Requirement(check_key(found[1], where), _SELECTOR_OPERATORS[found[2]], (value,))
    if part.startswith("!"):
        return Requirement(check_key(part[1:].strip(), where), "DoesNotExist")
    if " " in part:
        forms = "key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
        raise InvalidInput(f"{quoted(part)} is no requirement; write {forms}", where=where)
    return Requirement(check_key(part, where), "Exists")
