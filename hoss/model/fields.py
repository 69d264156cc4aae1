"""Fields of Kubernetes objects as YAML or JSON gave them: of the right type, or InvalidInput with the field's path.

A field that is missing or null gives the default, as Kubernetes does.
"""

from datetime import datetime
from typing import Any

from hoss.errors import InvalidInput

Object = dict[str, Any]  # one mapping of a parsed manifest


def text(parent: Object, key: str, path: str, default: str = "") -> str:
    """A string."""
    value = parent.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise wrong_type(value, "a string", f"{path}.{key}")
    return value


def integer(parent: Object, key: str, path: str, *, least: int, most: int, default: int) -> int:
    """A whole number from `least` to `most`."""
    value = parent.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(value, "a whole number", f"{path}.{key}")
    if not least <= value <= most:
        raise InvalidInput(f"is {value}; it must lie between {least} and {most}", where=f"{path}.{key}")
    return value


def moment(parent: Object, key: str, path: str, default: float) -> float:
    """A time as Kubernetes writes it (RFC 3339), in seconds since the epoch."""
    written = text(parent, key, path)
    if not written:
        return default
    try:
        return datetime.fromisoformat(written.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        raise InvalidInput(f"{written!r} is no time; write it as 2026-01-02T03:04:05Z", where=f"{path}.{key}") from None


def boolean(parent: Object, key: str, path: str) -> bool:
    """True or false; missing is false."""
    value = parent.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(value, "true or false", f"{path}.{key}")
    return value


def mapping(parent: Object, key: str, path: str) -> Object:
    """A mapping; missing is empty."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type(value, "a mapping", f"{path}.{key}")
    return value


def mappings(parent: Object, key: str, path: str) -> list[Object]:
    """A list of mappings; missing is empty."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(value, "a list", f"{path}.{key}")
    for i, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise wrong_type(entry, "a mapping", f"{path}.{key}[{i}]")
    return value


def texts(parent: Object, key: str, path: str) -> tuple[str, ...]:
    """A list of strings; missing is empty."""
    value = parent.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(value, "a list", f"{path}.{key}")
    for i, entry in enumerate(value):
        if not isinstance(entry, str):
            raise wrong_type(entry, "a string", f"{path}.{key}[{i}]")
    return tuple(value)


def wrong_type(value: object, expected: str, path: str) -> InvalidInput:
    """The error for a value that is not `expected`."""
    if isinstance(value, (dict, list)):
        given = "a mapping" if isinstance(value, dict) else "a list"
    else:
        given = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    # YAML reads yes, 1.20 and 007 as something else than text; quotes are what people forget.
    remedy = "; put it in quotes" if expected == "a string" and isinstance(value, (int, float)) else ""
    return InvalidInput(f"is {given}, where {expected} belongs{remedy}", where=path)
