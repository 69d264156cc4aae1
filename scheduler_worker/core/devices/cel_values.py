"""The values of expressions: those of CEL itself, and Kubernetes' quantities and versions.

Errors have cel-go's words, because kube-scheduler repeats them."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hoss.model.quantity import Quantity
from scheduler_worker.core.devices.cel_syntax import UnsignedInteger

Value = Any  # bool, int, UnsignedInteger, float, str, bytes, None, list, dict, or one of the types below

NO_OVERLOAD = "no such overload"
OVERFLOW = "integer overflow"


class CelError(Exception):
    """An expression that has no value: cel-go's words."""


@dataclass(frozen=True, slots=True)
class SemanticVersion:
    """A version by semver.org 2.0.0. Build metadata does not take part in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()

    @property
    def order(self) -> tuple[object, ...]:
        """A key that sorts versions: a version with a pre-release comes before the one without."""
        parts = tuple((isinstance(p, str), p) for p in self.prerelease)
        return self.major, self.minor, self.patch, not self.prerelease, parts


class Optional:
    """A value that may be missing (cel-go's optional_type)."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value = None, *, present: bool = True) -> None:
        self.value = value
        self.present = present


NONE = Optional(present=False)


def key_missing(key: Value) -> CelError:
    """What cel-go says of a map or an object without this key."""
    return CelError(f"no such key: {text_of(key) if not isinstance(key, (list, dict)) else key}")


_KINDS: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    UnsignedInteger: "uint",
    int: "int",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    Quantity: "kubernetes.Quantity",
    SemanticVersion: "kubernetes.Semver",
    Optional: "optional_type",
}


def kind_of(value: Value) -> str:
    """The name of a value's type in CEL."""
    kind = _KINDS.get(type(value))
    if kind is None:
        return "map" if isinstance(value, Mapping) else "type"
    return kind


class TypeName(str):
    """A type as a value of CEL."""

    __slots__ = ()


TYPES = {
    name: TypeName(name)
    for name in ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type")
}

NUMBERS = ("int", "uint", "double")
_SIMPLE = (int, str, bool)  # most values, and quicker by their type


def equal(left: Value, right: Value) -> bool:
    """`==`: values of different types are different, but numbers compare by value."""
    if type(left) is type(right) and type(left) in _SIMPLE:
        return bool(left == right)
    kinds = kind_of(left), kind_of(right)
    if kinds[0] != kinds[1]:
        return kinds[0] in NUMBERS and kinds[1] in NUMBERS and bool(left == right)
    same = _SAME.get(kinds[0])
    return bool(left == right) if same is None else same(left, right)


def _same_lists(left: Value, right: Value) -> bool:
    return len(left) == len(right) and all(map(equal, left, right))


def _same_maps(left: Value, right: Value) -> bool:
    return len(left) == len(right) and all(
        key in right and equal(value, right[key]) for key, value in left.items()
    )


def _same_optionals(left: Value, right: Value) -> bool:
    if not left.present or not right.present:
        return left.present is right.present
    return equal(left.value, right.value)


_SAME: dict[str, Callable[[Value, Value], bool]] = {  # by kind; others compare as Python does
    "list": _same_lists,
    "map": _same_maps,
    "kubernetes.Quantity": lambda left, right: bool(left.nano == right.nano),
    "kubernetes.Semver": lambda left, right: bool(left.order == right.order),
    "optional_type": _same_optionals,
}


def compare(left: Value, right: Value) -> int:
    """Below, equal or above as -1, 0, 1. Raises CelError for types without an order."""
    if type(left) is type(right) and type(left) in _SIMPLE:
        return int(left > right) - int(left < right)
    kinds = {kind_of(left), kind_of(right)}
    if not (kinds <= set(NUMBERS) or (len(kinds) == 1 and kinds <= {"bool", "string", "bytes"})):
        raise CelError(NO_OVERLOAD)
    return int(left > right) - int(left < right)


def contains(container: Value, value: Value) -> bool:
    """`value in container`."""
    match container:
        case list():
            return any(equal(item, value) for item in container)
        case Mapping():
            return kind_of(value) in ("bool", "int", "uint", "string") and value in container
    raise CelError(NO_OVERLOAD)


def whole(number: int, *, unsigned: bool = False) -> int:
    """A result of integer arithmetic, if 64 bits hold it."""
    if unsigned:
        if not 0 <= number < 2**64:
            raise CelError(f"unsigned {OVERFLOW}")
        return UnsignedInteger(number)
    if not -(2**63) <= number < 2**63:
        raise CelError(OVERFLOW)
    return number


def arithmetic(sign: str, left: Value, right: Value) -> Value:
    """`+ - * / %` of two values of one type."""
    kind = kind_of(left)
    if kind != kind_of(right):
        raise CelError(NO_OVERLOAD)
    if kind in ("int", "uint"):
        return _of_integers(sign, int(left), int(right), unsigned=kind == "uint")
    if kind == "double" and sign != "%":
        return _of_doubles(sign, left, right)
    if sign == "+" and kind in ("string", "bytes", "list"):
        return left + right
    raise CelError(NO_OVERLOAD)


def _of_integers(sign: str, left: int, right: int, *, unsigned: bool) -> int:
    if sign in "/%" and right == 0:
        raise CelError("division by zero" if sign == "/" else "modulus by zero")
    match sign:
        case "+":
            found = left + right
        case "-":
            found = left - right
        case "*":
            found = left * right
        case _:
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            found = quotient if sign == "/" else left - quotient * right
    return whole(found, unsigned=unsigned)


def _of_doubles(sign: str, left: float, right: float) -> float:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if right:
        return left / right
    return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left)


def negated(value: Value) -> Value:
    """Unary minus."""
    if kind_of(value) == "int":
        return whole(-value)
    if kind_of(value) == "double":
        return -value
    raise CelError(NO_OVERLOAD)


_VERSION = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?",
    re.ASCII,
)
_LONGEST_VERSION = 256


def parse_version(text: str) -> SemanticVersion | None:
    """The version of a text by semver.org; None if it is none."""
    match = _VERSION.fullmatch(text) if len(text) <= _LONGEST_VERSION else None
    if match is None:
        return None
    parts = match[4].split(".") if match[4] else []
    numeric = [part.isdigit() for part in parts]
    if not all(parts) or any(n and part != str(int(part)) for n, part in zip(numeric, parts, strict=True)):
        return None
    if match[5] is not None and not all(match[5].split(".")):
        return None
    major, minor, patch = (int(match[i]) for i in (1, 2, 3))
    prerelease = tuple(int(part) if n else part for n, part in zip(numeric, parts, strict=True))
    return SemanticVersion(major, minor, patch, prerelease)


def text_of(value: Value) -> str:
    """A value as text, as the function string() converts it. Raises CelError."""
    match kind_of(value):
        case "string":
            return str(value)
        case "bool":
            return "true" if value else "false"
        case "int" | "uint":
            return str(int(value))
        case "double":
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case "bytes":
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None
    raise CelError(NO_OVERLOAD)
